"""The map of pages of keys and values: two pages in a cell, or as many as it takes for all to be seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.segment import Segment
from textual.strip import Strip

from edge_llm.tui.inside.drawing import STATES, Palette, Piece, flow, words

if TYPE_CHECKING:
    from edge_llm.engine.inside import PageMap

NO_PAGES = "This way of computing keeps no pages of keys and values."
MOST_ROWS = 4


def draw_pages(pages: PageMap | None, width: int, palette: Palette) -> list[Strip]:
    """Lines that show ``pages``."""
    if pages is None or not pages.states:
        return [palette.line(width, pieces) for pieces in words(NO_PAGES, width)]
    states = pages.states
    each = -(-len(states) // (2 * width * MOST_ROWS))
    cells = states if each == 1 else bytes(_most(states[at : at + each]) for at in range(0, len(states), each))
    rows = [_row(cells[at : at + 2 * width], width, palette) for at in range(0, len(cells), 2 * width)]
    return [*rows, *(palette.line(width, pieces) for pieces in flow(_legend(pages, each), width))]


def _most(states: bytes) -> int:
    """The state that most of the pages are in that are not free; free if all are."""
    if not states.strip(b"\0"):
        return 0
    return max((1, 2, 3), key=states.count)


def _row(cells: bytes, width: int, palette: Palette) -> Strip:
    """Pages from left to right: those of even places above, the others below."""
    upper, lower = cells[::2], cells[1::2]
    if len(lower) < len(upper):
        lower += b"\0"
    segments: list[Segment] = []
    start = 0
    for end in range(1, len(upper) + 1):
        if end == len(upper) or upper[end] != upper[start] or lower[end] != lower[start]:
            style = palette.halves(_name(upper[start]), _name(lower[start]))
            segments.append(Segment("▀" * (end - start), style))
            start = end
    return Strip(segments).adjust_cell_length(width)


def _name(state: int) -> str:
    return STATES[state] if state < len(STATES) else "free"


def _legend(pages: PageMap, each: int) -> list[list[Piece]]:
    phrases: list[list[Piece]] = [
        [("■", state), (f" {state} ", ""), (f"{pages.count(state):,}", "quiet")] for state in STATES
    ]
    about = f"{len(pages.states):,} pages of {pages.page_tokens} tokens"
    return [*phrases, [(about if each == 1 else f"{about}, {each} in half a cell", "quiet")]]
