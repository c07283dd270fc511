"""The task graph: program order, refusals, and the doctests of the package."""

import ast
import doctest
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm import scheduler
from edge_llm.scheduler import Task, TaskGraph


def diamond() -> TaskGraph:
    graph = TaskGraph()
    graph.add("top", "a")
    graph.add("left", "a", after=["top"])
    graph.add("right", "b", after=["top"])
    graph.add("bottom", "c", after=["left", "right", "left"], cost_key="join")
    return graph


def names(tasks) -> list[str]:
    return [task.name for task in tasks]


def test_graph_knows_order_roots_lanes_and_successors():
    graph = diamond()
    assert names(graph) == names(graph.order) == ["top", "left", "right", "bottom"]
    assert names(graph.roots) == ["top"]
    assert graph.lanes == ("a", "b", "c")
    assert names(graph.successors("top")) == ["left", "right"]
    assert names(graph.successors("bottom")) == []
    assert len(graph) == 4 and "left" in graph and "other" not in graph


def test_task_has_defaults_and_each_dependency_once():
    graph = diamond()
    assert graph["bottom"].after == ("left", "right")
    assert graph["bottom"].cost_key == "join"
    assert graph["top"].cost_key == "top"
    assert graph["top"].run() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("top", "a"), "`top` is already in the graph"),
        (("new", "a", ["new"]), "`new` waits for itself"),
        (("new", "a", ["top", "later"]), "`new` waits for `later`, which is not in the graph"),
        (("new", "a", "top"), "not the one name `top`"),
        (("", "a"), "printable"),
        (("new", ""), "printable"),
        (("two\nlines", "a"), "printable"),
    ],
)
def test_add_refuses_and_leaves_the_graph_as_it_was(arguments, message):
    graph = diamond()
    name, lane, *after = arguments
    with pytest.raises(ValueError, match=message):
        graph.add(name, lane, after=after[0] if after else ())
    assert names(graph) == ["top", "left", "right", "bottom"]
    assert names(graph.successors("top")) == ["left", "right"]


def test_from_tasks_sorts_and_keeps_a_correct_order():
    graph = diamond()
    assert names(TaskGraph.from_tasks(graph.order)) == names(graph)
    assert names(TaskGraph.from_tasks(reversed(graph.order))) == ["top", "right", "left", "bottom"]


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([("a", "b"), ("b", "c"), ("c", "a")], "circle: `.` -> `.` -> `.` -> `.`"),
        ([("a", "a")], "circle: `a` -> `a`"),
        ([("a", "x")], "`a` waits for `x`, which is not in the graph"),
        ([("a", ""), ("a", "")], "`a` is already in the graph"),
        ([("a", ""), ("b", ""), ("a", "b")], "`a` is already in the graph"),
    ],
)
def test_from_tasks_refuses(tasks, message):
    with pytest.raises(ValueError, match=message):
        TaskGraph.from_tasks(Task(name, "lane", tuple(after)) for name, after in tasks)


@given(st.permutations(range(8)), st.sets(st.tuples(st.integers(0, 7), st.integers(0, 7))))
def test_from_tasks_puts_every_task_after_what_it_waits_for(listed, arrows):
    after = {i: tuple(f"t{a}" for a, b in sorted(arrows) if b == i and a < i) for i in range(8)}
    graph = TaskGraph.from_tasks(Task(f"t{i}", "lane", after[i]) for i in listed)
    order = names(graph)
    assert sorted(order) == sorted(f"t{i}" for i in range(8))
    assert all(order.index(needed) < order.index(task.name) for task in graph for needed in task.after)


def test_on_lanes_renames_lanes_and_keeps_the_rest():
    graph = diamond().on_lanes({"a": "host", "b": "host"})
    assert graph.lanes == ("host", "c")
    assert [(t.name, t.after, t.cost_key) for t in graph] == [(t.name, t.after, t.cost_key) for t in diamond()]


def test_the_kitchens_of_the_package_docstring_and_its_readme():
    result = doctest.testmod(scheduler)
    assert result.attempted > 5 and result.failed == 0
    result = doctest.testfile(str(Path(scheduler.__file__).with_name("README.md")), module_relative=False)
    assert result.attempted > 5 and result.failed == 0


def test_scheduler_imports_only_itself_and_the_standard_library():
    for path in Path(scheduler.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            else:
                continue
            for module in modules:
                top = module.partition(".")[0]
                ours = module.startswith("edge_llm.scheduler")
                assert ours or top in sys.stdlib_module_names, f"{path.name} imports {module}"
