"""The exact schedule, held against trying every order."""

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.scheduler import CostModel, TaskGraph, critical_path, optimal, simulate


def best_of_all_orders(graph: TaskGraph, cost: CostModel) -> float:
    """Place the tasks in every order that respects the arrows, each as early as its lane allows; take the best."""
    best = float("inf")
    for order in permutations(graph):
        end: dict[str, float] = {}
        free: dict[str, float] = {}
        for task in order:
            if not all(needed in end for needed in task.after):
                break
            start = max([free.get(task.lane, 0.0), *(end[needed] for needed in task.after)])
            end[task.name] = free[task.lane] = start + cost.predict(task.cost_key, task.lane)
        else:
            best = min(best, max(end.values(), default=0.0))
    return best


@settings(max_examples=60)
@given(st.data())
def test_is_the_best_of_all_orders(data):
    graph, cost = TaskGraph(), CostModel()
    for i in range(data.draw(st.integers(0, 6))):
        after = data.draw(st.sets(st.integers(0, i - 1), max_size=2)) if i else ()
        task = graph.add(f"t{i}", data.draw(st.sampled_from("ab")), after=[f"t{j}" for j in after])
        cost.observe(task.cost_key, task.lane, data.draw(st.integers(0, 9)))
    assert optimal(graph, cost).makespan == best_of_all_orders(graph, cost)


def test_leaves_a_lane_idle_on_purpose_where_that_is_best():
    graph, cost = TaskGraph(), CostModel()
    for name, lane, seconds, after in [
        ("filler", "a", 10, []),
        ("key", "b", 1, []),
        ("urgent", "a", 1, ["key"]),
        ("tail", "b", 10, ["urgent"]),
    ]:
        graph.add(name, lane, after=after)
        cost.observe(name, lane, seconds)
    assert simulate(graph, critical_path, cost).makespan == 21
    assert optimal(graph, cost).makespan == 12


def test_twelve_tasks_and_no_more():
    graph = TaskGraph()
    for i in range(12):
        graph.add(f"t{i}", "ab"[i % 2], after=[f"t{i - 3}"] if i >= 3 else [])
    assert optimal(graph, CostModel(default=1)).makespan == 6
    graph.add("t12", "a")
    with pytest.raises(ValueError, match="`13` tasks are too many"):
        optimal(graph, CostModel())
