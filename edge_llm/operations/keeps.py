"""What an operation keeps of a sequence, by kind, and how rows are handed to what keeps a fixed shape."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Pages:
    """Keys and values of every token: grows with the text, is cut into pages, and goes back by forgetting tokens."""


@dataclass(frozen=True)
class Window:
    """Keys and values of the last ``tokens`` tokens; those before are never read again."""

    tokens: int


@dataclass(frozen=True)
class Fixed:
    """A float32 array of one ``shape`` however long the text is: what all tokens so far have become.

    It is zeros before a text, and cannot go back: whoever may want an earlier one keeps it as a checkpoint.
    """

    name: str
    """Among those of its layer."""
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return 4 * math.prod(self.shape)


Kept = Pages | Window | Fixed
"""An operation may also keep nothing."""
NOTHING_YET = 0
"""The slot of the state before a text: zeros, which nobody writes."""


class Span(NamedTuple):
    """Rows of one sequence that follow each other, and the slots of its state before and behind them.

    The two slots may be the same.  The rows may end inside a prompt, where a checkpoint is kept.
    """

    first: int
    end: int
    """One past the last row."""
    reads: int
    writes: int


def one_run(rows: int) -> np.ndarray:
    """The runs (`edge_llm.kernels.recurrent`) of so many ``rows`` that continue the only slot: int32 [1, 4]."""
    return np.array([[0, rows, 0, 0]], np.int32)


def concurrent_runs(spans: Sequence[Span]) -> list[tuple[slice, np.ndarray]]:
    """``spans`` in as few parts as can run at once, each with its rows and its runs int32 [R, 4].

    A span that reads a slot, or writes one, that a span before it writes is in a later part.
    """
    parts: list[list[Span]] = []
    read: set[int] = set()
    written: set[int] = set()
    for span in spans:
        if not parts or {span.reads, span.writes} & written or span.writes in read:
            parts.append([])
            read, written = set(), set()
        parts[-1].append(span)
        read.add(span.reads)
        written.add(span.writes)
    found = []
    for part in parts:
        start, end = part[0].first, part[-1].end
        runs = [(one.first - start, one.end - start, one.reads, one.writes) for one in part]
        found.append((slice(start, end), np.array(runs, np.int32)))
    return found
