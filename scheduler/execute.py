"""Run a graph in real time: one worker per lane, which takes the next ready task of its own lane.

The calling thread is the worker of the first lane.  So a graph on one lane runs wholly on the calling thread and costs
about two microseconds per task; where one lane waits for another, waking its thread costs five to fifty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from time import perf_counter

from scheduler.cost import CostModel
from scheduler.graph_state import GraphState, Policy
from scheduler.policy import in_order
from scheduler.tasks import Task, TaskGraph
from scheduler.trace import Span, Trace


class TaskFailed(Exception):
    """A task raised an exception, which is the `__cause__` of this one; `task` is the task's name."""

    def __init__(self, task: str) -> None:
        super().__init__(f"task `{task}` failed")
        self.task = task


class Cancelled(Exception):
    """The run was cancelled while it had tasks left to start."""


def execute(
    graph: TaskGraph,
    policy: Policy = in_order,
    lanes: Sequence[str] | None = None,
    *,
    cost: CostModel | None = None,
    cancel: Callable[[], bool] | threading.Event | None = None,
) -> Trace:
    """Run every task once, on its lane, after all that it waits for; return when the last has ended.

    `lanes` defaults to the graph's own; the calling thread works the first.  `cost` gives the policy its durations.
    `cancel` is called before each task.  When `execute` returns or raises, no task is running.

    Raises TaskFailed from the first Exception of a task, Cancelled, or ValueError if a task's lane is not among
    `lanes` or the policy stops picking before the work is done.  Other BaseExceptions, such as KeyboardInterrupt, pass through.
    """
    run = _Run(GraphState(graph, cost, lanes), policy, cancel.is_set if isinstance(cancel, threading.Event) else cancel)
    mine, *others = run.state.lanes or ("no lane",)
    workers = [threading.Thread(target=run.work, args=(lane,), name=f"lane {lane}") for lane in others]
    try:
        for worker in workers:
            worker.start()
        run.work(mine)
    except BaseException as error:  # a thread that could not start, or an interrupt between two tasks
        run.stop(error)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.join()
    if run.error is not None:
        try:
            raise run.error
        finally:
            run.error = None  # its traceback refers to `run`: this breaks the circle
    return Trace(tuple(run.spans), run.state.lanes)


class _Run:
    """One execution.  All fields are guarded by `lock`; tasks and `cancelled` run outside of it."""

    def __init__(self, state: GraphState, policy: Policy, cancelled: Callable[[], bool] | None) -> None:
        self.state = state
        self.policy = policy
        self.cancelled = cancelled
        self.spans: list[Span] = []
        self.error: BaseException | None = None
        self.stopped = False
        self.lock = threading.Lock()
        self.idle: set[str] = set()  # lanes that sleep and were not woken yet
        self.bell = {lane: threading.Lock() for lane in state.lanes}  # acquire = sleep, release = wake the lane
        for bell in self.bell.values():
            bell.acquire()
        self.begin = perf_counter()

    def work(self, lane: str) -> None:
        """The worker of one lane: run its tasks until none is left."""
        try:
            while task := self.next(lane):
                if self.cancelled is not None and self.cancelled():
                    raise Cancelled(f"cancelled before task `{task.name}`")
                start = perf_counter()
                try:
                    task.run()
                except Exception as cause:
                    raise TaskFailed(task.name) from cause
                self.finish(task, start, perf_counter())
        except BaseException as error:
            self.stop(error)

    def next(self, lane: str) -> Task | None:
        """Sleep until the lane has a task to run, and return it; None when the run is over."""
        while True:
            with self.lock:
                if self.stopped or not self.state.left:
                    return None
                if task := self.state.pick(lane, self.policy):
                    return task
                self.idle.add(lane)
                if len(self.idle) == len(self.bell):
                    raise self.state.stalled()
            self.bell[lane].acquire()

    def finish(self, task: Task, start: float, end: float) -> None:
        """Record the end of a task and wake the lanes that have work now."""
        with self.lock:
            self.spans.append(Span.of(task, start - self.begin, end - self.begin))
            self.state.finish(task)
            if self.idle:
                over = not self.state.left
                self._wake([lane for lane in self.idle if over or self.state.ready[lane]])

    def stop(self, error: BaseException) -> None:
        """Start no further task; the first error will be raised."""
        with self.lock:
            if not self.stopped:
                self.stopped, self.error = True, error
            self._wake(list(self.idle))

    def _wake(self, lanes: list[str]) -> None:
        for lane in lanes:
            self.idle.remove(lane)
            self.bell[lane].release()
