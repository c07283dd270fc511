"""F9: what fills the context, and how a chat goes on when it is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from edge_llm.files import printable


@dataclass(frozen=True)
class Way:
    """A way on."""

    name: str
    title: str
    help: str
    possible: bool = True


class ContextWays(ModalScreen[str | None]):
    """Gives the name of the way that is chosen; None when the person leaves."""

    AUTO_FOCUS = "OptionList"
    BINDINGS = [Binding("escape", "dismiss(None)", "Close")]

    def __init__(self, heading: str, ways: Sequence[Way]) -> None:
        super().__init__()
        self._heading = heading
        self._ways = ways

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(printable(self._heading), classes="heading", markup=False)
            yield OptionList(
                *(Option(_line(way), id=way.name, disabled=not way.possible) for way in self._ways), id="ways", markup=False
            )
            yield Static("Enter selects, Esc closes", classes="hint", markup=False)

    @on(OptionList.OptionSelected)
    def choose(self, event: OptionList.OptionSelected) -> None:
        self.dismiss(event.option.id)


def _line(way: Way) -> Content:
    return Content.assemble((printable(way.title), "bold"), "\n", (f"  {printable(way.help)}", "dim"))
