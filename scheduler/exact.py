"""The optimal schedule of small graphs, with which tests compare the policies.

Finding it is NP-hard (llm.npu, arXiv 2407.05858, section 3.4), hence the limit of `MAX_TASKS`.  Branch and bound over
the active schedules of Giffler and Thompson (Operations Research 8, 1960): of all tasks that could come next, take the
one that could end first; only a task of its lane that could start before that end can come next on that lane, and
trying each of those in turn misses no schedule that might be the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from edge_llm.scheduler.cost import CostModel
from edge_llm.scheduler.graph_state import GraphState
from edge_llm.scheduler.policy import critical_path
from edge_llm.scheduler.simulate import simulate
from edge_llm.scheduler.tasks import Task, TaskGraph
from edge_llm.scheduler.trace import Span, Trace

MAX_TASKS = 12


def optimal(graph: TaskGraph, cost: CostModel, lanes: Sequence[str] | None = None) -> Trace:
    """A schedule with the smallest possible makespan; ValueError for more than `MAX_TASKS` tasks."""
    if len(graph) > MAX_TASKS:
        raise ValueError(f"`{len(graph)}` tasks are too many for an exact schedule; the limit is {MAX_TASKS}")
    best = simulate(graph, critical_path, cost, lanes)  # an upper bound
    seconds = {task.name: cost.predict(task.cost_key, task.lane) for task in graph}
    path = GraphState(graph, cost).path_seconds

    def complete(placed: dict[str, Span], free: dict[str, float]) -> None:
        """Try every way to go on from the placed tasks; `free` is when the last of them ends on each lane."""
        nonlocal best
        left = [task for task in graph if task.name not in placed]
        start = _earliest_starts(left, placed, free, seconds)
        work = dict(free)
        for task in left:
            work[task.lane] += seconds[task.name]
        if max([*work.values(), *(start[task.name] + path[task.name] for task in left)]) >= best.makespan:
            return
        if not left:
            best = Trace(tuple(sorted(placed.values(), key=lambda span: span.end)), best.lanes)
            return
        could_be_next = [task for task in left if all(name in placed for name in task.after)]
        end = {task.name: start[task.name] + seconds[task.name] for task in could_be_next}
        first = min(could_be_next, key=lambda task: end[task.name])
        for task in could_be_next:
            if task is first or (task.lane == first.lane and start[task.name] < end[first.name]):
                span = Span.of(task, start[task.name], end[task.name])
                complete(placed | {task.name: span}, free | {task.lane: span.end})

    if len(graph):
        complete({}, dict.fromkeys(best.lanes, 0.0))
    return best


def _earliest_starts(
    left: Sequence[Task], placed: Mapping[str, Span], free: Mapping[str, float], seconds: Mapping[str, float]
) -> dict[str, float]:
    """The earliest start of each task that is left, if the others that are left did not occupy their lanes."""
    start: dict[str, float] = {}
    for task in left:
        ends = (placed[name].end if name in placed else start[name] + seconds[name] for name in task.after)
        start[task.name] = max([free[task.lane], *ends])
    return start
