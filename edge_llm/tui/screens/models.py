"""F4: the models that can be chatted with, and those that could be downloaded, searched by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len, set_cell_size
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
_BY_NEED = (0, 1, 4, 5, 3, 2)
"""Columns, the most needed one first."""
_FEWEST = 24
"""Characters of a name that are seen at least."""
_OFFERED = "dim"
_BETWEEN = re.compile(r"[\s._:-]+")
"""What may stand between the words of a name."""


class ModelTable(DataTable[Text]):
    """Rows of cells in the columns that have room: a long name is cut in its middle, and the least needed columns left out."""

    def __init__(self) -> None:
        super().__init__(cursor_type="row", show_cursor=True, zebra_stripes=True)
        self._cells: Sequence[tuple[tuple[str, ...], str]] = ()

    def show(self, cells: Sequence[tuple[tuple[str, ...], str]], at: int) -> None:
        """Rows and their styles, the cursor on row ``at``."""
        self._cells = cells
        self._lay(at)

    def on_resize(self) -> None:
        self._lay(self.cursor_row)

    def _lay(self, at: int) -> None:
        self.clear(columns=True)
        columns, name = seen_columns([cells for cells, _ in self._cells], self.size.width - self.scrollbar_size_vertical)
        self.add_columns(*(_COLUMNS[column] for column in columns))
        for cells, style in self._cells:
            self.add_row(*(Text(cells[column] if column else _cut(cells[0], name), style) for column in columns))
        self.move_cursor(row=at)


def seen_columns(rows: Sequence[Sequence[str]], width: int) -> tuple[list[int], int]:
    """Which of the columns ``width`` cells hold, from left to right, and how many of them a name has."""
    widths = [max(map(cell_len, column)) + 2 for column in zip(_COLUMNS, *rows, strict=True)]
    least = min(widths[0], _FEWEST + 2)
    found, room = [0], max(least, width)
    for column in _BY_NEED[1:]:
        if least + widths[column] > room:
            break
        found.append(column)
        room -= widths[column]
    return sorted(found), min(widths[0], room) - 2


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
            yield ModelTable()
            yield Static("", id="models-hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(ModelTable).can_focus = False
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
        table = self.query_one(ModelTable)
        table.move_cursor(row=table.cursor_row + event.step)

    @on(DataTable.RowHighlighted)
    def highlighted(self) -> None:
        self._hint()

    def _fill(self, wanted: str) -> None:
        self._shown = [row for row in self._rows if _is_meant(row, wanted)]
        loaded = next((at for at, row in enumerate(self._shown) if row.name == self._loaded), 0)
        self.query_one(ModelTable).show([(self._cells(row), _OFFERED if row.source else "") for row in self._shown], loaded)
        self._hint()

    @property
    def _row(self) -> ModelRow | None:
        """The row under the cursor."""
        at = self.query_one(ModelTable).cursor_row
        return self._shown[at] if at < len(self._shown) else None

    def _hint(self) -> None:
        """Say what Enter does."""
        wanted, row = self.query_one(Input).value.strip(), self._row
        if row is not None:
            hint = row.problem or (_offer(row) if row.source else f"Enter selects {_described(row)}, Esc closes")
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
    """Whether ``row`` is among what is searched for: its name or hub id has all the words, in any order.

    A hub id means the model that has it, and none whose id begins so.
    """
    if "/" in wanted:
        return wanted.lower() in (row.name.lower(), row.source.lower())
    names = _BETWEEN.sub(" ", f"{row.name} {row.source}".lower())
    return all(word in names for word in _BETWEEN.split(wanted.lower()))


def _cut(name: str, width: int) -> str:
    """``name`` in ``width`` cells; what tells names apart stands at both ends."""
    if cell_len(name) <= width:
        return name
    end = width // 2
    return f"{set_cell_size(name, width - 1 - end).rstrip()}…{name[len(name) - end :]}"


def _described(row: ModelRow) -> str:
    facts = [byte_size(row.size)] if row.size is not None else []
    facts += [row.precision] if row.precision else []
    facts += [f"context {context_size(row.context)}"] if row.context is not None else []
    return f"{row.name} ({', '.join(facts)})" if facts else row.name


def _offer(row: ModelRow) -> str:
    """What it takes to have the model of ``row`` here."""
    takes = f"{byte_count(row.download)}, about {rough_time(whole_seconds(row.download, row.download))}"
    fits = "It fits in your memory." if row.fits else "It is too large for the memory that is free."
    lines = [f"Enter downloads {row.source} ({takes}), Esc closes", fits]
    if row.gated:
        lines.append("It is gated: accept its terms on its page, then log in with `hf auth login`.")
    return "\n".join(lines)
