"""The policies: each choice on a graph small enough to check by hand, and the prefill of a language model."""

import pytest

from scheduler import (
    CostModel,
    Progress,
    Task,
    TaskGraph,
    Trace,
    c_value,
    critical_path,
    first_ready,
    in_order,
    largest,
    longest_first,
    per_lane,
    simulate,
    smallest,
)
from scheduler.policy import path_seconds, released_seconds, seconds


@pytest.fixture
def progress() -> Progress:
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
    return Progress(graph, cost)


def choice(policy, progress: Progress, lane: str = "npu") -> str | None:
    task = policy(progress.ready[lane], progress)
    return task and task.name


def test_each_policy_chooses_by_its_own_rule(progress):
    assert choice(in_order, progress) == "short"
    assert choice(first_ready, progress) == "short"
    assert choice(longest_first, progress) == "long"
    assert choice(critical_path, progress) == "short"
    assert choice(largest(released_seconds), progress) == "wide"


def test_c_value_releases_the_least_on_the_npu_and_the_most_elsewhere(progress):
    assert choice(c_value("npu"), progress) == "long"
    assert choice(c_value("cpu"), progress) == "wide"


def test_what_is_released_depends_on_what_has_ended(progress):
    long, wide = progress.graph["long"], progress.graph["wide"]
    assert [task.name for task in progress.released_by(wide)] == ["left", "right"]
    assert progress.pick("npu", longest_first) is long
    progress.finish(long)
    assert [task.name for task in progress.released_by(wide)] == ["left", "right", "join"]


def test_path_seconds_is_the_longest_path_to_the_end(progress):
    assert progress.path_seconds["short"] == 10
    assert progress.path_seconds["wide"] == 7
    assert progress.path_seconds["join"] == 1


def test_in_order_waits_for_its_turn_where_first_ready_goes_ahead(progress):
    progress.finish(progress.pick("npu", lambda ready, _: ready[2]))
    assert choice(in_order, progress, "cpu") is None
    assert choice(first_ready, progress, "cpu") == "left"


def test_ties_go_to_the_next_key_and_then_to_program_order(progress):
    assert choice(largest(lambda task, _: 0), progress) == "short"
    assert choice(smallest(lambda task, _: 0), progress) == "short"
    assert choice(largest(lambda task, _: 0, seconds), progress) == "long"
    assert choice(smallest(lambda task, _: 0, path_seconds), progress) == "long"


def test_per_lane_gives_each_lane_its_policy(progress):
    policy = per_lane({"npu": longest_first}, otherwise=first_ready)
    assert choice(policy, progress) == "long"
    progress.finish(progress.pick("npu", lambda ready, _: ready[2]))
    assert choice(policy, progress, "cpu") == "left"


def test_progress_keeps_ready_tasks_in_program_order_whatever_ends_first(progress):
    for _ in range(3):
        progress.finish(progress.pick("npu", lambda ready, _: ready[-1]))
    assert [task.name for task in progress.ready["cpu"]] == ["tail", "left", "right", "join"]
    assert progress.left == 4


def test_progress_refuses_a_choice_that_is_not_ready(progress):
    for chosen in (progress.graph["tail"], Task("stranger", "npu")):
        with pytest.raises(ValueError, match=f"chose `{chosen.name}`, which is not ready on lane `npu`"):
            progress.pick("npu", lambda ready, _, chosen=chosen: chosen)


# -- the case of llm.npu, section 3.4: Qwen1.5-1.8B, chunks of 256 tokens ---------------------------------------------

LAYERS = 24
NPU_SECONDS, CPU_SECONDS = 0.315, 0.1575  # per chunk, the mean over the chunks
NPU_SHARES = {"qkv": 12.6 / 50.6, "o": 4.2 / 50.6, "ffn": 33.8 / 50.6}  # by multiply-adds
NORM_SHARE = 0.1  # of the CPU's work; the rest is attention, which grows with the chunk's index


def prefill(chunks: int) -> tuple[TaskGraph, CostModel]:
    graph, cost = TaskGraph(), CostModel()
    for kind, share in NPU_SHARES.items():
        cost.observe(kind, "npu", NPU_SECONDS / LAYERS * share)
    cost.observe("norm", "cpu", CPU_SECONDS / LAYERS * NORM_SHARE / 2)
    for c in range(chunks):
        cost.observe(f"attention {c}", "cpu", CPU_SECONDS / LAYERS * (1 - NORM_SHARE) * (2 * c + 1) / chunks)
        before: list[str] = []
        for layer in range(LAYERS):
            for kind, lane, key in [
                ("norm 1", "cpu", "norm"),
                ("qkv", "npu", "qkv"),
                ("attention", "cpu", f"attention {c}"),
                ("o", "npu", "o"),
                ("norm 2", "cpu", "norm"),
                ("ffn", "npu", "ffn"),
            ]:
                if kind == "attention":
                    before = [f"{earlier} {layer} qkv" for earlier in range(c + 1)]
                before = [graph.add(f"{c} {layer} {kind}", lane, after=before, cost_key=key).name]
    return graph, cost


def npu_idle(trace: Trace) -> float:
    return 1 - trace.utilization("npu")


def test_out_of_order_closes_the_bubbles_of_a_prefill():
    graph, cost = prefill(chunks=4)
    plain = simulate(graph, in_order, cost)
    paper = simulate(graph, c_value("npu"), cost)
    assert len(graph) == 4 * 144
    assert plain.work("npu") == pytest.approx(4 * NPU_SECONDS)
    assert plain.work("cpu") == pytest.approx(4 * CPU_SECONDS)
    assert plain.lower_bound == pytest.approx(plain.work("npu"))  # the NPU can be busy throughout
    assert npu_idle(plain) == pytest.approx(1 / 3, abs=0.01)  # nothing overlaps
    assert npu_idle(paper) < 0.08
    assert npu_idle(simulate(graph, critical_path, cost)) < 0.20


def test_one_chunk_has_nothing_to_reorder():
    graph, cost = prefill(chunks=1)
    traces = [simulate(graph, policy, cost) for policy in (in_order, critical_path, longest_first, c_value("npu"))]
    assert all(trace.makespan == pytest.approx(NPU_SECONDS + CPU_SECONDS) for trace in traces)
