"""Prompts and answers: sent, stopped, made again, continued; what is attached and what is edited."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from edge_llm.chats.attachments import find_attachments, missing_files, read_attachment
from edge_llm.chats.drafts import Draft
from edge_llm.chats.open_chat import OpenChat
from edge_llm.chats.tree import Message, Role
from edge_llm.errors import EdgeLLMError, UsageError
from edge_llm.files import one_line
from edge_llm.paths import expanded
from edge_llm.tui.activity import is_full
from edge_llm.tui.stage import Stage
from edge_llm.tui.threads import in_thread
from edge_llm.tui.units import answer_figures

MOST_QUEUED_SHOWN = 3
QUEUED_COLUMNS = 60
"""Characters of a prompt that waits, in the line above the prompt."""


class PromptActions:
    """What is done with prompts and answers."""

    def __init__(self, app: Stage) -> None:
        self._app = app
        self._leaving: set[int] = set()
        """Chats of which a prompt is just made ready to be sent."""

    @property
    def editing(self) -> Message | None:
        """The prompt that the next one stands in the place of; none where the chat on the screen has not got it."""
        return self._app.drafts.editing

    def take(self, text: str) -> None:
        """A prompt that left the field waits to be sent; `send_next` sends it.  `UsageError` for one that cannot wait."""
        if self.editing is not None and self._app.session.busy:
            self._app.prompt.area.give_back(text)
            self.check_idle()
        self._app.drafts.depart(text)

    async def send_next(self, chat: OpenChat | None = None) -> None:
        """Send what waits in ``chat`` (or the one on the screen), unless it is being answered; then it is sent behind that."""
        session, drafts = self._app.session, self._app.drafts
        chat = chat or session.chat
        if not chat.drafts.queued or chat.chat.id in self._leaving:
            return
        if session.is_busy(chat):
            self.show_what_is_attached()
            await session.save(chat)
            return
        draft = chat.drafts.queued[0]
        self._leaving.add(chat.chat.id)
        try:
            said, paths = find_attachments(draft.text, self._app.options.folder)
            found = [await in_thread(read_attachment, path) for path in paths]
        except EdgeLLMError:
            drafts.give_back(chat, draft)
            raise
        finally:
            self._leaving.discard(chat.chat.id)
        if session.is_busy(chat):  # another one was answered meanwhile, and this one waits for that
            return
        if missing := missing_files(said):
            self._app.tell(f"no file {missing}; sent as text")
        instead_of = chat.message(draft.edits)
        await session.send(
            said, [*draft.attachments, *found], instead_of=instead_of, chat=chat, said=lambda: self._said(chat, draft)
        )

    def take_back(self) -> bool:
        """Up: the prompt that was queued last is written again; false when none is."""
        taken = self._app.session.busy and self._app.drafts.take_back()
        self.show_what_is_attached()
        return taken

    def _said(self, chat: OpenChat, draft: Draft) -> None:
        self._app.drafts.arrived(chat, draft)
        self.show_what_is_attached()

    def after_answer(self, chat: OpenChat, ended: bool) -> None:
        """``chat`` is free: what waits is sent, or is a draft again where the answer was stopped or failed."""
        if not chat.drafts.queued:
            return
        if ended:
            self._app.do(self.send_next(chat))
        else:
            self._app.drafts.unqueue(chat)
            self._app.do(self._app.session.save(chat))

    async def do_attach(self, argument: str) -> None:
        path = self._app.options.folder / expanded(argument.removeprefix("@").strip("\"'"))
        file = await in_thread(read_attachment, path)
        self._app.drafts.attach((*self._app.drafts.attached, file))
        self.show_what_is_attached()

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
            area.take(file.read_text("utf-8-sig", "replace").removesuffix("\n"))
        area.focus()

    async def do_edit(self, argument: str) -> None:
        self.edit(self.last("user"))

    def edit(self, message: Message) -> None:
        """Put a prompt back where it can be written anew."""
        self.check_idle()
        self._app.drafts.edit(message)
        self._app.prompt.area.focus()
        self.show_what_is_attached()

    async def do_stop(self, argument: str) -> None:
        """Esc: takes back what waits to be sent, stops what is under way; else it puts away notices and what is being edited
        or attached; back to the prompt."""
        if self._app.session.busy and self._app.drafts.drafts.queued:
            self._app.drafts.unqueue(self._app.session.chat)
            self.show_what_is_attached()
            return
        if self._app.session.stop():
            return
        if (fetching := self._app.session.fetching) is not None:
            fetching.cancel()
        elif self._app.drafts.drafts.draft.edits:
            self._app.drafts.leave_edit()
        elif self._app.drafts.attached:
            self._app.drafts.attach(())
        self.show_what_is_attached()
        self._app.clear_notifications()
        self._app.prompt.area.focus()
        self._app.transcript.anchor()

    async def do_regenerate(self, argument: str) -> None:
        path = self._app.session.chat.path
        if not path:
            raise UsageError("there is no prompt yet")
        await self.regenerate(path[-1])

    async def regenerate(self, message: Message) -> None:
        """Answer the prompt before ``message`` once more."""
        self.check_idle()
        chat = self._app.session.chat
        prompt = message if message.role == "user" else chat.message(message.parent or 0)
        if prompt is None:
            raise UsageError("there is no prompt to answer")
        await self._app.session.answer(prompt)

    async def do_continue(self, argument: str) -> None:
        await self.go_on(self.last("assistant"))

    async def go_on(self, message: Message) -> None:
        """Continue an answer where it ends."""
        self.check_idle()
        if message.role != "assistant" or not (message.text or message.calls):
            raise UsageError("there is no answer to continue")
        await self._app.session.go_on(message)

    def last(self, role: Role) -> Message:
        """The last message of the path that ``role`` said."""
        found = [message for message in self._app.session.chat.path if message.role == role]
        if not found:
            raise UsageError("there is no answer yet" if role == "assistant" else "there is no prompt yet")
        return found[-1]

    def check_idle(self) -> None:
        """Raise `UsageError` while an answer is under way in the chat on the screen."""
        if self._app.session.busy:
            raise UsageError("Still answering. Esc to stop")

    async def do_stats(self, argument: str) -> None:
        last = self._app.session.last
        self._app.tell("No answer yet." if last is None else answer_figures(vars(last)) or "The server did not say.")

    def show_what_is_attached(self) -> None:
        """Say what the next prompt brings along, what it stands in the place of, and what waits to be sent."""
        session, drafts = self._app.session, self._app.drafts
        lines = []
        if session.busy:
            queued = drafts.drafts.queued
            lines += [f"Queued: {_short(each.text)}" for each in queued[:MOST_QUEUED_SHOWN]]
            if queued:
                more = f"{len(queued) - MOST_QUEUED_SHOWN} more are queued.  " if len(queued) > MOST_QUEUED_SHOWN else ""
                lines.append(f"{more}Up edits it, Esc takes it back")
        elif is_full(session):
            lines.append(f"The context is full. {self._app.key_of('context')} says how to go on")
        if (edited := self.editing) is not None:
            last = next((one for one in reversed(session.chat.path) if one.role == "user"), None)
            which = "your last prompt" if last is not None and last.id == edited.id else "an earlier prompt"
            lines.append(f"Editing {which}. Enter resends, Esc cancels")
        if drafts.attached:
            lines.append("  ".join(f"📎 {each.name}" for each in drafts.attached))
        self._app.prompt.say("\n".join(lines))


def _short(text: str) -> str:
    line = one_line(text)
    return f"{line[:QUEUED_COLUMNS]}…" if len(line) > QUEUED_COLUMNS else line
