"""Routing is recorded while a mixture answers, and a replay counts what a run does."""

import json
from pathlib import Path

import numpy as np
import pytest
from families import family_bundle

from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.runner import load_runner
from edge_llm.operations.arithmetic import SAME_BITS
from edge_llm.operations.early_router import GUESSED_ROWS, early_router, mixture_of
from edge_llm.paths import builtin_bundle
from edge_llm.runner.base import Segment
from edge_llm.weights.policies import DEFAULT, OPTIMUM, POLICIES, Slots, Uses, policy_of
from edge_llm.weights.recording import mixtures_of, with_observed_routers
from edge_llm.weights.replay import guess_rates, named_policy, replay, tokens_of
from edge_llm.weights.routing_trace import RoutedStep, RoutingTrace, TracedShape, TraceWriter, read_trace

PROMPT, STEPS = 60, 6


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return family_bundle(tmp_path_factory.mktemp("mixture"), "mixtral")


@pytest.fixture
def no_stdin(monkeypatch):
    with Path("/dev/null").open(encoding="utf-8") as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        yield


def logits_of(bundle, runtime):
    """Of a prompt and a few tokens behind it."""
    with open_bundle(bundle) as opened:
        runner, _ = load_runner(opened, runtime, PROMPT + STEPS)
        tokens = np.random.default_rng(3).integers(0, opened.config.vocab_size, PROMPT + STEPS).tolist()
        sequence = runner.open()
        steps = [tokens[:PROMPT], *([token] for token in tokens[PROMPT:])]
        return np.concatenate([runner.run([Segment(sequence, step)])[0] for step in steps])


@pytest.fixture(scope="module")
def traced(bundle, tmp_path_factory):
    path = tmp_path_factory.mktemp("trace") / "routing"
    runtime = RuntimeConfig(device="host", threads=1)
    recorded = logits_of(bundle, RuntimeConfig(device="host", threads=1, trace_experts=path))
    assert np.array_equal(recorded, logits_of(bundle, runtime)), "who looks on changes nothing"
    return path, read_trace(path)


def test_every_row_of_every_layer_is_recorded_once(bundle, traced):
    _, trace = traced
    with open_bundle(bundle) as opened:
        layers = list(mixtures_of(opened.decoder))
    assert tokens_of(trace) == PROMPT + STEPS
    for layer in layers:
        assert sum(len(step.experts) for step in trace.steps if step.layer == layer) == PROMPT + STEPS
    singles = [step for step in trace.steps if len(step.experts) == 1]
    assert [step.layer for step in singles] == layers * STEPS
    assert all(step.guess is None for step in trace.steps if step.layer == layers[0] or len(step.experts) > GUESSED_ROWS)
    assert all(step.guess for step in singles if step.layer != layers[0])


def test_a_telling_router_tells_what_the_router_chooses(bundle):
    told = []

    def tell(layer, x, routes, arithmetic):
        told.append((layer, routes.experts.tolist()))

    with open_bundle(bundle) as opened:
        decoder = with_observed_routers(opened.decoder, tell)
        plain, telling = (mixtures_of(one)[1].router for one in (opened.decoder, decoder))
        random = np.random.default_rng(0)
        x, weight = random.normal(size=(5, plain.weight.size)), random.normal(size=(plain.weight.rows, plain.weight.size))
        given = x.astype(np.float32), {plain.weight.name: weight.astype(np.float32)}, SAME_BITS
        expected = plain.routes(*given)
        found = telling.routes(*given)
    assert np.array_equal(found.experts, expected.experts)
    assert np.array_equal(found.weights, expected.weights)
    assert told == [(1, expected.experts.tolist())]


@pytest.mark.parametrize("name", [*POLICIES, OPTIMUM])
def test_a_replay_is_a_walk_through_slots(traced, name):
    """Its twin takes step for step."""
    _, trace = traced
    for quota in range(1, trace.shape.experts + 1):
        slots, used, read, nbytes = Slots(named_policy(trace, name), quota), 0, 0, 0
        for step in trace.steps:
            wanted = {one for row in step.experts.tolist() for one in row}
            missing = len(wanted - slots.held(step.layer))
            assert sum(one.is_read for one in slots.take(step.layer, sorted(wanted))) == missing
            used, read, nbytes = used + len(wanted), read + missing, nbytes + missing * trace.shape.expert_bytes[step.layer]
        found = replay(trace, named_policy(trace, name), quota)
        assert found.uses == Uses(used, read)
        assert found.read_bytes == nbytes
    assert read == sum(trace.shape.experts if size else 0 for size in trace.shape.expert_bytes), "all stay: each is read once"


def test_guesses_are_counted():
    shape = TracedShape(4, 1, (10, 10))

    def step(layer, expert, guess=None):
        return RoutedStep(layer, np.array([[expert]]), guess)

    trace = RoutingTrace(shape, (step(0, 1), step(1, 2, (2,)), step(0, 1), step(1, 2, (3,)), step(0, 0), step(1, 3, (2, 3))))
    found = replay(trace, policy_of(DEFAULT, 4), 1)
    assert (found.fetched, found.right) == (3, 2), "the last guess finds 2 in memory"
    assert found.uses == found.single == Uses(6, 4)
    assert found.read_bytes == 40
    rates = guess_rates(trace)
    assert (rates.named, rates.foretold, rates.recalled, rates.recall) == (4, 3, 2, 2 / 3)
    assert guess_rates(trace, 1) == rates
    assert guess_rates(trace, 0).recall is None
    assert guess_rates(RoutingTrace(shape, ())).recall is None


def test_bench_experts_prints_policies_beside_the_optimum(traced, capsys):
    path, trace = traced
    assert run(["bench", "experts", str(path), "--slots", "1,3", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    names = [*POLICIES, OPTIMUM]
    assert [(row["slots"], row["policy"]) for row in rows] == [(slots, name) for slots in (1, 3) for name in names]
    for row in rows:
        found = replay(trace, named_policy(trace, row["policy"]), row["slots"])
        assert (row["used"], row["read"]) == (found.uses.used, found.uses.read)
        assert row["bytes_per_token"] == found.read_bytes / (PROMPT + STEPS)
    assert run(["bench", "experts", str(path), "--memory", "50%"]) == 0
    out = capsys.readouterr().out
    assert f"{trace.shape.experts // 2} of {trace.shape.experts}" in out
    assert "Guesses named" in out
    assert run(["bench", "experts", str(path)]) == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--slots", "1", "--memory", "50%"), "--slots and --memory cannot be combined"),
        (("--slots", "0"), "--slots `0`: a layer of this trace has"),
        (("--slots", "99"), "--slots `99`: a layer of this trace has"),
        (("--memory", "1"), "holds no expert of each layer"),
        (("--memory", "x"), "invalid amount of memory"),
    ],
)
def test_sizes_that_make_no_sense(traced, arguments, said, capsys):
    assert run(["bench", "experts", str(traced[0]), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_what_is_no_trace_is_refused(tmp_path, capsys):
    (tmp_path / "t").write_bytes(b"EDGEROUT")
    assert run(["bench", "experts", str(tmp_path / "t")]) == 2
    assert "no trace of routing that can be read: it is too short" in capsys.readouterr().err
    with TraceWriter(tmp_path / "empty", TracedShape(8, 2, (10,))):
        pass
    assert run(["bench", "experts", str(tmp_path / "empty")]) == 0


def test_a_model_without_experts_has_no_routing(tmp_path, capsys, no_stdin):
    arguments = ["run", "builtin", "hello", "--raw", "-n", "1", "--trace-experts", str(tmp_path / "t")]
    assert run(arguments) == 2
    assert "can be traced: it has no experts; leave --trace-experts out" in capsys.readouterr().err
    assert not (tmp_path / "t").exists()
    with open_bundle(builtin_bundle()) as opened, pytest.raises(UsageError, match="no experts"):
        load_runner(opened, RuntimeConfig(device="host", trace_experts=tmp_path / "t"), 4)


def test_the_float_path_is_not_traced(bundle, tmp_path, capsys, no_stdin):
    arguments = ["run", str(bundle), "hello", "--raw", "-n", "1", "--float", "--trace-experts", str(tmp_path / "t")]
    assert run(arguments) == 2
    assert "leave --float out" in capsys.readouterr().err


def test_run_writes_a_trace_that_bench_reads(bundle, tmp_path, capsys, no_stdin):
    path = tmp_path / "t"
    assert run(["run", str(bundle), "hello", "--raw", "-n", "3", "--ignore-eos", "--trace-experts", str(path), "--json"]) == 0
    usage = json.loads(capsys.readouterr().out)["usage"]
    assert tokens_of(read_trace(path)) >= usage["prompt_tokens"] + usage["completion_tokens"] - 1


def test_the_next_router_is_asked_with_the_gain_of_its_own_norm(bundle):
    """Its twin norms with that gain, and knows no ratio; rows without scores and long steps are not guessed for."""
    random = np.random.default_rng(5)
    with open_bundle(bundle) as opened:
        here, there = opened.decoder.layers[:2]
        mixture = mixture_of(there)
        gains = [
            {one.name: random.uniform(0.5, 2, one.shape).astype(np.float32) for one in layer.gains} for layer in (here, there)
        ]
        early = early_router(here, gains[0], there, gains[1])
    norms = [[one.gain.name for one in layer.operations if one.writes == mixture.reads][-1] for layer in (here, there)]
    unit = random.normal(size=(GUESSED_ROWS, mixture.columns)).astype(np.float32)
    expected = mixture.router.routes(unit * gains[1][norms[1]], gains[1], SAME_BITS).experts
    assert np.array_equal(early.experts(unit * gains[0][norms[0]], SAME_BITS), expected)
    assert len(early.experts(np.full((1, mixture.columns), np.nan, np.float32), SAME_BITS)) == 0
    assert len(early.experts(np.concatenate([unit, unit[:1]]), SAME_BITS)) == 0


@pytest.mark.parametrize("memory", ["65%", "80%"])
def test_a_replay_counts_what_a_run_from_flash_prints(bundle, tmp_path, capsys, no_stdin, memory):
    """The run has experts on flash; the replay of its trace, with the slots that `plan` names, has nothing but the policy."""
    path = tmp_path / "t"
    answer = ["hello there", "--raw", "-n", "12", "--ignore-eos", "--draft", "none", "--memory", memory]
    assert run(["run", str(bundle), *answer, "--trace-experts", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    with open_bundle(bundle) as opened:
        runner, _ = load_runner(opened, RuntimeConfig(device="host", threads=1, memory=memory), 30)
        quota = runner.model.weights._experts.cache._slots.quota
    assert run(["bench", "experts", str(path), "--slots", str(quota), "--json"]) == 0
    (row,) = [row for row in json.loads(capsys.readouterr().out) if row["policy"] == DEFAULT]
    names = {"used": "used", "read": "read", "tokens": "tokens", "hit_rate": "hit_rate"}
    names |= {"named": "guess_named", "needed": "guess_foretold", "recalled": "guess_recalled", "guess_rate": "guess_recall"}
    assert {name: printed[f"expert_{name}"] for name in names} == {name: row[there] for name, there in names.items()}
    assert 0 < row["read"] < row["used"]
