"""The beam search against the exact schedule, and schedules that are followed."""

import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import POLICIES, assert_lawful, programs

from edge_llm.scheduler import CostModel, TaskGraph, beam, critical_path, execute, follow, in_order, optimal, planned, simulate


def chains(*each: list[tuple[str, float]]) -> tuple[TaskGraph, CostModel]:
    """Chains of (lane, seconds)."""
    graph, cost = TaskGraph(), CostModel()
    for c, chain in enumerate(each):
        for i, (lane, seconds) in enumerate(chain):
            task = graph.add(f"{c}.{i}", lane, after=[f"{c}.{i - 1}"] if i else [])
            cost.observe(task.cost_key, lane, seconds)
    return graph, cost


@settings(max_examples=150, deadline=None)
@given(programs(max_tasks=10))
def test_a_wide_beam_finds_and_proves_the_optimum(program):
    graph, cost = program
    found = beam(graph, cost, width=10_000)
    assert_lawful(graph, found.trace)
    assert found.proven
    assert found.trace.makespan == optimal(graph, cost).makespan


@settings(max_examples=100, deadline=None)
@given(programs(), st.integers(1, 5))
def test_a_narrow_beam_is_lawful_and_no_worse_than_the_greedy_policies(program, width):
    graph, cost = program
    found = beam(graph, cost, width=width)
    assert_lawful(graph, found.trace)
    assert found.trace.one_lane_bound <= found.trace.makespan <= simulate(graph, critical_path, cost).makespan
    if found.proven:
        assert found.trace.makespan <= beam(graph, cost, width=10 * width).trace.makespan


def test_what_is_not_searched_to_the_end_is_not_called_proven():
    graph, cost = chains([("b", 8), ("a", 8), ("b", 5)], [("b", 4), ("a", 8), ("b", 1)], [("b", 5), ("a", 4), ("b", 4)])
    found = {width: beam(graph, cost, width=width) for width in (1, 2, 10_000)}
    assert {width: (trace.makespan, proven) for width, (trace, proven) in found.items()} == {
        1: (30, False),
        2: (29, False),
        10_000: (29, True),
    }
    assert found[2].trace.one_lane_bound == 27


def test_two_long_chains_are_solved_exactly_in_a_small_width():
    graph, cost = chains(*([("a", 2), ("b", 3), ("a", 5), ("b", 1)] * 10 for _ in range(2)))
    found = beam(graph, cost, width=200)
    assert len(graph) == 80 and found.proven
    assert found.trace.makespan <= min(simulate(graph, policy, cost).makespan for policy in POLICIES.values())


def test_refuses_a_width_of_nothing():
    with pytest.raises(ValueError, match="width `0`"):
        beam(TaskGraph(), CostModel(), width=0)
    assert beam(TaskGraph(), CostModel()).trace.spans == ()


# -- schedules --------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(programs(max_tasks=9, shortest=1))
def test_a_schedule_followed_in_virtual_time_is_the_schedule(program):
    graph, cost = program
    schedule = optimal(graph, cost)
    trace = simulate(graph, follow(schedule), cost)
    assert {span.name: span.start for span in trace.spans} == {span.name: span.start for span in schedule.spans}
    assert simulate(graph, planned(width=10_000), cost).makespan == schedule.makespan


@given(programs(), st.data())
def test_a_schedule_of_other_durations_still_runs_every_task_once(program, data):
    graph, cost = program
    schedule = simulate(graph, in_order, cost)
    drifted = CostModel(default=1)
    for task in graph:
        drifted.observe(task.cost_key, task.lane, data.draw(st.integers(0, 9)))
    assert_lawful(graph, simulate(graph, follow(schedule), drifted))
    assert_lawful(graph, simulate(graph, follow(beam(graph, cost, width=3).trace), drifted))


def test_a_lane_waits_where_the_schedule_waits_and_not_where_a_task_is_late():
    graph, cost = TaskGraph(), CostModel()
    for name, lane, seconds, after in [
        ("filler", "a", 10, []), ("key", "b", 1, []), ("urgent", "a", 1, ["key"]), ("tail", "b", 10, ["urgent"]),
    ]:  # fmt: skip
        graph.add(name, lane, after=after)
        cost.observe(name, lane, seconds)
    schedule = beam(graph, cost).trace
    assert [span.name for span in schedule.on("a")] == ["urgent", "filler"]
    assert simulate(graph, follow(schedule), cost) == schedule

    graph, cost = chains([("a", 1), ("b", 1), ("a", 1)], [("a", 1), ("a", 1)])
    schedule = simulate(graph, critical_path, cost)
    assert [span.name for span in schedule.on("a")] == ["0.0", "1.0", "0.2", "1.1"]
    late = CostModel()
    for task in graph:
        late.observe(task.cost_key, task.lane, 50 if task.lane == "b" else 1)
    assert [span.name for span in simulate(graph, follow(schedule), late).on("a")] == ["0.0", "1.0", "1.1", "0.2"]


def test_a_schedule_refuses_a_task_that_it_does_not_know():
    graph, cost = chains([("a", 1)])
    schedule = simulate(graph, in_order, cost)
    graph.add("guest", "a")
    with pytest.raises(ValueError, match="`guest` is not in the schedule"):
        simulate(graph, follow(schedule), cost)


def test_planned_runs_real_tasks_and_many_runs_at_once():
    policy = planned()
    ran: list[str] = []
    graph = TaskGraph()
    for i in range(12):
        lane, after = "ab"[i % 2], [str(i - 3)] if i >= 3 else []
        graph.add(str(i), lane, lambda i=i: time.sleep(1e-4) or ran.append(str(i)), after=after)
    runs = [threading.Thread(target=execute, args=(graph, policy)) for _ in range(2)]
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    assert sorted(ran) == sorted(2 * [str(i) for i in range(12)])
