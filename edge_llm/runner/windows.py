"""The windows of the last prompt as the scheduler traced them: keeping them costs a reference each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import ref

from edge_llm.runner.base import Segment
from edge_llm.runner.inside import Lane, LaneSpan, LastPrompt, Work
from edge_llm.runner.work import StepMeter, TimedRun

if TYPE_CHECKING:
    from edge_llm.scheduler import Trace

MOST_WINDOWS = 8


class PromptWindows:
    """The traces of the last prompt's windows.  One thread adds; any may look."""

    def __init__(self, meter: StepMeter) -> None:
        self._meter = meter
        self._windows: tuple[_Window, ...] = ()
        self._sequence: Callable[[], Any] = lambda: None  # that of the prompt; None when it has gone
        self._lengths: tuple[int, ...] = ()  # tokens of that sequence before this step, and after it
        self._shown: tuple[tuple[_Window, ...], LastPrompt] | None = None

    def add(self, segments: Sequence[Segment[Any]], trace: Trace, tokens: int, run: TimedRun) -> None:
        """A window of ``tokens`` tokens of a step of ``segments`` ran, as ``run`` says; the longest of them is the prompt."""
        longest = max(segments, key=lambda segment: len(segment.tokens))
        sequence, start = longest.sequence, longest.sequence.length
        goes_on = self._sequence() is sequence and start in self._lengths
        self._windows = (*(self._windows[1 - MOST_WINDOWS :] if goes_on else ()), _Window(trace, tokens, run))
        self._sequence, self._lengths = ref(sequence), (start, start + len(longest.tokens))

    def look(self) -> LastPrompt | None:
        """What is shown of them; None before the first prompt."""
        windows, shown = self._windows, self._shown
        if not windows:
            return None
        if shown is None or shown[0] is not windows:
            work = self._meter.add_up([window.run for window in windows]) if self._meter.there else None
            self._shown = shown = windows, _joined(windows, work)
        return shown[1]


class _Window:
    """One graph that ran."""

    def __init__(self, trace: Trace, tokens: int, run: TimedRun) -> None:
        self.trace = trace
        self.tokens = tokens
        self.run = run

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


def _joined(windows: Sequence[_Window], work: Work | None) -> LastPrompt:
    spans: dict[str, list[LaneSpan]] = defaultdict(list)
    began = 0.0
    for window in windows:
        for lane, own in window.spans.items():
            spans[lane] += [LaneSpan(kind, began + start, began + end) for kind, start, end in own]
        began += window.seconds
    lanes = tuple(_lane(name, own, began) for name, own in spans.items())
    bound, tokens = (sum(getattr(window, name) for window in windows) for name in ("bound", "tokens"))
    return LastPrompt(lanes, began, bound, tokens, work)


def _lane(name: str, spans: list[LaneSpan], seconds: float) -> Lane:
    spans.sort(key=lambda span: span.start)
    kinds: dict[str, float] = defaultdict(float)
    for kind, start, end in spans:
        kinds[kind] += end - start
    return Lane(name, tuple(spans), max(0.0, 1.0 - sum(kinds.values()) / seconds) if seconds else 0.0, dict(kinds))
