"""Checkpoints that somebody has quantized: their floats are what the packers rounded to, INT8 goes into the bundle as it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tracemalloc
from copy import deepcopy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import random_tensors, tiny_config, write_model, write_tokenizer
from quantized_files import (
    TENSOR,
    Quantized,
    awq,
    compressed,
    float8,
    fp8,
    gptq,
    int8,
    mixed_safetensors,
    packed,
    scheme,
    write_quantized,
)
from stub_hub import Stub, environment, serving

from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.errors import EdgeLLMError, InvalidModel, UnsupportedModel, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.float8 import e4m3_values
from edge_llm.formats.packed_integers import unpack, words_of
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.opening.runner import load_runner
from edge_llm.sources import open_source
from edge_llm.sources.base import PackedSource
from edge_llm.sources.quantization import READ
from edge_llm.sources.quantized import _PACKINGS
from edge_llm.weights.resident import layer_weights

pytestmark = pytest.mark.thorough(file=10)

RAW = tiny_config("qwen2", num_hidden_layers=1)
TENSORS = random_tensors(RAW)
LAYER = "model.layers.0."
DOWN, UP, Q = f"{LAYER}mlp.down_proj", f"{LAYER}mlp.up_proj", f"{LAYER}self_attn.q_proj"


def ordered():
    return np.random.default_rng(5)


KINDS = {
    "GPTQ 4-bit, groups of 16": lambda: gptq(TENSORS, order=ordered()),
    "GPTQ 3-bit, groups of 32": lambda: gptq(TENSORS, 3, 32, symmetric=False),
    "GPTQ 8-bit, a scale for each row": lambda: gptq(TENSORS, 8, -1),
    "GPTQ 2-bit, groups of 24": lambda: gptq(TENSORS, 2, 24, form="gptq_v2", index=False, symmetric=False),
    "AWQ 4-bit, groups of 16": lambda: awq(TENSORS),
    "AWQ 4-bit, a scale for each row": lambda: awq(TENSORS, -1),
    "FP8, blocks of 32 x 48": lambda: fp8(TENSORS),
    "FP8": lambda: fp8(TENSORS, "scalar"),
    "compressed-tensors W4A16, groups of 16": lambda: packed(TENSORS, symmetric=False, order=ordered()),
    "compressed-tensors W8A16": lambda: packed(TENSORS, 8, -1),
    "compressed-tensors FP8": lambda: float8(TENSORS),
    "compressed-tensors FP8, blocks of 32 x 48": lambda: float8(TENSORS, "block"),
    "compressed-tensors W8A16 ": lambda: int8(TENSORS, inputs=None, symmetric=False, form="naive-quantized"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_bundle_is_that_of_the_floats_which_the_checkpoint_stands_for(tmp_path, kind):
    made = KINDS[kind]()
    told: list[str] = []
    found = import_model(write_quantized(tmp_path / "in", RAW, made), target=tmp_path / "found", notice=told.append)
    wanted = import_model(write_model(tmp_path / "float", RAW, tensors=made.floats), target=tmp_path / "wanted")
    assert (found / "weights.bin").read_bytes() == (wanted / "weights.bin").read_bytes()
    assert json.loads((found / "manifest.json").read_text())["source"]["from"] == kind.strip()
    assert "quantization_config" not in json.loads((found / "config.json").read_text())
    assert any(line.startswith(f"{kind.strip()}, ") and " bits per weight" in line for line in told), told


def check_floats(folder: Path, made, raw=RAW) -> None:
    with open_source(write_quantized(folder, raw, made)) as source:
        assert set(source.names()) == set(made.floats)
        for name, values in made.floats.items():
            assert tuple(source.shape(name)) == values.shape
            assert np.array_equal(source.read(name), values), name


FEW = {name: TENSORS[name] for name in (f"{DOWN}.weight", f"{Q}.weight")}


def few_packed(maker, seed: int, *how, **more):
    """A checkpoint of which two matrices are packed, of other values for every ``seed``."""
    tensors = TENSORS | {name: np.random.default_rng(seed).permuted(values, axis=1) for name, values in FEW.items()}
    return maker(tensors, *how, **more)


@settings(max_examples=40)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([2, 3, 4, 8]),
    st.sampled_from([8, 16, 24, 32, 100, -1]),
    st.sampled_from(["gptq", "gptq_v2"]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_any_gptq_gives_the_floats_that_its_packer_rounded_to(
    tmp_path_factory, seed, bits, size, form, symmetric, act_order, index
):
    order = np.random.default_rng(seed) if act_order else None
    how = {
        "form": form,
        "symmetric": symmetric,
        "order": order,
        "index": index or act_order or bits == 3,
        "chosen": FEW.__contains__,
    }
    made = few_packed(gptq, seed, bits, size, **how)
    check_floats(tmp_path_factory.mktemp("gptq"), made)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(2, 8), st.sampled_from([8, 16, -1]), st.booleans(), st.booleans())
def test_any_pack_quantized_gives_the_floats_that_its_packer_rounded_to(
    tmp_path_factory, seed, bits, size, symmetric, act_order
):
    order = np.random.default_rng(seed) if act_order else None
    made = few_packed(packed, seed, bits, size, symmetric=symmetric, order=order, chosen=FEW.__contains__)
    check_floats(tmp_path_factory.mktemp("packed"), made)


@pytest.mark.parametrize("form", ["block", "row", "one", "scalar"])
@pytest.mark.parametrize("maker", [fp8, float8])
def test_every_form_of_fp8_scales(tmp_path, form, maker):
    check_floats(tmp_path, maker(TENSORS, form))


def test_each_module_is_read_by_its_own_tensors(tmp_path):
    """As GPTQModel's dynamic and several config_groups have it; which module is meant, the tensors tell."""
    wide = gptq(TENSORS, 8, 32, chosen=lambda name: name.startswith(DOWN))
    made = gptq(TENSORS, 4, 16, dynamic={r"+:.*down.*": {"bits": 8, "group_size": 32}, r"-:.*o_proj.*": {}})
    made.tensors = {name: array for name, array in made.tensors.items() if not name.startswith((DOWN, f"{LAYER}self_attn.o"))}
    made.tensors |= {name: array for name, array in wide.tensors.items() if name.startswith((DOWN, f"{LAYER}self_attn.o"))}
    for name in (f"{DOWN}.weight", f"{LAYER}self_attn.o_proj.weight"):
        made.floats[name] = wide.floats[name]
    check_floats(tmp_path, made)
    with open_source(tmp_path) as source:
        assert source.quantization == "GPTQ 4- and 8-bit, groups of 16 and 32"


def test_an_output_matrix_and_biases_of_nothing(tmp_path):
    """lm_head may be quantized; older packers write a bias of zeros for every module."""
    raw = tiny_config("llama", num_hidden_layers=1)
    made = gptq(random_tensors(raw), chosen=lambda name: name.endswith(("_proj.weight", "lm_head.weight")), lm_head=True)
    made.tensors |= {f"{module}.bias": np.zeros(rows, np.float16) for module, rows in ((DOWN, 64), (UP, 112))}
    check_floats(tmp_path, made, raw)
    made.tensors[f"{DOWN}.bias"][3] = 1
    with pytest.raises(UnsupportedModel, match=r"down_proj.bias` is not zero"):
        open_source(write_quantized(tmp_path, raw, made))


def test_a_model_of_floats_whose_config_speaks_of_a_quantization(tmp_path):
    write_model(tmp_path, RAW | {"quantization_config": compressed([scheme(8, "channel")], "dense")}, tensors=TENSORS)
    with open_source(tmp_path) as source:
        assert not isinstance(source, PackedSource)
        assert all(np.array_equal(source.read(name), values) for name, values in TENSORS.items())


@given(st.integers(2, 8), st.integers(1, 70), st.integers(0, 2**32 - 1))
def test_integers_of_any_width_are_unpacked(bits, count, seed):
    values = np.random.default_rng(seed).integers(0, 1 << bits, (3, count))
    whole = [sum(int(value) << bits * place for place, value in enumerate(row)) for row in values]
    data = b"".join(one.to_bytes(4 * words_of(count, bits), "little") for one in whole)
    assert np.array_equal(unpack(np.frombuffer(data, "<i4").reshape(3, -1), bits, count), values)


# INT8 that is taken over


def integers_of(bundle, name: str) -> np.ndarray:
    weight = layer_weights(bundle, bundle.read_block("layers.0"), 0).linears[name]
    return unpack_tiles(weight.tiles, weight.rows, weight.columns)


PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def check_taken(bundle, made) -> None:
    """Integers and scales of the bundle are the checkpoint's; -128 is -127."""
    weights = layer_weights(bundle, bundle.read_block("layers.0"), 0).linears
    for name, modules in PARTS.items():
        of = [{part: made.tensors[f"{LAYER}{module}.{part}"] for part in ("weight", "weight_scale")} for module in modules]
        wanted = np.maximum(np.concatenate([one["weight"] for one in of]), -127)
        assert np.array_equal(integers_of(bundle, name), wanted)
        scales = [np.broadcast_to(one["weight_scale"].reshape(-1), len(one["weight"])) for one in of]
        assert np.array_equal(weights[name].weight_scale, np.concatenate(scales))
        assert weights[name].turn == 0


@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_int8_whose_rows_have_scales_of_their_own_is_taken_over(tmp_path, strategy):
    made, told = int8(TENSORS, strategy=strategy), list[str]()
    path = import_model(write_quantized(tmp_path / "in", RAW, made), target=tmp_path / "bundle", notice=told.append)
    bundle = open_bundle(path)
    check_taken(bundle, made)
    assert bundle.activations == "row"
    assert "4 linears are INT8 in the source: their weights are taken over as they are" in told
    assert any(re.fullmatch(r"\d+ weights of -128 became -127, .*", line) for line in told) == any(
        (array == -128).any() for array in made.tensors.values() if array.dtype == np.int8
    )
    ids = list(range(24))
    found, wanted = [
        runner.forward(runner.open(), ids, wanted=24)
        for runner in (load_runner(bundle, RuntimeConfig(context=32, float_path=path), 20)[0] for path in (False, True))
    ]
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.99


def test_where_channels_stand_out_a_static_scale_is_found_and_overflow_kept(tmp_path):
    """A row's own scale would round everything else of the row away."""
    name = f"{LAYER}input_layernorm.weight"
    made = int8(TENSORS | {name: np.where(np.arange(64) == 3, 60 * TENSORS[name], TENSORS[name])})
    path = import_model(write_quantized(tmp_path / "in", RAW, made), target=tmp_path / "bundle")
    bundle = open_bundle(path)
    check_taken(bundle, made)
    weights = layer_weights(bundle, bundle.read_block("layers.0"), 0).linears
    assert not weights["qkv"].row_scales and weights["qkv"].residual
    assert weights["down"].row_scales
    errors = {name: one["error"] for name, one in bundle.manifest["profile"]["linears"].items()}
    assert errors["layers.0.qkv"] < 1e-3


def test_an_output_matrix_in_int8_is_taken_over(tmp_path):
    raw = tiny_config("llama", num_hidden_layers=1)
    made = int8(random_tensors(raw), chosen=lambda name: name.endswith(("_proj.weight", "lm_head.weight")))
    bundle = open_bundle(import_model(write_quantized(tmp_path / "in", raw, made), target=tmp_path / "bundle"))
    output = bundle.read_block("output")
    tiles = next(array for name, array in output.items() if name.endswith("tiles"))
    wanted = np.maximum(made.tensors["lm_head.weight"], -127)
    assert np.array_equal(unpack_tiles(tiles, *wanted.shape), wanted)
    assert "output" not in [name for name, linear in bundle.decoder.linears().items() if linear.turn]


def test_int8_with_static_input_scales_is_taken_over_with_them(tmp_path):
    scales = {
        "q_proj": 0.02,
        "k_proj": 0.02,
        "v_proj": 0.02,
        "o_proj": 0.03,
        "gate_proj": 0.04,
        "up_proj": 0.04,
        "down_proj": 0.05,
    }
    made = int8(TENSORS, inputs=TENSOR, input_scale=lambda module: scales[module.rpartition(".")[2]])
    bundle = open_bundle(import_model(write_quantized(tmp_path / "in", RAW, made), target=tmp_path / "bundle"))
    check_taken(bundle, made)
    weights = layer_weights(bundle, bundle.read_block("layers.0"), 0).linears
    assert not any(weights[name].row_scales for name in PARTS)
    found = {name: weights[name].input_scale for name in PARTS}
    assert found == {name: float(np.float32(scales[parts[0].rpartition(".")[2]])) for name, parts in PARTS.items()}


@pytest.mark.parametrize("why", ["scales differ", "a zero point of the input"])
def test_static_scales_that_do_not_fit_give_way_to_scales_of_rows(tmp_path, why):
    number = iter(np.linspace(0.01, 0.05, 20))
    made = int8(TENSORS, inputs=TENSOR, input_scale=lambda module: next(number) if why == "scales differ" else 0.03)
    if why != "scales differ":
        modules = [name.removesuffix(".input_scale") for name in made.tensors if name.endswith(".input_scale")]
        made.tensors |= {f"{module}.input_zero_point": np.array([7], np.int8) for module in modules}
    bundle = open_bundle(import_model(write_quantized(tmp_path / "in", RAW, made), target=tmp_path / "bundle"))
    check_taken(bundle, made)
    weights = layer_weights(bundle, bundle.read_block("layers.0"), 0).linears
    assert weights["qkv"].row_scales and weights["gate_up"].row_scales


@pytest.mark.parametrize("why", ["zero points", "weights alone", "a part in float"])
def test_what_is_not_w8a8_throughout_is_read_as_floats(tmp_path, why):
    how = {"zero points": {"symmetric": False}, "weights alone": {"inputs": None}}.get(why, {})
    chosen = {"chosen": lambda name: name.endswith("_proj.weight") and "k_proj" not in name} if why == "a part in float" else {}
    made = int8(TENSORS, **how, **chosen)
    found = import_model(write_quantized(tmp_path / "in", RAW, made), target=tmp_path / "found")
    wanted = import_model(write_model(tmp_path / "float", RAW, tensors=made.floats), target=tmp_path / "wanted")
    assert (found / "weights.bin").read_bytes() == (wanted / "weights.bin").read_bytes()


def test_linears_that_are_float_beside_int8_stay_so(tmp_path):
    made = int8(TENSORS, chosen=lambda name: name.endswith("_proj.weight") and "down" not in name)
    bundle = open_bundle(import_model(write_quantized(tmp_path / "in", RAW, made), target=tmp_path / "bundle"))
    down = layer_weights(bundle, bundle.read_block("layers.0"), 0).linears["down"]
    assert np.array_equal(down.weight, TENSORS[f"{DOWN}.weight"].T.astype(np.float16))


def test_what_has_no_meaning_beside_int8_is_misuse(tmp_path):
    folder = write_quantized(tmp_path / "in", RAW, int8(TENSORS))
    with pytest.raises(UsageError, match="keep-float"):
        import_model(folder, target=tmp_path / "bundle", keep_float=True)


def test_floats_of_four_bits_can_be_kept_beside_the_bundle(tmp_path):
    made = gptq(TENSORS)
    path = import_model(write_quantized(tmp_path / "in", RAW, made), target=tmp_path / "bundle", keep_float=True)
    assert "quantization_config" not in json.loads((path / "source" / "config.json").read_text())
    with open_source(path / "source") as source:
        assert np.array_equal(source.read(f"{UP}.weight"), made.floats[f"{UP}.weight"].astype(np.float16).astype(np.float32))


# What is refused

REFUSED = {
    "bitsandbytes": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
    "bitnet": ({"quant_method": "bitnet"}, "BitNet"),
    "exl2": ({"quant_method": "exl2", "bits": 4.0}, "EXL2"),
    "hqq": ({"quant_method": "hqq"}, "HQQ"),
    "eetq": ({"quant_method": "eetq"}, "EETQ"),
    "quanto": ({"quant_method": "quanto"}, "quanto"),
    "torchao": ({"quant_method": "torchao"}, "torchao"),
    "mlx": ({"group_size": 64, "bits": 4}, "MLX"),
    "new": ({"quant_method": "tomorrow"}, "`tomorrow`"),
    "unnamed": ({"bits": 4}, "quant_method"),
    "number": ({"quant_method": 7}, "quant_method"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_other_ways_are_refused_by_name_with_what_to_import_instead(tmp_path, kind):
    settings_, said = REFUSED[kind]
    write_model(tmp_path, RAW | {"quantization_config": settings_, "_name_or_path": "org/Original-1B"}, tensors=TENSORS)
    with pytest.raises(UnsupportedModel) as refused:
        open_source(tmp_path)
    text = str(refused.value)
    assert said in text and "import `org/Original-1B`" in text and "\n" not in text
    write_model(tmp_path, RAW | {"quantization_config": settings_, "_name_or_path": "/home/me/model"}, tensors=TENSORS)
    with pytest.raises(UnsupportedModel, match="import the original model"):
        open_source(tmp_path)


def test_the_hub_names_the_original_before_anything_is_downloaded(tmp_path):
    config = json.dumps(RAW | {"quantization_config": {"quant_method": "bitsandbytes"}}).encode()
    stub = Stub({"config.json": config, "model.safetensors": bytes(10240)}, info={"cardData": {"base_model": "org/Base-1B"}})
    with serving(stub):
        around = environment(tmp_path / "cache", stub.endpoint, EDGE_LLM_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="0")
        command = [sys.executable, "-m", "edge_llm", "import", "org/tiny"]
        done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and "by bitsandbytes" in done.stderr and "import `org/Base-1B`" in done.stderr
    assert not stub.asked("GET", "model.safetensors")


def test_a_repository_is_downloaded_and_imported(tmp_path):
    folder = write_quantized(tmp_path / "in", RAW, gptq(TENSORS))
    stub = Stub({path.name: path.read_bytes() for path in folder.iterdir()})
    with serving(stub):
        around = environment(tmp_path / "cache", stub.endpoint, EDGE_LLM_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="0")
        command = [sys.executable, "-m", "edge_llm", "import", "org/tiny", "--fast"]
        done = subprocess.run(command, env=around, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert "GPTQ 4-bit, groups of 16, " in done.stderr
    manifest = json.loads((tmp_path / "home" / "models" / "tiny" / "manifest.json").read_text())
    assert manifest["source"]["from"] == "GPTQ 4-bit, groups of 16" and manifest["source"]["kind"] == "hub"


def test_what_is_read_has_a_packing():
    assert set(READ) == set(_PACKINGS)


def _of(name, change):
    def changed(made):
        made.tensors[name] = change(made.tensors[name])

    return changed


def _without(name):
    return lambda made: made.tensors.pop(name)


def _told(**more):
    return lambda made: made.settings.update(more)


def _weights(**more):
    return lambda made: made.settings["config_groups"]["group_0"]["weights"].update(more)


def _first(value):
    def change(old):
        new = old.copy()
        new.reshape(-1)[5] = value
        return new

    return change


BAD = {
    "gptq bits 5": (gptq, _told(bits=5), UnsupportedModel, "`bits` is `5`"),
    "gptq bits as text": (gptq, _told(bits="4"), InvalidModel, "whole number"),
    "gptq no bits": (gptq, lambda made: made.settings.pop("bits"), InvalidModel, "whole number"),
    "gptq other bits": (gptq, _told(bits=8), InvalidModel, "is not 8 bits"),
    "gptq group size 0.5": (gptq, _told(group_size=0.5), InvalidModel, "whole number"),
    "gptq other group size": (gptq, _told(group_size=32), InvalidModel, "groups of 32"),
    "gptq huge groups": (gptq, _told(group_size=1 << 40), UnsupportedModel, "group_size"),
    "gptq marlin": (gptq, _told(is_marlin_format=True), UnsupportedModel, "marlin"),
    "gptq planar": (gptq, _told(checkpoint_format="gptq_p"), UnsupportedModel, "gptq_p"),
    "gptq dynamic list": (gptq, _told(dynamic=[1]), InvalidModel, "dynamic"),
    "gptq no scales": (gptq, _without(f"{DOWN}.scales"), InvalidModel, "down_proj.scales"),
    "gptq no qzeros": (gptq, _without(f"{DOWN}.qzeros"), InvalidModel, "down_proj.qzeros"),
    "gptq short qweight": (gptq, _of(f"{DOWN}.qweight", lambda old: old[1:]), InvalidModel, "qweight"),
    "gptq narrow qweight": (gptq, _of(f"{DOWN}.qweight", lambda old: old[:, 1:]), InvalidModel, "scales"),
    "gptq flat qweight": (gptq, _of(f"{DOWN}.qweight", lambda old: old.reshape(-1)), InvalidModel, "rows and columns"),
    "gptq wide words": (gptq, _of(f"{DOWN}.qweight", lambda old: old.astype(np.int64)), InvalidModel, "I64"),
    "gptq short qzeros": (gptq, _of(f"{DOWN}.qzeros", lambda old: old[:, 1:]), InvalidModel, "qzeros"),
    "gptq group too large": (gptq, _of(f"{DOWN}.g_idx", _first(7)), InvalidModel, "g_idx` holds `7`"),
    "gptq group below 0": (gptq, _of(f"{DOWN}.g_idx", _first(-1)), InvalidModel, "g_idx` holds `-1`"),
    "gptq no columns": (gptq, _of(f"{DOWN}.g_idx", lambda old: old[:0]), InvalidModel, "qweight"),
    "gptq scale NaN": (gptq, _of(f"{DOWN}.scales", _first(np.nan)), InvalidModel, "down_proj.scales"),
    "gptq other model": (gptq, lambda made: made.tensors.update(
        {key: gptq(random_tensors(RAW | {"intermediate_size": 96})).tensors[key] for key in made.tensors if "mlp" in key}
    ), InvalidModel, "config.json makes it"),
    "gptq act-order without g_idx": (
        lambda tensors: gptq(tensors, index=False, desc_act=True), lambda made: None, InvalidModel, "q_proj.g_idx"
    ),
    "gptq a float weight too": (gptq, lambda made: made.tensors.update(
        {f"{DOWN}.weight": TENSORS[f"{DOWN}.weight"]}
    ), InvalidModel, "has both"),
    "gptq very many patterns": (gptq, _told(dynamic={f"{one}": {} for one in range(5000)}), InvalidModel, "dynamic"),
    "ct many groups, other scales": (
        packed, lambda made: made.settings["config_groups"].update(
            {f"{size}": scheme(4, "group", size=size) for size in (1, 2, 4, 7, 8, 14, 28, 56, 64, 112)} | {
                "group_0": scheme(4, "group", size=32)}
        ), InvalidModel, "weight_scale"
    ),
    "ct very many groups": (packed, _told(config_groups={f"{one}": {} for one in range(5000)}), InvalidModel, "5000"),
    "awq gemv": (awq, _told(version="gemv"), UnsupportedModel, "`gemv`"),
    "awq 8 bits": (awq, _told(bits=8), UnsupportedModel, "`bits` is `8`"),
    "awq group size": (awq, _told(group_size=48), InvalidModel, "do not divide"),
    "awq other groups": (awq, _told(group_size=32), InvalidModel, "qzeros"),
    "awq no qzeros": (awq, _without(f"{DOWN}.qzeros"), InvalidModel, "down_proj.qzeros"),
    "awq scale without end": (awq, _of(f"{DOWN}.scales", _first(np.inf)), InvalidModel, "down_proj.scales"),
    "fp8 e5m2": (fp8, _told(fmt="e5m2"), UnsupportedModel, "e5m2"),
    "fp8 odd block": (fp8, _told(weight_block_size=[32]), InvalidModel, "weight_block_size"),
    "fp8 other block": (fp8, _told(weight_block_size=[16, 16]), InvalidModel, "weight_scale_inv"),
    "fp8 no scale": (fp8, _without(f"{DOWN}.weight_scale_inv"), InvalidModel, "weight_scale_inv"),
    "fp8 NaN": (fp8, _of(f"{DOWN}.weight", _first(127)), InvalidModel, "comes to `nan` at element 5"),
    "ct bits 9": (packed, _weights(num_bits=9), UnsupportedModel, "num_bits"),
    "ct other bits": (packed, _weights(num_bits=8), InvalidModel, "weight_packed"),
    "ct float 4": (packed, _weights(type="float"), UnsupportedModel, "num_bits"),
    "ct format": (packed, _told(format="nvfp4-pack-quantized"), UnsupportedModel, "nvfp4"),
    "ct sparse": (packed, _told(sparsity_config={"format": "sparse-24-bitmask"}), UnsupportedModel, "sparse"),
    "ct turns": (packed, _told(transform_config={"config_groups": {"u": {}}}), UnsupportedModel, "transform_config"),
    "ct no groups": (packed, _told(config_groups={}), InvalidModel, "config_groups"),
    "ct groups by name": (packed, _told(config_groups={"W4A16": ["Linear"]}), InvalidModel, "config_groups"),
    "ct group size": (packed, _weights(group_size=10), InvalidModel, "weight_scale"),
    "ct no shape": (packed, _without(f"{DOWN}.weight_shape"), InvalidModel, "weight_shape"),
    "ct huge shape": (packed, _of(f"{DOWN}.weight_shape", lambda old: old << 40), InvalidModel, "weight_shape"),
    "ct no scale": (packed, _without(f"{DOWN}.weight_scale"), InvalidModel, "weight_scale"),
    "ct scale NaN": (packed, _of(f"{DOWN}.weight_scale", _first(np.nan)), InvalidModel, "weight_scale"),
    "ct short words": (packed, _of(f"{DOWN}.weight_packed", lambda old: old[:, 1:]), InvalidModel, "weight_packed"),
    "ct int8 no scale": (int8, _without(f"{DOWN}.weight_scale"), InvalidModel, "weight_scale"),
    "ct int8 scales of groups": (int8, _of(f"{DOWN}.weight_scale", lambda old: np.repeat(old, 3, 1)), InvalidModel, "shape"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_in_a_line(tmp_path, case):
    maker, change, error, said = BAD[case]
    made = maker(TENSORS)
    change(made)
    with pytest.raises(error, match=re.escape(said)) as refused:
        import_model(write_quantized(tmp_path / "in", RAW, made), target=tmp_path / "bundle")
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 500
    assert not (tmp_path / "bundle").exists()


MAKERS = [gptq, awq, fp8, packed, int8, float8]
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 300), st.just(1 << 70), st.floats(allow_nan=False), st.text(max_size=3),
    st.sampled_from([[], {}, [None, {}], {"weights": None}, "gptq_v2", "channel", "group", "block", "float", "int"]),
)  # fmt: skip


@cache
def made_by(maker):
    return maker(TENSORS)


@st.composite
def mutations(draw):
    """A checkpoint in which settings or tensors were changed at random."""
    one = made_by(draw(st.sampled_from(MAKERS)))
    made = Quantized(dict(one.tensors), deepcopy(one.settings))
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.booleans()):
            place = made.settings
            while (inner := [key for key in place if isinstance(place[key], dict)]) and draw(st.booleans()):
                place = place[draw(st.sampled_from(inner))]
            if place:
                place[draw(st.sampled_from(sorted(place)))] = deepcopy(draw(ODD))
            continue
        quantized = sorted(name for name in made.tensors if "_proj" in name)
        name = draw(st.sampled_from(quantized))
        array = made.tensors[name]
        kind = draw(st.integers(0, 5))
        if kind == 0:
            del made.tensors[name]
        elif kind == 1:
            made.tensors[name] = array.reshape(-1)[: draw(st.integers(0, max(0, array.size - 1)))]
        elif kind == 2:
            made.tensors[name] = array.T
        elif kind == 3:
            made.tensors[name] = array.astype(draw(st.sampled_from([np.float32, np.float16, np.int8, np.int32, np.uint8])))
        elif kind == 4:
            data = bytearray(array.tobytes())
            if data:
                data[draw(st.integers(0, len(data) - 1))] ^= draw(st.integers(1, 255))
            made.tensors[name] = np.frombuffer(bytes(data), array.dtype).reshape(array.shape)
        else:
            made.tensors[name] = array.reshape((1, *array.shape))
    return made


@settings(max_examples=150)
@given(mutations())
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_any_mutation_is_floats_or_one_typed_line(tmp_path_factory, made):
    folder = write_quantized(tmp_path_factory.mktemp("odd"), RAW, made)
    try:
        with open_source(folder) as source:
            for name in source.names():
                if "_proj" in name:
                    assert np.isfinite(source.read(name)).all()
                    assert source.read(name).shape == tuple(source.shape(name))
            assert source.tokenizer() is not None
            if isinstance(source, PackedSource):
                assert source.quantization and source.bits_per_weight > 0
            if hasattr(source, "static"):
                for module in {name.removesuffix(".weight") for name in source.names() if "_proj" in name}:
                    assert source.static(module) is None or source.static(module).weight.dtype == np.int8
    except EdgeLLMError as refused:
        assert "\n" not in str(refused) and len(str(refused)) < 600


def test_a_matrix_takes_little_beside_itself(tmp_path):
    """A matrix of 1024 x 2048 takes 8 MiB; its integers of 4 bits are 1 MiB, and 2 MiB when they are apart."""
    rng = np.random.default_rng(0)
    count, rows, columns = 16, 1024, 2048
    parts = {
        "qweight": rng.integers(-(2**31), 2**31, (columns // 8, rows)).astype(np.int32),
        "qzeros": rng.integers(-(2**31), 2**31, (count, rows // 8)).astype(np.int32),
        "scales": rng.random((count, rows)).astype(np.float16),
        "g_idx": rng.permutation(np.arange(columns) // (columns // count)).astype(np.int32),
    }
    made = gptq(TENSORS, 4, 128)
    write_quantized(tmp_path, RAW, made)
    tensors = made.tensors | {f"{LAYER}extra.{part}": array for part, array in parts.items()}
    (tmp_path / "model.safetensors").write_bytes(mixed_safetensors(tensors))
    with open_source(tmp_path) as source:
        assert source.shape(f"{LAYER}extra.weight") == (rows, columns)
        source.read(f"{UP}.weight")
        tracemalloc.start()
        source.read(f"{LAYER}extra.weight")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 18 << 20


# The packages' own arithmetic


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("strategy", ["channel", "group"])
def test_compressed_tensors_packs_and_unpacks_the_same(tmp_path, bits, symmetric, strategy):
    torch = pytest.importorskip("torch")
    pytest.importorskip("compressed_tensors", reason="its packer is the oracle; pip install compressed-tensors")
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    size = 16 if strategy == "group" else None
    args = QuantizationArgs(num_bits=bits, strategy=strategy, group_size=size, symmetric=symmetric)
    theirs = QuantizationScheme(targets=["Linear"], weights=args)
    packer = BaseCompressor.get_value_from_registry("pack-quantized")
    made = packed(TENSORS, bits, 16 if size else -1, symmetric=symmetric)
    wanted = {}
    for name in [name for name in TENSORS if name.endswith("_proj.weight")]:
        weight = torch.from_numpy(TENSORS[name])
        grouped = weight.reshape(len(weight), -1, size or weight.shape[1])
        scale, zero = calculate_qparams(grouped.amin(-1), grouped.amax(-1), args)
        parts = packer.compress({"weight": weight, "weight_scale": scale, "weight_zero_point": zero}, theirs)
        wanted[name] = packer.decompress(parts, theirs)["weight"].numpy()
        made.tensors |= {name.removesuffix("weight") + part: array.numpy() for part, array in parts.items()}
    with open_source(write_quantized(tmp_path, RAW, made)) as source:
        for name, values in wanted.items():
            assert np.array_equal(source.read(name), values), name


def test_8_bit_floats_are_those_of_torch():
    torch = pytest.importorskip("torch")
    wanted = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(e4m3_values(), wanted, equal_nan=True)


# As a user has it


def test_one_command_imports_a_checkpoint_and_show_names_its_quantization(tmp_path, edge_llm_home):
    folder = write_quantized(tmp_path / "tiny-AWQ", RAW, awq(TENSORS))
    write_tokenizer(folder)

    def command(*words):
        done = subprocess.run([sys.executable, "-m", "edge_llm", *words], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done

    imported = command("import", str(folder), "--fast")
    assert "AWQ 4-bit, groups of 16, " in imported.stderr
    assert "AWQ 4-bit, groups of 16" in command("show", "tiny-AWQ").stdout
    text = tmp_path / "text.txt"
    text.write_text("hello world " * 20)
    assert "perplexity" in command("perplexity", "tiny-AWQ", str(text), "--max-tokens", "64").stdout
