"""Run a graph in real time: one worker per lane, which takes the next ready task of its own lane.

The calling thread is the worker of the first lane.  So a graph on one lane runs wholly on the calling thread and costs
about two microseconds per task; where one lane waits for another, waking its thread costs five to fifty.

A lane may be a device that works on its own: its tasks only send work there, and return a completion.  Such a task is *in
flight* until the completion returns.  Meanwhile the worker starts the lane's next ready task, so that the device finds it
when it is done, and a second thread of the lane waits for the completions in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from time import perf_counter
from typing import NamedTuple

from edge_llm.scheduler.cost import CostModel
from edge_llm.scheduler.graph_state import GraphState, Policy
from edge_llm.scheduler.policy import in_order
from edge_llm.scheduler.tasks import Completion, Task, TaskGraph, nothing
from edge_llm.scheduler.trace import Span, Trace

IN_FLIGHT = 2  # tasks of a lane, at most: the device works on one and finds the next


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
    `cancel` is called before each task.  When `execute` returns or raises, no task is running or in flight.

    Raises TaskFailed from the first Exception of a task, Cancelled, or ValueError if a task's lane is not among
    `lanes` or the policy stops picking before the work is done.  Other BaseExceptions, such as KeyboardInterrupt, pass through.
    """
    run = _Run(GraphState(graph, cost, lanes), policy, cancel.is_set if isinstance(cancel, threading.Event) else cancel)
    mine, *others = run.state.lanes or ("no lane",)
    workers = [_Thread(f"lane {lane}", partial(run.work, lane)) for lane in others]
    try:
        for worker in workers:
            worker.start()
        run.work(mine)
    except BaseException as error:  # a thread that could not start, or an interrupt between two tasks
        run.stop(error)
    finally:
        if workers or run.lines:
            run.end(workers)
    if run.error is not None:
        try:
            raise run.error
        finally:
            run.error = None  # its traceback refers to `run`: this breaks the circle
    return Trace(tuple(run.spans), run.state.lanes)


class _Flight(NamedTuple):
    """A task whose work goes on, and when the work could begin at the earliest."""

    task: Task
    completion: Completion
    begin: float


class _Thread(threading.Thread):
    """A thread whose end can be awaited again after an interrupt; `join` takes it for ended then (CPython issue 90882)."""

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        super().__init__(target=work, name=name)
        self._working = threading.Lock()

    def run(self) -> None:
        with self._working:
            super().run()

    def wait(self) -> None:
        """Return when the work is over; a thread that could not start has none."""
        with self._working:
            pass
        if self.is_alive():
            self.join()


class _Line:
    """The tasks of one lane that are in flight, in order, and the thread that waits for them."""

    def __init__(self, lane: str, land: Callable[[_Line], None]) -> None:
        self.flights: SimpleQueue[_Flight | None] = SimpleQueue()  # None: the lane sends no more
        self.room: SimpleQueue[None] = SimpleQueue()  # an entry for each task that may be sent beside the one before
        self.waiter = _Thread(f"lane {lane} in flight", partial(land, self))
        for _ in range(IN_FLIGHT - 1):
            self.room.put(None)

    def send(self, flight: _Flight) -> None:
        """Put a task behind those in flight; return when the lane may start another one."""
        self.flights.put(flight)
        self.room.get()


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
        self.lines: list[_Line] = []  # of the lanes that had a completion
        self.idle: set[str] = set()  # lanes that sleep and were not woken yet
        self.bell = {lane: threading.Lock() for lane in state.lanes}  # acquire = sleep, release = wake the lane
        for bell in self.bell.values():
            bell.acquire()
        self.begin = perf_counter()

    def work(self, lane: str) -> None:
        """The worker of one lane: run its tasks until none is left.

        From the first completion on, all that the lane does goes through its line, so that its tasks end in order.
        """
        line: _Line | None = None
        completion: Completion | None = None
        try:
            while task := self.next(lane):
                if self.cancelled is not None and self.cancelled():
                    raise Cancelled(f"cancelled before task `{task.name}`")
                start = perf_counter()
                try:
                    completion = task.run()
                except Exception as cause:
                    raise TaskFailed(task.name) from cause
                if completion is None and line is None:
                    self.finish(task, start, perf_counter())
                    continue
                flight = _Flight(task, nothing, start) if completion is None else _Flight(task, completion, perf_counter())
                line = line or self.open_line(lane)
                line.send(flight)
        except BaseException as error:
            self.stop(error)
            if completion is not None:  # it may not have come into the line
                with suppress(Exception):
                    completion()

    def next(self, lane: str) -> Task | None:
        """Sleep until the lane has a task to run, and return it; None when the run is over."""
        while True:
            with self.lock:
                if self.stopped or not self.state.left:
                    return None
                if task := self.state.pick(lane, self.policy):
                    return task
                self.idle.add(lane)
                if len(self.idle) == len(self.bell) and not self.state.running:
                    raise self.state.stalled()
            self.bell[lane].acquire()

    def open_line(self, lane: str) -> _Line:
        """Start the second thread of a lane."""
        line = _Line(lane, self.land)
        with self.lock:
            self.lines.append(line)
        line.waiter.start()
        return line

    def land(self, line: _Line) -> None:
        """The second thread of a lane: wait for the tasks in flight, in order, and finish them."""
        free = 0.0  # when the device had ended the task before
        while flight := line.flights.get():
            try:
                free = self.await_end(flight, free)
            except BaseException as error:
                self.stop(error)
            line.room.put(None)

    def await_end(self, flight: _Flight, free: float) -> float:
        """Finish a task when its work has ended, and return that time; the device began it at `free` or later."""
        task, completion, begin = flight
        try:
            completion()
        except Exception as cause:
            raise TaskFailed(task.name) from cause
        end = perf_counter()
        self.finish(task, max(begin, free), end)
        return end

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

    def end(self, workers: Sequence[_Thread]) -> None:
        """Wait until no task is running or in flight; an interrupt meanwhile will be raised, but only then."""
        ended = False
        while not ended:
            try:
                for worker in workers:
                    worker.wait()
                for line in self.lines:
                    line.flights.put(None)
                    line.waiter.wait()
                ended = True
            except BaseException as error:
                self.stop(error)
                self.error = error

    def _wake(self, lanes: list[str]) -> None:
        for lane in lanes:
            self.idle.remove(lane)
            self.bell[lane].release()
