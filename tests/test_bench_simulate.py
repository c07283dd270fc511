"""`bench simulate`: the reference case, tables that are refused, and what is printed, drawn and written."""

import json
import xml.etree.ElementTree as ET
from random import Random

import pytest

from edge_llm.bench import cost_table, simulate, trace
from edge_llm.cli.main import run
from edge_llm.errors import StorageError, UsageError
from edge_llm.runner import order
from edge_llm.scheduler import CostModel, Span, TaskGraph, Trace, beam, follow
from edge_llm.scheduler import simulate as schedule

pytestmark = pytest.mark.thorough(file=5)

NAME = "llm-npu-qwen1.5-1.8b"
POLICIES = ["in-order", "first-ready", "longest-first", "critical-path", "c-value", "feed", "planned"]


@pytest.fixture
def call(capsys):
    """Call the command line: (exit code, stdout, stderr)."""

    def call_(*arguments):
        code = run([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return call_


@pytest.fixture(scope="module")
def runs():
    """chunks -> policy -> row, for the reference case."""
    table = cost_table.load(NAME)
    return {
        chunks: {row["policy"]: row for row in simulate.rows(simulate.simulate(table, chunks * table.chunk))}
        for chunks in (1, 2, 4, 8)
    }


# -- the case of llm.npu, section 3.4: Qwen1.5-1.8B, chunks of 256 tokens ---------------------------------------------


def test_the_table_is_what_was_published():
    table = cost_table.load(NAME)
    assert (table.chunk, table.layers, len(table.steps)) == (256, 24, 6)
    graph, cost = table.program(4)
    assert len(graph) == 4 * 144
    work = [{"npu": 0.0, "cpu": 0.0} for _ in range(4)]
    for task in graph:
        work[int(task.name[5])][task.lane] += 1e3 * cost.predict(task.cost_key, task.lane)
    assert [chunk["npu"] for chunk in work] == pytest.approx([315] * 4)
    assert work[0]["cpu"] == pytest.approx(315 / 2)
    assert [chunk["cpu"] for chunk in work] == sorted(chunk["cpu"] for chunk in work)  # attention grows
    waits = {needed for needed in graph["chunk2.layer5.attention"].after}
    assert waits == {f"chunk{chunk}.layer5.qkv" for chunk in range(3)}
    assert graph["chunk2.layer5.o"].after == ("chunk2.layer5.attention",)


def test_in_order_and_the_c_value_leave_about_what_was_published(runs):
    order, paper = runs[4]["in-order"], runs[4]["c-value"]
    assert order["npu_idle_share"] == pytest.approx(0.37, abs=0.01)
    assert paper["npu_idle_share"] < 0.06
    for chunks in (2, 4, 8):
        gain = 1 - runs[chunks]["c-value"]["makespan_ms"] / runs[chunks]["in-order"]["makespan_ms"]
        assert 0.18 < gain < 0.44


def test_planned_is_next_to_the_bound_from_four_chunks_on(runs):
    for chunks in (4, 8):
        best = runs[chunks]["planned"]
        assert best["makespan_ms"] < 1.005 * best["lower_bound_ms"]
        assert best["makespan_ms"] == min(row["makespan_ms"] for row in runs[chunks].values())
        assert runs[chunks]["feed"]["makespan_ms"] < 1.05 * best["lower_bound_ms"]


def test_planned_is_the_proven_best_order_of_two_chunks(runs):
    graph, cost = cost_table.load(NAME).program(2)
    found = beam(graph, cost, width=2000)
    row = runs[2]["planned"]
    assert found.proven and row["optimal"]
    assert row["makespan_ms"] == pytest.approx(1e3 * found.trace.makespan)
    assert 1.07 < row["makespan_ms"] / row["lower_bound_ms"] < 1.072  # as low as anybody gets
    assert row["lower_bound_ms"] < row["one_lane_bound_ms"] < row["makespan_ms"]


def test_the_runners_policies_are_among_them_under_the_same_names():
    assert set(order.POLICIES) <= set(POLICIES)


@pytest.mark.parametrize("seed", range(3))
def test_a_plan_holds_when_every_task_is_off_by_a_tenth(seed):
    graph, cost = cost_table.load(NAME).program(4)
    plan = follow(beam(graph, cost, width=60).trace)
    chance, late, actual = Random(seed), TaskGraph(), CostModel()
    for task in graph:
        late.add(task.name, task.lane, after=task.after)
        actual.observe(task.name, task.lane, cost.predict(task.cost_key, task.lane) * chance.gauss(1, 0.1))
    run = schedule(late, plan, actual)
    assert run.makespan < 1.01 * run.lower_bound


def test_one_chunk_has_nothing_to_reorder(runs):
    assert {round(row["makespan_ms"], 6) for row in runs[1].values()} == {472.5}
    assert all(row["optimal"] for row in runs[1].values())


def test_the_last_chunk_is_padded():
    table = cost_table.load(NAME)
    full, padded = (simulate.rows(simulate.simulate(table, n))[0] for n in (512, 257))
    assert padded["n_chunks"] == 2 and padded["makespan_ms"] == full["makespan_ms"]
    assert padded["tokens_per_second"] == pytest.approx(full["tokens_per_second"] * 257 / 512)


# -- tables -----------------------------------------------------------------------------------------------------------

STEP = {"name": "work", "lane": "npu", "ms": 8, "ms_per_earlier_chunk": 0, "after_earlier": None}
GOOD = {
    "format": "edge-llm-cost-table", "version": 1, "source": "thin air", "assumptions": [],
    "accelerator": "npu", "chunk": 16, "layers": 2, "subgraphs": [STEP],
}  # fmt: skip


def write(tmp_path, document):
    path = tmp_path / "mine.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def test_a_table_of_ones_own(tmp_path):
    table = cost_table.load(write(tmp_path, GOOD))
    assert table.name == "mine"
    rows = simulate.rows(simulate.simulate(table, 40))
    assert [row["makespan_ms"] for row in rows] == pytest.approx([24] * len(POLICIES))
    assert all(row["bubble_share"] == pytest.approx(0) and row["n_chunks"] == 3 for row in rows)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "is not usable JSON"),
        ("[]", "must hold a JSON object"),
        (GOOD | {"format": "other"}, "`other`"),
        (GOOD | {"version": 2}, "version `2`"),
        (GOOD | {"version": True}, "version `True`"),
        (GOOD | {"extra": 0}, "exactly the fields"),
        (GOOD | {"source": ""}, "source"),
        (GOOD | {"assumptions": "none"}, "`assumptions` is not a list"),
        (GOOD | {"assumptions": [1]}, "`1` is not printable text"),
        (GOOD | {"accelerator": "gpu"}, "`gpu`"),
        (GOOD | {"chunk": 0}, "`0` is not a whole number"),
        (GOOD | {"chunk": 2.0}, "`2.0` is not a whole number"),
        (GOOD | {"layers": 10**9}, "`1000000000`"),
        (GOOD | {"layers": True}, "`True`"),
        (GOOD | {"subgraphs": []}, "list of 1 to"),
        (GOOD | {"subgraphs": [STEP] * 2}, "`work` comes twice"),
        (GOOD | {"subgraphs": [1]}, "subgraph 0"),
        (GOOD | {"subgraphs": [STEP | {"ms": -1}]}, "`-1` is not a time"),
        (GOOD | {"subgraphs": [STEP | {"ms": "1"}]}, "`1` is not a time"),
        (GOOD | {"subgraphs": [STEP | {"ms": 1e9}]}, "is not a time"),
        (GOOD | {"subgraphs": [STEP | {"ms": 0}]}, "takes any time"),
        (GOOD | {"subgraphs": [STEP | {"lane": "a\nb"}]}, "is not printable text"),
        (GOOD | {"subgraphs": [STEP | {"after_earlier": "keys"}]}, "`keys`, which does not come before it"),
        (json.dumps(GOOD).replace("16", "NaN"), "`NaN`"),
        (json.dumps(GOOD).replace('"chunk"', '"layers": 1, "chunk"'), "comes twice"),
    ],
)
def test_a_bad_table_is_refused(tmp_path, document, message):
    with pytest.raises(UsageError, match=message):
        cost_table.load(write(tmp_path, document))


@pytest.mark.parametrize("name", ["gpt-9", "", "..", "/dev/null", "a\0b", "x" * 5000])
def test_an_unknown_table_is_refused_with_those_that_there_are(name):
    with pytest.raises(UsageError, match=f"no cost table .*{NAME}"):
        cost_table.load(name)


def test_more_chunks_than_can_be_simulated_are_refused_with_the_limit():
    table = cost_table.load(NAME)
    with pytest.raises(UsageError, match="`1000` chunks are too many .* at most 35328"):
        table.program(1000)


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_bench_simulate_prints_a_row_per_policy(call):
    code, out, _ = call("bench", "simulate", NAME, "-p", "1024", "-o", "json")
    rows = json.loads(out)
    assert code == 0 and [row["policy"] for row in rows] == POLICIES
    assert all({"makespan_ms", "lower_bound_ms", "bubble_share"} <= set(row) for row in rows)
    assert all(row["bubble_share"] == row["npu_idle_share"] for row in rows)
    table = call("bench", "simulate", NAME, "-p", "512,1024")[1].splitlines()
    assert len(table) == 2 + 2 * len(POLICIES) and table[-1].startswith("| pp1024 |      4 | planned ")
    lines = call("bench", "simulate", NAME, "-p", "256", "-o", "csv")[1].splitlines()
    assert lines[0].startswith("table,n_prompt,n_chunks,policy,makespan_ms") and len(lines) == 1 + len(POLICIES)


def test_bench_simulate_draws_and_writes_the_lanes(call, tmp_path):
    path = tmp_path / "trace.json"
    code, out, err = call("bench", "simulate", NAME, "-p", "512", "--gantt", "--trace", path)
    assert code == 0 and str(path) in err
    assert "pp512 in-order\ncpu |" in out and "| pp512 planned " in out
    events = json.loads(path.read_text())["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert names == [f"pp512 {policy}" for policy in POLICIES]
    assert sum(event["ph"] == "X" for event in events) == len(POLICIES) * 2 * 144
    code, out, err = call("bench", "simulate", NAME, "-p", "256", "--gantt", "-o", "json")
    assert len(json.loads(out)) == len(POLICIES) and "cpu |" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gpt-9",), f"no cost table `gpt-9`; give the path of one, or one of {NAME}"),
        ((), "error: TABLE is missing"),
        ((NAME, "-p", "0"), "nothing to simulate"),
        ((NAME, "-p", "99999999"), "chunks are too many"),
        ((NAME, "builtin"), "`edge-llm bench simulate` takes no `builtin`"),
    ],
)
def test_bench_simulate_refuses(call, arguments, message):
    code, out, err = call("bench", "simulate", *arguments)
    assert (code, out) == (2, "") and message in err and "Traceback" not in err


# -- pictures ---------------------------------------------------------------------------------------------------------

TRACE = Trace((Span("x.1", "a", 0, 2), Span("y.1", "b", 2, 5, ("x.1",)), Span("x.2", "a", 5, 6, ("y.1",))), ("a", "b"))


def test_gantt_and_table_of_lanes():
    text = trace.gantt({"window 1": TRACE, "window 2": TRACE}, 60)
    assert text.count("3 tasks in 6 s (no order beats 6 s)") == 2 and text.startswith("window 1\na |")
    assert trace.lanes_table({"window 1": TRACE}).splitlines()[2:] == [
        "| window 1 | a    |  3000.0 | 50.0% |       1 |     3000.0 |",
        "| window 1 | b    |  3000.0 | 50.0% |       2 |     2000.0 |",
    ]


def test_runs_stand_side_by_side():
    events = json.loads(trace.chrome_json({"1": TRACE, "2": TRACE}))["traceEvents"]
    assert [(event["pid"], event["ts"]) for event in events if event.get("name") == "y.1"] == [(0, 2e6), (1, 2e6)]


def test_a_trace_that_cannot_be_written_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="no/such"):
        trace.save_chrome(tmp_path / "no" / "such.json", {"1": TRACE})


def test_svg_is_well_formed_and_has_every_task():
    picture = ET.fromstring(trace.svg({"<1>": TRACE, "empty": Trace((), ("a",))}, "a & b"))
    paths = [path.get("d") for path in picture.iter("{http://www.w3.org/2000/svg}path")]
    assert sum(d.count("M") for d in paths) == 3
