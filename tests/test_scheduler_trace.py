"""The trace: bubbles, utilization, bounds, and the two ways to look at it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.scheduler import Span, Trace

# a  |[x 0-2]  [z 5-6]    |
# b  |  [y 2-5]    [w 7-8]|
TRACE = Trace(
    (
        Span("x", "a", 0, 2),
        Span("y", "b", 2, 5, ("x",)),
        Span("z", "a", 5, 6, ("x", "y")),
        Span("w", "b", 7, 8, ("x",)),
    ),
    ("a", "b"),
)


def test_work_utilization_and_bubbles():
    assert TRACE.makespan == 8
    assert (TRACE.work("a"), TRACE.work("b")) == (3, 4)
    assert (TRACE.utilization("a"), TRACE.utilization("b")) == (3 / 8, 4 / 8)
    assert TRACE.bubbles("a") == [(2, 5), (6, 8)]
    assert TRACE.bubbles("b") == [(0, 2), (5, 7)]


def test_critical_path_is_the_chain_with_the_most_work():
    assert [span.name for span in TRACE.critical_path] == ["x", "y", "z"]
    assert TRACE.lower_bound == 6


def test_lower_bound_is_the_busiest_lane_when_that_is_more():
    trace = Trace((Span("x", "a", 0, 2), Span("y", "a", 2, 5)), ("a",))
    assert trace.lower_bound == 5
    assert len(trace.critical_path) == 1


def test_a_lane_without_tasks_is_all_bubble():
    trace = Trace(TRACE.spans, ("a", "b", "c"))
    assert trace.utilization("c") == 0 and trace.bubbles("c") == [(0, 8)]


def test_an_empty_trace_can_be_read():
    trace = Trace((), ())
    assert (trace.makespan, trace.lower_bound, trace.critical_path) == (0, 0, ())
    assert trace.utilization("a") == 1 and trace.bubbles("a") == []
    assert json.loads(trace.chrome_json())["traceEvents"] == []
    assert trace.gantt() == "0 tasks in 0 s (no order beats 0 s)"


def test_chrome_json_has_a_named_row_per_lane_and_microseconds():
    events = json.loads(TRACE.chrome_json())["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert rows == {0: "a", 1: "b"}
    z = next(event for event in events if event["name"] == "z")
    assert (z["ph"], z["ts"], z["dur"], rows[z["tid"]], z["args"]) == ("X", 5e6, 1e6, "a", {"after": ["x", "y"]})


def test_gantt_names_what_fits_and_shades_the_rest():
    assert TRACE.gantt(60).splitlines() == [
        "a |[x----------]                   [z---]             |  38%",
        "b |             [y----------------]             [w---]|  50%",
        "4 tasks in 8 s (no order beats 6 s)",
    ]
    thirds = Trace(tuple(Span(f"t{i}", "a", i, i + 1 / 3) for i in range(1000)), ("a",))
    assert set(thirds.gantt().splitlines()[0][3:-6]) <= set("░▒▓")


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1)


@given(
    st.lists(st.tuples(NAMES, st.sampled_from("ab"), st.floats(0, 1e5), st.floats(0, 1e5))),
    NAMES,
    st.integers(60, 200),
)
def test_gantt_never_exceeds_its_width(tasks, other, width):
    now = {"a": 0.0, "b": 0.0}
    spans = []
    for name, lane, wait, seconds in tasks:
        spans.append(Span(name, lane, now[lane] + wait, now[lane] + wait + seconds))
        now[lane] = spans[-1].end
    rows = Trace(tuple(spans), ("a", "b", other)).gantt(width).splitlines()
    assert [len(row) for row in rows[:-1]] == [width] * 3 and len(rows[-1]) <= width


def test_gantt_refuses_a_width_too_narrow():
    with pytest.raises(ValueError, match="`20` is too narrow"):
        TRACE.gantt(20)
