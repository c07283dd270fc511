"""Neurons that memory does not hold give the same bits: under any budget, in any batch, and after the disk has failed."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from model_files import VOCAB_SIZE, tiny_config, write_model
from relu_models import KINDS, relu_folder
from safetensors.numpy import load_file
from serving import client_of, hosted

from edge_llm import kernels
from edge_llm.cli.main import run
from edge_llm.config import NEURONS, RuntimeConfig
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.errors import CorruptBundle, DeviceError, StorageError, UsageError
from edge_llm.export.compressed import export_compressed
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.load import load_engine
from edge_llm.opening.runner import load_runner
from edge_llm.runner.base import Segment
from edge_llm.schemes.neurons import PAGE, runs_of
from edge_llm.weights.base import NeuronCounts
from edge_llm.weights.neurons import RunKey, Window
from edge_llm.weights.plan import LEAST_RUNS
from edge_llm.weights.pools import BufferPool
from edge_llm.weights.sizes import WeightSizes
from edge_llm.weights.store import BlockStore

TOKENS = np.random.default_rng(1).integers(0, VOCAB_SIZE, 60).tolist()


@pytest.fixture(scope="module", params=KINDS)
def bundle(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    source = relu_folder(folder / "source", request.param)
    made = import_model(source, target=folder / "bundle", outliers=Outliers(neurons=True))
    with open_bundle(made) as opened:
        yield opened


@pytest.fixture
def opt(bundle):
    if bundle.config.family != "opt":
        pytest.skip("the first family shows it")
    return bundle


def least_memory(bundle):
    """Bytes of weights of the smallest plan in which columns come from flash."""
    sizes = WeightSizes.of_bundle(bundle)
    resident = sum(layer.held for layer in sizes.layers) - sizes.neurons.total
    return sizes.fixed + resident + LEAST_RUNS * sizes.neurons.run_bytes * sizes.neurons.linears


def runner_of(bundle, memory=None, **more):
    memory = None if memory is None else str(memory)
    runner, _ = load_runner(bundle, RuntimeConfig(memory=memory, **{"threads": 2, "context": 128, **more}), 100)
    return runner


def answered(runner):
    """Logits of a prompt and of one token after the other."""
    sequence = runner.open()
    try:
        prompt = runner.forward(sequence, TOKENS[:30], wanted=30)
        return np.concatenate([prompt, *(runner.forward(sequence, [token]) for token in TOKENS[30:])])
    finally:
        sequence.truncate(0)


@pytest.fixture(scope="module")
def exact(bundle):
    return answered(runner_of(bundle))


def test_import_keeps_columns_of_neurons_together_and_little_is_lost(bundle, exact):
    linears = bundle.decoder.linears()
    assert [name for name, one in linears.items() if one.scheme == NEURONS] == ["layers.0.down", "layers.1.down"]
    assert [bundle.units[f"{name}.columns"].offset % PAGE for name in ("layers.0.down", "layers.1.down")] == [0, 0]
    assert all(0 < bundle.facts[name]["active"] < 1 for name in ("layers.0.down", "layers.1.down"))
    runs = runs_of(linears["layers.0.down"])
    assert (runs.neurons, runs.nbytes) == (PAGE // 192, PAGE) and runs.total * runs.neurons >= 1500
    wanted = answered(runner_of(bundle, float_path=True))
    assert np.linalg.norm(exact - wanted) < 0.1 * np.linalg.norm(wanted)


@pytest.mark.parametrize("more", [{"memory": "least", "chunk": 16, "window": 2, "threads": 1}, {"memory": "97%"}], ids=str)
def test_the_bits_are_those_of_neurons_in_memory(bundle, exact, more):
    sizes, least = WeightSizes.of_bundle(bundle), least_memory(bundle)
    nbytes = least if more["memory"] == "least" else int(0.97 * sizes.total)
    runner = runner_of(bundle, **more | {"memory": nbytes})
    weights = runner.model.weights
    assert np.array_equal(answered(runner), exact)
    assert weights.nbytes <= nbytes and weights.streamed == ()
    counts = weights.experts
    assert counts.tokens == len(TOKENS) and 0 < counts.read <= counts.used
    assert counts.read * PAGE <= counts.read_bytes
    assert counts - counts == NeuronCounts() and counts.facts["neuron_hit_rate"] == 1 - counts.read / counts.used


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """A model of five layers, of which some can take turns."""
    folder = tmp_path_factory.mktemp("deep")
    source = relu_folder(folder / "source", "opt", num_hidden_layers=5)
    with open_bundle(import_model(source, target=folder / "bundle", outliers=Outliers(neurons=True))) as opened:
        yield opened


@pytest.mark.parametrize("share", [0.5, 0.65])
def test_with_less_memory_layers_are_streamed_without_their_columns(deep, share):
    sizes, exact = WeightSizes.of_bundle(deep), answered(runner_of(deep))
    columns = deep.blocks["layers.2"].tensors[-1]
    assert columns.name == "layers.2.down.columns" and sizes.layers[2].columns == columns.end - columns.offset
    for more in ({}, {"threads": 1, "chunk": 16, "window": 2}):
        runner = runner_of(deep, int(share * sizes.total), **more)
        weights, before = runner.model.weights, runner.model.weights.read_bytes
        assert np.array_equal(answered(runner), exact)
        assert len(weights.streamed) >= 3 and weights.nbytes <= share * sizes.total
        whole = sum(sizes.layers[index].stored for index in weights.streamed)
        assert weights.experts.used > 0 and weights.read_bytes - before < 31 * whole
        assert weights.streamed_bytes < whole


def test_a_batch_is_each_alone(bundle):
    texts = [TOKENS[:40], TOKENS[20:51], TOKENS[5:6]]
    resident, runner = runner_of(bundle, kv_tokens=512), runner_of(bundle, least_memory(bundle), kv_tokens=512)
    together = runner.run([Segment(runner.open(), text, len(text)) for text in texts])
    for text, found in zip(texts, together, strict=True):
        assert np.array_equal(found, resident.forward(resident.open(), text, wanted=len(text)))


@pytest.mark.parametrize("damage", ["flipped", "cut"])
def test_damage_ends_a_request_and_the_next_is_right_again(opt, exact, damage):
    runner, path = runner_of(opt, least_memory(opt)), opt.folder / "weights.bin"
    unit, whole = opt.units["layers.1.down.columns"], path.read_bytes()
    for _ in range(2):
        with path.open("r+b") as file:
            if damage == "cut":
                file.truncate(unit.offset + 100)
            else:
                changed = bytearray(whole)
                changed[unit.offset : unit.offset + unit.nbytes : 512] = bytes(
                    byte ^ 1 for byte in changed[unit.offset : unit.offset + unit.nbytes : 512]
                )
                file.write(changed)
        try:
            with pytest.raises(CorruptBundle, match=r"layers\.1\.down|weights\.bin"):
                answered(runner)
        finally:
            path.write_bytes(whole)
            with path.open("r+b") as file:
                file.write(whole)
        assert np.array_equal(answered(runner), exact)


def test_a_disk_that_fails_now_and_then_ends_requests_and_never_changes_one(opt, exact, monkeypatch):
    runner, random, failed = runner_of(opt, least_memory(opt)), np.random.default_rng(0), 0
    file = runner.model.weights._reader.file
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


def test_faces_say_how_it_goes(opt, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    memory = ("--memory", str(least_memory(opt)), "--threads", "1")
    assert run(["plan", str(opt.folder), "--json", *memory]) == 0
    planned = json.loads(capsys.readouterr().out)["neurons"]
    assert planned["quota"] == LEAST_RUNS and planned["slots"] == 2 * LEAST_RUNS
    assert run(["run", str(opt.folder), "Once", "-n", "4", "--raw", "--json", *memory]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["neuron_used"] >= said["neuron_read"] > 0 and said["flash_bytes_per_token"] > 0
    engine = load_engine(opt.folder, RuntimeConfig(threads=1, context=128, memory=memory[1], draft="none"))
    with client_of(hosted(engine=engine)) as client:
        client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 4, "ignore_eos": True})
        assert "edge_llm_neuron_hit_rate" in client.get("/metrics").text


def test_columns_are_exported_as_the_int8_rows_that_they_are(bundle, tmp_path):
    if bundle.config.family != "llama":
        pytest.skip("checkpoints of OPT are not written")
    export_compressed(bundle, tmp_path / "out")
    written, name = {}, "model.layers.0.mlp.down_proj"
    for path in (tmp_path / "out").glob("*.safetensors"):
        written |= load_file(path)
    runner = runner_of(bundle, least_memory(bundle))
    weights = runner.model.weights.use(0).linears["down"]
    assert np.array_equal(written[f"{name}.weight"], weights.integers)
    assert np.array_equal(written[f"{name}.weight_scale"][:, 0], weights.weight_scale)
    columns = bundle.read("layers.0.down.columns")
    assert np.array_equal(weights.integers[:, 1499], columns[71, (1499 - 71 * 21) * 192 :][:192])


def test_what_cannot_be_is_refused_in_a_line(opt, tmp_path):
    with pytest.raises(UsageError, match="--neurons is for models with ReLU") as refused:
        source = write_model(tmp_path / "silu", tiny_config("qwen2"))
        import_model(source, target=tmp_path / "m", outliers=Outliers(neurons=True))
    assert refused.value.param == "neurons"
    with pytest.raises(DeviceError, match="weights of neurons that lie apart"):
        runner_of(opt, device="emulated:310p:s8gemm")


# -- the window ------------------------------------------------------------------------------------------------------------


class Arrived:
    """A block that is there at once."""

    def wait(self):
        return None

    def hurry(self):
        """Nothing to do."""

    def drop(self):
        """Nothing to do."""

    def settle(self):
        return 0


def window_of(count, quota):
    pool = BufferPool(range(quota))
    store = BlockStore(pool, lambda key, buffer, urgent: Arrived(), lambda key, buffer, waited: 1000 + key.run)
    return Window("w", count, quota, store, np.zeros(1, np.int8)), store


@pytest.mark.parametrize("quota", [2, 3, 7, 20])
def test_a_window_gives_every_run_once_and_keeps_those_that_were_active_last(quota):
    window, store = window_of(20, quota)
    random, last = np.random.default_rng(quota), np.full(20, -1)
    for step in range(60):
        runs = np.sort(random.permutation(20)[: random.integers(0, 21)])
        before = {key.run for key in store.held}
        found = list(window.take(runs, 1))
        assert sorted(run for some in found for run in some.runs.tolist()) == runs.tolist()
        assert all(some.places.tolist() == [1000 + run for run in some.runs] for some in found)
        last[runs] = step
        held = {key.run for key in store.held}
        assert len(held) <= quota and len(held) >= min(quota, len(before))
        if len(runs) <= quota and held - set(runs):
            gone = before - held
            assert not gone or max(last[list(gone)]) <= min(last[list(held - set(runs.tolist()))])


def test_a_window_that_is_not_taken_whole_forgets_nothing():
    window, store = window_of(10, 4)
    for some in window.take(np.arange(9), 1):
        assert len(some.runs)
        break
    assert all(RunKey("w", run) in store for run in np.flatnonzero(window._place >= 0).tolist())
    assert sorted(run for some in window.take(np.arange(9), 1) for run in some.runs.tolist()) == list(range(9))
    with pytest.raises(ValueError, match="too few"):
        window_of(10, 1)


@pytest.mark.parametrize("fails", ["read", "start"])
def test_a_window_has_nothing_of_a_step_that_failed_among_its_reads(fails):
    """What it says to be in memory is there, also where reads before the one that failed had ended."""
    random, bad = np.random.default_rng(0), {3, 7}

    def start(key, buffer, urgent):
        if fails == "start" and key.run in bad:
            raise StorageError("the disk is gone")
        return Arrived()

    def opened(key, buffer, waited):
        if key.run in bad:
            raise StorageError("the disk is gone")
        return buffer

    store = BlockStore(BufferPool(range(6)), start, opened)
    window, failed = Window("w", 20, 6, store, np.zeros(1, np.int8)), 0
    for _ in range(60):
        runs = np.sort(random.permutation(20)[: random.integers(0, 12)])
        try:
            found = [run for some in window.take(runs, 1) for run in some.runs.tolist()]
            assert sorted(found) == runs.tolist()
        except StorageError:
            failed += 1
        there = np.flatnonzero(window._place >= 0).tolist()
        assert {RunKey("w", run) for run in there} == set(store.held)
        assert [store.use(RunKey("w", run)) for run in there] == window._place[there].tolist()
    assert 0 < failed < 60


def test_threads_and_instruction_sets_change_no_bit(bundle, exact):
    before = kernels.isa()
    try:
        for isa in kernels.isa_variants():
            kernels.use_isa(isa)
            assert np.array_equal(answered(runner_of(bundle, threads=1)), exact)
    finally:
        kernels.use_isa(before)
