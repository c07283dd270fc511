"""Export to compressed-tensors: what goes out as it is, what transformers makes of it, and what is told of the rest."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_files import mixed, write_blocks
from families import EVERY, family_folder, logits_of
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import random_tensors, tiny_config, write_model
from modelslim_files import quantized as modelslim
from modelslim_files import write_checkpoint
from quantized_files import TENSOR, int8, write_quantized

from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.convert.trial import held_out_sequences
from edge_llm.errors import StorageError, UnsupportedModel
from edge_llm.export import settings as export_settings
from edge_llm.export.compressed import Exported, export_compressed
from edge_llm.export.forms import GROUP, nearest_codes
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models.reference import FloatModel
from edge_llm.opening.runner import load_runner
from edge_llm.paths import builtin_bundle
from edge_llm.quant.quality import Tally, log_softmax
from edge_llm.sources import open_source
from edge_llm.text.tokenizer import Tokenizer

pytestmark = pytest.mark.thorough(file=4)

ROUNDED = LayerBits("int8", fit=False)
TOKENS = [270, *range(30, 60), 7, 7, 250]


def exported(bundle: Path, folder: Path, weights: str | None = None) -> Exported:
    with open_bundle(bundle) as opened:
        return export_compressed(opened, folder, weights)


def loaded(folder: Path) -> Any:
    """The model as transformers and compressed-tensors make it."""
    pytest.importorskip("compressed_tensors")
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.set_num_threads(1)
    how = {"dtype": torch.float32, "attn_implementation": "eager"}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, **how).eval()


def without_rounded_inputs(model: Any) -> Any:
    for module in model.modules():
        if getattr(module, "quantization_scheme", None) is not None:
            module.quantization_scheme.input_activations = None
    return model


def float_logits(folder: Path) -> np.ndarray:
    """By our own reader: weights as the folder has them, inputs in float."""
    with open_source(folder) as source:
        return FloatModel(source, source.config).forward(TOKENS)


def logits(bundle: Bundle) -> np.ndarray:
    """Of the bundle, as it runs here."""
    runner = load_runner(bundle, RuntimeConfig(context=64, threads=1), 20)[0]
    return runner.forward(runner.open(), TOKENS, wanted=len(TOKENS))


def divergence(model: Any, truth: Any, folder: Path) -> float:
    """KL of two models of transformers on the text of the trial."""
    with open_source(folder) as source:
        sequences = held_out_sequences(source.tokenizer(), source.config)
    tally = Tally()
    for ids in sequences:
        ours, theirs = (log_softmax(logits_of(one, ids.tolist())[:-1]) for one in (model, truth))
        tally.add(ids[1:], ours, theirs)
    return tally.quality().mean_kl


# -- what goes out as it is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{}, {"inputs": TENSOR, "input_scale": lambda module: 0.03}], ids=["per token", "static"])
def test_w8a8_leaves_as_it_came_and_comes_back_the_same(tmp_path: Path, how: dict[str, Any]) -> None:
    raw = tiny_config("llama")
    made = int8(random_tensors(raw), **how)
    first = import_model(write_quantized(tmp_path / "in", raw, made), target=tmp_path / "first")
    found = exported(first, tmp_path / "out")
    assert not {"turned", "outliers"} & set(found.losses)
    with open_model_folder(tmp_path / "out") as folder:
        assert set(folder.names()) == set(made.tensors)
        for name, array in made.tensors.items():
            if name.endswith("_proj.weight"):
                assert np.array_equal(folder.read_integers(name), np.maximum(array, -127))
            elif name.endswith("scale"):
                assert np.array_equal(folder.read(name).ravel(), array.ravel())
            else:
                np.testing.assert_allclose(folder.read(name), array, atol=0.02 * np.abs(array).max())
    second = import_model(tmp_path / "out", target=tmp_path / "second")
    with open_bundle(first) as before, open_bundle(second) as after:
        for name in before.facts if how else ():  # else the static scale that stands beside is measured anew
            assert name == "output" or before.facts[name] == after.facts[name]
        for index in range(len(before.decoder.layers)):
            one, other = before.read_block(f"layers.{index}"), after.read_block(f"layers.{index}")
            for name in one:
                if "k_offset" not in name:  # measured through the embedding, whose scales are rounded to float16
                    assert np.array_equal(one[name], other[name]), name
        assert np.array_equal(before.read("embedding.tiles"), after.read("embedding.tiles"))
        ours, theirs = (logits(one) for one in (before, after))  # the embedding's last bits choose how later rows round
        assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.995
        np.testing.assert_allclose(theirs[0], ours[0], atol=1e-3)


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("family", [name for name in EVERY if name != "opt"])  # whose checkpoints are not written
def test_transformers_computes_what_our_reader_reads(tmp_path: Path, family: str) -> None:
    folder, _ = family_folder(tmp_path / "float", family)
    some = Outliers("auto", (("layers.1.*", "float16"),))
    bundle = import_model(folder, target=tmp_path / "bundle", weights=ROUNDED, outliers=some)
    found = exported(bundle, tmp_path / "out")
    assert found.losses["turned"] and found.kinds.keys() == {"W8A8 per token", "float16"}
    model = loaded(tmp_path / "out")
    wanted = float_logits(tmp_path / "out")
    found_logits = logits_of(without_rounded_inputs(model), TOKENS)
    np.testing.assert_allclose(found_logits, wanted, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("how", "weights", "kind"),
    [
        ({"weights": LayerBits("w4")}, None, "W4A16, groups of 32"),
        ({"weights": ROUNDED, "turn": 0, "outliers": Outliers("none")}, None, "W8A8 static"),
        ({"weights": ROUNDED, "turn": 0, "outliers": Outliers("full")}, None, "W8A8 per token"),
        ({"weights": ROUNDED}, "w4", "W4A16, groups of 32"),
        ({"weights": LayerBits("w4"), "turn": 0}, "int8", None),
    ],
    ids=["w4", "static", "outliers", "int8 as w4", "w4 as int8"],
)
def test_the_trial_says_what_transformers_finds(
    tmp_path: Path, how: dict[str, Any], weights: str | None, kind: str | None
) -> None:
    folder = write_model(tmp_path / "float", tiny_config("qwen3", num_hidden_layers=1, head_dim=16, intermediate_size=96))
    found = exported(import_model(folder, target=tmp_path / "bundle", **how), tmp_path / "out", weights)
    assert kind is None or list(found.kinds) == [kind]
    assert found.cost is not None and found.cost.to_float is not None and found.cost.model_to_float is not None
    kl = divergence(loaded(tmp_path / "out"), loaded(folder), folder)
    assert kl == pytest.approx(found.cost.to_float.mean_kl, rel=0.2)
    if weights == "int8":  # a code stands for an INT8 weight
        assert "codes" not in found.losses and kl < 1.2 * found.cost.model_to_float.mean_kl


def test_blocks_of_a_gguf_file_are_rounded_and_named(tmp_path: Path) -> None:
    bundle = import_model(write_blocks(tmp_path / "m.gguf", mixed), target=tmp_path / "bundle")
    found = exported(bundle, tmp_path / "out")
    assert len(found.losses["blocks"]) == sum(len(names) for names in found.losses.values())
    wanted = float_logits(tmp_path / "out")
    np.testing.assert_allclose(
        logits_of(without_rounded_inputs(loaded(tmp_path / "out")), TOKENS), wanted, atol=2e-5 * np.abs(wanted).max()
    )


def test_an_offset_of_inputs_is_written_as_a_zero_point(tmp_path: Path) -> None:
    raw = tiny_config("llama")
    made = modelslim(random_tensors(raw), np.random.default_rng(0))
    bundle = import_model(write_checkpoint(tmp_path / "in", raw, made), target=tmp_path / "bundle")
    found = exported(bundle, tmp_path / "out")
    assert found.kinds == {"W8A8 static, with an offset": 14} and not found.losses
    with open_model_folder(tmp_path / "out") as folder:
        module = "model.layers.0.self_attn.q_proj"
        assert folder.read_integers(f"{module}.input_zero_point")[0] == made.tensors[f"{module}.input_offset"][0]
    assert found.cost is not None and found.cost.to_model.mean_kl < 0.01  # an input of -128 counts as -127 here
    wanted = float_logits(tmp_path / "out")
    ours = logits_of(without_rounded_inputs(loaded(tmp_path / "out")), TOKENS)
    np.testing.assert_allclose(ours, wanted, atol=2e-5 * np.abs(wanted).max())


def test_a_model_in_float16_is_a_plain_folder(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "float", tiny_config("qwen2"))
    bundle = import_model(folder, target=tmp_path / "bundle", outliers=Outliers("none", (("layers.*", "float16"),)))
    assert set(exported(bundle, tmp_path / "out").kinds) == {"float16"}
    assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    wanted = float_logits(tmp_path / "out")
    np.testing.assert_allclose(logits_of(loaded(tmp_path / "out"), TOKENS), wanted, atol=2e-5 * np.abs(wanted).max())


# -- codes of 4 bits -------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.integers(1, 4), st.sampled_from([1e-12, 1e-3, 1.0, 1e15]))
def test_codes_are_as_near_as_the_largest_weight_allows(seed: int, rows: int, groups: int, size: float) -> None:
    random = np.random.default_rng(seed)
    weight = np.asarray(size * random.standard_normal((rows, groups * GROUP)) ** 3, np.float32)
    weight[random.random(weight.shape) < 0.3] = 0
    found = nearest_codes(weight)
    assert found.codes.min() >= -8 and found.codes.max() <= 7
    assert not (found.scale.view(np.uint32) & 0xFFFF).any()
    largest = np.abs(weight.reshape(rows, groups, GROUP)).max(axis=-1, keepdims=True)
    error = np.square((found.floats - weight).reshape(rows, groups, GROUP).astype(np.float64)).sum(axis=-1)
    plain = np.square(np.maximum(largest, 1e-30).astype(np.float64) / 7 / 2 * 1.02) * GROUP
    assert (error <= plain[..., 0]).all()


# -- what is written beside ------------------------------------------------------------------------------------------------


def test_several_kinds_have_a_group_each_that_names_its_modules(tmp_path: Path) -> None:
    """The built-in model: some linears add back what their static scale cuts off, others do not."""
    config = pytest.importorskip("compressed_tensors.quantization").QuantizationConfig
    assert run(["export", "--format", "compressed-tensors", "builtin", "--out", str(tmp_path / "out")]) == 0
    said = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    groups = config.model_validate(said).config_groups
    names = [name for group in groups.values() for name in group.targets]
    with open_model_folder(tmp_path / "out") as folder:
        integers = {name.removesuffix(".weight") for name in folder.names() if folder.dtype(name) == "I8"}
        assert len(groups) == 2 and len(names) == len(set(names)) and set(names) == integers
        static = [name for group in groups.values() if not group.input_activations.dynamic for name in group.targets]
        assert {f"{name}.input_scale" for name in static} == {name for name in folder.names() if name.endswith("input_scale")}
    assert said["ignore"] == ["lm_head"]


def test_what_lies_beside_the_weights_goes_with_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["export", "--format", "compressed-tensors", "builtin", "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["folder"] == str(out) and said["nbytes"] == sum(path.stat().st_size for path in out.iterdir())
    assert sum(said["modules"].values()) == 35 and said["losses"][0]["what"] == "overflow"
    assert said["cost"]["to_model"]["mean_kl"] < 0.02 and said["cost"]["to_float"]["tokens"] > 1000
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    with open_source(out) as source:
        ours, template = source.tokenizer(), source.template(source.tokenizer())
        assert tokenizer.encode("A text, and more.", add_special_tokens=False) == ours.encode("A text, and more.")
        turns = [{"role": "user", "content": "Hello"}]
        assert tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True) == template.render(turns)
        assert source.generation_config() == json.loads((out / "generation_config.json").read_text())
    assert isinstance(Tokenizer.from_folder(out, source.config.vocab_size), Tokenizer)


# -- what goes wrong -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["builtin", "--flavour", "310p"], "--flavour is for --format onnx"),
        (["builtin", "--chunk", "64"], "--chunk is for --format onnx"),
        (["builtin", "--format", "onnx", "--weights", "w4"], "--weights is for --format compressed-tensors"),
        (["builtin", "--weights", "w5"], "int8"),
        (["builtin", "--out", ""], "cannot be empty"),
        (["builtin", "--out", "."], "is there already"),
        (["nothing-like-it"], "nothing-like-it"),
    ],
)
def test_misuse_is_a_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    first = [] if "--format" in arguments else ["--format", "compressed-tensors"]
    assert run(["export", *first, *arguments]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("nth", [0, 3, 20])
def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    calls = iter(range(1000))
    real: Callable[..., int] = os.write

    def write(descriptor: int, data: Any) -> int:
        if next(calls) == nth:
            raise OSError(errno.ENOSPC, "no space")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    with open_bundle(builtin_bundle()) as bundle, pytest.raises(StorageError, match="no space left"):
        export_compressed(bundle, tmp_path / "out")
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == []


def test_another_model_in_the_place_of_the_float_one_is_not_compared_with(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "float", tiny_config("llama", num_hidden_layers=1))
    bundle = import_model(folder, target=tmp_path / "bundle", weights=ROUNDED)
    for number, other in enumerate(({"num_hidden_layers": 2}, {"hidden_size": 32, "num_hidden_layers": 1})):
        shutil.rmtree(folder)
        write_model(folder, tiny_config("llama", **other))
        found = exported(bundle, tmp_path / f"out{number}").cost
        assert found is not None and found.to_float is None and found.to_model.tokens > 0


def test_a_family_that_is_not_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(export_settings.CLASSES, "llama")
    with open_bundle(builtin_bundle()) as bundle, pytest.raises(UnsupportedModel, match="family `llama`, which is not written"):
        export_compressed(bundle, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []
