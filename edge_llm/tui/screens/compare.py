"""Two answers to one prompt, side by side; in a narrow terminal one at a time.  The person chooses which of them goes on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from edge_llm.files import one_line, printable
from edge_llm.tui.growing import GrowingText

WIDE = 90
"""Columns from which both are seen."""


@dataclass(frozen=True)
class Shown:
    """An answer."""

    model: str
    text: str
    figures: str = ""


@dataclass(frozen=True)
class Choice:
    """What the person chose: which answer, and whether its model answers from now on."""

    which: Literal[0, 1]
    with_model: bool = False


class Compare(ModalScreen[Choice | None]):
    """Shows two answers; gives the choice, or None."""

    AUTO_FOCUS = "#answer-0"
    BINDINGS = [
        Binding("left,h,1", "look(0)", "Left"),
        Binding("right,l,2", "look(1)", "Right"),
        Binding("tab", "other", "Other", priority=True),
        Binding("enter", "choose(False)", "Keep"),
        Binding("m", "choose(True)", "Keep, and this model"),
        Binding("escape", "dismiss(None)", "Leave"),
    ]
    DEFAULT_CSS = """
    Compare #both { height: 1fr; }
    Compare .box { width: 100%; max-width: 100%; height: 100%; max-height: 100%; padding: 0 1; }
    Compare .pane { width: 1fr; height: 100%; padding: 0 1; border: round $panel; }
    Compare .pane:focus { border: round $accent; }
    Compare .about { text-style: bold; color: $text-muted; }
    Compare .pane:focus .about { color: $text-accent; }
    Compare.one .pane { display: none; }
    Compare.one .pane.seen { display: block; }
    Compare #prompt-said { color: $text-muted; height: auto; max-height: 2; }
    Compare GrowingText, Compare GrowingText Static, Compare Markdown { height: auto; margin: 0; padding: 0; }
    """

    def __init__(self, prompt: str, answers: tuple[Shown, Shown]) -> None:
        super().__init__()
        self._prompt = prompt
        self._answers = answers
        self._at = 0

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="box", can_focus=False):
            yield Static(Content(one_line(printable(self._prompt))[:300]), id="prompt-said")
            with Horizontal(id="both"):
                for at, answer in enumerate(self._answers):
                    with VerticalScroll(id=f"answer-{at}", classes="pane" if at else "pane seen"):
                        about = f"{at + 1}  {one_line(printable(answer.model))}  {answer.figures}"
                        yield Static(Content(about), classes="about")
                        yield GrowingText(printable(answer.text))
            hint = "←→ show the other  Enter keeps this answer  m keeps it and its model  Esc closes"
            yield Static(hint, classes="hint", markup=False)

    def on_resize(self, event: events.Resize) -> None:
        self.set_class(event.size.width < WIDE, "one")

    def action_look(self, at: int) -> None:
        self._at = at
        for place, pane in enumerate(self.query(".pane")):
            pane.set_class(place == at, "seen")
            if place == at:
                pane.focus()

    def action_other(self) -> None:
        self.action_look(1 - self._at)

    def action_choose(self, with_model: bool) -> None:
        self.dismiss(Choice(1 if self._at else 0, with_model))
