"""What a runner shows of itself, as plain data: the lanes of the last prompt, its pages, and where its bytes lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from edge_llm.kv.memory import KVMemory
    from edge_llm.weights.base import FlashCounts, TokenBytes, Weights

MOST_WINDOWS = 8

PAGE_STATES = ("free", "used", "shared", "cached")
"""The names of `edge_llm.kv.memory.PAGE_STATES`, in their order."""


PRODUCTS, ATTENTION, KEYS, NORMS, OUTPUT, FLASH, REST = WORK_KINDS = (
    "products", "attention", "keys", "norms", "output", "flash", "rest",
)  # fmt: skip
"""Kinds of work: products of layers (with the norm before and the gate behind, where they are one call), attention, keys and
values (rotated, turned and kept), norms of their own, the output matrix, waiting for flash, all else."""


@dataclass(frozen=True)
class Work:
    """Where the time of some runs on the host went."""

    seconds: Mapping[str, float]
    """By kind of work."""
    runs: int
    bytes: int
    """Of the weights, keys and values that these runs had to read."""


class LaneSpan(NamedTuple):
    """What a lane did for a while, in seconds since the prompt began."""

    kind: str
    """The part of a layer, or a read."""
    start: float
    end: float


@dataclass(frozen=True)
class Lane:
    """One lane of a prompt."""

    name: str
    """cpu, npu or flash."""
    spans: tuple[LaneSpan, ...]
    """By start."""
    idle: float
    """Share of the prompt's seconds in which it did nothing, 0 to 1."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What each kind took in all."""


@dataclass(frozen=True)
class LastPrompt:
    """The last windows of the prompt that was computed last, put one behind the other."""

    lanes: tuple[Lane, ...]
    seconds: float
    bound: float
    """Seconds that no order of the same work on the same lanes beats."""
    tokens: int
    """Computed in these windows; those of texts that ran along are among them."""
    work: Work | None = None
    """What was done for them, where the host does it all."""


@dataclass(frozen=True)
class PageMap:
    """The pages of keys and values."""

    states: bytes
    """One byte for every page: the place of its state in `PAGE_STATES`."""
    page_tokens: int
    page_bytes: int

    def count(self, state: str) -> int:
        """Pages of one state."""
        return self.states.count(PAGE_STATES.index(state))


@dataclass(frozen=True)
class RunnerInside:
    """A runner at one moment; None where it has no such thing or cannot tell."""

    prompt: LastPrompt | None = None
    pages: PageMap | None = None
    prefix_disk: Mapping[str, int] = field(default_factory=dict)
    """Pages that the prefix cache on disk read, wrote, ..."""
    overflow: int | None = None
    """Activation values that overflowed INT8 so far and were added back."""
    clipped: int = 0
    """Those that a card cut off in prompts."""
    weight_bytes: int | None = None
    """Bytes of the host's memory that weights hold."""
    streamed_bytes: int = 0
    """Bytes that a token, or a window of a prompt, reads from flash by the plan."""
    read_bytes: int = 0
    """Bytes that were read from flash so far."""
    step: Work | None = None
    """Some steps of the last answer."""
    experts: FlashCounts | None = None
    """What became of experts that come from flash."""
    token_bytes: TokenBytes | None = None
    """What a token takes of weights from each place by the plan."""
    sent_bytes: int = 0
    """Bytes of layers that stay in main memory and were copied to a card for steps so far."""


def look_at_pages(memory: KVMemory) -> tuple[PageMap, dict[str, int]]:
    """The pages of ``memory``, and the counts of its prefix cache on disk."""
    disk = "prefix_disk_pages_"
    counts = {name.removeprefix(disk): count for name, count in memory.state().items() if name.startswith(disk)}
    return PageMap(memory.page_states(), memory.pages.page_tokens, memory.page_bytes), counts


def look_at_weights(weights: Weights) -> dict[str, Any]:
    """The fields of `RunnerInside` that ``weights`` say."""
    return {
        "weight_bytes": weights.nbytes,
        "streamed_bytes": weights.streamed_bytes,
        "read_bytes": weights.read_bytes,
        "experts": weights.experts,
        "token_bytes": weights.token_bytes,
        "sent_bytes": weights.sent_bytes,
    }
