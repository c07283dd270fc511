"""One message on the screen: who said it, what was thought, what was said, and what it took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as Event
from textual.widgets import Collapsible, Static

from edge_llm.chats.calls import ToolCall
from edge_llm.chats.tree import Message
from edge_llm.files import one_line, printable
from edge_llm.talk.markdown import markdown_parser
from edge_llm.tui.growing import GrowingText
from edge_llm.tui.tool_view import CallView, call_views
from edge_llm.tui.units import answer_figures, byte_size, thought_title

_ENDS: Mapping[str, str] = {"stopped": "stopped", "failed": "Failed", "growing": "unfinished"}


class MessageView(Vertical, can_focus=True):
    """Shows one message.  `grow` adds to it while it streams, `finish` draws it once more as a whole."""

    BINDINGS = [
        Binding("c", "act('copy')", "Copy", id="message_copy"),
        Binding("y", "act('copy_code')", "Copy code", id="message_copy_code"),
        Binding("e", "act('edit')", "Edit", id="message_edit"),
        Binding("r", "act('regenerate')", "Again", id="message_regenerate"),
        Binding("g", "act('continue')", "Go on", id="message_continue"),
        Binding("b", "act('branch')", "Branch", id="message_branch"),
        Binding("d", "act('delete')", "Delete", id="message_delete"),
        Binding("t", "thought", "Thought", id="message_thought"),
        Binding("up", "walk(-1)", "Previous message", show=False, id="message_before"),
        Binding("down", "walk(1)", "Next message", show=False, id="message_behind"),
        Binding("left", "act('previous')", "Other version", show=False, id="message_previous"),
        Binding("right", "act('next')", "Other version", show=False, id="message_next"),
    ]

    class Act(Event):
        """The person wants something done with the message."""

        def __init__(self, view: MessageView, action: str) -> None:
            super().__init__()
            self.view = view
            self.action = action

    class Walk(Event):
        """The person goes on to the message ``step`` behind this one, or before it."""

        def __init__(self, view: MessageView, step: int) -> None:
            super().__init__()
            self.view = view
            self.step = step

    def __init__(self, message: Message, version: tuple[int, int] = (1, 1)) -> None:
        """``version``: which of how many messages at this place it is, from 1."""
        super().__init__(classes=message.role)
        self.message = message
        self._version = version
        self._body: GrowingText | None = None
        self._thought_body: GrowingText | None = None
        self._code_at = -1
        self._shown = (0, 0)
        """Characters of the thought and of the text that are drawn."""
        self.grows = False
        """An answer is coming here now."""
        self._begun = False  # something was said since it is shown

    # -- what is drawn ------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        message = self.message
        self._shown = (len(message.thought), len(message.text))
        yield Static(self._heading(), classes="who", markup=False)
        for each in message.attachments:
            yield Static(f"📎 {printable(each.name)}  {byte_size(each.size)}", classes="attachment", markup=False)
        if message.thought:
            yield self._thoughts(message.thought)
        if message.role == "user":
            yield Static(printable(message.text), classes="said", markup=False)
        else:
            self._body = GrowingText(printable(message.text))
            yield self._body
            yield from call_views(message.calls)
            yield Static(self._ending(), classes="ending", markup=False)
        if message.cut is not None:
            yield Static("──── The model sees what follows ────", classes="cut", markup=False)
            if message.cut.summary:
                summary = Static(printable(message.cut.summary), markup=False)
                yield Collapsible(summary, title="and this summary of what is above", classes="summary")

    @property
    def code_blocks(self) -> list[str]:
        """The text of every block of code, in order."""
        if self._body is None:
            return []
        parse = markdown_parser().disable("inline").parse  # of the whole text: not all of a long one is drawn as Markdown
        tokens = [token for text in (self.message.thought, self.message.text) for token in parse(printable(text))]
        return [token.content.rstrip() for token in tokens if token.type in ("fence", "code_block")]

    def next_code_block(self) -> str | None:
        """The next block of code in turn; None where there is none."""
        blocks = self.code_blocks
        if not blocks:
            return None
        self._code_at = (self._code_at + 1) % len(blocks)
        return blocks[self._code_at]

    def _heading(self) -> str:
        who = "you" if self.message.role == "user" else printable(self.message.model) or "model"
        at, of = self._version
        return f"{who}  ‹{at}/{of}›" if of > 1 else who

    def _ending(self) -> str:
        message = self.message
        end = "" if self.grows else ": ".join(filter(None, (_ENDS.get(message.state, ""), printable(one_line(message.reason)))))
        return "  ".join(part for part in (end, answer_figures(message.figures)) if part)

    def _thought_title(self) -> str:
        return "thinking" if self.grows and not self.message.text else thought_title(self.message.figures)

    def _thoughts(self, text: str, *, collapsed: bool = True) -> Collapsible:
        self._thought_body = GrowingText(printable(text))
        return Collapsible(self._thought_body, title=self._thought_title(), collapsed=collapsed, classes="thought")

    # -- an answer that comes -----------------------------------------------------------------------------------------

    async def grow(self, message: Message) -> None:
        """Add what ``message`` says beyond what is shown."""
        self.message = message
        if self._body is None or not self._body.is_mounted:  # it is drawn in a moment, as it is then
            return
        (thought, said), self._shown = self._shown, (len(message.thought), len(message.text))
        if message.thought[thought:]:
            await self._think(message.thought[thought:])
        if message.text[said:]:
            await self._say(message.text[said:])

    async def _think(self, text: str) -> None:
        """Add to the thought, which stays open until the answer begins."""
        if self._thought_body is None:
            await self.mount(self._thoughts("", collapsed=False), before=self._body)
        if self._thought_body is not None:
            await self._thought_body.write(printable(text))

    async def _say(self, text: str) -> None:
        """Add to the answer."""
        if self._thought_body is not None and not self._begun:
            for thought in self.query("Collapsible.thought").results(Collapsible):
                thought.collapsed = True
                thought.title = self._thought_title()
        self._begun = True
        if self._body is not None:
            await self._body.write(printable(text))

    async def finish(self, message: Message) -> None:
        """The answer has come to its end, and is ``message``: all of it is drawn once more, as a clean parse has it."""
        self.message, self.grows = message, False
        for body, text in ((self._thought_body, message.thought), (self._body, message.text)):
            if body is not None and text:
                await body.finish(printable(text))
        self.redraw(message)

    def redraw(self, message: Message) -> None:
        """Show what has changed around the text of ``message``."""
        self.message = message
        if self.is_attached:
            for who in self.query(".who").results(Static):  # none before it is drawn for the first time, nor when it leaves
                who.update(Content(self._heading()))
            for thought in self.query("Collapsible.thought").results(Collapsible):
                thought.title = self._thought_title()
            for ending in self.query(".ending").results(Static):
                ending.update(Content(self._ending()))
            if message.calls and not self.grows:
                self._show_calls(message.calls)

    def _show_calls(self, calls: Sequence[ToolCall]) -> None:
        views = [*self.query_children(CallView)]
        for view, call in zip(views, calls, strict=False):
            view.show(call)
        if len(views) < len(calls):
            self.mount_all(call_views(calls[len(views) :]), before=".ending")

    # -- keys ---------------------------------------------------------------------------------------------------------

    def action_act(self, name: str) -> None:
        self.post_message(self.Act(self, name))

    def action_walk(self, step: int) -> None:
        self.post_message(self.Walk(self, step))

    def action_thought(self) -> None:
        for thought in self.query("Collapsible.thought").results(Collapsible):
            thought.collapsed = not thought.collapsed
