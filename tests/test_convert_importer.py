"""Import: what comes out computes what went in, and whatever goes wrong, nothing half-done is ever seen."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from another_processor import run_on_another_processor
from model_files import random_tensors, tiny_config, write_model

from edge_llm.cli.shadow import quality_report
from edge_llm.config import W4, RuntimeConfig
from edge_llm.convert import staging, target
from edge_llm.convert.allocate import AUTO, LayerBits
from edge_llm.convert.calibrate import (
    PASSAGE_BREAK,
    calibration_sequences,
    key_offset,
    read_calibration,
    run_layer,
)
from edge_llm.convert.importer import Outliers, default_name, import_model
from edge_llm.convert.parallel import workers
from edge_llm.convert.staging import Staging
from edge_llm.convert.trial import held_out_sequences
from edge_llm.errors import (
    CorruptBundle,
    EdgeLLMError,
    InvalidModel,
    InvalidTokenizer,
    ModelNotFound,
    NumericError,
    StorageError,
    Unavailable,
    UsageError,
)
from edge_llm.formats import leftovers
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.leftovers import clear_leftovers
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.kernels.floats import product
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.models import describe, load_config
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import read_embedding, read_layer, read_output
from edge_llm.opening.load import load_comparison
from edge_llm.operations.arithmetic import SAME_BITS
from edge_llm.paths import bundle_path, models_folder
from edge_llm.quant.profile import OutlierProfile
from edge_llm.quant.quality import Tally, log_softmax
from edge_llm.runner.base import Runner
from edge_llm.sources import open_source
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.template_files import TOOL_USE
from edge_llm.text.tokenizer import Tokenizer

pytestmark = pytest.mark.thorough(file=12)

ROOT = Path(__file__).resolve().parents[1]


def dequantized(bundle: Bundle, name: str) -> np.ndarray:
    """The matrix that a bundle's linear (or embedding) stands for, float32 [N, K]."""
    scale = bundle.read(f"{name}.scale")
    weight = unpack_tiles(bundle.read(f"{name}.tiles"), len(scale), bundle.columns(name)) * scale[:, None]
    weight[:, bundle.read(f"{name}.hot_index")] = bundle.read(f"{name}.hot_weight").T
    return weight


def copy_of(folder: Path, place: Path) -> Path:
    """A copy of a model that a test may spoil."""
    return Path(shutil.copytree(folder, place))


def all_logits(runner: Runner[Any], ids: list[int]) -> np.ndarray:
    """Logits float32 [tokens, vocab] of a sequence of its own."""
    sequence = runner.open()
    logits = runner.forward(sequence, ids, wanted=len(ids))
    sequence.close()
    return logits


def nothing_left() -> bool:
    return not models_folder().exists() or list(models_folder().iterdir()) == []


def visible() -> list[str]:
    """What lies in the models' folder, except for an import of `m` that was stopped."""
    return [path.name for path in models_folder().iterdir() if path.name != ".stopped-m"]


# --- what comes out computes what went in ------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize(("dtype", "shards"), [("F32", 1), ("BF16", 3)])
def test_every_family_keeps_its_weights(tiny_model: Callable[..., Path], family: str, dtype: str, shards: int) -> None:
    folder = tiny_model(family, dtype=dtype, shards=shards)
    with open_bundle(import_model(folder, "m", fold=False, turn=0)) as bundle, open_model_folder(folder) as source:
        config = load_config(source.config)
        assert bundle.config.decoder == describe(config)
        decoder = describe(config)
        assert len(decoder.layers) == config.num_layers
        for index, layer in enumerate(decoder.layers):
            weights = read_layer(source, layer)
            assert list(weights.linears) == ["qkv", "o", "gate_up", "down"]
            for part, linear in weights.linears.items():
                error = np.abs(dequantized(bundle, f"layers.{index}.{part}") - linear.weight)
                assert error.max() <= np.abs(linear.weight).max() / 250
            assert weights.gains.keys() >= {"attention_norm", "mlp_norm"}
            biases = {f"{part}.bias": linear.bias for part, linear in weights.linears.items() if linear.bias is not None}
            for name, array in {**weights.gains, **biases}.items():
                np.testing.assert_array_equal(bundle.read(f"layers.{index}.{name}"), array)
        embedding = read_embedding(source, decoder)
        assert np.abs(dequantized(bundle, "embedding") - embedding).max() <= np.abs(embedding).max() / 250
        if not config.tied_embeddings:
            output = read_output(source, decoder)
            assert np.abs(dequantized(bundle, "output") - output).max() <= np.abs(output).max() / 250
        profile = OutlierProfile.from_fields(bundle.manifest["profile"])
        assert profile.linears.keys() == decoder.linears().keys()
        assert all(linear.error_full < 1e-3 for linear in profile.linears.values())
        bundle.verify()


def test_the_same_source_gives_the_same_bytes(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = tiny_model("qwen2")
    first, second = (import_model(folder, name) for name in ("first", "second"))
    assert (first / "weights.bin").read_bytes() == (second / "weights.bin").read_bytes()
    assert (first / "manifest.json").read_bytes() == (second / "manifest.json").read_bytes()


@pytest.mark.parametrize(("mode", "shadows"), [("none", {"none"}), ("full", {"cold", "full"}), ("naive", {"none"})])
def test_the_caller_may_decide_about_shadows(tiny_model: Callable[..., Path], mode: str, shadows: set[str]) -> None:
    with open_bundle(import_model(tiny_model("llama"), "m", outliers=Outliers(mode))) as bundle:
        assert set(bundle.shadows.values()) <= shadows
        assert bundle.manifest["profile"]["choice"] == {}
        hot = {name for name, tensor in bundle.tensors.items() if name.endswith("hot_index") and tensor.shape[0]}
        assert all(bundle.shadows[name.removesuffix(".hot_index")] == "full" for name in hot)


def test_outlier_settings_are_checked() -> None:
    with pytest.raises(UsageError, match="shadow"):
        Outliers("some")


def test_another_choice_of_shadows_is_another_model(tiny_model: Callable[..., Path]) -> None:
    import_model(tiny_model("llama"), "m")
    with pytest.raises(UsageError, match="already called `m`"):
        import_model(tiny_model("llama"), "m", outliers=Outliers("full"))


@pytest.mark.parametrize(
    ("weights", "turn"), [(LayerBits(), None), (LayerBits(fit=True), None), (LayerBits(W4), None), (LayerBits(), 0)], ids=str
)
def test_what_was_measured_is_what_the_bundle_does(
    tiny_model: Callable[..., Path], weights: LayerBits, turn: int | None
) -> None:
    """The figures of the held-out text in a manifest are those that the bundle's own runner shows on the same tokens."""
    folder = import_model(tiny_model("qwen3"), "m", weights=weights, turn=turn)
    tokenizer, runner, oracle = load_comparison(folder, RuntimeConfig(threads=1))
    tally = Tally()
    for ids in held_out_sequences(tokenizer, open_bundle(folder).config):
        ours, theirs = (log_softmax(all_logits(one, ids.tolist())) for one in (runner, oracle))
        tally.add(ids[1:], ours[:-1], theirs[:-1])
    wanted, found = tally.quality().to_fields(), open_bundle(folder).manifest["profile"]["held_out"]
    assert found["tokens"] == wanted["tokens"] > 500
    assert found["mean_kl"] == pytest.approx(wanted["mean_kl"], rel=1e-3)
    assert found["perplexity"] == pytest.approx(wanted["perplexity"], rel=1e-4)
    assert found["float_perplexity"] == pytest.approx(wanted["float_perplexity"], rel=1e-4)
    assert found["top1_agreement"] == pytest.approx(wanted["top1_agreement"], abs=2.5 / wanted["tokens"])


def test_a_vocabulary_that_has_no_word_of_the_held_out_text_is_no_reason_to_fail(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_llm.convert.trial.calibration_sequences", lambda *_: [])
    with open_bundle(import_model(tiny_model("llama"), "m")) as bundle:
        assert quality_report(bundle) == {}


def test_figures_of_another_version_are_not_shown(tiny_model: Callable[..., Path]) -> None:
    with open_bundle(import_model(tiny_model("llama"), "m")) as bundle:
        known = quality_report(bundle)
        assert known["tokens"] > 0
        bundle.manifest["profile"]["held_out"] = {**known, "more": 1.0}
        assert quality_report(bundle) == {}


def test_the_template_for_tools_comes_along(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    source = copy_of(tiny_model(), tmp_path / "source")
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    (source / "chat_template.jinja").write_text(plain)
    before = import_model(source, "m")
    assert not (before / TOOL_USE).exists()
    (source / TOOL_USE).parent.mkdir()
    (source / TOOL_USE).write_text("{{ tools | tojson }}" + plain)
    folder = import_model(source, "m", overwrite=True)  # it is part of what the model is
    with open_bundle(folder) as bundle:
        assert bundle.has_file(TOOL_USE)
    template = ChatTemplate.from_folder(folder)
    assert (template.shape.tools, template.render([{"role": "user", "content": "Hi"}])) == (True, "Hi")
    (folder / TOOL_USE).write_text("{{ tools | tojson }}!" + plain)
    with pytest.raises(CorruptBundle):
        open_bundle(folder)


def test_text_files_come_along(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    source = copy_of(tiny_model(), tmp_path / "source")
    template = "{% for m in messages %}{{ m['role'] }}> {{ m['content'] }}\n{% endfor %}"
    config = json.loads((source / "tokenizer_config.json").read_text())
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": template}]
    (source / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": named}))
    folder = import_model(source, "m")
    assert (folder / "chat_template.jinja").read_text() == template
    assert (folder / TOOL_USE).read_text() == "no"
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json"):
        assert (folder / name).read_bytes() == (source / name).read_bytes()
    ours = Tokenizer.from_folder(folder, 280)
    theirs = Tokenizer.from_folder(source, 280)
    assert (ours.bos_id, ours.eos_ids, ours.add_bos) == (theirs.bos_id, theirs.eos_ids, theirs.add_bos)


def test_keep_float(tmp_path: Path) -> None:
    raw = tiny_config("qwen2")
    tensors = random_tensors(raw)
    tensors["model.layers.0.mlp.down_proj.weight"][0, 0] = 1e5  # does not fit into float16
    source = write_model(tmp_path / "source", raw, tensors=tensors)
    folder = import_model(source, "m", keep_float=True)
    with open_bundle(folder) as bundle:
        assert bundle.float_source() == folder / "source"
        assert str(tmp_path) not in (folder / "manifest.json").read_text()
        bundle.verify()
    with open_model_folder(folder / "source") as kept:
        assert load_config(kept.config) == load_config(raw)
        assert sorted(kept.names()) == sorted(tensors)
        for name, array in tensors.items():
            exact = array.ndim == 1 or np.abs(array).max() > 65504
            np.testing.assert_array_equal(kept.read(name), array if exact else array.astype(np.float16))


def test_without_keep_float_the_place_is_remembered(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    source = copy_of(tiny_model(), tmp_path / "source")
    with open_bundle(import_model(source, "m")) as bundle:
        assert bundle.float_source() == source
        shutil.rmtree(source)
        assert bundle.float_source() is None


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    ("family", "weights"),
    [
        ("llama", LayerBits(W4, head=W4)),
        ("llama", LayerBits()),
        ("qwen2", LayerBits(fit=True)),
        ("qwen3", LayerBits(AUTO, 7.0)),
    ],
    ids=str,
)
def test_a_bundle_does_not_depend_on_the_processor(
    tiny_model: Callable[..., Path], tmp_path: Path, family: str, weights: LayerBits
) -> None:
    folder = tiny_model(family, tie_word_embeddings=False)
    here = import_model(folder, target=tmp_path / "here", keep_float=True, weights=weights)
    script = (
        "import sys; from pathlib import Path; from edge_llm.convert.importer import import_model\n"
        "from edge_llm.convert.allocate import LayerBits\n"
        f"weights = LayerBits({weights.kind!r}, {weights.bits!r}, head={weights.head!r}, fit={weights.fit!r})\n"
        "import_model(Path(sys.argv[1]), target=Path(sys.argv[2]), keep_float=True, weights=weights)"
    )
    run_on_another_processor(script, folder, tmp_path / "there")
    for file in sorted(path.relative_to(here) for path in here.rglob("*") if path.is_file()):
        assert (tmp_path / "there" / file).read_bytes() == (here / file).read_bytes(), file


# --- calibration ---------------------------------------------------------------------------------------------------


def test_calibration_sequences(tiny_model: Callable[..., Path], stories_folder: Path) -> None:
    text = read_calibration().text
    for folder in (tiny_model(), stories_folder):
        with open_model_folder(folder) as source:
            config = load_config(source.config)
        tokenizer = Tokenizer.from_folder(folder, config.vocab_size)
        sequences = calibration_sequences(text, tokenizer, config)
        assert [len(ids) for ids in sequences] == [256] * 8
        assert all((ids[0] == tokenizer.bos_id) == tokenizer.add_bos for ids in sequences)
        assert len({ids.tobytes() for ids in sequences}) == 8
        short = calibration_sequences("One sentence." + PASSAGE_BREAK + "Two.", tokenizer, config)
        assert len(short) == 1 and len(short[0]) < 30


def test_the_builtin_text_is_varied_and_clean() -> None:
    passages = read_calibration().text.split(PASSAGE_BREAK)
    assert len(passages) >= 10
    assert 12_000 < sum(len(passage.encode()) for passage in passages) < 17_000
    assert "\ufffd" not in "".join(passages)


def test_own_calibration_text(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("hello world " * 100)
    with open_bundle(import_model(tiny_model(), "own", calibration=text)) as own:
        with open_bundle(import_model(tiny_model(), "builtin-text")) as builtin:
            scales = [{name: facts["input_scale"] for name, facts in bundle.facts.items()} for bundle in (own, builtin)]
            assert scales[0] != scales[1]
            assert own.manifest["profile"]["calibration"] != builtin.manifest["profile"]["calibration"]
        assert own.manifest["profile"]["tokens"] == 256
    with pytest.raises(UsageError, match="--overwrite"):
        import_model(tiny_model(), "own")  # the same source, measured otherwise: not the same bundle
    for data, message in ((b"", "empty"), (b"\xff\xfe", "not UTF-8")):
        text.write_bytes(data)
        with pytest.raises(UsageError, match=message):
            import_model(tiny_model(), "m", calibration=text)
    with pytest.raises(EdgeLLMError, match="nowhere"):
        import_model(tiny_model(), "m", calibration=tmp_path / "nowhere")


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_key_offset_is_the_mean_key(tiny_model: Callable[..., Path], family: str) -> None:
    folder = tiny_model(family)
    with open_model_folder(folder) as source:
        config = load_config(source.config)
        decoder = describe(config)
        layer = decoder.layers[0]
        weights = read_layer(source, layer)
        states = [read_embedding(source, decoder)[np.random.default_rng(i).integers(0, 200, 256)] for i in range(2)]
    tables = RopeTables(256)
    with workers() as pool:
        run = run_layer(states, layer, weights, tables, "layers.0", pool, every=3)
    caches = [layer.attention.float_kv() for _ in states]
    pairs = zip(states, caches, strict=True)
    plain = [layer_forward(x, layer, weights, tables, past, arithmetic=SAME_BITS) for x, past in pairs]
    np.testing.assert_array_equal(run.states, plain)
    for linear in layer.linears:
        expected = product(run.seen[linear.name].rows()[::3], weights.linears[linear.name].weight)
        np.testing.assert_array_equal(run.products[linear.name], expected)
    keys = np.stack(
        [
            cache.append(
                np.zeros((0, config.num_kv_heads, config.head_dim)), np.zeros((0, config.num_kv_heads, config.head_dim))
            )[0]
            for cache in caches
        ]
    )
    offset = key_offset(layer, weights, run.seen["qkv"], config.context)
    assert offset.shape == (config.num_kv_heads, config.head_dim) and offset.dtype == np.float32
    spread = keys.std()
    assert np.abs(offset - keys.mean(axis=(0, 2))).max() < 0.3 * spread  # the mean, up to the text's own positions


# --- names, sources, and what is there already ---------------------------------------------------------------------


def test_importing_again_is_a_no_op(tiny_model: Callable[..., Path]) -> None:
    folder = import_model(tiny_model(), "m")
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    said: list[str] = []
    stages: list[tuple[str, int, int]] = []
    assert import_model(tiny_model(), "m", notice=said.append, progress=lambda *s: stages.append(s)) == folder
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert "already imported" in said[0]
    assert {stage for stage, _, _ in stages} == {"digest", "unchanged"}


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a byte": lambda file: file.write_bytes(file.read_bytes()[:-1] + b"\1"),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "longer": lambda file: file.write_bytes(file.read_bytes() + b"more"),
    "gone": Path.unlink,
}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", ["weights.bin", "tokenizer.json"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_bundle_is_repaired(
    name: str, damage: Callable[[Path], object], tiny_model: Callable[..., Path]
) -> None:
    """Whatever became of its files, as long as its manifest says that it is of this source."""
    file = import_model(tiny_model(), "m") / name
    good = file.read_bytes()
    damage(file)
    assert import_model(tiny_model(), "m") == file.parent
    assert file.read_bytes() == good
    with pytest.raises(UsageError, match="--overwrite"):
        import_model(tiny_model(seed=1), "m")


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("folded", [True, False])
def test_a_source_that_moved_is_found_again(folded: bool, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    source = copy_of(tiny_model(), tmp_path / "old")
    import_model(source, "m", fold=folded)
    moved = source.rename(tmp_path / "new")
    with open_bundle(import_model(moved, "m")) as bundle:
        assert bundle.float_source() == moved


def test_a_taken_name(tiny_model: Callable[..., Path]) -> None:
    folder = import_model(tiny_model(seed=1), "m")
    good = (folder / "weights.bin").read_bytes()
    with pytest.raises(UsageError, match="--name.*--overwrite"):
        import_model(tiny_model(seed=2), "m")
    assert (folder / "weights.bin").read_bytes() == good
    with open_bundle(folder) as old:
        import_model(tiny_model(seed=2), "m", overwrite=True)
        assert (folder / "weights.bin").read_bytes() != good
        old.read_all()  # whoever has the old one open goes on with it
    (folder / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match="--overwrite"):
        import_model(tiny_model(seed=2), "m")
    import_model(tiny_model(seed=2), "m", overwrite=True)
    assert [path.name for path in models_folder().iterdir()] == ["m"]


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", "Qwen2.5-0.5B-Instruct"),
        ("/models/my model (v2)/", "my-model-v2"),
        ("~/.cache/huggingface/hub/models--org--tiny-1/snapshots/0123/", "tiny-1"),
        (Path("/a/.hidden"), "hidden"),
        ("/a/" + "x" * 200, "x" * 96),
        ("/a/tiny/model.safetensors", "tiny"),
        ("/a/tiny/config.json", "tiny"),
        ("https://huggingface.co/org/tiny/tree/main?not-for-all=1", "tiny"),
        ("hf.co/org/tiny/", "tiny"),
        ("qwen3:latest", "Qwen3-0.6B"),
    ],
)
def test_default_names(source: str | Path, name: str) -> None:
    assert default_name(source) == name


def test_names_that_are_refused(tiny_model: Callable[..., Path]) -> None:
    for name in ("../x", "a/b", ".x", "", "x" * 97, "a\n"):
        with pytest.raises(UsageError):
            import_model(tiny_model(), name)
    with pytest.raises(UsageError, match="--name"):
        default_name("/…/")
    with pytest.raises(UsageError, match="built-in"):
        import_model(tiny_model(), "builtin")
    assert nothing_left()


def test_sources_that_are_refused(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    gguf = tmp_path / "m.gguf"
    gguf.write_bytes(b"GGUF")
    with pytest.raises(InvalidModel, match="4 bytes, too few for a GGUF file"):
        import_model(gguf)
    with pytest.raises(ModelNotFound, match="no file"):
        import_model(tmp_path / "none.gguf")
    (tmp_path / "f").write_text("x")
    with pytest.raises(UsageError, match="is a file"):
        import_model(tmp_path / "f")
    for missing in ("./org/tiny", "/org/tiny", "one", "a/b/c", "x" * 5000, "a\0b", tmp_path / "org" / "tiny"):
        with pytest.raises(ModelNotFound):
            open_source(missing)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match="config.json"):
        import_model(tmp_path / "empty")
    bundle = import_model(tiny_model(), "m", keep_float=True)
    with pytest.raises(UsageError, match="imported model already"):
        import_model(bundle, "n")
    with pytest.raises(UsageError, match="overlap"):
        import_model(bundle / "source", "m", overwrite=True)
    with pytest.raises(UsageError, match="overlap"):
        import_model(tiny_model(), target=tiny_model() / "inside")


def test_hub_ids_go_to_the_hub(monkeypatch: pytest.MonkeyPatch, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    asked: list[tuple[str, str | None]] = []
    snapshot = tmp_path / "models--org--tiny-model" / "snapshots" / "c0ffee"
    shutil.copytree(tiny_model(), snapshot)

    def pull(repository: str, revision: str | None, *_: object) -> Path:
        asked.append((repository, revision))
        return snapshot

    monkeypatch.setattr("edge_llm.sources.hub.pull", pull)
    folder = import_model("org/tiny-model", revision="v1")
    assert asked == [("org/tiny-model", "v1")]
    assert folder.name == "tiny-model"
    with open_bundle(folder) as bundle:
        assert bundle.manifest["source"]["kind"] == "hub"
        assert bundle.manifest["source"]["path"] == "org/tiny-model@c0ffee"
        assert bundle.float_source() == snapshot


# --- bad sources ---------------------------------------------------------------------------------------------------


def spoil(tmp_path: Path, change: Callable[[dict[str, np.ndarray]], None], family: str = "llama") -> Path:
    raw = tiny_config(family)
    tensors = random_tensors(raw)
    change(tensors)
    return write_model(tmp_path / "spoiled", raw, tensors=tensors)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.down_proj.weight", "model.embed_tokens.weight", "model.norm.weight"])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path, name: str) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[name].flat[3] = np.nan

    with pytest.raises(InvalidModel, match=name):
        import_model(spoil(tmp_path, change), "m")
    assert nothing_left()


@pytest.mark.parametrize("weights", [LayerBits(), LayerBits(fit=True), LayerBits(W4), LayerBits(AUTO, bits=7)], ids=str)
def test_activations_that_overflow_are_refused_by_name(tmp_path: Path, weights: LayerBits) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        for name in ("post_attention_layernorm", "mlp.up_proj", "mlp.gate_proj"):
            tensors[f"model.layers.0.{name}.weight"] *= 1e12

    with pytest.raises(NumericError, match=r"layers\.0\.down"):
        import_model(spoil(tmp_path, change), "m", weights=weights)
    assert nothing_left()


def test_missing_and_extra_tensors(tmp_path: Path) -> None:
    with pytest.raises(InvalidModel, match="down_proj"):
        import_model(spoil(tmp_path, lambda t: t.__delitem__("model.layers.1.mlp.down_proj.weight")), "m")
    shutil.rmtree(tmp_path / "spoiled")
    said: list[str] = []
    import_model(spoil(tmp_path, lambda t: t.update({"adapter.a": np.ones(2, np.float32)})), "m", notice=said.append)
    assert "`adapter.a`" in said[0]


def test_silent_layers_are_fine(tmp_path: Path) -> None:
    def change(tensors: dict[str, np.ndarray]) -> None:
        for name, array in tensors.items():
            if "layers.0" in name:
                array[:] = 0.0

    with open_bundle(import_model(spoil(tmp_path, change), "m")) as bundle:
        assert bundle.facts["layers.0.down"]["input_scale"] == 1.0


@pytest.mark.parametrize(
    ("file", "text"),
    [("tokenizer.json", "{}"), ("tokenizer.json", "x" * 100), ("generation_config.json", "[1]"),
     ("chat_template.jinja", "{% for %}"), ("chat_template.jinja", "nothing of the messages")],
)  # fmt: skip
def test_bad_text_files_are_refused(tiny_model: Callable[..., Path], tmp_path: Path, file: str, text: str) -> None:
    source = copy_of(tiny_model(), tmp_path / "source")
    (source / file).write_text(text)
    with pytest.raises(InvalidTokenizer):
        import_model(source, "m")
    assert nothing_left()


def test_a_source_that_changes_is_refused(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    source = copy_of(tiny_model(), tmp_path / "source")

    def rewrite(stage: str, done: int, total: int) -> None:
        if stage == "output" and done == 0:
            (source / "generation_config.json").write_text("{}")

    with pytest.raises(InvalidModel, match="changed during the import"):
        import_model(source, "m", progress=rewrite)
    assert nothing_left()


# --- nothing half-done is ever seen --------------------------------------------------------------------------------


@pytest.mark.thorough(keep=3)
@pytest.mark.parametrize("stage", ["digest", "layers", "output", "copy"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_interruptions_leave_nothing_to_see(tiny_model: Callable[..., Path], stage: str, error: type[BaseException]) -> None:
    def interrupt(at: str, done: int, total: int) -> None:
        if at == stage and done == total:
            raise error

    with pytest.raises(error):
        import_model(tiny_model(), "m", keep_float=True, progress=interrupt)
    assert nothing_left() if stage == "digest" else visible() == []


@pytest.mark.thorough
def test_every_failing_call_leaves_the_old_state(tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    old = (import_model(tiny_model(seed=1), "m") / "manifest.json").read_bytes()
    calls = [0, 0]
    real = {name: getattr(os, name) for name in ("write", "fsync", "open", "mkdir")}

    def failing(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if name != "open" or arguments[1] & os.O_CREAT:
                calls[0] += 1
                if calls[0] == calls[1]:
                    raise OSError(28, "No space left on device")
            return real[name](*arguments, **options)

        return call

    for name in real:
        monkeypatch.setattr(os, name, failing(name))
    failures = 0
    for at in [*range(1, 8), *range(8, 1000, 9)]:
        calls[:] = [0, at]
        try:
            import_model(tiny_model(seed=2), "m", overwrite=True, keep_float=True, fresh=True)
        except StorageError as error:
            failures += 1
            assert "no space left" in str(error)
        reached = calls[0]
        calls[:] = [0, -1]
        assert visible() == ["m"]
        if (models_folder() / "m" / "manifest.json").read_bytes() != old:  # it went through: back to the old state
            import_model(tiny_model(seed=1), "m", overwrite=True)
        if reached < at:
            break
    assert reached < at and failures > 10


def test_a_killed_import_is_never_seen_and_cleared_by_the_next(tiny_model: Callable[..., Path]) -> None:
    script = """
import os, signal, sys
from edge_llm.convert.importer import import_model
def kill(stage, done, total):
    if stage == sys.argv[2] and done == total:
        os.kill(os.getpid(), signal.SIGKILL)
import_model(sys.argv[1], "m", progress=kill)
"""
    for stage in ("layers", "output"):
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        code = subprocess.run([sys.executable, "-c", script, str(tiny_model()), stage], env=environment, check=False)
        assert code.returncode == -signal.SIGKILL
        assert not bundle_path("m").exists()
        assert len(list(models_folder().iterdir())) == 1
    folder = import_model(tiny_model(), "m")
    assert list(models_folder().iterdir()) == [folder]


def test_a_running_import_is_not_cleared(tmp_path: Path) -> None:
    with Staging(tmp_path / "models" / "m") as running:
        (running.path / "x").write_text("x")
        clear_leftovers(tmp_path / "models")
        assert (running.path / "x").exists()
    assert list((tmp_path / "models").iterdir()) == []
    clear_leftovers(tmp_path / "never")


def test_a_folder_cleared_before_it_was_locked_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, cleared = leftovers.fcntl.flock, []

    def clear_first(fd: int, how: int) -> None:
        if not cleared:
            cleared.extend(tmp_path.iterdir())
            cleared[0].rmdir()
        flock(fd, how)

    monkeypatch.setattr(leftovers.fcntl, "flock", clear_first)
    with Staging(tmp_path / "m") as place:
        assert place.path.is_dir() and place.path != cleared[0]
    assert list(tmp_path.iterdir()) == []


def test_of_imports_at_once_one_has_the_name(tiny_model: Callable[..., Path]) -> None:
    """The others are refused while it is at work, and a model that is there whole is the winner's."""
    folders = [tiny_model(), tiny_model(), tiny_model(seed=9)]
    over = threading.Barrier(3)
    results: list[object] = [None, None, None]
    reached = []

    def work(index: int) -> None:
        def meet(stage: str, done: int, total: int) -> None:
            if (stage, done) == ("output", 0):
                reached.append(index)
                over.wait(timeout=120)

        try:
            results[index] = import_model(folders[index], "m", progress=meet)
        except EdgeLLMError as error:
            results[index] = error
            over.wait(timeout=120)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = reached
    assert results.pop(winner) == bundle_path("m")
    assert [type(result) for result in results] == [Unavailable, Unavailable]
    assert [path.name for path in models_folder().iterdir()] == ["m"]
    with open_bundle(bundle_path("m")) as bundle:
        assert bundle.manifest["source"]["path"] == str(folders[winner])


@pytest.mark.parametrize("exchange", [True, False])
def test_replacing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool) -> None:
    if not exchange:
        monkeypatch.setattr(staging, "_exchange", lambda first, second: False)
    for text in ("one", "two"):
        with Staging(tmp_path / "m") as place:
            (place.path / "x").write_text(text)
            assert place.publish(replace=text == "two")
        assert (tmp_path / "m" / "x").read_text() == text
        assert [path.name for path in tmp_path.iterdir()] == ["m"]
    with Staging(tmp_path / "m") as place:
        assert not place.publish(replace=False)
    assert (tmp_path / "m" / "x").read_text() == "two"


def test_a_replacement_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    (tmp_path / ".replaced-m-00ff").mkdir()
    (tmp_path / ".replaced-m-00ff" / "x").write_text("old")
    clear_leftovers(tmp_path)
    assert (tmp_path / "m" / "x").read_text() == "old"
    (tmp_path / ".replaced-m-00ff").mkdir()
    clear_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


def test_too_little_space_is_said_before_anything_is_written(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(target.shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(StorageError, match="EDGE_LLM_HOME"):
        import_model(tiny_model(), "m")
    assert nothing_left()


def test_a_place_that_cannot_be_written(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError):
        import_model(tiny_model(), target=tmp_path / "file" / "m")


def test_progress_only_goes_forward(tiny_model: Callable[..., Path]) -> None:
    steps: list[tuple[str, int, int]] = []
    import_model(tiny_model(), "m", keep_float=True, progress=lambda *step: steps.append(step))
    stages = ["digest", "calibration", "layers", "output", "copy"]
    assert list(dict.fromkeys(stage for stage, _, _ in steps)) == stages
    for stage in stages:
        done = [(d, t) for s, d, t in steps if s == stage]
        assert done == sorted(done) and done[-1][0] == done[-1][1]
