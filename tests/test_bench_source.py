"""Peers with the model's own weights, and the held-out text: llama.cpp says what the float path says, rows tell how near."""

import json
import re
import shutil
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from model_files import tiny_config, write_model

from edge_llm.bench.aside import done_aside
from edge_llm.bench.from_source import OURS, QualityWish, prepare
from edge_llm.bench.held_out import OwnReader, PeerReader, compare_readers, float_states, held_out_windows
from edge_llm.bench.peer import LLAMA_CPP, PeerSettings, PeerSpec, start
from edge_llm.bench.quality import compare
from edge_llm.bench.source_gguf import SourceWeights, source_ggufs, source_name
from edge_llm.bench.synthetic import NAMES, SHAPES, find_shape, write_random
from edge_llm.bench.synthetic_gguf import matrices
from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.convert.calibrate import BUILTIN_TEXT, HELD_OUT_TEXT, MORE_TEXT
from edge_llm.convert.importer import import_model
from edge_llm.errors import DeviceError, ModelNotFound, UnsupportedModel, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.models import load_config
from edge_llm.models.reference import FloatModel
from edge_llm.models.weights import read_output
from edge_llm.opening.runner import load_runner
from edge_llm.operations.router import Router
from edge_llm.progress import ignore
from edge_llm.runner.float_path import FloatRunner
from edge_llm.sources import open_source
from edge_llm.text.tokenizer import Tokenizer

pytestmark = pytest.mark.thorough(file=5)

MISSING = [name for name in ("llama_cpp", "gguf") if find_spec(name) is None]
needs_packages = pytest.mark.skipif(bool(MISSING), reason=f"the extra `peers` is not installed: {', '.join(MISSING)}")

SCALED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
MODELS = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, scaled": ("llama", {"rope_scaling": SCALED}),
    "mistral": ("mistral", {}),
    "qwen2, biases": ("qwen2", {}),
    "qwen3, norms": ("qwen3", {}),
}
TOKENS = [int(token) for token in np.random.default_rng(3).integers(0, 256, 90)]


def model_folder(folder, name):
    family, changes = MODELS[name]
    return write_model(folder, tiny_config(family, intermediate_size=128, **changes), dtype="F16")


def weights_of(opened):
    return SourceWeights(opened.place, opened.digest(), opened.config)


# -- llama.cpp on the same weights ------------------------------------------------------------------------------------


@needs_packages
@pytest.mark.parametrize("name", MODELS)
def test_llama_cpp_on_the_sources_weights_says_what_the_float_path_says(name, tmp_path, edge_llm_home):
    with open_source(model_folder(tmp_path / "source", name)) as opened:
        source, wanted = weights_of(opened), FloatModel(opened, opened.config).forward(TOKENS)
        windows = [TOKENS, TOKENS[40:]]
        settings = PeerSettings(opened.config, len(TOKENS), 1, source=source)
        with PeerReader(start(PeerSpec(LLAMA_CPP, "f16"), settings), opened.config.vocab_size) as reader:
            reader._worker.receive()
            found = [reader.logits(TOKENS[first:stop], first) for first, stop in ((0, 30), (30, 31), (31, len(TOKENS)))]
            np.testing.assert_allclose(np.concatenate(found), wanted, atol=0.05)
            quality = compare_readers({"peer": reader}, opened, FloatModel(opened, opened.config).decoder, windows)["peer"]
    assert quality.mean_kl < 1e-5 and quality.top1_agreement > 0.95
    assert quality.tokens == sum(len(ids) - 1 for ids in windows)


@needs_packages
def test_a_file_is_made_once_for_a_source_and_again_for_another(tmp_path, edge_llm_home):
    with open_source(model_folder(tmp_path / "a", "llama")) as opened:
        seen = []
        paths = source_ggufs(weights_of(opened), ["q8_0", "q4_0", "q4_0-pure"], lambda *how_far: seen.append(how_far))
        assert len(set(paths)) == 3 and ("llama.cpp q4_0", 1, 1) in seen
        before = [path.stat().st_mtime_ns for path in paths]
        assert source_ggufs(weights_of(opened), ["q8_0", "q4_0", "q4_0-pure"]) == paths
        assert [path.stat().st_mtime_ns for path in paths] == before
    write_model(tmp_path / "a", json.loads((tmp_path / "a" / "config.json").read_text()), dtype="F16", seed=1)
    with open_source(tmp_path / "a") as opened:
        assert not set(source_ggufs(weights_of(opened), ["q8_0"])) & set(paths)
    assert not [path for path in (edge_llm_home / "synthetic").iterdir() if path.suffix != ".gguf"]


@needs_packages
def test_what_llama_cpp_has_no_place_for_is_refused(tmp_path, edge_llm_home):
    folder = write_model(tmp_path / "source", tiny_config("qwen3", rope_scaling=SCALED))
    with open_source(folder) as opened, pytest.raises(UsageError, match="cannot run this model.*scaled rotary"):
        source_ggufs(weights_of(opened), ["q8_0"])


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_of_a_gguf_file_has_its_name_in_the_source(name, tmp_path):
    with open_source(model_folder(tmp_path / "source", name)) as opened:
        found = {source_name(tensor.name) for tensor in matrices(opened.config) if not tensor.name.startswith("rope")}
        assert found == set(opened.names())


# -- nearness to the float path ---------------------------------------------------------------------------------------


@pytest.fixture
def imported(tmp_path, edge_llm_home):
    return import_model(model_folder(tmp_path / "source", "qwen2, biases"), "tiny")


def test_layer_by_layer_the_float_path_is_the_float_model(tmp_path):
    with open_source(model_folder(tmp_path / "source", "llama")) as opened:
        model = FloatModel(opened, opened.config)
        states = float_states(opened, model.decoder, [TOKENS, TOKENS[:7]])
        output = read_output(opened, model.decoder)
        for rows, ids in zip(states, (TOKENS, TOKENS[:7]), strict=True):
            np.testing.assert_allclose(rows @ output.T, model.forward(ids), atol=1e-4)


def test_our_own_nearness_is_that_of_perplexity(imported):
    with open_bundle(imported) as bundle, open_source(bundle.float_source()) as opened:
        tokenizer = Tokenizer.from_folder(imported, bundle.config.vocab_size)
        windows = held_out_windows(None, tokenizer, bundle.config.context)[:3]
        runner, _ = load_runner(bundle, RuntimeConfig(threads=1), 256)
        floats = FloatRunner(FloatModel(opened, bundle.config), 256)
        same = compare(runner, floats, [token for ids in windows for token in ids], 256)
        readers = {"int8": OwnReader(runner), "float": OwnReader(floats)}
        found = compare_readers(readers, opened, bundle.decoder, windows)
    assert found["int8"].mean_kl == pytest.approx(same.mean_kl, rel=1e-3) and same.mean_kl > 1e-5
    assert abs(found["float"].mean_kl) < 1e-9 and found["float"].top1_agreement == 1
    assert found["int8"].float_perplexity == pytest.approx(same.float_perplexity, rel=1e-5)


@needs_packages
def test_all_are_measured_before_anything_is_timed(imported):
    specs = [PeerSpec(LLAMA_CPP, "f16"), PeerSpec(LLAMA_CPP, "q8_0", flash_attention=False)]
    seen = []
    with open_bundle(imported) as bundle:
        found = prepare(
            bundle, RuntimeConfig(threads=1), specs, QualityWish(), lambda *how_far: seen.append(how_far)
        )
    assert set(found.quality) == {OURS, "f16", "q8_0"}
    assert 0 <= found.quality["f16"].mean_kl < 1e-5 < found.quality["q8_0"].mean_kl
    assert {"float GGUF", "llama.cpp q8_0", "float path", "held-out text"} <= {stage for stage, *_ in seen}


def test_weights_that_are_gone_are_named(imported, tmp_path):
    shutil.rmtree(tmp_path / "source")
    with open_bundle(imported) as bundle, pytest.raises(ModelNotFound, match="import the model again"):
        prepare(bundle, RuntimeConfig(threads=1), [], QualityWish(), ignore)


def words_of(path):
    return re.findall(r"\w+", Path(path).read_text("utf-8").lower())


def test_the_held_out_text_is_in_no_calibration_text():
    def runs(path):
        words = words_of(path)
        return {tuple(words[start : start + 6]) for start in range(len(words) - 5)}

    assert len(words_of(HELD_OUT_TEXT)) > 800
    assert not runs(HELD_OUT_TEXT) & (runs(BUILTIN_TEXT) | runs(MORE_TEXT))


# -- in a process of its own ------------------------------------------------------------------------------------------


def _worked(order, progress):
    progress("work", 1, 2)
    if order == "die":
        raise SystemExit(3)
    if order == "refuse":
        raise UsageError("no", param="order")
    return order * 2


def test_work_aside_returns_tells_and_fails_as_here(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    seen = []
    assert done_aside(_worked, 4, lambda *how_far: seen.append(how_far)) == 8
    assert seen == [("work", 1, 2)]
    with pytest.raises(UsageError, match="no") as refused:
        done_aside(_worked, "refuse", ignore)
    assert refused.value.param == "order"
    with pytest.raises(DeviceError, match=r"ended unexpectedly \(3\)"):
        done_aside(_worked, "die", ignore)


def _slow(order, progress):
    Path(order).write_text("half of it")
    try:
        progress("work", 1, 2)
        time.sleep(600)
    finally:
        Path(order).unlink()


def test_work_aside_that_is_stopped_tidies_up(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))

    def stop(*_):
        assert (tmp_path / "file").exists()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        done_aside(_slow, str(tmp_path / "file"), stop)
    assert not (tmp_path / "file").exists()


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(capsys):
    def call(*arguments):
        code = run(["bench", *map(str, arguments), "-p", "8", "-n", "0", "-r", "1", "-t", "1"])
        return code, *capsys.readouterr()

    return call


@needs_packages
def test_rows_say_how_near_everybody_is(bench, imported):
    code, out, err = bench("tiny", "--peer", "llama.cpp:f16", "--json")
    assert code == 0, err
    ours, peer = json.loads(out)
    assert ours["mean_kl"] > peer["mean_kl"] >= 0
    assert ours["quality_tokens"] == peer["quality_tokens"] > 1000
    assert peer["bits_per_weight"] == pytest.approx(16, rel=0.02) and peer["top1_agreement"] > 0.98
    code, out, err = bench("tiny", "--peer", "llama.cpp:f16")
    assert code == 0 and "| KL x 1000 | top-1 |" in out, err
    code, out, err = bench("tiny", "--peer", "llama.cpp:f16", "--no-quality", "--json")
    assert [row["mean_kl"] for row in json.loads(out)] == [None, None], err


@needs_packages
def test_a_model_whose_weights_are_gone_is_timed_beside_random_ones(bench, imported, tmp_path):
    shutil.rmtree(tmp_path / "source")
    code, out, err = bench("tiny", "--peer", "llama.cpp:q8_0", "--json")
    assert code == 0 and "are not here any more" in err
    assert [row["mean_kl"] for row in json.loads(out)] == [None, None]


def test_a_text_of_ones_own_needs_no_peer(bench, imported, tmp_path):
    (tmp_path / "text").write_text("hello world, the word in her hell. " * 20)
    code, out, err = bench("tiny", "--quality-text", tmp_path / "text", "--json")
    assert code == 0, err
    (row,) = json.loads(out)
    assert row["mean_kl"] > 0 and 100 < row["quality_tokens"] < 700
    (tmp_path / "text").write_text(" ")
    assert bench("tiny", "--quality-text", tmp_path / "text")[0] == 2
    code, _, err = bench("tiny", "--quality-text", HELD_OUT_TEXT, "--no-quality")
    assert code == 2 and "--no-quality" in err


# -- shapes -----------------------------------------------------------------------------------------------------------

QWEN = {
    "model_type": "qwen3", "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936, "tie_word_embeddings": True,
    "max_position_embeddings": 40960, "rope_theta": 1000000, "rms_norm_eps": 1e-6,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 131072, "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5, "rope_scaling": SCALED | {"original_max_position_embeddings": 8192},
}  # fmt: skip


@pytest.mark.parametrize(("raw", "name"), [(QWEN, "qwen3-0.6b"), (LLAMA, "llama-3.1-8b")], ids=["qwen3-0.6b", "llama-3.1-8b"])
def test_a_config_is_the_shape_of_its_name(raw, name, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text(json.dumps(raw))
    for path in (tmp_path / "mine", tmp_path / "mine" / "config.json"):
        found = find_shape(str(path))
        assert (found.label, found.name, found.config) == ("mine", name, SHAPES[name])
    (tmp_path / "other.json").write_text(json.dumps(raw | {"rope_theta": 5000.0}))
    other = find_shape(str(tmp_path / "other.json"))
    assert other.label == "other" and other.name not in SHAPES


MILLIONS = {"smollm2-135m": 134.5, "qwen3-0.6b": 596, "llama-3.1-8b": 8030, "qwen3-8b": 8191, "olmoe-1b-7b": 6919,
            "qwen3-30b-a3b": 30532}  # fmt: skip


@pytest.mark.parametrize(("name", "millions"), MILLIONS.items(), ids=MILLIONS)
def test_shapes_have_as_many_parameters_as_their_models(name, millions):
    from edge_llm.models import describe

    found = find_shape(name)
    assert (found.label, found.name) == (name, name)
    assert describe(found.config).parameters / 1e6 == pytest.approx(millions, rel=1e-3)


def test_a_tiny_config_is_measured(bench, tmp_path, edge_llm_home):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("qwen3")))
    code, out, err = bench("--synthetic", tmp_path, "--json")
    assert code == 0, err
    assert json.loads(out)[0]["model_type"] == f"{tmp_path.name} INT8"


def test_tokens_of_a_random_mixture_go_to_different_experts(tmp_path, monkeypatch):
    family = {"model_type": "olmoe", "architectures": ["OlmoeForCausalLM"]}
    raw = tiny_config("qwen3") | family | {"num_experts": 8, "num_experts_per_tok": 2}
    seen = []
    monkeypatch.setattr(Router, "routes", watched(Router.routes, seen))
    write_random(tmp_path, load_config(raw), turned=True)
    with open_bundle(tmp_path) as bundle:
        runner, _ = load_runner(bundle, RuntimeConfig(threads=1, context=64), 64)
        runner.forward(runner.open(), list(range(32)))
    assert seen and all(len(np.unique(one.experts)) > 4 for one in seen)


def watched(function, seen):
    """``function``, whose results go to ``seen`` as well."""

    def call(*arguments):
        seen.append(function(*arguments))
        return seen[-1]

    return call


@pytest.mark.parametrize("name", ["gemma3-270m", "", "qwen2.5", "no/such/config.json"])
def test_an_unknown_shape_is_refused_with_those_that_there_are(bench, name, edge_llm_home):
    code, out, err = bench("--synthetic", name)
    assert (code, out) == (2, "") and all(shape in err for shape in NAMES)


def test_a_config_of_another_family_is_refused(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config() | {"model_type": "rwkv", "architectures": None}))
    with pytest.raises(UnsupportedModel, match="rwkv"):
        find_shape(str(tmp_path))
    code = run(["bench", "--synthetic", str(tmp_path), "--quality-text", str(HELD_OUT_TEXT)])
    assert code == 1
