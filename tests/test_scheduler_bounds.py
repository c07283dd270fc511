"""The one-lane bound: by hand, and held against the best schedules there are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import POLICIES, programs

from edge_llm.scheduler import Span, Trace, optimal, simulate
from edge_llm.scheduler.bounds import Job, jobs, one_lane


def test_head_and_tail_are_the_longest_paths_before_and_behind():
    seconds = {"a": 1, "b": 2, "c": 4, "d": 8}
    found = jobs(seconds, {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")})
    assert found == {"a": (0, 1, 12), "b": (1, 2, 8), "c": (1, 4, 8), "d": (5, 8, 0)}


@pytest.mark.parametrize(
    ("lane", "seconds"),
    [
        ([], 0),
        ([Job(2, 3, 4)], 9),
        ([Job(0, 5, 0), Job(0, 1, 9)], 10),  # the long tail goes first
        ([Job(0, 6, 1), Job(2, 1, 9)], 12),  # and interrupts
        ([Job(0, 2, 0), Job(5, 2, 0)], 7),  # nothing to do in between
    ],
)
def test_one_lane_by_hand(lane, seconds):
    assert one_lane(lane) == seconds


def test_two_tasks_cannot_both_be_last():
    """Each of two chains needs the oven for its last but one task: the simple bound does not see them meet."""
    spans = (
        Span("mix", "cook", 0, 2),
        Span("bake 1", "oven", 2, 6, ("mix",)),
        Span("bake 2", "oven", 6, 10, ("mix",)),
        Span("ice 1", "cook", 6, 8, ("bake 1",)),
        Span("ice 2", "cook", 10, 12, ("bake 2",)),
    )
    trace = Trace(spans, ("cook", "oven"))
    assert trace.lower_bound == 8
    assert trace.one_lane_bound == trace.makespan == 12


@given(programs(max_tasks=9))
def test_never_above_the_optimum_and_never_below_the_simple_bound(program):
    graph, cost = program
    best = optimal(graph, cost)
    assert best.lower_bound <= best.one_lane_bound <= best.makespan


@given(programs(), st.sampled_from(sorted(POLICIES)))
def test_does_not_depend_on_the_order_that_was_run(program, policy):
    graph, cost = program
    assert simulate(graph, POLICIES[policy], cost).one_lane_bound == simulate(graph, POLICIES["in_order"], cost).one_lane_bound
