"""Prompts and answers: sent, stopped, made again, continued; what is attached and what is edited."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from edge_llm.chats.attachments import find_attachments, missing_files, read_attachment
from edge_llm.chats.tree import Attachment, Message, Role
from edge_llm.errors import EdgeLLMError, UsageError
from edge_llm.paths import expanded
from edge_llm.tui.stage import Stage
from edge_llm.tui.threads import in_thread
from edge_llm.tui.units import answer_figures


class PromptActions:
    """What is done with prompts and answers."""

    def __init__(self, app: Stage) -> None:
        self._app = app
        self._edited = 0
        """The id of the message that is edited."""
        self.attached: list[Attachment] = []
        """What the next prompt brings along."""

    @property
    def editing(self) -> Message | None:
        """The prompt that the next one stands in the place of; none where the chat on the screen has not got it."""
        return self._app.session.chat.message(self._edited)

    async def send(self, text: str) -> None:
        """Send a prompt with what is attached to it."""
        session, prompt = self._app.session, self._app.prompt
        said, paths = find_attachments(text, self._app.options.folder)
        try:
            found = [await in_thread(read_attachment, path) for path in paths]
            self.check_idle()
        except EdgeLLMError:
            prompt.area.give_back(text)
            raise
        attachments, self.attached = [*self.attached, *found], []
        instead_of, self._edited = self.editing, 0
        self.show_what_is_attached()
        if missing := missing_files(said):
            self._app.tell(f"no file {missing}; sent as text")
        await session.send(said, attachments, instead_of=instead_of)

    async def do_attach(self, argument: str) -> None:
        path = self._app.options.folder / expanded(argument.removeprefix("@").strip("\"'"))
        self.attached.append(await in_thread(read_attachment, path))
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
            area.take(file.read_text("utf-8", "replace").removesuffix("\n"))
        area.focus()

    async def do_edit(self, argument: str) -> None:
        self.edit(self.last("user"))

    def edit(self, message: Message) -> None:
        """Put a prompt back where it can be written anew."""
        self.check_idle()
        self._edited = message.id
        self.attached = list(message.attachments)
        self._app.prompt.area.take(message.text)
        self._app.prompt.area.focus()
        self.show_what_is_attached()

    async def do_stop(self, argument: str) -> None:
        """Esc: stops what is under way; else it puts away notices and what is being edited or attached; back to the prompt."""
        if self._app.session.stop():
            return
        if (fetching := self._app.session.fetching) is not None:
            fetching.cancel()
        elif self.editing is not None or self.attached:
            self._edited, self.attached = 0, []
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
            raise UsageError("an answer is under way; Esc stops it")

    async def do_stats(self, argument: str) -> None:
        last = self._app.session.last
        self._app.tell("No answer yet." if last is None else answer_figures(vars(last)) or "The server did not say.")

    def show_what_is_attached(self) -> None:
        """Say what the next prompt brings along, and what it stands in the place of."""
        parts = ["instead of the old prompt (Esc leaves it)"] if self.editing else []
        parts += [f"📎 {each.name}" for each in self.attached]
        self._app.prompt.say("  ".join(parts))
