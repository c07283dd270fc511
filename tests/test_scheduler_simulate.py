"""The simulator, on random programs under every policy: lawful, bounded, and the same every time."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import POLICIES, assert_lawful, programs

from edge_llm.scheduler import (
    CostModel,
    TaskGraph,
    first_ready,
    in_order,
    largest,
    longest_first,
    optimal,
    simulate,
)


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@given(program=programs())
def test_every_policy_is_lawful_bounded_and_deterministic(policy, program):
    graph, cost = program
    trace = simulate(graph, policy, cost)
    assert_lawful(graph, trace)
    assert all(span.seconds == cost.predict(span.cost_key, span.lane) for span in trace.spans)
    assert trace.lower_bound <= trace.makespan <= sum(span.seconds for span in trace.spans)
    assert simulate(graph, policy, cost) == trace
    assert sum(span.seconds for span in trace.critical_path) <= trace.lower_bound


@given(programs(), st.integers())
def test_any_choice_whatever_is_lawful(program, seed):
    graph, cost = program
    random = Random(seed)
    assert_lawful(graph, simulate(graph, lambda ready, _: random.choice(ready), cost))


@given(programs(max_tasks=9))
def test_no_policy_beats_the_optimum(program):
    graph, cost = program
    best = optimal(graph, cost)
    assert_lawful(graph, best)
    assert best.lower_bound <= best.makespan
    for policy in POLICIES.values():
        assert best.makespan <= simulate(graph, policy, cost).makespan


@given(programs())
def test_in_order_keeps_every_lane_in_program_order(program):
    graph, cost = program
    trace = simulate(graph, in_order, cost)
    position = {task.name: i for i, task in enumerate(graph)}
    by_end = {lane: [position[span.name] for span in trace.spans if span.lane == lane] for lane in trace.lanes}
    assert all(order == sorted(order) for order in by_end.values())


@given(programs())
def test_one_lane_takes_the_sum_of_all_work(program):
    graph, cost = program
    trace = simulate(graph.on_lanes({"a": "b", "c": "b", "d": "b"}), longest_first, cost)
    assert trace.makespan == sum(cost.predict(task.cost_key, "b") for task in graph)


def test_two_lanes_overlap_by_hand():
    graph, cost = TaskGraph(), CostModel(default=2)
    graph.add("1", "a")
    graph.add("2", "b", after=["1"])
    graph.add("3", "a")
    trace = simulate(graph, first_ready, cost)
    assert [(span.name, span.start, span.end) for span in trace.spans] == [("1", 0, 2), ("3", 2, 4), ("2", 2, 4)]


def test_lanes_may_be_declared_and_must_then_hold_every_task():
    graph = TaskGraph()
    graph.add("1", "a")
    assert simulate(graph, in_order, CostModel(), ["z", "a"]).lanes == ("z", "a")
    with pytest.raises(ValueError, match="`1` needs lane `a`"):
        simulate(graph, in_order, CostModel(), ["z"])


def test_a_policy_that_never_picks_is_an_error():
    graph = TaskGraph()
    graph.add("1", "a")
    with pytest.raises(ValueError, match="left every lane idle with `1` ready"):
        simulate(graph, lambda ready, state: None, CostModel())


def test_a_policy_may_hold_a_lane_back():
    graph, cost = TaskGraph(), CostModel(default=1)
    graph.add("slow", "a")
    graph.add("quick", "b")
    trace = simulate(graph, lambda ready, p: ready[0] if ready[0].lane == "a" or p.left == 1 else None, cost)
    assert [(span.name, span.start) for span in trace.spans] == [("slow", 0), ("quick", 1)]


def test_an_own_key_makes_a_policy():
    graph = TaskGraph()
    for name in ("pear", "apple", "fig"):
        graph.add(name, "a")
    trace = simulate(graph, largest(lambda task, _: len(task.name)), CostModel())
    assert [span.name for span in trace.spans] == ["apple", "pear", "fig"]
