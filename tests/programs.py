"""Random programs for the scheduler's tests, its policies, and what must hold of every run."""

from itertools import pairwise

from hypothesis import strategies as st

from edge_llm.scheduler import (
    CostModel,
    TaskGraph,
    Trace,
    c_value,
    critical_path,
    feed,
    first_ready,
    in_order,
    longest_first,
    planned,
)

POLICIES = {
    "in_order": in_order,
    "first_ready": first_ready,
    "longest_first": longest_first,
    "critical_path": critical_path,
    "c_value": c_value("a"),
    "feed": feed("a"),
    "planned": planned(width=2),
}


@st.composite
def programs(draw: st.DrawFn, max_tasks: int = 30, shortest: int = 0) -> tuple[TaskGraph, CostModel]:
    """A program on one to four lanes, with whole durations: sums of them are exact, in any order."""
    graph, cost = TaskGraph(), CostModel(default=1)
    lanes = "abcd"[: draw(st.integers(1, 4))]
    for i in range(draw(st.integers(0, max_tasks))):
        after = draw(st.sets(st.integers(0, i - 1), max_size=3)) if i else ()
        task = graph.add(f"t{i}", draw(st.sampled_from(lanes)), after=[f"t{j}" for j in sorted(after)])
        cost.observe(task.cost_key, task.lane, draw(st.integers(shortest, 5)))
    return graph, cost


def assert_lawful(graph: TaskGraph, trace: Trace) -> None:
    spans = {span.name: span for span in trace.spans}
    assert sorted(span.name for span in trace.spans) == sorted(task.name for task in graph)
    assert all(spans[task.name].lane == task.lane for task in graph)
    assert all(spans[needed].end <= spans[task.name].start for task in graph for needed in task.after)
    for lane in trace.lanes:
        on_lane = trace.on(lane)
        assert all(before.end <= after.start for before, after in pairwise(on_lane))
