"""What is done to chats: begun, listed, found, named, deleted, written to files."""

from __future__ import annotations

from dataclasses import replace

from edge_llm.chats.export import as_json, as_markdown, file_name_of, from_json
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.titles import UNTITLED
from edge_llm.errors import StorageError, UsageError
from edge_llm.files import one_line, read_file
from edge_llm.paths import expanded
from edge_llm.tui.actions.files import new_file
from edge_llm.tui.screens.questions import AskText, Confirm
from edge_llm.tui.stage import Stage
from edge_llm.tui.threads import in_thread

MOST_BYTES = 256 << 20
"""Of an exported chat."""


class ChatActions:
    """What is done to chats."""

    def __init__(self, app: Stage) -> None:
        self._app = app

    async def do_new(self, argument: str) -> None:
        session = self._app.session
        if session.chat.messages or self._app.drafts.note():
            settings = replace(self._app.options.settings, model=session.settings.model, runtime=session.settings.runtime)
            await session.show(OpenChat.new(session.store, settings.as_json()))
        self._app.prompt.area.focus()
        self._app.refresh_chats()

    async def do_chats(self, argument: str) -> None:
        chats = self._app.chat_list
        self._app.show_chats(not chats.display)
        self._app.refresh_chats()
        if chats.display:
            chats.look_for("")
        else:
            self._app.prompt.area.focus()

    async def do_search(self, argument: str) -> None:
        self._app.show_chats(True)
        self._app.chat_list.look_for(argument)
        self._app.refresh_chats()

    async def do_title(self, argument: str) -> None:
        await self._rename(self._app.session.chat, argument)

    async def _rename(self, chat: OpenChat, title: str) -> None:
        chat.rename(one_line(title))
        await self._app.session.save(chat)
        self._app.refresh_chats()

    async def do_delete(self, argument: str) -> None:
        await self.act_on_chat(self._app.session.chat.chat.id, "delete")

    async def act_on_chat(self, chat_id: int, action: str) -> None:
        """Open, rename or delete a chat of the list."""
        session = self._app.session
        self._app.drafts.note()
        if action == "open":
            if not await session.open(chat_id):
                raise StorageError("this chat was deleted in another terminal")
            self._app.prompt.area.focus()
            self._app.refresh_chats()
            self._tell_where()
            return
        here = session.chat.chat.id == chat_id
        chat = session.chat if here else await session.chat_of(chat_id)
        if chat is None:
            raise StorageError("this chat was deleted in another terminal")
        title = chat.chat.title or UNTITLED
        if action == "rename":
            wanted = await self._app.push_screen_wait(AskText("Title of the chat", title))
            if wanted:
                await self._rename(chat, wanted)
        elif await self._app.push_screen_wait(Confirm(f"Delete the chat “{title}”?", "Delete")):
            await session.delete(chat)
            if session.chat.chat.id == chat_id:
                await session.show(OpenChat.new(session.store, self._app.options.settings.as_json()))
            self._app.refresh_chats()

    def _tell_where(self) -> None:
        """Say that the chat on the screen was with somebody else than who would answer now."""
        was = self._app.session.settings.server
        if was != (now := self._app.options.settings.server):
            with_whom = f"with the server at {was}" if was else "with a model of this machine"
            who = f"the server at {now}" if now else "this machine"
            way = f"{self._app.key_of('model')} chooses a model."
            self._app.tell(f"This chat is {with_whom}; what you send now goes to {who}. {way}")

    async def do_export(self, argument: str) -> None:
        """Write the chat as Markdown (the path that is shown) or JSON (all of it)."""
        chat = self._app.session.chat
        kind, _, name = argument.partition(" ")
        if kind not in ("md", "json"):
            kind, name = "json" if argument.endswith(".json") else "md", argument
        text = as_markdown(chat.chat, chat.path) if kind == "md" else as_json(chat.chat, chat.messages)
        name = name.strip() or file_name_of(chat.chat.title, f".{kind}")
        path = await in_thread(new_file, self._app.options.folder, name, text)
        self._app.tell(f"Written: {path}")

    async def do_import(self, argument: str) -> None:
        """Take in an exported chat, as a new one, and show it."""
        session = self._app.session
        path = self._app.options.folder / expanded(argument)
        data = await in_thread(read_file, path, MOST_BYTES, error=UsageError)
        found, messages = from_json(data, path.name)
        chat = await in_thread(session.store.take_in, found, messages)
        await session.open(chat.id)
        self._app.refresh_chats()
