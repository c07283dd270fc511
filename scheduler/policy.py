"""Which ready task a free lane starts next: each policy is a plain function, and functions compose.

A policy gets the ready tasks of one lane (at least one, in program order) and the `GraphState` of the whole run.  It
returns one of them, or None to keep the lane idle until another task ends.

    in_order            each lane in strict program order: the baseline
    first_ready         the ready task that comes first in the program
    longest_first       the ready task that takes longest
    critical_path       the ready task with the longest path of work behind it
    c_value("npu")      the rule of llm.npu: release the most work elsewhere, the least on the NPU
    feed("npu")         the longest path first on the NPU, elsewhere the most released work: the fastest when measured

All of these look one step ahead; `follow` and `beam` look further before the run.

Further policies are built the same way: `largest(key)` and `smallest(key)` choose by any function of task and state,
further keys and then program order break ties, and `per_lane` gives lanes different policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from edge_llm.scheduler.graph_state import GraphState, Policy
from edge_llm.scheduler.tasks import Task

Key = Callable[[Task, GraphState], float]


# -- keys: numbers by which tasks are compared -------------------------------------------------------------------------


def seconds(task: Task, state: GraphState) -> float:
    """The predicted duration of the task."""
    return state.seconds(task)


def path_seconds(task: Task, state: GraphState) -> float:
    """The predicted duration of the longest path from the start of this task to the end of the program."""
    return state.path_seconds[task.name]


def released_seconds(task: Task, state: GraphState) -> float:
    """The work that becomes ready when the task ends: the sum of T(S) in llm.npu (arXiv 2407.05858), section 3.4."""
    return sum(map(state.seconds, state.released_by(task)))


# -- ways to choose ---------------------------------------------------------------------------------------------------


def largest(*keys: Key) -> Policy:
    """The ready task with the largest first key; later keys, then program order, break ties."""
    return lambda ready, state: max(ready, key=lambda task: [key(task, state) for key in keys])


def smallest(*keys: Key) -> Policy:
    """The ready task with the smallest first key; later keys, then program order, break ties."""
    return lambda ready, state: min(ready, key=lambda task: [key(task, state) for key in keys])


def per_lane(policies: Mapping[str, Policy], otherwise: Policy) -> Policy:
    """A policy of its own for some lanes, and one for all other lanes."""
    return lambda ready, state: policies.get(ready[0].lane, otherwise)(ready, state)


# -- the policies -----------------------------------------------------------------------------------------------------


def in_order(ready: Sequence[Task], state: GraphState) -> Task | None:
    """The lane's next task in program order; the lane waits until it is ready."""
    first = ready[0]
    return first if first is state.next_in_program(first.lane) else None


def first_ready(ready: Sequence[Task], state: GraphState) -> Task:
    """The ready task that comes first in the program."""
    return ready[0]


longest_first = largest(seconds)
critical_path = largest(path_seconds)


def c_value(npu: str) -> Policy:
    """Start the ready task with the largest C, the heuristic of llm.npu (arXiv 2407.05858), section 3.4.

    C is the work that becomes ready when the task ends, negative for tasks on lane `npu`, which is to be kept busy.  All
    ready tasks of a lane have the same sign, so the rule is: release the most work elsewhere, the least on `npu`.
    """
    return per_lane({npu: smallest(released_seconds)}, otherwise=largest(released_seconds))


def feed(lane: str) -> Policy:
    """Keep `lane` busy: it starts the longest path first, other lanes start the task that releases the most work."""
    return per_lane({lane: critical_path}, otherwise=largest(released_seconds))
