"""Lines of styled text, the colours of a theme by what they mean, and numbers as blocks and shares."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip

KINDS = 6
"""Colours that kinds of work take turns in."""
STATES = ("free", "used", "shared", "cached")
PARTS = ("weights", "keys", "rest", "others")
BLOCKS = " ▁▂▃▄▅▆▇█"

Piece = tuple[str, str]
"""A text and the name of its style; the empty name is the panel's own."""


class Palette:
    """Styles by name: title, quiet, kind-0 ..., and the states of pages."""

    def __init__(self, styles: Mapping[str, Style]) -> None:
        self._styles = {"": Style.null(), **styles}
        self._halves: dict[tuple[str, str], Style] = {}

    def __getitem__(self, name: str) -> Style:
        return self._styles.get(name) or Style.null()

    def halves(self, upper: str, lower: str) -> Style:
        """The style in which an upper half block shows two cells."""
        if (upper, lower) not in self._halves:
            self._halves[upper, lower] = Style(color=self[upper].color, bgcolor=self[lower].color)
        return self._halves[upper, lower]

    def line(self, width: int, pieces: Iterable[Piece]) -> Strip:
        """``pieces`` as a line of ``width`` cells."""
        return Strip([Segment(text, self[style]) for text, style in pieces]).adjust_cell_length(width)


def runs(cells: Iterable[Piece]) -> list[Piece]:
    """``cells`` of one character each, those of one style joined."""
    return [("".join(text for text, _ in run), style) for style, run in groupby(cells, key=lambda cell: cell[1])]


def flow(phrases: Sequence[Sequence[Piece]], width: int, gap: str = "   ") -> list[list[Piece]]:
    """``phrases`` in lines of at most ``width`` cells; one that is longer has a line for itself and is cut."""
    lines: list[list[Piece]] = []
    used = 0
    for phrase in phrases:
        length = sum(len(text) for text, _ in phrase)
        if lines and used + len(gap) + length <= width:
            lines[-1] += [(gap, ""), *phrase]
            used += len(gap) + length
        else:
            lines.append([*phrase])
            used = length
    return lines


def words(text: str, width: int, style: str = "quiet") -> list[list[Piece]]:
    """``text`` in lines."""
    return flow([[(word, style)] for word in text.split()], width, " ")


def spark(values: Sequence[float], width: int) -> str:
    """The last ``width`` of ``values`` as blocks; what is no number is empty."""
    shown = [value if math.isfinite(value) and value > 0 else 0.0 for value in values[-max(0, width) :]] if width > 0 else []
    top = max(shown, default=0.0)
    return "".join(BLOCKS[max(1, round(8 * (value / top)))] if value else BLOCKS[0] for value in shown)


def share(part: float, whole: float) -> str:
    """``part`` of ``whole`` in percent."""
    return f"{part / whole:.0%}" if whole > 0 and math.isfinite(part / whole) else "-"
