"""A search for a good schedule of graphs that are too large for `exact`; `follow` uses it, tests compare policies with it.

All partial schedules with the same number of placed tasks are one level; each level is made from the one before by the
rule of Giffler and Thompson (see `exact`), and only the `width` most promising schedules are kept.  A partial schedule
that has placed the same tasks as another, and is nowhere earlier, is dropped without loss.  So is one that cannot end
before the best known schedule.  If no other schedule was dropped, the result is optimal and marked as proven: that
holds for two chains of any length within a small width.

Source: beam search for job shops, I. Sabuncuoglu and M. Bayiz, European Journal of Operational Research 118 (1999).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from edge_llm.scheduler.cost import CostModel
from edge_llm.scheduler.graph_state import GraphState
from edge_llm.scheduler.policy import c_value, critical_path, feed, first_ready
from edge_llm.scheduler.simulate import simulate
from edge_llm.scheduler.tasks import TaskGraph
from edge_llm.scheduler.trace import Span, Trace

WIDTH = 200
TOLERANCE = 1e-9  # of the makespan: closer values count as equal


class Found(NamedTuple):
    """The best schedule that was found, and whether it is proven to be optimal."""

    trace: Trace
    proven: bool


def beam(graph: TaskGraph, cost: CostModel, lanes: Sequence[str] | None = None, *, width: int = WIDTH) -> Found:
    """A schedule at least as good as those of the greedy policies; ValueError if `width` is below 1.

    Takes up to about `width` times 20 microseconds a task where ten tasks are ready at a time, and more for more.
    """
    if width < 1:
        raise ValueError(f"width `{width}` is too small; give 1 or more")
    problem = _Problem(graph, cost, lanes)
    best = _best_greedy(graph, cost, problem.lanes)
    if _at_bound(best):
        return Found(best, proven=True)
    limit = best.makespan * (1 - TOLERANCE)
    level, proven = [problem.start()], True
    for _ in range(len(graph)):
        following = _undominated(child for partial in level for child in problem.children(partial, limit))
        proven = proven and len(following) <= width
        level = sorted(following, key=lambda partial: partial.rank)[:width]
    if level:  # complete schedules, each better than the best before
        best = problem.trace(level[0])
    return Found(best, proven or _at_bound(best))


def _at_bound(trace: Trace) -> bool:
    return trace.makespan <= trace.one_lane_bound * (1 + TOLERANCE)


def _best_greedy(graph: TaskGraph, cost: CostModel, lanes: Sequence[str]) -> Trace:
    policies = [critical_path, first_ready, *map(feed, lanes), *map(c_value, lanes)]
    return min((simulate(graph, policy, cost, lanes) for policy in policies), key=lambda trace: trace.makespan)


class _Partial(NamedTuple):
    """A partial schedule.  Tasks and lanes are numbers; sets of tasks are the bits of an integer."""

    rank: tuple[float, float]  # a lower bound of the makespan; the second breaks ties
    placed: int
    free: tuple[float, ...]  # lane -> when its last placed task ends
    left: tuple[float, ...]  # lane -> seconds of tasks that are not placed
    release: dict[int, float]  # unplaced root or successor of a placed task -> when it could start
    ready: frozenset[int]  # those of them whose predecessors are all placed
    last: tuple[int, float, _Partial] | None  # the task placed last, its start, and the schedule before it

    @property
    def ends(self) -> list[float]:
        """The times that, with the set of placed tasks, decide every completion of a partial schedule."""
        return [*self.free, *(self.release[task] for task in sorted(self.release))]


class _Problem:
    """A graph and its durations as lists; a task's number is its place in program order."""

    def __init__(self, graph: TaskGraph, cost: CostModel, lanes: Sequence[str] | None) -> None:
        state = GraphState(graph, cost, lanes)
        number = {task.name: i for i, task in enumerate(graph)}
        self.tasks = graph.order
        self.lanes = state.lanes
        self.lane = [self.lanes.index(task.lane) for task in graph]
        self.seconds = [state.seconds(task) for task in graph]
        self.path = [state.path_seconds[task.name] for task in graph]
        self.after = [sum(1 << number[name] for name in task.after) for task in graph]
        self.successors = [[number[task.name] for task in graph.successors(name)] for name in number]

    def start(self) -> _Partial:
        """The schedule without tasks."""
        left = [0.0] * len(self.lanes)
        for lane, seconds in zip(self.lane, self.seconds, strict=True):
            left[lane] += seconds
        roots = frozenset(task for task, after in enumerate(self.after) if not after)
        return _Partial((0.0, 0.0), 0, (0.0,) * len(left), tuple(left), dict.fromkeys(roots, 0.0), roots, None)

    def children(self, partial: _Partial, limit: float) -> Iterator[_Partial]:
        """The schedules with one more task that may end before `limit`, by the rule of Giffler and Thompson."""
        release = partial.release
        first = min(partial.ready, key=lambda task: (release[task] + self.seconds[task], task))
        first_end = release[first] + self.seconds[first]
        for task in partial.ready:
            if task == first or (self.lane[task] == self.lane[first] and release[task] < first_end):
                child = self._place(partial, task)
                if child.rank[0] < limit:
                    yield child

    def _place(self, partial: _Partial, task: int) -> _Partial:
        lane, start = self.lane[task], partial.release[task]
        end = start + self.seconds[task]
        placed = partial.placed | 1 << task
        free = (*partial.free[:lane], end, *partial.free[lane + 1 :])
        left = (*partial.left[:lane], partial.left[lane] - self.seconds[task], *partial.left[lane + 1 :])
        release = {
            other: max(time, end) if self.lane[other] == lane else time
            for other, time in partial.release.items()
            if other != task
        }
        ready = set(partial.ready)
        ready.remove(task)
        for follower in self.successors[task]:
            release[follower] = max(release.get(follower, 0.0), end, free[self.lane[follower]])
            if placed & self.after[follower] == self.after[follower]:
                ready.add(follower)
        busy = [at + more for at, more in zip(free, left, strict=True)]
        bound = max([*busy, *(time + self.path[other] for other, time in release.items())])
        return _Partial((bound, sum(busy)), placed, free, left, release, frozenset(ready), (task, start, partial))

    def trace(self, partial: _Partial) -> Trace:
        """The spans of a complete schedule."""
        spans: list[Span] = []
        last = partial.last
        while last is not None:
            task, start, before = last
            spans.append(Span.of(self.tasks[task], start, start + self.seconds[task]))
            last = before.last
        return Trace(tuple(sorted(reversed(spans), key=lambda span: span.end)), self.lanes)


def _undominated(partials: Iterator[_Partial]) -> list[_Partial]:
    """Drop every partial schedule for which another one placed the same tasks and is nowhere later."""
    by_placed: dict[int, list[tuple[list[float], _Partial]]] = {}
    for partial in partials:
        rivals = by_placed.setdefault(partial.placed, [])
        ends = partial.ends
        if not any(_nowhere_later(other, ends) for other, _ in rivals):
            rivals[:] = [rival for rival in rivals if not _nowhere_later(ends, rival[0])]
            rivals.append((ends, partial))
    return [partial for rivals in by_placed.values() for _, partial in rivals]


def _nowhere_later(these: list[float], those: list[float]) -> bool:
    return all(a <= b for a, b in zip(these, those, strict=True))
