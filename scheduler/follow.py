"""Policies that follow a schedule made before the run, and choose greedily where the real durations differ from it.

A greedy policy never keeps a lane idle while a task is ready, but the best order sometimes does: it waits for a short
urgent task instead of starting a long one just before.

    follow(trace)       the order of a trace, for example from `beam`, `optimal` or an earlier run; a schedule serves every
                        graph with the same task names, so it can be searched once and kept
    planned(width)      searches with `beam` when the run begins, and follows what it finds
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from edge_llm.scheduler.beam import beam
from edge_llm.scheduler.graph_state import GraphState, Policy
from edge_llm.scheduler.tasks import Task
from edge_llm.scheduler.trace import Trace


def follow(schedule: Trace) -> Policy:
    """Start each lane's tasks in the order of the schedule.

    A lane waits for the schedule's next task only where the lane was idle in the schedule too.  Otherwise, if the task is late,
    the lane starts the ready task that comes next in the schedule.  With the schedule's own durations the run equals the
    schedule, span for span (except for tasks that take no time).  The policy raises ValueError for a task that is not in the
    schedule.
    """
    position = {span.name: i for i, span in enumerate(sorted(schedule.spans, key=lambda span: span.start))}
    before: dict[str, str | None] = {}  # the task before it on the same lane
    after_a_pause: set[str] = set()
    for lane in schedule.lanes:
        previous, end = None, 0.0
        for span in sorted(schedule.on(lane), key=lambda span: position[span.name]):
            before[span.name] = previous
            if span.start > end:
                after_a_pause.add(span.name)
            previous, end = span.name, span.end

    def choose(ready: Sequence[Task], state: GraphState) -> Task | None:
        for task in ready:
            if task.name not in position:
                raise ValueError(f"task `{task.name}` is not in the schedule; search again for this graph")
        earliest = min(ready, key=lambda task: position[task.name])
        due = earliest.name
        while (previous := before[due]) is not None and not state.has_started(previous):
            due = previous
        return earliest if due == earliest.name or due not in after_a_pause else None

    return choose


def planned(width: int = 20) -> Policy:
    """Search an order for the whole graph with `beam` when the run begins, then `follow` it.

    The search takes milliseconds to seconds; a program that runs often should keep its schedule and `follow` that.
    """
    policies: WeakKeyDictionary[GraphState, Policy] = WeakKeyDictionary()

    def choose(ready: Sequence[Task], state: GraphState) -> Task | None:
        if state not in policies:
            policies[state] = follow(beam(state.graph, state.cost, state.lanes, width=width).trace)
        return policies[state](ready, state)

    return choose
