"""LoRA merged at import: what adapters say, what they may not say, and what a bundle remembers of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from adapter_files import LINEARS, PREFIX, adapter_gguf, merged, pairs, settings, write_adapter
from families import family_folder, logits_of
from gguf_files import floats, model_gguf
from model_files import random_tensors, safetensors_bytes, tiny_config, write_json, write_model

from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.errors import EdgeLLMError, InvalidModel, ModelNotFound, UnsupportedModel, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.manifest import WEIGHTS
from edge_llm.models.reference import FloatModel
from edge_llm.opening.library import installed_models
from edge_llm.opening.made_from import imported_from
from edge_llm.opening.runner import load_runner
from edge_llm.paths import bundle_path
from edge_llm.sources import open_source
from edge_llm.sources.gguf_config import ARCHITECTURES
from edge_llm.sources.lora_places import Wish, wish
from edge_llm.sources.lora_settings import peft_settings
from edge_llm.sources.place import place_of

pytestmark = pytest.mark.thorough(file=12)

Q0 = "model.layers.0.self_attn.q_proj"
A, B = f"{PREFIX}{Q0}.lora_A.weight", f"{PREFIX}{Q0}.lora_B.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("base") / "base", tiny_config("llama"))


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return random_tensors(tiny_config("llama"))


def read_all(source: Path, *adapters: str | Path) -> dict[str, np.ndarray]:
    with open_source(source, lora=[wish(str(one)) for one in adapters]) as opened:
        return {name: opened.read(name) for name in opened.names()}


def close(ours: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], atol: float = 1e-9) -> None:
    assert ours.keys() == wanted.keys()
    for name, values in ours.items():
        assert values.dtype == np.float32
        np.testing.assert_allclose(values, wanted[name], rtol=2e-7, atol=atol, err_msg=name)


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_a_merged_tensor_is_rounded_once(dtype: str, base: Path, tensors: Any, tmp_path: Path) -> None:
    matrices = {name: values.astype(np.float16).astype(np.float32) for name, values in pairs(tensors).items()}
    if dtype == "BF16":
        matrices = {name: (values.view(np.uint32) & 0xFFFF0000).view(np.float32) for name, values in matrices.items()}
    adapter = write_adapter(tmp_path / "a", matrices, dtype)
    close(read_all(base, adapter), merged(tensors, matrices))


SCALES = {
    "alpha over rank": ({}, 6 / 4),
    "rslora": ({"use_rslora": True}, 6 / 2),
    "fractions": ({"lora_alpha": 0.5}, 0.125),
    "alpha by module": ({"alpha_pattern": {"q_proj": 12, "mlp.up_proj": 12}}, None),
    "alpha by pattern": ({"alpha_pattern": {r"layers\.\d+\.self_attn\.q_proj": 12, "^model.*up_proj": 12}}, None),
}


@pytest.mark.parametrize("name", SCALES)
def test_scales(name: str, base: Path, tensors: Any, tmp_path: Path) -> None:
    changes, scale = SCALES[name]
    matrices = pairs(tensors)
    adapter = write_adapter(tmp_path / "a", matrices, **changes)
    wanted = merged(tensors, matrices, 6 / 4 if scale is None else scale)
    if scale is None:
        others = merged(tensors, matrices, 12 / 4)
        wanted |= {key: values for key, values in others.items() if "q_proj" in key or "up_proj" in key}
    close(read_all(base, adapter), wanted)


def test_ranks_by_module(base: Path, tensors: Any, tmp_path: Path) -> None:
    of_others, of_up = (pairs(tensors, rank, names) for rank, names in ((4, ["q_proj"]), (7, ["up_proj"])))
    changes = {"target_modules": ["q_proj", "up_proj"], "rank_pattern": {"up_proj": 7}}
    adapter = write_adapter(tmp_path / "a", of_others | of_up, **changes)
    close(read_all(base, adapter), merged(merged(tensors, of_others), of_up, 6 / 7))


def test_strengths_and_order(base: Path, tensors: Any, tmp_path: Path) -> None:
    first, second = pairs(tensors, seed=1), pairs(tensors, seed=2)
    one, two = write_adapter(tmp_path / "1", first), write_adapter(tmp_path / "2", second)
    wanted = merged(merged(tensors, first, 0.5 * 1.5), second, -2 * 1.5)
    close(read_all(base, f"{one}:0.5", f"{two}:-2"), wanted, atol=1e-7)
    close(read_all(base, one / "adapter_model.safetensors"), merged(tensors, first))


def test_whole_tensors_replace(base: Path, tensors: Any, tmp_path: Path) -> None:
    matrices = pairs(tensors)
    whole = {
        f"{PREFIX}lm_head.weight": tensors["lm_head.weight"] + 1,
        f"{PREFIX}model.norm.weight": tensors["model.norm.weight"] * 2,
    }
    adapter = write_adapter(tmp_path / "a", matrices | whole, modules_to_save=["lm_head", "norm"])
    wanted = merged(tensors, matrices) | {name.removeprefix(PREFIX): values for name, values in whole.items()}
    close(read_all(base, adapter), wanted)


def test_dora_gives_rows_their_lengths(base: Path, tensors: Any, tmp_path: Path) -> None:
    matrices = pairs(tensors)
    rng = np.random.default_rng(0)
    modules = [name.removesuffix(".lora_A.weight") for name in matrices if ".lora_A." in name]
    lengths = {
        f"{one}.lora_magnitude_vector": rng.uniform(1, 2, tensors[f"{one.removeprefix(PREFIX)}.weight"].shape[0]).astype("f4")
        for one in modules
    }
    ours = read_all(base, write_adapter(tmp_path / "a", matrices | lengths, use_dora=True))
    for name, wanted in lengths.items():
        key = f"{name.removeprefix(PREFIX).removesuffix('.lora_magnitude_vector')}.weight"
        np.testing.assert_allclose(np.linalg.norm(ours[key].astype(np.float64), axis=1), wanted, rtol=1e-6)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("alpha", [6.0, 0.0])
def test_a_gguf_adapter_is_the_peft_adapter(family: str, alpha: float, tmp_path: Path) -> None:
    raw = tiny_config(family)
    tensors = random_tensors(raw)
    folder, matrices = write_model(tmp_path / "m", raw, tensors=tensors), pairs(tensors)
    (tmp_path / "a.gguf").write_bytes(adapter_gguf(raw, matrices, alpha))
    (tmp_path / "m.gguf").write_bytes(model_gguf(raw, tensors))
    wanted = merged(tensors, matrices, 6 / 4 if alpha else 1.0)
    close(read_all(folder, tmp_path / "a.gguf"), wanted)
    close(read_all(tmp_path / "m.gguf", tmp_path / "a.gguf"), wanted)


def test_a_gguf_adapter_of_the_tables(base: Path, tensors: Any, tmp_path: Path) -> None:
    """llama.cpp has the embedding's two matrices the other way round."""
    from gguf_files import Of, gguf_bytes

    rng = np.random.default_rng(0)
    table = tensors["lm_head.weight"]
    low = {name: rng.standard_normal(shape, np.float32) for name, shape in
           {"a": (len(table), 3), "b": (64, 3), "c": (3, 64), "d": (len(table), 3)}.items()}  # fmt: skip
    said = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": Of(6, 6.0),
    }
    names = {
        "a": "token_embd.weight.lora_a",
        "b": "token_embd.weight.lora_b",
        "c": "output.weight.lora_a",
        "d": "output.weight.lora_b",
    }
    norm = floats("output_norm.weight", tensors["model.norm.weight"] * 3)
    (tmp_path / "a.gguf").write_bytes(gguf_bytes(said, [*(floats(names[key], value) for key, value in low.items()), norm]))
    ours = read_all(base, tmp_path / "a.gguf")
    np.testing.assert_allclose(
        ours["model.embed_tokens.weight"], tensors["model.embed_tokens.weight"] + 2 * low["a"] @ low["b"].T, atol=1e-5
    )
    np.testing.assert_allclose(ours["lm_head.weight"], table + 2 * low["d"] @ low["c"], atol=1e-5)
    np.testing.assert_allclose(ours["model.norm.weight"], tensors["model.norm.weight"] * 3)


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "granite", "cohere2", "ernie4_5", "smollm3"])
def test_an_output_matrix_of_its_own_parts_from_the_embedding_in_every_family(family: str, tmp_path: Path) -> None:
    """Where config.json leaves the tie to the family, too, and where factors of the embedding were its own."""
    torch = pytest.importorskip("torch")
    folder, model = family_folder(tmp_path / "m", family)
    head = read_all(folder)["model.embed_tokens.weight"][::-1].copy()
    adapter = write_adapter(tmp_path / "a", {f"{PREFIX}lm_head.weight": head}, target_modules=[], modules_to_save=["lm_head"])
    model.lm_head.weight = torch.nn.Parameter(torch.tensor(head))
    theirs = logits_of(model, list(range(3, 60)))
    with open_source(folder, lora=[Wish(str(adapter))]) as opened:
        ours = FloatModel(opened, opened.config).forward(list(range(3, 60)))
    assert np.abs(ours - theirs).max() < 2e-5 * np.abs(theirs).max()


def test_modules_that_the_model_has_not_are_not_missed(base: Path, tensors: Any, tmp_path: Path) -> None:
    """As peft does, which saves nothing of them."""
    matrices = pairs(tensors)
    adapter = write_adapter(tmp_path / "a", matrices, modules_to_save=["score", "wte"])
    close(read_all(base, adapter), merged(tensors, matrices))


def test_a_gguf_adapter_of_gemma_is_called_as_the_model_is(tmp_path: Path) -> None:
    """The family is `gemma3_text` in config.json, four norms have names of their own, and all are stored as 1 + w."""
    folder, _ = family_folder(tmp_path / "m", "gemma3_text")
    own = read_all(folder)
    matrices = pairs(own)
    norms = {name: values * 3 for name, values in own.items() if "layers.1." in name and "layernorm" in name}
    called = {
        "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    }  # fmt: skip
    whole = [floats(f"blk.1.{called[name.split('.')[-2]]}.weight", values + 1) for name, values in norms.items()]
    (tmp_path / "a.gguf").write_bytes(adapter_gguf({"model_type": "gemma3"}, matrices, more_tensors=whole))
    close(read_all(folder, tmp_path / "a.gguf"), merged(own, matrices) | norms, atol=1e-6)


def test_a_gguf_adapter_is_merged_only_where_its_rows_are_known(tmp_path: Path) -> None:
    """The rows of Granite's queries and keys are in pairs in GGUF; a family that nobody has read there may be so too."""
    folder, _ = family_folder(tmp_path / "m", "granite")
    matrices = pairs(read_all(folder))
    for family in [*sorted({"granite"} - set(ARCHITECTURES)), "nonsense"]:
        (tmp_path / "a.gguf").write_bytes(adapter_gguf({"model_type": family}, matrices))
        error = refused(folder, tmp_path / "a.gguf")
        assert type(error) is UnsupportedModel and f"for the architecture `{family}`; of GGUF adapters" in str(error)


# ---- what makes no sense: one line that names the adapter and the way out


def without(matrices: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in matrices.items() if key not in names}


def cut(name: str, *sizes: int) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """``name`` with other sizes."""
    return lambda matrices: matrices | {name: np.resize(matrices[name], sizes)}


def renamed(old: str, new: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda matrices: {key.replace(old, new): value for key, value in matrices.items()}


def spoiled(value: float) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def spoil(matrices: dict[str, Any]) -> dict[str, Any]:
        changed = matrices[A].copy()
        changed[1, 2] = value
        return matrices | {A: changed}

    return spoil


K0 = f"{PREFIX}model.layers.0.self_attn.k_proj.lora_B.weight"
BAD: dict[str, tuple[dict[str, Any], Any, type[EdgeLLMError], str]] = {
    "wrong rank": ({"r": 8}, None, InvalidModel, "have the rank 4, and adapter_config.json says 8"),
    "ranks that differ": ({}, cut(B, 64, 3), InvalidModel, "have the rank 3, 4, and adapter_config.json says 4"),
    "rank 0": ({"r": 0}, None, InvalidModel, "`r` must be a whole number from 1 to 4096, not `0`"),
    "rank true": ({"r": True}, None, InvalidModel, "`r` must be a whole number"),
    "no rank": ({"r": ...}, None, InvalidModel, "`r` must be a whole number from 1 to 4096, not `None`"),
    "alpha 0": ({"lora_alpha": 0}, None, InvalidModel, "`lora_alpha` must be a number above 0"),
    "rslora 1": ({"use_rslora": 1}, None, InvalidModel, "`use_rslora` must be true or false, not `1`"),
    "alpha text": ({"lora_alpha": "16"}, None, InvalidModel, "`lora_alpha` must be a number above 0"),
    "alpha huge": ({"lora_alpha": 10**400}, None, InvalidModel, "`lora_alpha` must be a number above 0"),
    "alpha pattern": ({"alpha_pattern": {"q_proj": -1}}, None, InvalidModel, "`alpha_pattern` must be a number above 0"),
    "rank pattern": ({"rank_pattern": {"q_proj": 1.5}}, None, InvalidModel, "`rank_pattern` must be a whole number"),
    "pattern list": ({"rank_pattern": [1]}, None, InvalidModel, "`rank_pattern` must map"),
    "a pattern that takes for ever": (
        {"alpha_pattern": {"(m+)+x": 3}}, None, UnsupportedModel, "the pattern `(m+)+x` of `alpha_pattern` is not run here"
    ),
    "no pattern": ({"alpha_pattern": {"(": 3}}, None, UnsupportedModel, "the pattern `(`"),
    "targets of another type": ({"target_modules": 7}, None, InvalidModel, "`target_modules` must be a list"),
    "layers of another type": ({"layers_to_transform": "all"}, None, InvalidModel, "`layers_to_transform` must be a whole"),
    "a missing module": ({}, lambda m: without(m, A, B), InvalidModel, f"lacks `lora_A` of `{Q0}`, which its `target_modules`"),
    "half a module": ({}, lambda m: without(m, B), InvalidModel, f"lacks `lora_B` of `{Q0}`"),
    "a missing whole": ({"modules_to_save": ["lm_head"]}, None, InvalidModel, "lacks `lm_head`, which its `modules_to_save`"),
    "no tensors": ({"target_modules": []}, lambda m: {}, InvalidModel, "has no tensors"),
    "a module too many": ({"target_modules": ["k_proj"]}, None, InvalidModel, "which its `target_modules` do not name"),
    "more layers": (
        {"target_modules": []}, renamed("layers.1.", "layers.2."), InvalidModel,
        "which `{base}` does not have; it was made for `org/base`",
    ),
    "another family": (
        {}, renamed("self_attn", "attention"), InvalidModel,
        "changes `model.layers.0.attention.q_proj`, which `{base}` does not have",
    ),
    "a classifier": (
        {}, lambda m: m | {f"{PREFIX}score.weight": np.ones((2, 64), "f4")}, InvalidModel, "changes `score.weight`"
    ),
    "more keys and values": ({}, cut(K0, 64, 4), InvalidModel, f"`{K0}` is [64, 4], and `{{base}}` wants [32, 4]; it was"),
    "another width": ({}, cut(A, 4, 65), InvalidModel, f"`{A}` is [4, 65], and `{{base}}` wants [4, 64]"),
    "one dimension": ({}, cut(A, 256), InvalidModel, "have the rank"),
    "three dimensions": ({}, cut(A, 4, 64, 1), InvalidModel, f"`{A}` is [4, 64, 1]"),
    "a larger vocabulary": (
        {"modules_to_save": ["embed_tokens"]}, lambda m: m | {f"{PREFIX}model.embed_tokens.weight": np.ones((999, 64), "f4")},
        InvalidModel, "is [999, 64], and",
    ),
    "NaN": ({}, spoiled(np.nan), InvalidModel, f"tensor `{A}` holds `nan` at element 66"),
    "infinity": ({}, spoiled(np.inf), InvalidModel, "holds `inf`"),
    "huge": ({}, spoiled(1e20), InvalidModel, "weights lie between"),
    "magnitudes without DoRA": (
        {}, lambda m: m | {f"{PREFIX}{Q0}.lora_magnitude_vector": np.ones(64, "f4")}, InvalidModel, "has magnitudes (DoRA)"
    ),
    "DoRA without magnitudes": ({"use_dora": True}, None, InvalidModel, "lacks `lora_magnitude_vector` of"),
    "another kind": ({"peft_type": "LOHA"}, None, UnsupportedModel, "is of the kind `LOHA`; LORA can be merged here"),
    "no kind": ({"peft_type": ...}, None, UnsupportedModel, "is of no kind"),
    "layers twice": ({"layer_replication": [[0, 2], [1, 2]]}, None, UnsupportedModel, "has layers more than once"),
    "experts": ({"target_parameters": ["x"]}, None, UnsupportedModel, "fused experts"),
    "aLoRA": ({"alora_invocation_tokens": [1]}, None, UnsupportedModel, "aLoRA"),
    "biases of its own": ({"lora_bias": True}, None, UnsupportedModel, "biases in its own matrices"),
    "qalora": ({"use_qalora": True}, None, UnsupportedModel, "has `use_qalora`"),
    "something newer": ({"use_new_thing": True}, None, UnsupportedModel, "has `use_new_thing`"),
    "loftq": ({"init_lora_weights": "loftq"}, None, UnsupportedModel, "was begun as `loftq`"),
    "a new beginning": ({"init_lora_weights": "magic"}, None, UnsupportedModel, "`init_lora_weights` is `magic`"),
}  # fmt: skip


def refused(source: Path, *adapters: str | Path) -> EdgeLLMError:
    with pytest.raises(EdgeLLMError) as error:
        read_all(source, *adapters)
    said = str(error.value)
    assert "\n" not in said and len(said) < 700
    return error.value


@pytest.mark.parametrize("name", BAD)
def test_what_makes_no_sense_is_refused_in_a_line(name: str, base: Path, tensors: Any, tmp_path: Path) -> None:
    changes, spoil, kind, said = BAD[name]
    matrices = pairs(tensors) if spoil is None else spoil(pairs(tensors))
    adapter = write_adapter(tmp_path / "a", matrices, **changes)
    error = refused(base, adapter)
    assert type(error) is kind, error
    assert said.format(base=base) in str(error)
    if "tensor `" not in str(error):  # those name the file
        assert f"the adapter `{adapter}`" in str(error)


def test_values_that_only_merging_makes_huge_are_refused(base: Path, tensors: Any, tmp_path: Path) -> None:
    matrices = {name: np.full_like(values, 1e12) for name, values in pairs(tensors).items()}
    assert "once" in str(refused(base, write_adapter(tmp_path / "a", matrices)))


def test_magnitudes_of_nothing_are_refused(base: Path, tensors: Any, tmp_path: Path) -> None:
    """A row that is zero has no direction: DoRA would divide by its length."""
    raw = tiny_config("llama")
    zeros = {**tensors, f"{Q0}.weight": np.zeros_like(tensors[f"{Q0}.weight"])}
    folder = write_model(tmp_path / "zero", raw, tensors=zeros)
    matrices = {A: pairs(tensors)[A], B: np.zeros((64, 4), "f4"), f"{PREFIX}{Q0}.lora_magnitude_vector": np.ones(64, "f4")}
    adapter = write_adapter(tmp_path / "a", matrices, use_dora=True, target_modules=[Q0])
    assert f"`{Q0}.weight` is beyond" in str(refused(folder, adapter))


FILES = {
    "no config": ({"adapter_config.json": None}, ModelNotFound, "has no adapter_config.json"),
    "no weights": ({"adapter_model.safetensors": None}, ModelNotFound, "has no adapter_model.safetensors"),
    "pickle": (
        {"adapter_model.safetensors": None, "adapter_model.bin": b"x"}, UnsupportedModel, "such files can run code when loaded"
    ),
    "mlx": ({"adapter_config.json": None, "adapters.safetensors": b"x"}, ModelNotFound, "mlx_lm.fuse"),
    "config cut": ({"adapter_config.json": b'{"r": 4'}, InvalidModel, "adapter_config.json` is not usable JSON"),
    "config list": ({"adapter_config.json": b"[]"}, InvalidModel, "must hold a JSON object"),
    "config NaN": ({"adapter_config.json": b'{"r": NaN}'}, InvalidModel, "is not a JSON number"),
    "config huge": ({"adapter_config.json": b" " * (5 << 20)}, InvalidModel, "at most"),
    "weights cut": ({"adapter_model.safetensors": "cut"}, InvalidModel, "it is truncated"),
    "weights empty": ({"adapter_model.safetensors": b""}, InvalidModel, "too few for a safetensors file"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_what_is_not_whole_is_refused_in_a_line(name: str, base: Path, tensors: Any, tmp_path: Path) -> None:
    files, kind, said = FILES[name]
    adapter = write_adapter(tmp_path / "a", pairs(tensors))
    for file, data in files.items():
        path = adapter / file
        if data is None:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1] if data == "cut" else data)
    error = refused(base, adapter)
    assert type(error) is kind and said in str(error), error


BAD_GGUF = {
    "another architecture": ({"general.architecture": "qwen2"}, None, InvalidModel, "is for the architecture `qwen2`"),
    "a model": ({"general.type": "model"}, None, UnsupportedModel, "is of the type `model`, no LoRA"),
    "a control vector": ({"adapter.type": "controlvector"}, None, UnsupportedModel, "is of the type `controlvector`, no LoRA"),
    "aLoRA": ({"adapter.alora.invocation_tokens": [1, 2]}, None, UnsupportedModel, "aLoRA"),
    "no alpha": ({"adapter.lora.alpha": None}, None, InvalidModel, "lacks `adapter.lora.alpha`"),
    "alpha NaN": ({"adapter.lora.alpha": float("nan")}, None, InvalidModel, "`adapter.lora.alpha` must be a number"),
    "alpha below 0": ({"adapter.lora.alpha": -1.0}, None, InvalidModel, "`adapter.lora.alpha` must be a number"),
    "half": ({}, lambda m: without(m, B), InvalidModel, "lacks `blk.0.attn_q.weight.lora_b`"),
    "wrong rank": ({}, cut(B, 64, 3), InvalidModel, "`blk.0.attn_q.weight.lora_a` is [4, 64], and `{base}` wants [3, 64]"),
    "more keys and values": ({}, cut(K0, 64, 4), InvalidModel, "is [64, 4], and `{base}` wants [32, 4]"),
    "NaN": ({}, spoiled(np.nan), InvalidModel, "holds `nan`"),
    "no tensors": ({}, lambda m: {}, InvalidModel, "has no tensors"),
    "more layers": ({}, renamed("layers.1.", "layers.7."), InvalidModel, "changes `blk.7.attn_q.weight`, which"),
}


@pytest.mark.parametrize("name", BAD_GGUF)
def test_what_makes_no_sense_in_gguf_is_refused_in_a_line(name: str, base: Path, tensors: Any, tmp_path: Path) -> None:
    more, spoil, kind, said = BAD_GGUF[name]
    matrices = pairs(tensors) if spoil is None else spoil(pairs(tensors))
    (tmp_path / "a.gguf").write_bytes(adapter_gguf(tiny_config("llama"), matrices, more=more))
    error = refused(base, tmp_path / "a.gguf")
    assert type(error) is kind and said.format(base=base) in str(error), error


@pytest.mark.parametrize("text", ["a:0", "a:0.0", "a:101", "a:-1000", "a:1" + "0" * 400, "", " "])
def test_a_strength_that_makes_no_sense_is_misuse(text: str) -> None:
    with pytest.raises(UsageError):
        wish(text)


def test_what_an_adapter_may_be_called(tmp_path: Path) -> None:
    (tmp_path / "a:2").mkdir()
    assert wish(f"{tmp_path}/a:2") == Wish(f"{tmp_path}/a:2")
    assert wish(f"{tmp_path}/a:2:3") == Wish(f"{tmp_path}/a:2", 3.0)
    assert wish("org/name:.5") == Wish("org/name", 0.5)
    assert wish("C:x") == Wish("C:x")
    for text in ("a:0.1", "a:1e-3", "a:-0.25", "a:99.999999"):
        assert wish(str(wish(text))) == wish(text)


def test_patterns_do_not_take_long() -> None:
    """Whatever pattern a stranger writes, a model's modules are looked up at once."""
    import time

    names = [f"model.layers.{layer}.self_attn.q_proj" + "m" * 40 for layer in range(100)]
    for pattern in (
        "(m+)+x",
        "(m|m)*x",
        "(m?){40}m{40}x",
        "m?" * 60 + "m" * 60 + "x",
        ".*.*.*x",
        "(m|m|m)(m|m)(m|m)x",
        "(?:.*m){9}x",
    ):
        try:
            found = peft_settings(settings(target_modules=pattern, alpha_pattern={f"{pattern}y": 1}), "a")
        except UnsupportedModel:
            found = peft_settings(settings(target_modules=pattern), "a")
        start = time.monotonic()
        assert all(found.names(name, output="lm_head") in (None, False) and found.scale_of(name) for name in names)
        assert time.monotonic() - start < 5, pattern


# ---- what an import makes of it


def test_a_bundle_remembers_its_adapters(base: Path, tensors: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = write_adapter(tmp_path / "one", pairs(tensors)), write_adapter(tmp_path / "two", pairs(tensors, seed=9))
    assert run(["import", str(base), "--lora", str(one), "--lora", f"{two}:0.5", "--fast"]) == 0
    assert bundle_path("base-one-two").is_dir()
    capsys.readouterr()
    assert run(["show", "base-one-two", "--json"]) == 0
    source = json.loads(capsys.readouterr().out)["source"]
    assert source["lora"] == f"{one}, {two}:0.5"
    assert run(["show", "base-one-two"]) == 0
    shown = "".join(capsys.readouterr().out.split())  # long paths are wrapped
    assert f"lora{one},{two}:0.5" in shown and "lora_places" not in shown
    folder = write_model(tmp_path / "merged", tiny_config("llama"), tensors=read_all(base, one, f"{two}:0.5"))
    plain = import_model(folder, "plain")
    assert (plain / WEIGHTS).read_bytes() == (bundle_path("base-one-two") / WEIGHTS).read_bytes()


def test_the_same_adapters_again_are_nothing_to_do(base: Path, tensors: Any, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", pairs(tensors))
    said: list[str] = []
    import_model(base, "m", lora=[Wish(str(adapter))])
    import_model(base, "m", lora=[Wish(str(adapter))], notice=said.append)
    assert any("already imported" in line for line in said)
    write_adapter(tmp_path / "b", pairs(tensors, seed=8))
    for other in ([], [Wish(str(adapter), 0.5)], [Wish(str(tmp_path / "b"))], [Wish(str(adapter)), Wish(str(adapter))]):
        with pytest.raises(UsageError, match="different model or import is already called `m`"):
            import_model(base, "m", lora=other)


@pytest.mark.parametrize("keep_float", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_the_float_path_has_the_adapter(keep_float: bool, tied: bool, tmp_path: Path) -> None:
    raw = tiny_config("qwen2", tie_word_embeddings=tied)
    tensors = random_tensors(raw)
    folder, matrices = write_model(tmp_path / "m", raw, tensors=tensors), pairs(tensors)
    whole = {f"{PREFIX}lm_head.weight": tensors["model.embed_tokens.weight"] * 0.5} if tied else {}
    adapter = write_adapter(tmp_path / "a", matrices | whole, modules_to_save=["lm_head"] if tied else None)
    bundle = open_bundle(import_model(folder, "m", lora=[Wish(str(adapter))], keep_float=keep_float))
    wanted = {name: values.astype(np.float32) for name, values in merged(tensors, matrices).items()}
    wanted |= {"lm_head.weight": whole[f"{PREFIX}lm_head.weight"]} if tied else {}
    other = write_model(tmp_path / "o", raw | {"tie_word_embeddings": False}, tensors=wanted)
    plain = open_bundle(import_model(other, "o", keep_float=keep_float))
    assert (bundle.folder / WEIGHTS).read_bytes() == (plain.folder / WEIGHTS).read_bytes()
    runners = [load_runner(one, RuntimeConfig(float_path=True, context=32), 20)[0] for one in (bundle, plain)]
    ours, theirs = (runner.forward(runner.open(), list(range(20)), wanted=20) for runner in runners)
    assert np.array_equal(ours, theirs)
    assert bundle.manifest["source"]["lora"] == ("a" if keep_float else str(adapter))
    assert not keep_float or str(tmp_path) not in json.dumps(bundle.manifest["source"]), "one that travels names no path"


def test_what_is_merged_is_not_the_source_itself(base: Path, tensors: Any, tmp_path: Path) -> None:
    import_model(base, "m", lora=[Wish(str(write_adapter(tmp_path / "a", pairs(tensors))))])
    assert imported_from(place_of(base)) == []
    assert [model.repository for model in installed_models() if model.name == "m"] == [""]
    import_model(base, "n")
    assert imported_from(place_of(base)) == ["n"]


def test_the_template_of_the_adapter_is_taken(base: Path, tensors: Any, tmp_path: Path) -> None:
    template = "{% for m in messages %}<|im_start|>{{ m.role }}!{{ m.content }}<|im_end|>{% endfor %}"
    adapter = write_adapter(tmp_path / "a", pairs(tensors))
    (adapter / "chat_template.jinja").write_text(template)
    said: list[str] = []
    bundle = open_bundle(import_model(base, "m", lora=[Wish(str(adapter))], notice=said.append))
    assert bundle.read_file("chat_template.jinja").decode() == template
    assert f"the chat template is that of the adapter `{adapter}`" in said
    (adapter / "chat_template.jinja").write_text(template + "{# other #}")
    with pytest.raises(UsageError, match="already called"):  # the digest counts it
        import_model(base, "m", lora=[Wish(str(adapter))])


def test_what_is_odd_about_an_adapter_is_told(base: Path, tensors: Any, tmp_path: Path) -> None:
    def told(matrices: Mapping[str, Any], **changes: Any) -> list[str]:
        said: list[str] = []
        with open_source(base, lora=[Wish(str(write_adapter(tmp_path / "a", matrices, **changes)))], notice=said.append):
            return said

    untrained = {name: values * (".lora_B" not in name) for name, values in pairs(tensors).items()}
    assert told(pairs(tensors), base_model_name_or_path="org/Base/") == []
    assert ["changes nothing" in line for line in told(untrained)] == [True]
    (line,) = told(pairs(tensors), base_model_name_or_path="org/other")
    assert f"was made for `org/other`, and fits `{base}`" in line


def test_a_quantized_source_says_so_still(tensors: Any, tmp_path: Path) -> None:
    raw = tiny_config("llama")
    (tmp_path / "m.gguf").write_bytes(model_gguf(raw, tensors))
    adapter, said = write_adapter(tmp_path / "a", pairs(tensors)), []
    bundle = open_bundle(import_model(tmp_path / "m.gguf", "m", lora=[Wish(str(adapter))], notice=said.append))
    assert bundle.manifest["source"]["from"] == "F32" and any("F32" in line for line in said)


def test_integers_that_are_taken_over_are_not_merged_into(tensors: Any, tmp_path: Path) -> None:
    from modelslim_files import quantized, write_checkpoint

    raw = tiny_config("qwen2")
    folder = write_checkpoint(tmp_path / "m", raw, quantized(random_tensors(raw), np.random.default_rng(0)))
    adapter = write_adapter(tmp_path / "a", pairs(tensors))
    assert "import the float model with --lora" in str(refused(folder, adapter))


def test_the_command_refuses_in_one_line(base: Path, tensors: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter = write_adapter(tmp_path / "a", pairs(tensors), r=9)
    for given, code in (
        (str(adapter), 1),
        (str(tmp_path / "none"), 1),
        ("a:0", 2),
        (str(base / "config.json"), 2),
        (str(base), 1),
    ):
        assert run(["import", str(base), "--lora", given, "--fast"]) == code
        out, err = capsys.readouterr()
        assert out == "" and err.splitlines()[-1].startswith("error: ") and "Traceback" not in err
    assert [model.name for model in installed_models()] == ["builtin"]


def test_an_adapter_that_changes_while_it_is_read_is_refused(base: Path, tensors: Any, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", pairs(tensors))
    with open_source(base, lora=[Wish(str(adapter))]) as source:
        write_json(adapter / "adapter_config.json", settings(lora_alpha=7))
        with pytest.raises(InvalidModel, match="changed during the import"):
            source.check_unchanged()
        (adapter / "adapter_model.safetensors").write_bytes(safetensors_bytes(pairs(tensors))[:-4])
        with pytest.raises(InvalidModel, match="changed while it was being read"):
            source.read(f"{Q0}.weight")


def test_all_linears_have_a_name_here() -> None:
    names = {name.removesuffix(".weight").rpartition(".")[2] for name in random_tensors(tiny_config("llama"))}
    assert set(LINEARS) <= names
