"""What an operation keeps of a sequence, by kind, and how rows are handed to what keeps a fixed shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


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
