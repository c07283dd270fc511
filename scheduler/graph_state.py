"""The state of a run of a graph, which the simulator and the executor share.

A policy may read all of it.  Only `simulate` and `execute` change it, with `pick` and `finish`: whatever the policy
returns, a task starts once, on its own lane, and after all tasks that it waits for.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TypeAlias

from edge_llm.scheduler.cost import CostModel
from edge_llm.scheduler.tasks import Task, TaskGraph


class GraphState:
    """The ready tasks, the started ones, how many are left, and the predicted duration of each."""

    def __init__(self, graph: TaskGraph, cost: CostModel | None = None, lanes: Sequence[str] | None = None) -> None:
        self.graph = graph
        self.cost = CostModel() if cost is None else cost
        self.lanes = graph.lanes if lanes is None else tuple(dict.fromkeys(lanes))
        self.ready: dict[str, list[Task]] = {lane: [] for lane in self.lanes}  # each list in program order
        self.left = len(graph)  # tasks that have not finished
        self._program: dict[str, deque[Task]] = {lane: deque() for lane in self.lanes}
        self._waits: dict[str, int] = {}  # task -> how many of the tasks it waits for have not finished
        self._position: dict[str, int] = {}
        self._started: set[Task] = set()
        for position, task in enumerate(graph):
            if task.lane not in self.ready:
                known = ", ".join(f"`{lane}`" for lane in self.lanes)
                raise ValueError(f"task `{task.name}` needs lane `{task.lane}`, but the lanes are {known}")
            self._position[task.name] = position
            self._waits[task.name] = len(task.after)
            self._program[task.lane].append(task)
            if not task.after:
                self.ready[task.lane].append(task)

    # -- for policies -----------------------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """How many tasks have started and not finished."""
        return len(self._started) - (len(self.graph) - self.left)

    def seconds(self, task: Task) -> float:
        """The predicted duration of a task."""
        return self.cost.predict(task.cost_key, task.lane)

    def next_in_program(self, lane: str) -> Task | None:
        """The first task of the lane, in program order, that has not started."""
        program = self._program[lane]
        while program and program[0] in self._started:
            program.popleft()
        return program[0] if program else None

    def has_started(self, name: str) -> bool:
        """Whether the task of this name has started, or even ended."""
        return self.graph[name] in self._started

    def released_by(self, task: Task) -> list[Task]:
        """The tasks that wait for this one only."""
        return [follower for follower in self.graph.successors(task.name) if self._waits[follower.name] == 1]

    @cached_property
    def path_seconds(self) -> dict[str, float]:
        """For each task, the predicted length of the longest path from its start to the end of the program."""
        path: dict[str, float] = {}
        for task in reversed(self.graph.order):
            after = (path[follower.name] for follower in self.graph.successors(task.name))
            path[task.name] = self.seconds(task) + max(after, default=0.0)
        return path

    # -- changes ----------------------------------------------------------------------------------------------------

    def pick(self, lane: str, policy: Policy) -> Task | None:
        """Start the ready task that the policy chooses for the lane; None when it leaves the lane idle."""
        ready = self.ready[lane]
        task = policy(ready, self) if ready else None
        if task is None:
            return None
        try:
            ready.remove(task)
        except ValueError:
            raise ValueError(f"the policy chose `{task.name}`, which is not ready on lane `{lane}`") from None
        self._started.add(task)
        return task

    def finish(self, task: Task) -> None:
        """Record the end of a started task; the tasks that waited only for it become ready."""
        self.left -= 1
        for follower in self.graph.successors(task.name):
            self._waits[follower.name] -= 1
            if not self._waits[follower.name]:
                insort(self.ready[follower.lane], follower, key=lambda task: self._position[task.name])

    def stalled(self) -> ValueError:
        """The error to raise when every lane is idle, no task runs, work is left, and the policy starts none of it."""
        ready = ", ".join(f"`{task.name}`" for tasks in self.ready.values() for task in tasks)
        return ValueError(f"the policy left every lane idle with {ready} ready")


Policy: TypeAlias = Callable[[Sequence[Task], GraphState], Task | None]
