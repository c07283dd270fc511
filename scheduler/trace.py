"""The spans of one run, and figures computed from them.

A trace is plain data, the same from the simulator (virtual seconds) and the executor (real seconds); it refers to no
task and no closure.  Time 0 is the start of the run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from edge_llm.scheduler.bounds import jobs, one_lane
from edge_llm.scheduler.tasks import Task


class Span(NamedTuple):
    """One task's time on its lane, in seconds since the start of the run."""

    name: str
    lane: str
    start: float
    end: float
    after: tuple[str, ...] = ()
    cost_key: str = ""

    @classmethod
    def of(cls, task: Task, start: float, end: float) -> Span:
        return cls(task.name, task.lane, start, end, task.after, task.cost_key)

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Trace:
    """The spans of one run in the order of their ends, so that a span comes after all that it waited for."""

    spans: tuple[Span, ...]
    lanes: tuple[str, ...]

    @property
    def makespan(self) -> float:
        """Seconds from the start of the run to the end of its last task."""
        return max((span.end for span in self.spans), default=0.0)

    def on(self, lane: str) -> list[Span]:
        """The spans of one lane, by start."""
        return sorted((span for span in self.spans if span.lane == lane), key=lambda span: (span.start, span.end))

    def work(self, lane: str) -> float:
        """Seconds in which the lane was busy."""
        return sum(span.seconds for span in self.on(lane))

    def utilization(self, lane: str) -> float:
        """The share of the makespan in which the lane was busy, 0 to 1; 1 for a run that took no time."""
        return self.work(lane) / self.makespan if self.makespan else 1.0

    def bubbles(self, lane: str) -> list[tuple[float, float]]:
        """The idle times (start, end) of the lane between the start of the run and its end."""
        ends = [0.0, *(span.end for span in self.on(lane))]
        starts = [*(span.start for span in self.on(lane)), self.makespan]
        return [(end, start) for end, start in zip(ends, starts, strict=True) if start > end]

    @property
    def critical_path(self) -> tuple[Span, ...]:
        """The chain of dependent spans with the most work, which no number of lanes shortens."""
        length: dict[str, float] = {}
        before: dict[str, Span] = {}
        by_name: dict[str, Span] = {}
        for span in self.spans:
            last = max(span.after, key=length.__getitem__, default=None)
            if last is not None:
                before[span.name] = by_name[last]
            length[span.name] = span.seconds + (0.0 if last is None else length[last])
            by_name[span.name] = span
        if not length:
            return ()
        path = [by_name[max(length, key=length.__getitem__)]]
        while path[-1].name in before:
            path.append(before[path[-1].name])
        return tuple(reversed(path))

    @property
    def lower_bound(self) -> float:
        """Seconds that no order of these tasks can beat: the busiest lane's work, or the critical path if longer."""
        path = sum(span.seconds for span in self.critical_path)
        return max([path, *(self.work(lane) for lane in self.lanes)])

    @property
    def one_lane_bound(self) -> float:
        """A tighter bound, never below `lower_bound`: each lane alone, with the longest paths before and behind its
        tasks.  Source: see `bounds`."""
        seconds = {span.name: span.seconds for span in self.spans}
        job = jobs(seconds, {span.name: span.after for span in self.spans})
        return max((one_lane(job[span.name] for span in self.on(lane)) for lane in self.lanes), default=0.0)

    def chrome_json(self) -> str:
        """The trace in Chrome's format, for https://ui.perfetto.dev or chrome://tracing: one row per lane."""
        return json.dumps({"traceEvents": self.chrome_events(), "displayTimeUnit": "ms"})

    def chrome_events(self, process: int = 0) -> list[dict[str, Any]]:
        """The events of `chrome_json`, as those of process number `process`."""
        row = {lane: i for i, lane in enumerate(self.lanes)}
        names = [
            {"ph": "M", "name": "thread_name", "pid": process, "tid": row[lane], "args": {"name": lane}}
            for lane in self.lanes
        ]
        spans = [
            {
                "ph": "X",
                "name": span.name,
                "cat": span.cost_key,
                "pid": process,
                "tid": row[span.lane],
                "ts": span.start * 1e6,  # microseconds
                "dur": span.seconds * 1e6,
                "args": {"after": span.after},
            }
            for span in self.spans
        ]
        return names + spans

    def gantt(self, width: int = 100) -> str:
        """The trace as text, one row per lane: a task is named where its name fits, else drawn by how busy it keeps
        the lane.  No line is longer than `width` columns (at least 60)."""
        if width < 60:
            raise ValueError(f"width `{width}` is too narrow; give at least 60 columns")
        margin = min(16, max((len(lane) for lane in self.lanes), default=0))
        columns = width - margin - len(" || 100%")
        rows = [
            f"{lane[:margin]:<{margin}} |{self._bar(lane, columns)}| {self.utilization(lane):4.0%}"
            for lane in self.lanes
        ]
        rows.append(f"{len(self.spans)} tasks in {self.makespan:.4g} s (no order beats {self.one_lane_bound:.4g} s)")
        return "\n".join(rows)

    def _bar(self, lane: str, columns: int) -> str:
        whole = self.makespan or 1.0
        busy = [0.0] * columns
        named: list[tuple[int, int, str]] = []
        for span in self.on(lane):
            start, end = span.start / whole * columns, span.end / whole * columns
            if round(end) - round(start) >= 4:
                named.append((round(start), round(end), span.name))
            else:
                _spread(busy, start, end)
        bar = [" ░▒▓█"[min(4, round(share * 4))] for share in busy]
        for first, last, name in named:
            room = last - first - 2
            bar[first:last] = f"[{name[:room]:-<{room}}]"
        return "".join(bar)


def _spread(busy: list[float], start: float, end: float) -> None:
    """Add to each column the share of it that lies between `start` and `end` (in columns)."""
    for column in range(int(start), min(len(busy), int(end) + 1)):
        busy[column] += max(0.0, min(end, column + 1) - max(start, column))
