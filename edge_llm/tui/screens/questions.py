"""Small questions: a text, or yes and no."""

from __future__ import annotations

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from edge_llm.files import one_line, printable
from edge_llm.tui.field import Field


class AskText(ModalScreen[str | None]):
    """Asks for a line of text; None when the person leaves."""

    BINDINGS = [Binding("escape", "dismiss(None)", "Leave")]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question = question
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical(classes="box small"):
            yield Static(printable(self._question), markup=False)
            yield Field(one_line(self._value))
            yield Static("Enter saves, Esc closes", classes="hint", markup=False)

    @on(Input.Submitted)
    def submit(self, event: Input.Submitted) -> None:
        self.dismiss(event.value.strip() or None)


class Confirm(ModalScreen[bool]):
    """Asks before something is gone."""

    BINDINGS = [Binding("escape,n", "dismiss(False)", "No"), Binding("y", "dismiss(True)", "Yes")]

    def __init__(self, question: str, yes: str) -> None:
        super().__init__()
        self._question = question
        self._yes = yes

    def compose(self) -> ComposeResult:
        with Vertical(classes="box small"):
            yield Static(printable(self._question), markup=False)
            with Horizontal(classes="buttons"):
                yield Button(f"{self._yes} (y)", id="yes", variant="error", compact=True)
                yield Button("Leave (n)", id="no", compact=True)

    @on(Button.Pressed)
    def press(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")
