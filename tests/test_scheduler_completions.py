"""Tasks whose work goes on elsewhere: they end with their completion, at most two of a lane are in flight, none is left."""

import contextlib
import gc
import importlib
import signal
import sys
import threading
import time
import weakref
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import POLICIES, assert_lawful

from edge_llm.scheduler import Cancelled, CostModel, TaskFailed, TaskGraph, execute, first_ready
from edge_llm.scheduler.execute import IN_FLIGHT


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


class Device:
    """Works on its own, one piece after the other, in the order in which they were sent."""

    def __init__(self):
        self.sent = []

    def __enter__(self):
        self._worker = ThreadPoolExecutor(1)
        return self

    def __exit__(self, *error):
        self._worker.shutdown()

    def send(self, work):
        """The completion of ``work``."""
        self.sent.append(self._worker.submit(work))
        return self.sent[-1].result

    @property
    def at_rest(self):
        return all(piece.done() for piece in self.sent)


@pytest.fixture
def device():
    with Device() as device:
        yield device


@contextlib.contextmanager
def devices(lanes):
    with contextlib.ExitStack() as stack:
        yield {lane: stack.enter_context(Device()) for lane in lanes}


def heard(event):
    assert event.wait(10)


class Program:
    """Random tasks over lanes: each makes a number of those it waits for, at once or on its lane's device."""

    def __init__(self, draw, devices, fail=None):
        self.graph = TaskGraph()
        self.devices = devices
        self.found = {}
        self.started = []
        self.in_flight = defaultdict(set)
        self.most = 0
        self._fail = fail
        for i in range(draw(st.integers(0 if fail is None else 1, 16))):
            after = sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else []
            lane = draw(st.sampled_from(sorted(devices)))
            run = self._run(i, lane, after, draw(st.booleans()), draw(st.integers(0, 3)))
            self.graph.add(f"t{i}", lane, run, after=[f"t{j}" for j in after])

    def _run(self, i, lane, after, on_device, pauses):
        def work():
            for _ in range(pauses):
                time.sleep(0)
            if self._fail == ("work", i):
                raise OSError(i)
            self.found[i] = hash((i, *(self.found[j] for j in after)))  # KeyError before they have ended

        def run():
            self.started.append(i)
            self.most = max(self.most, len(self.in_flight[lane]))
            if self._fail == ("run", i):
                raise OSError(i)
            if not on_device:
                return work()
            assert all(j in self.found for j in after)
            self.in_flight[lane].add(i)
            completion = self.devices[lane].send(work)

            def wait():
                try:
                    completion()
                finally:
                    self.in_flight[lane].discard(i)

            return wait

        return run

    @property
    def in_program_order(self):
        found = {}
        for i, task in enumerate(self.graph):
            found[i] = hash((i, *(found[int(name[1:])] for name in task.after)))
        return found

    @property
    def at_rest(self):
        return all(device.at_rest for device in self.devices.values())


policies = st.sampled_from(sorted(POLICIES)).map(POLICIES.get)
lanes = st.sampled_from(["a", "ab", "abc"])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_in_whatever_order_a_task_waits_for_the_ends_of_others(data):
    with devices(data.draw(lanes)) as on:
        program = Program(data.draw, on)
        trace = execute(program.graph, data.draw(policies))
        assert program.at_rest
    assert program.found == program.in_program_order
    assert program.most < IN_FLIGHT  # before each start
    assert sorted(program.started) == sorted(program.found)
    assert_lawful(program.graph, trace)
    assert trace.lower_bound <= trace.makespan * (1 + 1e-9)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_an_error_anywhere_leaves_nothing_in_flight(data):
    with devices(data.draw(lanes)) as on:
        fail = data.draw(st.sampled_from(["run", "work"])), data.draw(st.integers(0, 15))
        program = Program(data.draw, on, fail)
        if fail[1] >= len(program.graph):
            execute(program.graph, data.draw(policies))
            return
        with pytest.raises(TaskFailed) as caught:
            execute(program.graph, data.draw(policies))
        assert program.at_rest and not any(program.in_flight.values())
    assert caught.value.task == f"t{fail[1]}"
    assert isinstance(caught.value.__cause__, OSError)
    assert not any(f"t{fail[1]}" in program.graph[f"t{i}"].after for i in program.started)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_cancel_at_any_task_leaves_nothing_in_flight(data):
    with devices(data.draw(lanes)) as on:
        program = Program(data.draw, on, fail=())
        asked = []
        after = data.draw(st.integers(0, len(program.graph) - 1))
        with pytest.raises(Cancelled):
            execute(program.graph, data.draw(policies), cancel=lambda: asked.append(1) or len(asked) > after)
        assert program.at_rest and not any(program.in_flight.values())
    assert len(program.started) <= after
    assert len(program.started) == after or len(on) > 1  # lanes may ask at the same time


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_policy_that_fails_or_stops_picking_leaves_nothing_in_flight(data):
    with devices(data.draw(lanes)) as on:
        program = Program(data.draw, on, fail=())
        last = data.draw(st.integers(0, len(program.graph) - 1))
        error = data.draw(st.booleans())

        def policy(ready, state):
            if len(state.graph) - state.left + state.running < last:
                return ready[0]
            if error:
                raise LookupError("broken")
            return None

        with pytest.raises(LookupError if error else ValueError, match="broken" if error else "left every lane idle"):
            execute(program.graph, policy)
        assert program.at_rest and not any(program.in_flight.values())
    assert error or len(program.found) == last  # all that it picked has ended


# -- what goes on at the same time ------------------------------------------------------------------------------------


def test_other_lanes_work_while_a_task_is_in_flight(device):
    sent, chopped = threading.Event(), threading.Event()
    graph = TaskGraph()
    graph.add("boil", "stove", lambda: sent.set() or device.send(lambda: heard(chopped)))
    graph.add("chop", "cook", lambda: heard(sent))
    graph.add("chop on", "cook", chopped.set, after=["chop"])
    graph.add("serve", "cook", after=["boil"])
    for order in (["cook", "stove"], ["stove", "cook"]):
        sent.clear(), chopped.clear()
        trace = execute(graph, first_ready, order)
        assert [span.name for span in trace.spans] == ["chop", "chop on", "boil", "serve"]


@pytest.mark.parametrize("lanes", [["device"], ["host", "device"]])
def test_a_lane_sends_its_next_task_while_the_first_is_in_flight_but_not_a_third(device, lanes):
    second_is_sent = threading.Event()
    ended_before = {}

    def send(name, work):
        def run():
            ended_before[name] = [piece.done() for piece in device.sent]
            completion = device.send(work)
            if name == "b":
                second_is_sent.set()
            return completion

        return run

    graph = TaskGraph()
    graph.add("a", "device", send("a", lambda: heard(second_is_sent)))
    graph.add("b", "device", send("b", lambda: None))
    graph.add("c", "device", send("c", lambda: None))
    execute(graph, lanes=lanes)
    assert ended_before["b"] == [False]
    assert ended_before["c"][0]


def test_a_task_of_the_lane_that_has_ended_itself_ends_behind_those_in_flight(device):
    """The device works in order, so it could not end before."""
    ran = threading.Event()
    graph = TaskGraph()
    graph.add("sent", "device", lambda: device.send(lambda: heard(ran)))
    graph.add("done at once", "device", ran.set)
    graph.add("next", "host", after=["done at once"])
    trace = execute(graph)
    assert [span.name for span in trace.spans] == ["sent", "done at once", "next"]
    assert_lawful(graph, trace)


def test_a_policy_may_leave_a_lane_idle_until_what_is_in_flight_has_ended(device):
    graph = TaskGraph()
    for name in "abcd":
        graph.add(name, "device", lambda: device.send(lambda: time.sleep(0)))
    trace = execute(graph, lambda ready, state: None if state.running else ready[0], ["host", "device"])
    assert [span.name for span in trace.spans] == list("abcd")


def test_a_graph_with_completions_may_run_again(device):
    graph = TaskGraph()
    graph.add("a", "device", lambda: device.send(lambda: None))
    for _ in range(3):
        assert len(execute(graph).spans) == 1
    assert len(device.sent) == 3 and device.at_rest


# -- spans and costs --------------------------------------------------------------------------------------------------


def test_spans_and_costs_are_of_the_work_and_not_of_its_sending(device, monkeypatch):
    class Clock:
        now = 0.0

        def go(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr(importlib.import_module("edge_llm.scheduler.execute"), "perf_counter", lambda: clock.now)
    second_is_sent, first_is_over = threading.Event(), threading.Event()

    def send(work, then=lambda: None):
        clock.go(5)
        completion = device.send(work)
        then()
        return completion

    graph = TaskGraph()
    graph.add("first", "device", lambda: send(lambda: heard(second_is_sent) or clock.go(100)))
    graph.add("second", "device", lambda: send(lambda: heard(first_is_over) or clock.go(10), second_is_sent.set))
    graph.add("see", "host", first_is_over.set, after=["first"])
    trace, cost = execute(graph), CostModel()
    spans = {span.name: (span.start, span.end) for span in trace.spans}
    assert spans["first"] == (5, 110)  # the second was sent at 10
    assert spans["second"] == (110, 120)
    assert trace.bubbles("device") == [(0, 5)]
    cost.learn(trace)
    assert (cost.predict("first", "device"), cost.predict("second", "device")) == (105, 10)


# -- errors and interrupts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_what_is_no_exception_passes_through(interrupt):
    def stop():
        raise interrupt

    graph = TaskGraph()
    graph.add("stop", "device", lambda: stop)
    graph.add("never", "device", lambda: pytest.fail("was started"), after=["stop"])
    with pytest.raises(interrupt):
        execute(graph)


def test_what_is_no_completion_is_an_error_of_its_task():
    graph = TaskGraph()
    graph.add("seven", "device", lambda: 7)
    with pytest.raises(TaskFailed, match="seven") as caught:
        execute(graph)
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("lanes", [["device"], ["host", "device"]])
def test_where_no_thread_can_start_the_work_in_flight_is_awaited(device, monkeypatch, lanes):
    start = threading.Thread.start

    def refuse(thread):
        if thread.name.endswith("in flight"):
            raise RuntimeError("can't start new thread")
        start(thread)

    graph = TaskGraph()
    graph.add("a", "device", lambda: device.send(lambda: time.sleep(0.02)))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        execute(graph, lanes=lanes)
    assert device.at_rest


@pytest.mark.parametrize("lane", ["mine", "other"])
def test_a_failed_run_is_freed_as_soon_as_its_error_is(lane):
    class Page:
        """Stands for the memory that a completion holds."""

    def program():
        page = Page()

        def fail():
            raise RuntimeError(page)

        graph = TaskGraph()
        graph.add("fail", lane, lambda: fail)
        graph.add("fine", lane, lambda: lambda: page)
        return graph, weakref.ref(page)

    graph, page = program()
    gc.disable()
    try:
        with contextlib.suppress(TaskFailed):
            execute(graph, lanes=["mine", "other"])
        del graph
        assert page() is None
    finally:
        gc.enable()


def function_of_executor(frame):
    while frame is not None and Path(frame.f_code.co_filename).name != "execute.py":
        frame = frame.f_back
    return frame and frame.f_code.co_name


@pytest.fixture
def control_c():
    """Presses Control-C when the main thread is in one of these functions of the executor; returns when it was heard."""
    pressed = threading.Event()

    def hear(number, frame):
        pressed.set()
        raise KeyboardInterrupt

    def press(*functions):
        main = threading.main_thread().ident
        for _ in range(10000):
            if function_of_executor(sys._current_frames()[main]) in functions:
                break
            time.sleep(0.001)
        pressed.clear()
        while not pressed.is_set():  # a signal just before the sleep does not end it
            signal.pthread_kill(main, signal.SIGINT)
            pressed.wait(0.2)

    before = signal.signal(signal.SIGINT, hear)
    yield press
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("how", ["device first", "host first", "no completion"])
@pytest.mark.parametrize("again", [0, 1, 2])
def test_control_c_waits_for_what_runs_or_is_in_flight(device, control_c, how, again):
    lanes = ["device", "host"] if how == "device first" else ["host", "device"]
    ended = []

    def work():
        control_c("next")
        for _ in range(again):
            control_c("work", "wait")
        time.sleep(0.02)
        ended.append("slow")

    graph = TaskGraph()
    graph.add("slow", "device", work if how == "no completion" else lambda: device.send(work))
    graph.add("never", "host", lambda: pytest.fail("was started"), after=["slow"])
    with pytest.raises(KeyboardInterrupt):
        execute(graph, lanes=lanes)
    assert ended == ["slow"]


def test_control_c_is_heard_where_the_line_is_full(device, control_c):
    def work():
        control_c("send")
        time.sleep(0.02)

    graph = TaskGraph()
    graph.add("slow", "device", lambda: device.send(work))
    graph.add("next", "device", lambda: device.send(lambda: None))
    graph.add("never", "device", lambda: pytest.fail("was started"))
    with pytest.raises(KeyboardInterrupt):
        execute(graph)
    assert device.at_rest and len(device.sent) == 2


def test_control_c_while_a_failed_run_ends_waits_and_is_raised(device, control_c):
    sent = threading.Event()

    def work():
        control_c("wait")
        time.sleep(0.02)

    def fail():
        heard(sent)
        raise OSError

    graph = TaskGraph()
    graph.add("slow", "device", lambda: (device.send(work), sent.set())[0])
    graph.add("fail", "host", fail)
    with pytest.raises(KeyboardInterrupt):
        execute(graph, lanes=["host", "device"])
    assert device.at_rest
