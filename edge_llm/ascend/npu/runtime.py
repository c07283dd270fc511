"""What work on a card is given to: a stream that works in order, copies, and graphs that replay a step.

Work is given as a function that calls operators.  A runtime runs the function now, and the card what it called later; or, where
the operators are emulated, runs it later on a thread of its own.  So a function may use nothing that changes before its
completion is called.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from edge_llm.ascend.npu.chips import ChipLaw
from edge_llm.errors import DeviceError

if TYPE_CHECKING:
    from torch import Tensor

Work = Callable[[], None]
Made = TypeVar("Made")
GRAPH_ROWS = (1, 2, 4, 8, 16, 32)
"""Rows of steps that have a graph each: a chip has streams and graphs for a few."""


class Completion(Protocol):
    """Work that was given to a card: called, it returns when the work has ended and raises what went wrong."""

    def __call__(self) -> None: ...


class CaptureRefused(DeviceError):
    """The card or its software records no graph; it computes as well without."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the card records no graph: {reason}")
        self.reason = reason


class Mark(Protocol):
    """A point in a card's work."""

    def seconds_since(self, earlier: Any) -> float:
        """Seconds of the card since an ``earlier`` mark of the same runtime, once the host has waited for both."""
        ...


class Graph(Protocol):
    """Recorded work."""

    def update(self, lengths: Tensor) -> None:
        """The lengths int32 [T] of keys that its attention sees from now on, where the host holds them; inside of work."""
        ...

    def replay(self) -> None:
        """Do it again with what its arrays hold now; to be called inside of work."""
        ...


@dataclass
class Counters:
    """What passed between the host and the card so far."""

    copies_in: int = 0
    copies_out: int = 0
    waits: int = 0
    """Times that the host waited for the card."""
    captures: int = 0
    replays: int = 0


class Runtime(Protocol):
    """A card and its stream."""

    law: ChipLaw
    device: Any
    """The torch.device of its arrays."""
    counters: Counters
    emulated: bool
    """Whether the CPU computes the operators."""
    software: str
    """Versions of what computes: other ones may give other last bits."""
    attention_missing: str
    """Why the operators of attention are not there; empty when they are."""
    capture_refusal: str
    """Why work is not recorded, though the chip's law has graphs: known at the start, or since a `capture` was refused."""

    def memory(self) -> tuple[int, int]:
        """Bytes of the card's memory: free, and in all."""
        ...

    def pinned(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        """An array of zeros in host memory that copies to and from the card may use."""
        ...

    def enqueue(self, work: Work, after: Completion | None = None) -> Completion:
        """Give ``work`` to the card, behind what it was given before and behind ``after``, which was loaded beside it."""
        ...

    def load(self, work: Work, after: Completion | None = None) -> Completion:
        """The same beside the stream, for copies of weights: behind earlier loads and ``after`` alone."""
        ...

    def copy_in(self, card: Tensor, host: Tensor) -> None:
        """Copy a pinned array to the card; inside of work."""
        ...

    def copy_out(self, host: Tensor, card: Tensor) -> None:
        """Copy an array of the card to a pinned array; inside of work."""
        ...

    def mark(self) -> Mark:
        """The point behind all that was called so far; inside of work, and not while it is recorded."""
        ...

    def capture(self, work: Work) -> Graph:
        """Do ``work`` once, and record it.  Nothing else may be in flight.

        Raises `CaptureRefused`, also inside of a capture for what cannot be in one; then ``work`` may go on without.
        """
        ...


def run(runtime: Runtime, work: Callable[[], Made]) -> Made:
    """Do ``work``, wait for it, and give what it made; outside of work nothing waits for what the card does."""
    made: list[Made] = []
    runtime.enqueue(lambda: made.append(work()))()
    return made[0]
