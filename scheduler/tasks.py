"""Tasks, and the graph of who waits for whom.

A task is one piece of work that occupies one lane (a processor, a disk, a cook) from its start to its end.  A
`TaskGraph` is built in *program order*, the order in which a plain program would do the work: a task may wait only for
tasks added before it.  So no circle can be built, and program order is always a correct order to run in.

Source: the subgraphs and their dependencies in llm.npu (ASPLOS 2025, arXiv 2407.05858), section 3.4.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import TypeAlias

Completion: TypeAlias = Callable[[], None]
"""Work that goes on elsewhere: a call returns when it has ended, or raises what went wrong; so does a second call."""


def nothing() -> None:
    """The work of a task that is only simulated, or that only joins other tasks."""


@dataclass(frozen=True, slots=True, eq=False)  # a task equals only itself: closures cannot be compared
class Task:
    """One piece of work: its name, its lane, the tasks it waits for, its cost key, its function.

    The work has ended when the function returns, or, if that returns a `Completion`, when that does.
    """

    name: str
    lane: str
    after: tuple[str, ...] = ()
    cost_key: str = ""  # tasks of one kind share a key and the learned duration
    run: Callable[[], Completion | None] = nothing


class TaskGraph:
    """Tasks in program order and the edges between them.  It keeps no state of a run and may be run many times."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._successors: dict[str, list[Task]] = {}

    @classmethod
    def from_tasks(cls, tasks: Iterable[Task]) -> TaskGraph:
        """The graph of tasks listed in any order; a correct order is kept.

        Raises ValueError that names the tasks of a circle, and for everything that `add` refuses.
        """
        listed = list(tasks)
        position = {task.name: i for i, task in enumerate(listed)}
        sorter = TopologicalSorter({task.name: [name for name in task.after if name in position] for task in listed})
        try:
            sorter.prepare()
        except CycleError as error:
            circle = " -> ".join(f"`{name}`" for name in error.args[1])
            raise ValueError(f"tasks wait for each other in a circle: {circle}") from None
        graph = cls()
        startable: list[int] = []
        while sorter.is_active():
            for name in sorter.get_ready():
                heapq.heappush(startable, position[name])
            task = listed[heapq.heappop(startable)]
            graph._append(task)
            sorter.done(task.name)
        if len(graph) < len(listed):
            twice = next(task for task in listed if graph[task.name] is not task)
            graph._append(twice)  # raises
        return graph

    def add(
        self,
        name: str,
        lane: str,
        run: Callable[[], Completion | None] = nothing,
        *,
        after: Iterable[str] = (),
        cost_key: str | None = None,
    ) -> Task:
        """Append a task to the program and return it; its cost key is its name unless one is given.

        Raises ValueError if the name is taken, a task that it waits for was not added before, or name or lane is not
        printable text.
        """
        if isinstance(after, str):
            raise ValueError(f"task `{name}`: `after` takes a collection of names, not the one name `{after}`")
        task = Task(name, lane, tuple(dict.fromkeys(after)), name if cost_key is None else cost_key, run)
        self._append(task)
        return task

    def _append(self, task: Task) -> None:
        name, lane = task.name, task.lane
        if not (name and name.isprintable() and lane and lane.isprintable()):
            raise ValueError(f"task `{name!a}` on lane `{lane!a}`: name and lane must be printable text")
        if name in self._tasks:
            raise ValueError(f"task `{name}` is already in the graph; give every task a name of its own")
        for needed in task.after:
            if needed == name:
                raise ValueError(f"task `{name}` waits for itself")
            if needed not in self._tasks:
                raise ValueError(f"task `{name}` waits for `{needed}`, which is not in the graph; add `{needed}` first")
        self._tasks[name] = task
        self._successors[name] = []
        for needed in task.after:
            self._successors[needed].append(task)

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks.values())

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def __getitem__(self, name: str) -> Task:
        return self._tasks[name]

    @property
    def order(self) -> tuple[Task, ...]:
        """The tasks in program order, which is a topological order."""
        return tuple(self._tasks.values())

    @property
    def roots(self) -> tuple[Task, ...]:
        """The tasks that wait for nothing."""
        return tuple(task for task in self if not task.after)

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes that have tasks, in the order of their first task."""
        return tuple(dict.fromkeys(task.lane for task in self))

    def successors(self, name: str) -> tuple[Task, ...]:
        """The tasks that wait for this one, in program order."""
        return tuple(self._successors[name])

    def on_lanes(self, lanes: Mapping[str, str]) -> TaskGraph:
        """The same program with lane `a` renamed to `lanes[a]`; a lane not named stays.

        Lanes that share one processor can get one name, so that no work is handed between threads.
        """
        graph = TaskGraph()
        for task in self:
            graph._append(replace(task, lane=lanes.get(task.lane, task.lane)))
        return graph
