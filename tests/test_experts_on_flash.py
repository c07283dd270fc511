"""A mixture that memory does not hold gives the same bits: under any budget, in any batch, and after the disk has failed."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest
from families import TOKENS, family_bundle
from serving import client_of, hosted

from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.engine.inside import look
from edge_llm.errors import CorruptBundle, StorageError, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.load import load_engine
from edge_llm.opening.runner import load_runner
from edge_llm.runner.base import Segment
from edge_llm.server.metrics import Counted, Metrics, exposition
from edge_llm.weights.base import ExpertCounts
from edge_llm.weights.plan import plan_memory
from edge_llm.weights.policies import DEFAULT, policy_of
from edge_llm.weights.recording import mixtures_of
from edge_llm.weights.replay import guess_rates, replay
from edge_llm.weights.routing_trace import read_trace
from edge_llm.weights.sizes import WeightSizes


@pytest.fixture(scope="module", params=["olmoe", "glm4_moe"])
def bundle(request, tmp_path_factory):
    """The second has a dense layer, and a shared expert in the others."""
    with open_bundle(family_bundle(tmp_path_factory.mktemp("model"), request.param)) as opened:
        yield opened


@pytest.fixture
def olmoe(bundle):
    if bundle.config.family != "olmoe":
        pytest.skip("the first family shows it")
    return bundle


def least_memory(bundle):
    """Bytes of weights of the smallest plan."""
    with pytest.raises(UsageError, match="the least that works") as refused:
        plan_memory(WeightSizes.of_bundle(bundle), 1000, flash_tables=True)
    assert str(refused.value).startswith("1000 bytes")
    return int(re.search(r"works is (\d+)", str(refused.value))[1])


def runner_of(bundle, memory=None, **more):
    runner, _ = load_runner(bundle, RuntimeConfig(memory=memory, **{"threads": 2, "context": 128, **more}), 100)
    return runner


def answered(runner):
    """Logits of a prompt and of one token after the other."""
    sequence = runner.open()
    try:
        prompt = runner.forward(sequence, TOKENS[:50], wanted=50)
        return np.concatenate([prompt, *(runner.forward(sequence, [token]) for token in TOKENS[50:])])
    finally:
        sequence.truncate(0)


@pytest.fixture(scope="module")
def exact(bundle):
    return answered(runner_of(bundle))


@pytest.mark.parametrize("memory", ["least", "50%", "70%", "97%"])
@pytest.mark.parametrize("more", [{}, {"chunk": 16, "window": 2, "threads": 1}])
def test_the_bits_are_those_of_experts_in_memory(bundle, exact, memory, more):
    least = least_memory(bundle)
    nbytes = least if memory == "least" else max(least, int(float(memory[:-1]) / 100 * WeightSizes.of_bundle(bundle).total))
    runner = runner_of(bundle, str(nbytes), **more)
    weights = runner.model.weights
    assert np.array_equal(answered(runner), exact)
    assert weights.nbytes <= nbytes and weights.streamed == ()
    counts = weights.experts
    assert counts.tokens == len(TOKENS) and 0 < counts.read <= counts.used and counts.read_bytes > 0


def test_a_prompt_of_several_chunks_reads_each_expert_once(bundle, exact):
    """A window is one chunk, where that leaves room for as many experts."""
    runner = runner_of(bundle, str(int(0.7 * WeightSizes.of_bundle(bundle).total)), chunk=16, window=4)
    found = runner.forward(runner.open(), TOKENS[:50], wanted=50)
    assert np.array_equal(found, exact[:50])
    counts = runner.model.weights.experts
    assert counts.read == counts.used <= sum(one.count for one in mixtures_of(bundle.decoder).values())


def test_a_batch_is_each_alone(bundle):
    texts = [TOKENS[:70], TOKENS[20:61], TOKENS[5:6]]
    resident, runner = runner_of(bundle, kv_tokens=512), runner_of(bundle, str(least_memory(bundle)), kv_tokens=512)
    together = runner.run([Segment(runner.open(), text, len(text)) for text in texts])
    for text, found in zip(texts, together, strict=True):
        assert np.array_equal(found, resident.forward(resident.open(), text, wanted=len(text)))


def test_a_replay_of_the_trace_counts_what_the_run_did(olmoe, exact, tmp_path):
    """A guess is a read that comes early, and never one that the policy knows of."""
    runner = runner_of(olmoe, "70%", trace_experts=tmp_path / "trace")
    assert np.array_equal(answered(runner), exact)
    sizes, trace = WeightSizes.of_bundle(olmoe), read_trace(tmp_path / "trace")
    plan = plan_memory(sizes, int(0.7 * sizes.total), flash_tables=True, beside=1 << 30)
    replayed, guessed = replay(trace, policy_of(DEFAULT, plan.experts.count), plan.experts.quota), guess_rates(trace)
    counts = runner.look().experts
    assert (counts.used, counts.read) == (replayed.uses.used, replayed.uses.read)
    assert (counts.named, counts.needed, counts.recalled) == (guessed.named, guessed.foretold, guessed.recalled)
    assert 0 < counts.right <= counts.fetched <= replayed.fetched
    assert counts.facts["expert_hit_rate"] == replayed.uses.hit_rate and counts - counts == ExpertCounts()


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_damage_ends_a_request_and_the_next_is_right_again(olmoe, exact, damage):
    runner, path = runner_of(olmoe, str(least_memory(olmoe))), olmoe.folder / "weights.bin"
    unit, whole = olmoe.units["layers.2.experts.3"], path.read_bytes()
    for _ in range(2):
        with path.open("r+b") as file:
            if damage == "cut":
                file.truncate(unit.offset + 100)
            else:
                file.seek(unit.offset + 100)
                file.write(bytes([whole[unit.offset + 100] ^ 1]))
        try:
            with pytest.raises(CorruptBundle, match=r"layers\.2\.experts\.3|weights\.bin"):
                answered(runner)
        finally:
            with path.open("r+b") as file:
                file.write(whole)
        assert np.array_equal(answered(runner), exact)


def test_a_disk_that_fails_now_and_then_ends_requests_and_never_changes_one(olmoe, exact, monkeypatch):
    runner, random, failed = runner_of(olmoe, "60%"), np.random.default_rng(0), 0
    file = runner.model.weights._reader._file
    read_into = type(file).read_into

    def fail(*_):
        raise StorageError("the disk is gone")

    for _ in range(12):
        bad = random.random() < 0.5
        monkeypatch.setattr(type(file), "descriptor", property(lambda self, bad=bad: -1 if bad else self._direct_fd))
        monkeypatch.setattr(type(file), "read_into", fail if bad else read_into)
        try:
            assert np.array_equal(answered(runner), exact)
        except StorageError:
            failed += 1
    assert 0 < failed < 12


def test_a_server_lives_when_an_expert_is_damaged_and_says_how_it_goes(olmoe):
    """`/metrics` has how many experts were in memory and how many were guessed."""
    engine = load_engine(olmoe.folder, RuntimeConfig(threads=2, context=128, memory=str(least_memory(olmoe)), draft="none"))
    body = {"prompt": "Once", "max_tokens": 8, "ignore_eos": True, "temperature": 0}
    path = olmoe.folder / "weights.bin"
    whole = path.read_bytes()
    data = bytearray(whole)
    for name, unit in olmoe.units.items():
        if name.startswith("layers.3."):
            data[unit.offset + 100] ^= 1
    with client_of(hosted(engine=engine)) as client:
        expected = client.post("/v1/completions", json=body).json()["choices"]
        try:
            with path.open("r+b") as file:
                file.write(data)
            refused = client.post("/v1/completions", json=body)
        finally:
            with path.open("r+b") as file:
                file.write(whole)
        assert refused.status_code >= 500 and "weights.bin" in refused.text
        assert client.post("/v1/completions", json=body).json()["choices"] == expected
        lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[:1] != "#")
    rates = [float(value) for name, value in lines.items() if "expert_hit_rate" in name or "expert_guess_rate" in name]
    assert len(rates) == 2 and all(0 <= rate <= 1 for rate in rates)
    assert look(engine).experts.facts["expert_hit_rate"] == pytest.approx(rates[0], abs=1e-4)


def test_metrics_have_every_digit_of_a_count():
    facts = ExpertCounts(used=3, read=1, tokens=7, read_bytes=123_456_789_012_345).facts
    text = exposition([Counted("", Metrics(), {name: fact for name, fact in facts.items() if fact is not None})])
    said = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#")
    assert said["edge_llm_expert_read_bytes"] == "123456789012345"
    assert float(said["edge_llm_expert_hit_rate"]) == pytest.approx(2 / 3, rel=1e-15)


def test_run_and_plan_say_what_experts_do(olmoe, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    memory = ("--memory", str(least_memory(olmoe)), "--threads", "1")
    assert run(["plan", str(olmoe.folder), "--json", *memory]) == 0
    said = json.loads(capsys.readouterr().out)
    planned = said["experts"]
    assert planned["sweep_bytes"] == 4 * 7 * planned["slot_bytes"]
    reading = said["chunk"] * said["window"] * said["disk_bytes_per_s"] / planned["sweep_bytes"]
    assert 0 < said["predicted_prefill_ts"] <= reading * 1.001
    assert planned["quota"] == 1 and planned["count"] == 8 and planned["slots"] == 4 * planned["quota"] + planned["ahead"]
    assert run(["run", str(olmoe.folder), "Once", "-n", "4", "--raw", "--json", *memory]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["expert_used"] >= said["expert_read"] > 0 and said["flash_bytes_per_token"] > 0
