"""The executor: every task once and in a lawful order, and what happens on errors, interrupts and cancellation."""

import contextlib
import gc
import signal
import threading
import time
import weakref
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.scheduler import (
    Cancelled,
    CostModel,
    TaskFailed,
    TaskGraph,
    c_value,
    critical_path,
    execute,
    feed,
    first_ready,
    in_order,
    longest_first,
    planned,
    simulate,
)


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    before = threading.active_count()
    yield
    assert threading.active_count() == before


def chain(*lanes: str, log: list[str]) -> TaskGraph:
    """Tasks 0, 1, 2, ..., each after the one before; each logs its name."""
    graph = TaskGraph()
    for i, lane in enumerate(lanes):
        graph.add(str(i), lane, lambda i=i: log.append(str(i)), after=[str(i - 1)] if i else [])
    return graph


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_runs_every_task_once_in_a_lawful_order(data):
    graph = TaskGraph()
    ran: list[tuple[str, int]] = []  # (task, thread)
    lanes = "abcd"[: data.draw(st.integers(1, 4))]
    for i in range(data.draw(st.integers(0, 20))):
        after = data.draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else ()
        lane = data.draw(st.sampled_from(lanes))
        run = lambda i=i: ran.append((f"t{i}", threading.get_ident()))  # noqa: E731
        graph.add(f"t{i}", lane, run, after=[f"t{j}" for j in after])
    random = Random(data.draw(st.integers()))
    policies = [
        in_order,
        first_ready,
        longest_first,
        critical_path,
        c_value("a"),
        feed("a"),
        planned(width=2),
        lambda ready, _: random.choice(ready),
    ]
    trace = execute(graph, data.draw(st.sampled_from(policies)))

    order = [name for name, _ in ran]
    assert sorted(order) == sorted(task.name for task in graph)
    assert all(order.index(needed) < order.index(task.name) for task in graph for needed in task.after)
    threads = {lane: {thread for name, thread in ran if graph[name].lane == lane} for lane in graph.lanes}
    assert all(len(threads[lane]) == 1 for lane in graph.lanes)
    assert len(set.union(set(), *threads.values())) == len(graph.lanes)

    spans = {span.name: span for span in trace.spans}
    assert sorted(spans) == sorted(order) and len(trace.spans) == len(order)
    assert all(spans[needed].end <= spans[task.name].start for task in graph for needed in task.after)
    assert trace.lower_bound <= trace.makespan


def test_one_lane_runs_in_program_order_on_the_calling_thread():
    graph = TaskGraph()
    threads: list[int] = []
    for i in range(5):
        graph.add(str(i), "host", lambda: threads.append(threading.get_ident()))
    trace = execute(graph)
    assert threads == [threading.get_ident()] * 5
    assert [span.name for span in trace.spans] == list("01234")


def test_the_calling_thread_works_the_first_lane():
    where: dict[str, int] = {}
    graph = TaskGraph()
    for lane in "ab":
        graph.add(lane, lane, lambda lane=lane: where.update({lane: threading.get_ident()}))
    trace = execute(graph, lanes=["b", "a"])
    assert where["b"] == threading.get_ident() != where["a"]
    assert trace.lanes == ("b", "a")


def test_lanes_run_at_the_same_time():
    meet = threading.Barrier(3, timeout=60)
    graph = TaskGraph()
    for lane in "abc":
        graph.add(lane, lane, lambda: (meet.wait(), None)[1])
    assert len(execute(graph).spans) == 3


def test_one_lane_follows_the_simulators_order():
    graph, cost = TaskGraph(), CostModel()
    for i, seconds in enumerate([3, 1, 4, 1, 5]):
        graph.add(str(i), "a", after=[str(i - 2)] if i > 1 else [])
        cost.observe(str(i), "a", seconds)
    for policy in (in_order, longest_first, critical_path, c_value("a"), c_value("b")):
        real, virtual = execute(graph, policy, cost=cost), simulate(graph, policy, cost)
        assert [span.name for span in real.spans] == [span.name for span in virtual.spans]


def test_a_graph_may_run_again_and_teach_the_cost_model():
    graph, cost = TaskGraph(), CostModel(default=100)
    graph.add("nap", "a", lambda: time.sleep(0.002))
    for _ in range(2):
        cost.learn(execute(graph))
    assert 0.002 <= cost.predict("nap", "a") < 100


def test_an_empty_graph_is_done_at_once():
    assert execute(TaskGraph()).spans == ()


# -- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", ["aaa", "aba", "bab"])
def test_the_first_error_stops_the_graph_and_names_the_task(lanes):
    log: list[str] = []
    graph = chain(*lanes, log=log)
    cause = ZeroDivisionError("oven")

    def burn() -> None:
        raise cause

    graph.add("pie", lanes[0], burn, after=["1"])
    graph.add("serve", lanes[1], lambda: log.append("serve"), after=["pie", "2"])
    with pytest.raises(TaskFailed, match="task `pie` failed") as caught:
        execute(graph, lanes=["a", "b"])
    assert caught.value.task == "pie"
    assert caught.value.__cause__ is cause
    assert log[:2] == ["0", "1"] and "serve" not in log


def test_a_running_task_is_waited_for_when_another_fails():
    started, ended = threading.Event(), []

    def slow() -> None:
        started.set()
        time.sleep(0.02)
        ended.append("slow")

    def fail() -> None:
        started.wait(10)
        raise OSError

    graph = TaskGraph()
    graph.add("fail", "a", fail)
    graph.add("slow", "b", slow)
    graph.add("never", "b", lambda: ended.append("never"))
    with pytest.raises(TaskFailed, match="fail"):
        execute(graph)
    assert ended == ["slow"]


@pytest.mark.parametrize("lane", ["mine", "other"])
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through(lane, interrupt):
    def stop() -> None:
        raise interrupt

    log: list[str] = []
    graph = TaskGraph()
    graph.add("stop", lane, stop)
    graph.add("never", lane, lambda: log.append("never"), after=["stop"])
    with pytest.raises(interrupt):
        execute(graph, lanes=["mine", "other"])
    assert log == []


@pytest.fixture
def python_hears_control_c():
    """As in a new interpreter; a command that ran in this process may have left a handler of its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_hears_control_c")
def test_control_c_is_heard_while_another_lane_works():
    log: list[str] = []

    def slow() -> None:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.02)
        log.append("slow")

    graph = TaskGraph()
    graph.add("slow", "other", slow)
    graph.add("never", "mine", lambda: log.append("never"), after=["slow"])
    with pytest.raises(KeyboardInterrupt):
        execute(graph, lanes=["mine", "other"])
    assert log == ["slow"]


@pytest.mark.parametrize("lanes", [["a"], ["a", "b"]])
def test_a_policy_that_never_picks_is_an_error(lanes):
    log: list[str] = []
    with pytest.raises(ValueError, match="left every lane idle with `0` ready"):
        execute(chain("a", "a", log=log), lambda ready, state: None, lanes)
    assert log == []


def test_an_error_of_the_policy_stops_all_lanes():
    log: list[str] = []
    with pytest.raises(ValueError, match="chose `1`, which is not ready"):
        execute(chain("b", "a", log=log), lambda ready, state: state.graph["1"], ["a", "b"])
    assert log == []


def test_a_task_on_an_unknown_lane_is_refused_before_anything_runs():
    log: list[str] = []
    with pytest.raises(ValueError, match="`1` needs lane `b`, but the lanes are `a`"):
        execute(chain("a", "b", log=log), lanes=["a"])
    assert log == []


@pytest.mark.parametrize("lane", ["mine", "other"])
def test_a_failed_run_is_freed_as_soon_as_its_error_is(lane):
    class Page:
        """Stands for the memory that a task's closure holds."""

    def program() -> tuple[TaskGraph, weakref.ref[Page]]:
        page = Page()

        def fail() -> None:
            raise RuntimeError(page)

        graph = TaskGraph()
        graph.add("fail", lane, fail)
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


# -- cancellation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lanes", ["aaaa", "abab", "baba"])
def test_cancel_is_checked_between_tasks(lanes):
    log: list[str] = []
    cancel = threading.Event()
    graph = chain(*lanes, log=log)
    graph.add("last", "a", cancel.set, after=["1"])
    graph.add("never", "b" if "b" in lanes else "a", lambda: log.append("never"), after=["last", "3"])
    with pytest.raises(Cancelled, match="cancelled before task"):
        execute(graph, cancel=cancel)
    assert log[:2] == ["0", "1"] and "never" not in log


def test_cancel_may_be_any_callable():
    log: list[str] = []
    with pytest.raises(Cancelled, match="before task `2`"):
        execute(chain(*"aaaa", log=log), cancel=lambda: len(log) == 2)
    assert log == ["0", "1"]


def test_a_cancelled_run_starts_nothing_and_a_finished_run_is_not_cancelled():
    log: list[str] = []
    cancel = threading.Event()
    graph = TaskGraph()
    graph.add("only", "a", cancel.set)
    assert len(execute(graph, cancel=cancel).spans) == 1
    with pytest.raises(Cancelled):
        execute(chain("a", "b", log=log), cancel=cancel)
    assert log == []


def test_an_error_of_cancel_passes_through():
    def broken() -> bool:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        execute(chain("a", log=[]), cancel=broken)
