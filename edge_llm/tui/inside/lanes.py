"""The lanes of the last prompt, drawn in time: one row for each, in the colours of what it did."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from textual.strip import Strip

from edge_llm.tui.inside.drawing import KINDS, Palette, Piece, flow, runs, share, words
from edge_llm.tui.inside.work import kinds as work_kinds
from edge_llm.tui.units import measured_time

if TYPE_CHECKING:
    from edge_llm.engine.inside import Lane, LastPrompt

NONE_YET = (
    "No long prompt yet: one of a few tokens is a single step. What the processor, a card and the disk do for a longer one "
    "shows here."
)
SHADES = "█▓▒"
"""With the colours, so that neighbours differ where there are few of those."""
MOST_KINDS = 8
"""Kinds that the legend names."""


def draw_lanes(prompt: LastPrompt | None, width: int, palette: Palette) -> list[Strip]:
    """Lines that show ``prompt``."""
    if prompt is None or not prompt.lanes:
        return [palette.line(width, pieces) for pieces in words(NONE_YET, width)]
    alone = len(prompt.lanes) == 1 and prompt.work is not None and bool(prompt.work.seconds)
    if alone and prompt.work is not None:  # one lane is always busy: what with is to be seen
        pieces = [*work_kinds(prompt.work.seconds, width), *flow(_speed(prompt), width)]
        return [palette.line(width, line) for line in pieces]
    kinds = _kinds(prompt)
    marks = {kind: (SHADES[place % len(SHADES)], f"kind-{place % KINDS}") for place, kind in enumerate(kinds)}
    lines = [_row(lane, prompt.seconds, width, marks) for lane in prompt.lanes]
    lines += flow(_summary(prompt), width)
    lines += flow(_legend(kinds, marks), width)
    if prompt.work is not None and prompt.work.seconds:
        lines += work_kinds(prompt.work.seconds, width)
    return [palette.line(width, pieces) for pieces in lines]


def _kinds(prompt: LastPrompt) -> dict[str, float]:
    """Seconds of every kind over all lanes, the longest first."""
    total: dict[str, float] = {}
    for lane in prompt.lanes:
        for kind, taken in lane.seconds.items():
            total[kind] = total.get(kind, 0.0) + taken
    return dict(sorted(total.items(), key=lambda pair: -pair[1]))


def _row(lane: Lane, whole: float, width: int, marks: dict[str, Piece]) -> list[Piece]:
    """What the lane did in the middle of each column."""
    name, idle = f"{lane.name[:6]:<6}", f" {lane.idle:4.0%} idle"
    columns = max(1, width - len(name) - len(idle))
    starts = [span.start for span in lane.spans]
    cells: list[Piece] = []
    for column in range(columns):
        at = (column + 0.5) / columns * whole
        place = bisect_right(starts, at) - 1
        busy = place >= 0 and lane.spans[place].end > at
        cells.append(marks.get(lane.spans[place].kind, ("█", "")) if busy else ("·", "quiet"))
    return [(name, ""), *runs(cells), (idle, "quiet")]


def _summary(prompt: LastPrompt) -> list[list[Piece]]:
    return [
        _speed(prompt)[0],
        [("lower bound ", "quiet"), (measured_time(prompt.bound), "")],
        [(share(prompt.bound, prompt.seconds), ""), (" of it reached", "quiet")],
    ]


def _speed(prompt: LastPrompt) -> list[list[Piece]]:
    said: list[Piece] = [(f"{prompt.tokens:,}", ""), (" tokens in ", "quiet"), (measured_time(prompt.seconds), "")]
    per_second = prompt.tokens / prompt.seconds if prompt.seconds > 0 else 0.0
    return [said, [(f"{per_second:,.0f} tokens/s", "quiet")]] if 0 < per_second < math.inf else [said]


def _legend(kinds: dict[str, float], marks: dict[str, Piece]) -> list[list[Piece]]:
    whole = sum(kinds.values())
    named = list(kinds.items())[:MOST_KINDS]
    phrases: list[list[Piece]] = [[marks[kind], (f" {kind} ", ""), (share(taken, whole), "quiet")] for kind, taken in named]
    rest = len(kinds) - len(named)
    return [*phrases, [(f"and {rest} more", "quiet")]] if rest else phrases
