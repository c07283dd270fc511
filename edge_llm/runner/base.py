"""What the engine may ask of a runner, whatever numbers it computes with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import numpy as np

from edge_llm.config import NOT_RECORDED, RuntimeConfig
from edge_llm.kernels import ThreadPool
from edge_llm.progress import StageProgress, ignore
from edge_llm.runner.inside import RunnerInside

if TYPE_CHECKING:
    from edge_llm.devices.base import Device

Cancel = Callable[[], bool]
"""Asked between tasks; true means: stop, the answer is no longer wanted."""


def never() -> bool:
    """A `Cancel` that never asks to stop."""
    return False


class Cancelled(Exception):
    """The caller asked to stop; the sequence is as it was before the call."""


class SequenceState(Protocol):
    """What is kept of one sequence."""

    @property
    def length(self) -> int:
        """Tokens held."""
        ...

    def truncate(self, length: int) -> None:
        """Forget the tokens from ``length`` on; more than these where what is kept cannot go back so little: see `length`."""
        ...

    def close(self) -> None:
        """Give all memory back."""
        ...


State = TypeVar("State", bound=SequenceState)


@dataclass(frozen=True)
class Segment(Generic[State]):
    """Tokens that are appended to one sequence in a step, and how many of the last of them need logits."""

    sequence: State
    tokens: Sequence[int]
    wanted: int = 1
    states: bool = False
    """They need their normed last hidden states instead."""
    second: int = 0
    """The position where the second text of a pair begins; 0: it is no pair."""


class Memory(Protocol[State]):
    """Where sequences live, and what is remembered of earlier ones."""

    def open(self, tokens: Sequence[int] = (), adapter: int = 0) -> State:
        """A sequence that holds as much of the beginning of ``tokens`` as is known, but not the last of them.

        It is computed with the ``adapter`` of this number; 0: with none.
        """
        ...

    def reserve(self, sequence: State, tokens: int) -> None:
        """Make room for ``tokens`` tokens in all; raises `OutOfMemory` and changes nothing if there is none."""
        ...

    def remember(self, sequence: State, tokens: Sequence[int]) -> None:
        """Remember what ``sequence`` holds, which is the beginning of ``tokens``."""
        ...

    def has_room(self, tokens: int) -> bool:
        """Whether a new sequence of ``tokens`` tokens fits beside those that run."""
        ...

    def check_fits(self, tokens: int) -> None:
        """Raise `OutOfMemory` if a sequence of ``tokens`` tokens does not even fit alone."""
        ...

    def state(self) -> Mapping[str, int]:
        """How full it is and what it did so far, for those who watch."""
        ...


@dataclass(frozen=True)
class Site:
    """Where a model runs, and why there."""

    device: str
    """As `--device` takes it."""
    device_reason: str
    placement: str
    """What runs where, a name of `edge_llm.subgraphs.placement`."""
    placement_reason: str
    keys: str
    """How keys and values are kept."""
    activations: str
    """The scales of INT8 activations; empty where they are not rounded."""

    @classmethod
    def of(cls, runtime: RuntimeConfig, device: Device) -> Site:
        """``device`` as the filled-in ``runtime`` asked for it."""
        placed = device.placement.name, device.placement_reason
        return cls(runtime.device, runtime.device_reason, *placed, device.keys, runtime.activations)

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Site:
        """What a mapping says that has every field among its keys; rows of before say no `activations`."""
        said = {"activations": "", **row}
        return cls(**{each.name: said[each.name] for each in fields(cls)})

    @property
    def note(self) -> str:
        """What makes it slower here than it might be, in a sentence; empty where nothing is known."""
        reason = self.placement_reason.partition(NOT_RECORDED)[2]
        return f"The card is given each step operator by operator, which takes longer: {reason}." if reason else ""

    def __str__(self) -> str:
        placement = f"placement: {self.placement} ({self.placement_reason})"
        activations = f"; activations: {self.activations}" if self.activations else ""
        return f"device: {self.device} ({self.device_reason}); {placement}; keys: {self.keys}{activations}"


FLOAT_SITE = Site("host", "--float runs there only", "host", "--float has no other", "float32", "")
"""Of every float runner."""


class Runner(Protocol[State]):
    """Runs the model."""

    context: int
    """Longest sequence in tokens."""

    @property
    def site(self) -> Site:
        """Where it runs now, and what has been learnt of that."""
        ...

    @property
    def pool(self) -> ThreadPool | None:
        """Threads of the host, which wait between two steps and may then share the work on logits; None: it has none."""
        ...

    @property
    def memory(self) -> Memory[State]:
        """Where its sequences live."""
        ...

    @property
    def clipped(self) -> int:
        """Inputs of linears that a card cut off in prompts so far."""
        ...

    def prepare(self, progress: StageProgress = ignore) -> None:
        """Do what the first steps would wait for, such as recording a card's graphs; before the first step.

        Raises `DeviceError` where a card refuses, `DeviceLost` where it fails.
        """
        ...

    def look(self) -> RunnerInside:
        """What goes on in it; may be called by any thread while another one runs a step, and never waits for it."""
        ...

    def open(self) -> State:
        """An empty sequence."""
        ...

    def run(self, segments: Sequence[Segment[State]], *, cancel: Cancel | None = None) -> list[np.ndarray]:
        """One step: append every segment's tokens to its sequence (each sequence at most once).

        Gives each segment's logits, float32 [wanted, vocab], or states, float32 [wanted, hidden_size]; the rows are the
        caller's own, and may be changed.  Raises `ContextOverflow` if tokens do not fit, `OutOfMemory` if pages run out,
        `Cancelled` when asked to stop; all sequences are then unchanged.
        """
        ...

    def forward(
        self, sequence: State, tokens: Sequence[int], *, wanted: int = 1, cancel: Cancel | None = None
    ) -> np.ndarray:
        """The step of one segment: float32 [wanted, vocab]."""
        ...
