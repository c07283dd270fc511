"""F4: the models that can be chatted with, searched by name."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text
from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Static

from edge_llm.files import printable
from edge_llm.providers.base import ModelRow
from edge_llm.tui.field import SearchField
from edge_llm.tui.units import byte_size, context_size

_COLUMNS = ("model", "size", "precision", "context", "memory", "")


class ModelPicker(ModalScreen[str | None]):
    """Gives the name of a model, or `pull SOURCE` for one that is to be brought here; None leaves all as it is."""

    BINDINGS = [Binding("escape", "dismiss(None)", "Leave")]

    def __init__(self, rows: Sequence[ModelRow], loaded: str | None, *, can_fetch: bool) -> None:
        """``can_fetch``: a name that is not among ``rows`` may be brought here."""
        super().__init__()
        self._rows = rows
        self._loaded = loaded
        self._can_fetch = can_fetch
        self._shown: list[ModelRow] = []

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            hub = ", or a hub id such as Qwen/Qwen3-0.6B to bring it here" if self._can_fetch else ""
            yield SearchField(placeholder=f"search{hub}")
            yield DataTable(cursor_type="row", show_cursor=True, zebra_stripes=True)
            yield Static("Enter chooses, Esc leaves", id="models-hint", markup=False)

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.can_focus = False
        table.add_columns(*_COLUMNS)
        self._fill("")

    @on(Input.Changed)
    def search(self, event: Input.Changed) -> None:
        self._fill(event.value.strip())

    @on(Input.Submitted)
    def choose(self) -> None:
        wanted = self.query_one(Input).value.strip()
        if not self._shown:
            self.dismiss(f"pull {wanted}" if self._may_fetch(wanted) else None)
            return
        row = self._shown[self.query_one(DataTable).cursor_row]
        if row.problem:
            self.query_one("#models-hint", Static).update(Content(printable(row.problem)))
        else:
            self.dismiss(row.name)

    @on(DataTable.RowSelected)
    def clicked(self) -> None:
        self.choose()

    @on(SearchField.Moved)
    def move(self, event: SearchField.Moved) -> None:
        table = self.query_one(DataTable)
        table.move_cursor(row=table.cursor_row + event.step)

    def _fill(self, wanted: str) -> None:
        table = self.query_one(DataTable)
        table.clear()
        self._shown = [row for row in self._rows if wanted.lower() in row.name.lower()]
        for row in self._shown:
            table.add_row(*(Text(cell) for cell in self._cells(row)))
        loaded = next((at for at, row in enumerate(self._shown) if row.name == self._loaded), 0)
        table.move_cursor(row=loaded)
        hint = "Enter chooses, Esc leaves"
        if not self._shown:
            hint = f"Enter brings `{wanted}` here" if self._may_fetch(wanted) else "no model has such a name"
        self.query_one("#models-hint", Static).update(Content(printable(hint)))

    def _may_fetch(self, wanted: str) -> bool:
        return self._can_fetch and "/" in wanted

    def _cells(self, row: ModelRow) -> tuple[str, ...]:
        fits = {True: "fits", False: "too large", None: ""}[row.fits]
        note = "loaded" if row.name == self._loaded else "unusable" if row.problem else ""
        size = "" if row.size is None else byte_size(row.size)
        context = "" if row.context is None else context_size(row.context)
        return (printable(row.name), size, printable(row.precision), context, fits, note)
