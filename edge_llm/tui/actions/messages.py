"""What is done to one message: copied, edited, answered again, branched from, deleted, seen in another version."""

from __future__ import annotations

import re
from itertools import count

from edge_llm.chats.export import as_markdown
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.titles import UNTITLED
from edge_llm.chats.tree import Message, copied, siblings
from edge_llm.errors import UsageError
from edge_llm.tui.actions.prompts import PromptActions
from edge_llm.tui.clipboard import copy
from edge_llm.tui.message_view import MessageView
from edge_llm.tui.screens.questions import Confirm
from edge_llm.tui.stage import Stage
from edge_llm.tui.threads import in_thread


class MessageActions:
    """What is done to one message."""

    def __init__(self, app: Stage, prompts: PromptActions) -> None:
        self._app = app
        self._prompts = prompts

    async def act_on(self, view: MessageView, action: str) -> None:
        """Do what a key says that is pressed on a message."""
        message = self._app.session.chat.message(view.message.id) or view.message
        prompts = self._prompts
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
            prompts.edit(message)
        elif action == "regenerate":
            await prompts.regenerate(message)
        elif action == "continue":
            await prompts.go_on(message)
        elif action == "branch":
            await self._branch(message)
        elif action == "delete":
            await self._delete_message(message)
        else:
            await self._show_version(message, 1 if action == "next" else -1)

    async def do_copy(self, argument: str) -> None:
        if argument == "all":
            session = self._app.session
            self._copy(as_markdown(session.chat.chat, session.chat.path), "the chat")
        elif argument in ("", "code"):
            view = self._app.transcript.view_of(self._prompts.last("assistant").id)
            if view is not None:
                await self.act_on(view, "copy_code" if argument else "copy")
        else:
            raise UsageError(f"/copy takes nothing, `code` or `all`, got `{argument[:40]}`")

    def _copy(self, text: str, what: str) -> None:
        copy(self._app, text)
        self._app.tell(f"Copied {what}.")

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
        path = [one for one in old.path if one.id <= message.id]
        ids: dict[int, int] = {}
        for one in path:
            ids[one.id] = chat.add(one.role, one.text, parent=chat.chat.leaf).id
        for one in path:
            state = "stopped" if one.state == "growing" else one.state  # nobody lets it grow in the new chat
            chat.put(copied(one, ids, chat=chat.chat.id, state=state))
        chat.rename(await self._branch_title(old.chat.title or UNTITLED))
        await session.save(chat)
        await session.show(chat)
        self._app.refresh_chats()

    async def _branch_title(self, title: str) -> str:
        """`Pears (2)` for the first branch of `Pears`."""
        taken = {found.chat.title for found in await in_thread(self._app.session.store.chats)}
        stem = re.sub(r" \(\d+\)$", "", title)
        return next(new for number in count(2) if (new := f"{stem} ({number})") not in taken)

    async def _delete_message(self, message: Message) -> None:
        self._prompts.check_idle()
        session, chat = self._app.session, self._app.session.chat
        if not await self._app.push_screen_wait(Confirm("Delete this message and all that follows it?", "Delete")):
            return
        if session.chat is not chat or chat.message(message.id) is None:  # what was done before the question came up
            return
        self._prompts.check_idle()
        chat.remove(message.id)
        await session.save(chat)
        await session.show(chat)

    async def _show_version(self, message: Message, step: int) -> None:
        """Show the message before or after ``message`` at its place, and what follows that one."""
        self._prompts.check_idle()
        chat = self._app.session.chat
        versions = siblings(chat.messages, message)
        at = next((at for at, one in enumerate(versions) if one.id == message.id), 0) + step
        if 0 <= at < len(versions):
            chat.select(versions[at].id)
            await self._app.session.save(chat)
            await self._app.session.show(chat)
            view = self._app.transcript.view_of(versions[at].id)
            if view is not None:
                view.focus()
