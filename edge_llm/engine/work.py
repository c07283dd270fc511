"""What the batcher computes, one piece of it for each caller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # all of this file is a type
    import numpy as np

    from edge_llm.engine.request import Delta
    from edge_llm.errors import OutOfMemory
    from edge_llm.runner.base import Memory, Segment


class Work(Protocol):
    """What is computed for one caller: a `Generation` or an `Embedding`."""

    sequence: Any
    """Keys and values while it runs; None while it waits."""
    finished: bool

    @property
    def background(self) -> bool:
        """Whether it lets all others go first."""
        ...

    @property
    def known(self) -> Sequence[int]:
        """The tokens that it has so far."""
        ...

    @property
    def cancelled(self) -> Callable[[], bool]:
        """Whether nobody wants it any more."""
        ...

    @property
    def decoding(self) -> bool:
        """Whether the next step gives a token."""
        ...

    @property
    def room(self) -> int:
        """Guesses that the next step may check."""
        ...

    def offer(self, guesses: Sequence[int]) -> None:
        """What may come next, for the next `segment`."""
        ...

    def start(self, memory: Memory[Any]) -> None:
        """Take a sequence."""
        ...

    def segment(self, most: int) -> Segment[Any]:
        """What to compute next: at most ``most`` tokens."""
        ...

    def take(self, rows: np.ndarray) -> Iterator[Delta]:
        """What the rows that the last segment wanted say."""
        ...

    def remember(self, memory: Memory[Any]) -> None:
        """Leave in ``memory`` what may help others; called after every `take`."""
        ...

    def end(self, reason: str) -> Delta:
        """Its last delta."""
        ...

    def strand(self, error: OutOfMemory) -> Delta | OutOfMemory:
        """Its end when there is not enough memory for it alone."""
        ...
