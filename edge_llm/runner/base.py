"""What the engine may ask of a runner, whatever numbers it computes with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np

Cancel = Callable[[], bool]
"""Asked between tasks; true means: stop, the answer is no longer wanted."""


class Cancelled(Exception):
    """The caller asked to stop; the sequence is as it was before the call."""


class SequenceState(Protocol):
    """The keys and values of one sequence."""

    length: int

    def truncate(self, length: int) -> None:
        """Forget the tokens from ``length`` on."""
        ...

    def close(self) -> None:
        """Give all memory back."""
        ...


State = TypeVar("State", bound=SequenceState)


class Runner(Protocol[State]):
    """Runs the model."""

    context: int
    """Longest sequence in tokens."""

    def open(self) -> State:
        """An empty sequence."""
        ...

    def forward(
        self, sequence: State, tokens: Sequence[int], *, wanted: int = 1, cancel: Cancel | None = None
    ) -> np.ndarray:
        """Append ``tokens`` and return the logits of the last ``wanted`` of them: float32 [wanted, vocab].

        Raises `ContextOverflow` if they do not fit, `OutOfMemory` if pages run out, `Cancelled` when asked to stop;
        the sequence is then unchanged.
        """
        ...

    def decode(self, sequences: Sequence[State], tokens: Sequence[int]) -> np.ndarray:
        """Append one token to each sequence in a single step: float32 [sequences, vocab]."""
        ...
