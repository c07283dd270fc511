"""What commands do: a method ``do_NAME`` for every command of the table, and for what one does to a message or a chat."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from edge_llm.chats.attachments import find_attachments, read_attachment
from edge_llm.chats.export import as_json, as_markdown, file_name_of
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.settings import ChatSettings
from edge_llm.chats.tree import Attachment, Message, newest_leaf, siblings
from edge_llm.errors import EdgeLLMError, StorageError, UsageError
from edge_llm.files import printable
from edge_llm.tui.clipboard import copy
from edge_llm.tui.commands import BY_NAME
from edge_llm.tui.fetching import Fetching
from edge_llm.tui.message_view import MessageView, answer_figures
from edge_llm.tui.screens.help import Help
from edge_llm.tui.screens.models import ModelPicker
from edge_llm.tui.screens.questions import AskText, Confirm
from edge_llm.tui.screens.settings import SettingsForm
from edge_llm.tui.threads import in_thread

if TYPE_CHECKING:
    from edge_llm.tui.app import ChatApp


class Actions:
    """Does what a person asks of ``app``."""

    def __init__(self, app: ChatApp) -> None:
        self._app = app
        self.editing: Message | None = None
        """The prompt that the next one stands in the place of."""
        self.attached: list[Attachment] = []
        """What the next prompt brings along."""
        self.fetching: Fetching | None = None
        """A model that is being brought here."""
        self.model_names: list[str] = []
        """As far as they have been looked up, for completion."""

    @property
    def folder(self) -> Path:
        """Where files are looked for and written."""
        return self._app.options.folder

    @property
    def theme_names(self) -> list[str]:
        return sorted(self._app.available_themes)

    async def run(self, name: str, argument: str) -> None:
        """Do the command ``name``; errors are told by who calls."""
        command = BY_NAME[name]
        if not argument and not command.may_take_nothing:
            raise UsageError(f"/{command.name} needs {command.argument}", param=name)
        if argument and command.takes_nothing:
            raise UsageError(f"/{command.name} takes nothing behind it, got `{argument[:40]}`", param=name)
        await getattr(self, f"do_{command.name}")(argument)

    # -- prompts ------------------------------------------------------------------------------------------------------

    async def send(self, text: str) -> None:
        """Send a prompt with what is attached to it."""
        session, prompt = self._app.session, self._app.prompt
        if session.busy:
            prompt.area.take(text)
            raise UsageError("an answer is under way; Esc stops it")
        said, paths = find_attachments(text, self.folder)
        try:
            found = [await in_thread(read_attachment, path) for path in paths]
        except EdgeLLMError:
            prompt.area.take(text)  # nothing is lost
            raise
        attachments, self.attached = [*self.attached, *found], []
        instead_of, self.editing = self.editing, None
        self._show_what_is_attached()
        await session.send(said, attachments, instead_of=instead_of)

    async def do_attach(self, argument: str) -> None:
        path = self.folder / Path(argument.removeprefix("@").strip("\"'")).expanduser()
        self.attached.append(await in_thread(read_attachment, path))
        self._show_what_is_attached()

    async def do_editor(self, argument: str) -> None:
        """Write the prompt in an editor of the person's choice."""
        area = self._app.prompt.area
        command = shlex.split(os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi")
        with tempfile.TemporaryDirectory(prefix="edge-llm-") as folder:
            file = Path(folder, "prompt.md")
            file.write_text(area.text, "utf-8", "replace")
            try:
                with self._app.suspend():
                    subprocess.run([*command, str(file)], check=False)
            except OSError as failure:
                raise UsageError(f"cannot start the editor `{command[0]}`: {failure.strerror}; set EDITOR") from None
            area.take(file.read_text("utf-8", "replace").removesuffix("\n"))
        area.focus()

    async def do_edit(self, argument: str) -> None:
        prompts = [message for message in self._app.session.chat.path if message.role == "user"]
        if not prompts:
            raise UsageError("there is no prompt yet")
        self._edit(prompts[-1])

    def _edit(self, message: Message) -> None:
        self._check_idle()
        self.editing = message
        self.attached = list(message.attachments)
        self._app.prompt.area.take(message.text)
        self._app.prompt.area.focus()
        self._show_what_is_attached()

    def _show_what_is_attached(self) -> None:
        parts = ["instead of the old prompt (Esc leaves it)"] if self.editing else []
        parts += [f"📎 {printable(each.name)}" for each in self.attached]
        self._app.prompt.say("  ".join(parts))

    # -- answers ------------------------------------------------------------------------------------------------------

    async def do_stop(self, argument: str) -> None:
        """Esc: stops what is under way; else it puts away what is being edited or attached, and goes back to the prompt."""
        if self._app.session.stop():
            return
        if self.fetching is not None:
            self.fetching.cancel()
        elif self.editing is not None or self.attached:
            self.editing, self.attached = None, []
            self._show_what_is_attached()
        self._app.prompt.area.focus()
        self._app.transcript.anchor()

    async def do_regenerate(self, argument: str) -> None:
        await self._regenerate(self._last("assistant"))

    async def _regenerate(self, message: Message) -> None:
        """Answer the prompt before ``message`` once more."""
        self._check_idle()
        chat = self._app.session.chat
        prompt = message if message.role == "user" else chat.message(message.parent or 0)
        if prompt is None:
            raise UsageError("there is no prompt to answer")
        await self._app.session.answer(prompt)

    async def do_continue(self, argument: str) -> None:
        await self._continue(self._last("assistant"))

    async def _continue(self, message: Message) -> None:
        self._check_idle()
        if message.role != "assistant" or not message.text:
            raise UsageError("there is no answer to continue")
        await self._app.session.go_on(message)

    def _last(self, role: str) -> Message:
        found = [message for message in self._app.session.chat.path if message.role == role]
        if not found:
            raise UsageError("there is no answer yet" if role == "assistant" else "there is no prompt yet")
        return found[-1]

    def _check_idle(self) -> None:
        if self._app.session.busy:
            raise UsageError("an answer is under way; Esc stops it")

    async def do_stats(self, argument: str) -> None:
        last = self._app.session.last
        self._app.tell("No answer yet." if last is None else answer_figures(vars(last)) or "The server did not say.")

    async def do_copy(self, argument: str) -> None:
        if argument == "all":
            session = self._app.session
            self._copy(as_markdown(session.chat.chat, session.chat.path), "the chat")
        elif argument in ("", "code"):
            view = self._app.transcript.view_of(self._last("assistant").id)
            if view is not None:
                await self.act_on(view, "copy_code" if argument else "copy")
        else:
            raise UsageError(f"/copy takes nothing, `code` or `all`, got `{argument[:40]}`")

    def _copy(self, text: str, what: str) -> None:
        copy(self._app, printable(text))
        self._app.tell(f"Copied {what}.")

    # -- a message in focus -------------------------------------------------------------------------------------------

    async def act_on(self, view: MessageView, action: str) -> None:
        """Do what a key says that is pressed on a message."""
        message = self._app.session.chat.message(view.message.id) or view.message
        if action == "copy":
            self._copy(message.text, "the message")
        elif action == "copy_code":
            block = view.next_code_block()
            if block is None:
                raise UsageError("there is no block of code in this message")
            self._copy(block, "a block of code")
        elif action == "edit":
            if message.role != "user":
                raise UsageError("only prompts are edited; `r` answers again")
            self._edit(message)
        elif action == "regenerate":
            await self._regenerate(message)
        elif action == "continue":
            await self._continue(message)
        elif action == "branch":
            await self._branch(message)
        elif action == "delete":
            await self._delete_message(message)
        else:
            await self._show_version(message, 1 if action == "next" else -1)

    async def do_branch(self, argument: str) -> None:
        path = self._app.session.chat.path
        if not path:
            raise UsageError("there is nothing to branch from yet")
        await self._branch(path[-1])

    async def _branch(self, message: Message) -> None:
        """A new chat with the path up to ``message``."""
        session = self._app.session
        old = session.chat
        chat = OpenChat.new(session.store, old.chat.settings)
        parent: int | None = None
        for one in old.path:
            fields = {name: getattr(one, name) for name in ("thought", "attachments", "model", "state", "figures")}
            parent = chat.add(one.role, one.text, parent=parent, **fields).id
            if one.id == message.id:
                break
        await session.save(chat)
        await session.show(chat)
        self._app.refresh_chats()

    async def _delete_message(self, message: Message) -> None:
        self._check_idle()
        if not await self._app.push_screen_wait(Confirm("Delete this message and all that follows it?", "Delete")):
            return
        session = self._app.session
        session.chat.remove(message.id)
        await session.save(session.chat)
        await session.show(session.chat)

    async def _show_version(self, message: Message, step: int) -> None:
        """Show the message before or after ``message`` at its place, and what follows that one."""
        self._check_idle()
        chat = self._app.session.chat
        versions = siblings(chat.messages, message)
        at = next((at for at, one in enumerate(versions) if one.id == message.id), 0) + step
        if 0 <= at < len(versions):
            chat.select(newest_leaf(chat.messages, versions[at].id))
            await self._app.session.save(chat)
            await self._app.session.show(chat)
            view = self._app.transcript.view_of(versions[at].id)
            if view is not None:
                view.focus()

    # -- chats --------------------------------------------------------------------------------------------------------

    async def do_new(self, argument: str) -> None:
        session = self._app.session
        if session.chat.messages:
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
        chat.rename(" ".join(printable(title).split()))
        await self._app.session.save(chat)
        self._app.refresh_chats()

    async def do_delete(self, argument: str) -> None:
        await self.act_on_chat(self._app.session.chat.chat.id, "delete")

    async def act_on_chat(self, chat_id: int, action: str) -> None:
        """Open, rename or delete a chat of the list."""
        session = self._app.session
        if action == "open":
            if not await session.open(chat_id):
                raise StorageError("this chat was deleted in another terminal")
            self._app.prompt.area.focus()
            self._app.refresh_chats()
            return
        here = session.chat.chat.id == chat_id
        chat = session.chat if here else await in_thread(OpenChat.read, session.store, chat_id)
        if chat is None:
            raise StorageError("this chat was deleted in another terminal")
        title = chat.chat.title or "New chat"
        if action == "rename":
            wanted = await self._app.push_screen_wait(AskText("Title of the chat", title))
            if wanted:
                await self._rename(chat, wanted)
        elif await self._app.push_screen_wait(Confirm(f"Delete the chat “{title}”?", "Delete")):
            session.stop()
            await in_thread(session.store.delete, chat_id)
            if here:
                await session.show(OpenChat.new(session.store, self._app.options.settings.as_json()))
            self._app.refresh_chats()

    async def do_export(self, argument: str) -> None:
        """Write the chat as Markdown (the path that is shown) or JSON (all of it)."""
        chat = self._app.session.chat
        kind, _, name = argument.partition(" ")
        if kind not in ("md", "json"):
            kind, name = "json" if argument.endswith(".json") else "md", argument
        text = as_markdown(chat.chat, chat.path) if kind == "md" else as_json(chat.chat, chat.messages)
        path = self._new_file(name.strip() or file_name_of(chat.chat.title, f".{kind}"))
        await in_thread(_write_new, path, text)
        self._app.tell(f"Written: {path}")

    async def do_screenshot(self, argument: str) -> None:
        svg = self._app.export_screenshot(title="edge-llm")
        path = self._new_file(argument or f"edge-llm-{datetime.now():%Y%m%d-%H%M%S}.svg")
        await in_thread(_write_new, path, svg)
        self._app.tell(f"Written: {path}")

    def _new_file(self, name: str) -> Path:
        return self.folder / Path(name).expanduser()

    # -- models and settings ------------------------------------------------------------------------------------------

    async def do_model(self, argument: str) -> None:
        """Another model for this chat."""
        session = self._app.session
        self._check_idle()
        name: str | None = argument
        if not argument:
            rows = await in_thread(lambda: session.catalogue().rows())
            self.model_names = [row.name for row in rows]
            loaded = session.provider.facts.name if session.provider else None
            name = await self._app.push_screen_wait(ModelPicker(rows, loaded))
        if name and name.startswith("pull "):
            await self.do_pull(name.removeprefix("pull "))
        elif name:
            await session.change_settings(replace(session.settings, model=name))

    async def do_pull(self, argument: str) -> None:
        """Bring a model here, and chat with it."""
        if self.fetching is not None:
            raise UsageError(f"`{self.fetching.source}` is on its way; Esc stops it")
        session = self._app.session
        self.fetching = Fetching(argument)
        try:
            name = await self.fetching.run(session.catalogue)
        finally:
            self.fetching = None
        if name is None:
            self._app.tell("Stopped; the next pull goes on with what has come.")
        elif not session.busy and await self._app.push_screen_wait(Confirm(f"{name} is here. Chat with it now?", "Chat")):
            await session.change_settings(replace(session.settings, model=name))

    async def do_settings(self, argument: str) -> None:
        session = self._app.session
        facts = session.provider.facts if session.provider else None
        defaults = {**facts.sampling, "context": facts.context} if facts else {}
        changed = await self._app.push_screen_wait(SettingsForm(session.settings, defaults))
        if changed is not None:
            await self._set(changed)

    async def do_set(self, argument: str) -> None:
        name, _, value = argument.partition(" ")
        await self._set(self._app.session.settings.changed(name, value))

    async def do_system(self, argument: str) -> None:
        await self._set(self._app.session.settings.changed("system", argument))

    async def do_think(self, argument: str) -> None:
        await self._set(self._app.session.settings.changed("thinking", argument))

    async def _set(self, settings: ChatSettings) -> None:
        if settings.runtime != self._app.session.settings.runtime:
            self._check_idle()
        await self._app.session.change_settings(settings)
        self._app.tell("The settings of this chat are changed.")

    # -- the screen ---------------------------------------------------------------------------------------------------

    async def do_help(self, argument: str) -> None:
        self._app.push_screen(Help(self._app.options.keys))

    async def do_inside(self, argument: str) -> None:
        self._app.show_inside(not self._app.inside.display)

    async def do_theme(self, argument: str) -> None:
        if argument:
            self.theme_named(argument)
        else:
            self._app.search_themes()

    def theme_named(self, name: str) -> None:
        """Take a theme by its name."""
        if name not in self._app.available_themes:
            raise UsageError(f"there is no theme `{name}`; there are: {', '.join(sorted(self._app.available_themes))}")
        self._app.theme = name

    async def do_quit(self, argument: str) -> None:
        """Leave, with everything written that can be written."""
        session = self._app.session
        session.stop()
        if self.fetching is not None:
            self.fetching.cancel()
        await session.save_all()
        self._app.exit()


def _write_new(path: Path, text: str) -> None:
    """A file at ``path``, which must not be there.  Raises `StorageError`."""
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except FileExistsError:
        raise StorageError(f"`{path}` is there already; give another name") from None
    except OSError as failure:
        raise StorageError(f"cannot write `{path}`: {failure.strerror}") from None

