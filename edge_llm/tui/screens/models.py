"""F4: the models that can be chatted with, and those that could be downloaded, searched by name."""

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
from edge_llm.progress import byte_count, rough_time, whole_seconds
from edge_llm.providers.base import ModelRow
from edge_llm.tui.field import SearchField
from edge_llm.tui.units import byte_size, context_size

_COLUMNS = ("model", "size", "precision", "context", "memory", "")
_OFFERED = "dim"


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
            hub = ", or a hub id such as Qwen/Qwen3-0.6B to download it" if self._can_fetch else ""
            yield SearchField(placeholder=f"search{hub}")
            yield DataTable(cursor_type="row", show_cursor=True, zebra_stripes=True)
            yield Static("", id="models-hint", markup=False)

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
        row = self._row
        wanted = self.query_one(Input).value.strip()
        if row is None and self._may_fetch(wanted):
            self.dismiss(f"pull {wanted}")
        elif row is None or row.problem:
            self._hint()
        else:
            self.dismiss(f"pull {row.source}" if row.source else row.name)

    @on(DataTable.RowSelected)
    def clicked(self) -> None:
        self.choose()

    @on(SearchField.Moved)
    def move(self, event: SearchField.Moved) -> None:
        table = self.query_one(DataTable)
        table.move_cursor(row=table.cursor_row + event.step)

    @on(DataTable.RowHighlighted)
    def highlighted(self) -> None:
        self._hint()

    def _fill(self, wanted: str) -> None:
        table = self.query_one(DataTable)
        table.clear()
        self._shown = [row for row in self._rows if _is_meant(row, wanted)]
        for row in self._shown:
            table.add_row(*(Text(cell, _OFFERED if row.source else "") for cell in self._cells(row)))
        loaded = next((at for at, row in enumerate(self._shown) if row.name == self._loaded), 0)
        table.move_cursor(row=loaded)
        self._hint()

    @property
    def _row(self) -> ModelRow | None:
        """The row under the cursor."""
        at = self.query_one(DataTable).cursor_row
        return self._shown[at] if at < len(self._shown) else None

    def _hint(self) -> None:
        """Say what Enter does."""
        wanted, row = self.query_one(Input).value.strip(), self._row
        if row is not None:
            hint = row.problem or (_offer(row) if row.source else "Enter selects, Esc closes")
        elif self._may_fetch(wanted):
            hint = f"Enter downloads `{wanted}`"
        else:
            more = "; type a hub id such as Qwen/Qwen3-0.6B to download another one" if self._can_fetch else ""
            hint = f"no model `{wanted}` in this list{more}"
        self.query_one("#models-hint", Static).update(Content("\n".join(printable(line) for line in hint.splitlines())))

    def _may_fetch(self, wanted: str) -> bool:
        return self._can_fetch and "/" in wanted.strip("/")

    def _cells(self, row: ModelRow) -> tuple[str, ...]:
        fits = {True: "fits", False: "too large", None: ""}[row.fits]
        note = "loaded" if row.name == self._loaded else "unusable" if row.problem else ""
        if row.source:
            note = f"↓ {byte_count(row.download)}{' gated' if row.gated else ''}"
        size = "" if row.size is None else byte_size(row.size)
        context = "" if row.context is None else context_size(row.context)
        return (printable(row.name), size, printable(row.precision), context, fits, note)


def _is_meant(row: ModelRow, wanted: str) -> bool:
    """Whether ``row`` is among what is searched for; a hub id means the model that has it, and none whose id begins so."""
    if "/" in wanted:
        return wanted.lower() in (row.name.lower(), row.source.lower())
    return wanted.lower() in row.name.lower()


def _offer(row: ModelRow) -> str:
    """What it takes to have the model of ``row`` here."""
    takes = f"{byte_count(row.download)}, about {rough_time(whole_seconds(row.download, row.download))}"
    fits = "It fits in your memory." if row.fits else "It is too large for the memory that is free."
    lines = [f"Enter downloads {row.source} ({takes}), Esc closes", fits]
    if row.gated:
        lines.append("It is gated: accept its terms on its page, then log in with `hf auth login`.")
    return "\n".join(lines)
