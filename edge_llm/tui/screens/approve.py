"""Asks whether a tool may be called."""

from __future__ import annotations

import time

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from edge_llm.files import one_line, printable
from edge_llm.tui.tools import Approval

DEAF_SECONDS = 0.4
"""A key that was meant for what stood here before is no answer."""


class Approve(ModalScreen[str]):
    """Shows a call; gives once, always or no."""

    AUTO_FOCUS = "#call"  # Enter answers nothing
    BINDINGS = [
        Binding("y", "say('once')", "Once"),
        Binding("a", "say('always')", "Always"),
        Binding("n,escape", "say('no')", "No"),
    ]
    DEFAULT_CSS = """
    Approve #call { height: auto; max-height: 40vh; margin: 1 0; }
    Approve #answers { height: auto; }
    Approve #answers Button { min-width: 6; margin: 0; }
    Approve #call Static { color: $text-muted; }
    """

    def __init__(self, approval: Approval) -> None:
        super().__init__()
        self._approval = approval
        self._begun = time.monotonic()

    def compose(self) -> ComposeResult:
        about = self._approval
        with Vertical(classes="box small"):
            yield Static(Content(f"May the model call {one_line(printable(about.tool))[:80]} of the server {about.server}?"))
            with VerticalScroll(id="call"):
                yield Static(Content(printable(about.arguments)))
                yield Static("Always: for this tool, in this chat, until you leave.")
                if about.description:
                    yield Static(Content(f"The server says: {one_line(printable(about.description))[:400]}"))
            with Horizontal(id="answers"):
                yield Button("Once (y)", id="once", compact=True)
                yield Button("Always (a)", id="always", compact=True)
                yield Button("No (n)", id="no", compact=True)

    def action_say(self, answer: str) -> None:
        if time.monotonic() - self._begun >= DEAF_SECONDS:
            self.dismiss(answer)

    @on(Button.Pressed)
    def press(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id or "no")
