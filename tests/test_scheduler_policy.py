"""The policies: each choice on a graph small enough to check by hand."""

import pytest

from edge_llm.scheduler import (
    CostModel,
    GraphState,
    Task,
    TaskGraph,
    c_value,
    critical_path,
    feed,
    first_ready,
    in_order,
    largest,
    longest_first,
    per_lane,
    smallest,
)
from edge_llm.scheduler.policy import path_seconds, released_seconds, seconds


@pytest.fixture
def state() -> GraphState:
    """`short` leads to the longest path, `long` takes longest, `wide` releases most; all three are ready.

    npu: short 1, long 4, wide 2
    cpu: tail 9 after short, left 5 and right 5 after wide, join 1 after long and wide
    """
    graph, cost = TaskGraph(), CostModel()
    for name, lane, takes, after in [
        ("short", "npu", 1, []),
        ("long", "npu", 4, []),
        ("wide", "npu", 2, []),
        ("tail", "cpu", 9, ["short"]),
        ("left", "cpu", 5, ["wide"]),
        ("right", "cpu", 5, ["wide"]),
        ("join", "cpu", 1, ["long", "wide"]),
    ]:
        graph.add(name, lane, after=after)
        cost.observe(name, lane, takes)
    return GraphState(graph, cost)


def choice(policy, state: GraphState, lane: str = "npu") -> str | None:
    task = policy(state.ready[lane], state)
    return task and task.name


def test_each_policy_chooses_by_its_own_rule(state):
    assert choice(in_order, state) == "short"
    assert choice(first_ready, state) == "short"
    assert choice(longest_first, state) == "long"
    assert choice(critical_path, state) == "short"
    assert choice(largest(released_seconds), state) == "wide"


def test_c_value_releases_the_least_on_the_npu_and_the_most_elsewhere(state):
    assert choice(c_value("npu"), state) == "long"
    assert choice(c_value("cpu"), state) == "wide"


def test_feed_takes_the_longest_path_on_its_lane_and_releases_the_most_elsewhere(state):
    assert choice(feed("npu"), state) == "short"
    assert choice(feed("cpu"), state) == "wide"


def test_what_is_released_depends_on_what_has_ended(state):
    long, wide = state.graph["long"], state.graph["wide"]
    assert [task.name for task in state.released_by(wide)] == ["left", "right"]
    assert state.pick("npu", longest_first) is long
    state.finish(long)
    assert [task.name for task in state.released_by(wide)] == ["left", "right", "join"]


def test_path_seconds_is_the_longest_path_to_the_end(state):
    assert state.path_seconds["short"] == 10
    assert state.path_seconds["wide"] == 7
    assert state.path_seconds["join"] == 1


def test_in_order_waits_for_its_turn_where_first_ready_goes_ahead(state):
    state.finish(state.pick("npu", lambda ready, _: ready[2]))
    assert choice(in_order, state, "cpu") is None
    assert choice(first_ready, state, "cpu") == "left"


def test_ties_go_to_the_next_key_and_then_to_program_order(state):
    assert choice(largest(lambda task, _: 0), state) == "short"
    assert choice(smallest(lambda task, _: 0), state) == "short"
    assert choice(largest(lambda task, _: 0, seconds), state) == "long"
    assert choice(smallest(lambda task, _: 0, path_seconds), state) == "long"


def test_per_lane_gives_each_lane_its_policy(state):
    policy = per_lane({"npu": longest_first}, otherwise=first_ready)
    assert choice(policy, state) == "long"
    state.finish(state.pick("npu", lambda ready, _: ready[2]))
    assert choice(policy, state, "cpu") == "left"


def test_the_state_keeps_ready_tasks_in_program_order_whatever_ends_first(state):
    for _ in range(3):
        state.finish(state.pick("npu", lambda ready, _: ready[-1]))
    assert [task.name for task in state.ready["cpu"]] == ["tail", "left", "right", "join"]
    assert state.left == 4


def test_the_state_refuses_a_choice_that_is_not_ready(state):
    for chosen in (state.graph["tail"], Task("stranger", "npu")):
        with pytest.raises(ValueError, match=f"chose `{chosen.name}`, which is not ready on lane `npu`"):
            state.pick("npu", lambda ready, _, chosen=chosen: chosen)
