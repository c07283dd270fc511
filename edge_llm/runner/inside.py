"""What a runner shows of itself, as plain data: the lanes of the last prompt, its pages, and where its bytes lie.

The windows of the last prompt are kept as the scheduler traced them, which costs a reference; what is shown of them is made
when somebody looks, once per window.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from edge_llm.kv.memory import KVMemory
    from edge_llm.runner.base import Segment
    from edge_llm.weights.base import Weights
    from scheduler import Trace

MOST_WINDOWS = 8

PAGE_STATES = ("free", "used", "shared", "cached")
"""The names of `edge_llm.kv.memory.PAGE_STATES`, in their order."""


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


class PromptWindows:
    """The traces of the last prompt's windows.  One thread adds; any may look."""

    def __init__(self) -> None:
        self._windows: tuple[_Window, ...] = ()
        self._place: tuple[tuple[int, int], ...] = ()  # where the prompt stands: (sequence, tokens before this step or after)
        self._shown: tuple[tuple[_Window, ...], LastPrompt] | None = None

    def add(self, segments: Sequence[Segment[Any]], trace: Trace, tokens: int) -> None:
        """A window of ``tokens`` tokens of a step of ``segments`` ran; the longest of them is the prompt."""
        longest = max(segments, key=lambda segment: len(segment.tokens))
        sequence, start = id(longest.sequence), longest.sequence.length
        before = self._windows[1 - MOST_WINDOWS :] if (sequence, start) in self._place else ()
        self._windows = (*before, _Window(trace, tokens))
        self._place = ((sequence, start), (sequence, start + len(longest.tokens)))

    def look(self) -> LastPrompt | None:
        """What is shown of them; None before the first prompt."""
        windows, shown = self._windows, self._shown
        if not windows:
            return None
        if shown is None or shown[0] is not windows:
            self._shown = shown = windows, _joined(windows)
        return shown[1]


class _Window:
    """One graph that ran."""

    def __init__(self, trace: Trace, tokens: int) -> None:
        self.trace = trace
        self.tokens = tokens

    @cached_property
    def seconds(self) -> float:
        return self.trace.makespan

    @cached_property
    def bound(self) -> float:
        return self.trace.one_lane_bound

    @cached_property
    def spans(self) -> dict[str, list[LaneSpan]]:
        lanes: dict[str, list[LaneSpan]] = {lane: [] for lane in self.trace.lanes}
        for span in self.trace.spans:
            lanes[span.lane].append(LaneSpan(_kind(span.cost_key), span.start, span.end))
        return lanes


def _kind(cost_key: str) -> str:
    """`qkv` of `qkv/256`."""
    return cost_key.split("/", 1)[0]


def _joined(windows: Sequence[_Window]) -> LastPrompt:
    spans: dict[str, list[LaneSpan]] = defaultdict(list)
    began = 0.0
    for window in windows:
        for lane, own in window.spans.items():
            spans[lane] += [LaneSpan(kind, began + start, began + end) for kind, start, end in own]
        began += window.seconds
    lanes = tuple(_lane(name, own, began) for name, own in spans.items())
    return LastPrompt(lanes, began, sum(window.bound for window in windows), sum(window.tokens for window in windows))


def _lane(name: str, spans: list[LaneSpan], seconds: float) -> Lane:
    spans.sort(key=lambda span: span.start)
    kinds: dict[str, float] = defaultdict(float)
    for kind, start, end in spans:
        kinds[kind] += end - start
    return Lane(name, tuple(spans), max(0.0, 1.0 - sum(kinds.values()) / seconds) if seconds else 0.0, dict(kinds))


def look_at_pages(memory: KVMemory) -> tuple[PageMap, dict[str, int]]:
    """The pages of ``memory``, and the counts of its prefix cache on disk."""
    disk = "prefix_disk_pages_"
    counts = {name.removeprefix(disk): count for name, count in memory.state().items() if name.startswith(disk)}
    return PageMap(memory.page_states(), memory.pages.page_tokens, memory.page_bytes), counts


def look_at_weights(weights: Weights) -> dict[str, int]:
    """The fields of `RunnerInside` that ``weights`` say."""
    return {"weight_bytes": weights.nbytes, "streamed_bytes": weights.streamed_bytes, "read_bytes": weights.read_bytes}
