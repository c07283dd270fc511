"""ModelSlim checkpoints: their integers and scales are those of the bundle, and its products are the checkpoint's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import random_tensors, tiny_config
from modelslim_files import LINEARS, Checkpoint, product, quantized, write_checkpoint
from stub_hub import Stub, environment, serving

from edge_llm.config import RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.errors import InvalidModel, UnsupportedModel, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.opening.runner import load_runner
from edge_llm.sources import open_source
from edge_llm.sources.base import StaticModule
from edge_llm.weights.resident import layer_weights

pytestmark = pytest.mark.thorough(file=8)

POOL = ThreadPool(1)
PARTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


def make(folder: Path, family: str = "qwen2", seed: int = 0, *, config=None, written=None, **how) -> Checkpoint:
    raw = tiny_config(family, **({"tie_word_embeddings": True} | (config or {})))
    made = quantized(random_tensors(raw, seed), np.random.default_rng(seed), **how)
    write_checkpoint(folder, raw | {"quantize": "w8a8", "quantization_config": {"group_size": 0}}, made, **(written or {}))
    return made


def opened_layer(bundle, index: int):
    return layer_weights(bundle, bundle.read_block(f"layers.{index}"), index).linears


def check_same(bundle, made: Checkpoint) -> None:
    """The bundle's integers, scales and offsets are the checkpoint's, and so are its products."""
    rng = np.random.default_rng(1)
    for index in range(len(bundle.decoder.layers)):
        for name, weight in opened_layer(bundle, index).items():
            modules = [f"model.layers.{index}.{part}" for part in PARTS[name]]
            if f"{modules[0]}.deq_scale" not in made.tensors:
                continue
            tensors = [{part: made.tensors[f"{module}.{part}"] for part in ("weight", "deq_scale")} for module in modules]
            integers = np.concatenate([one["weight"] for one in tensors])
            assert np.array_equal(unpack_tiles(weight.tiles, weight.rows, weight.columns), integers)
            deq = np.concatenate([one["deq_scale"] for one in tensors])
            deq = deq.astype(np.uint32).view(np.float32) if deq.dtype == np.int64 else deq
            assert (np.abs(weight.product_scale - deq) <= np.spacing(deq)).all()
            if np.array_equal(deq.astype(np.float16).astype(np.float32), deq):  # of a float16 model: a card gets these bits
                assert np.array_equal(weight.rounding.scale, deq)
            else:
                assert np.array_equal(weight.product_scale, deq)
            assert weight.input_scale == float(made.tensors[f"{modules[0]}.input_scale"][0])
            assert weight.input_offset == int(made.tensors[f"{modules[0]}.input_offset"][0])
            x = rng.standard_normal((5, weight.columns)).astype(np.float32) * np.float32(30 * weight.input_scale)
            x[0] *= 20  # beyond the scale: both cut it off
            wanted = np.concatenate([product(made, module, x) for module in modules], axis=1)
            largest = np.abs(wanted).max() + (0 if weight.bias is None else np.abs(weight.bias).max())
            np.testing.assert_allclose(weight.apply(x, POOL), wanted, rtol=1e-5, atol=1e-5 * largest)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("bits", [True, False], ids=["float16", "bfloat16"])
def test_integers_scales_and_products_are_the_checkpoints(tmp_path, family, bits):
    made = make(tmp_path / "slim", family, bits=bits)
    bundle = open_bundle(import_model(tmp_path / "slim", target=tmp_path / "bundle"))
    check_same(bundle, made)


def test_scales_that_are_products_of_float16(tmp_path):
    """As the tool makes them for a float16 model: rounded before they are float32, and written as float16."""
    made = make(tmp_path / "slim", half=True, config={"num_hidden_layers": 1})
    assert made.tensors["model.layers.0.mlp.down_proj.input_scale"].dtype == np.float16
    check_same(open_bundle(import_model(tmp_path / "slim", target=tmp_path / "bundle")), made)


@pytest.mark.parametrize("shape", ["[N, 1]", "one of all", "without a dimension"])
def test_every_shape_of_a_scale(tmp_path, shape):
    raw = tiny_config("llama", num_hidden_layers=1)
    made = quantized(random_tensors(raw), np.random.default_rng(0), bits=False)
    down = "model.layers.0.mlp.down_proj"
    wanted = made.tensors[f"{down}.deq_scale"]
    if shape == "one of all":
        made.tensors[f"{down}.deq_scale"] = made.tensors[f"{down}.input_scale"] * np.float32(0.5)
        wanted = np.repeat(made.tensors[f"{down}.deq_scale"], 64)
    elif shape == "[N, 1]":
        made.tensors[f"{down}.deq_scale"] = wanted[:, None]
    else:
        made.tensors[f"{down}.input_scale"] = made.tensors[f"{down}.input_scale"].reshape(())
    bundle = open_bundle(import_model(write_checkpoint(tmp_path / "slim", raw, made), target=tmp_path / "bundle"))
    assert np.array_equal(opened_layer(bundle, 0)["down"].product_scale, wanted)


@settings(max_examples=8)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.booleans(), st.sets(st.sampled_from(sorted(PARTS)), max_size=3))
def test_any_checkpoint_is_taken_over(tmp_path_factory, seed, offsets, bits, floats):
    folder = tmp_path_factory.mktemp("any")
    stays = tuple(part for name in floats for part in PARTS[name])
    config = {"num_hidden_layers": 1}
    made = make(
        folder / "slim", seed=seed, config=config, offsets=offsets, bits=bits, static=lambda module: not module.endswith(stays)
    )
    bundle = open_bundle(import_model(folder / "slim", target=folder / "bundle"))
    check_same(bundle, made)
    for name in floats:
        weight = opened_layer(bundle, 0)[name].weight
        wanted = np.concatenate([made.tensors[f"model.layers.0.{part}.weight"] for part in PARTS[name]])
        assert np.array_equal(weight, wanted.T.astype(np.float16))


@given(st.floats(2**-20, 1024, width=32), st.lists(st.floats(2**-40, 1024, width=32), min_size=1, max_size=50))
def test_a_product_scale_comes_out_to_the_bit(step, scales):
    """Of every product of two float32 numbers, which is how the tool makes them."""
    deq = np.float32(step) * np.array(scales, np.float32)
    module = StaticModule(np.zeros((len(deq), 4), np.int8), deq, float(np.float32(step)), 0, np.zeros(len(deq), np.int32))
    assert np.array_equal(np.float32(step) * module.weight_scale, deq)


def test_the_model_answers_like_its_float_form(tmp_path):
    """Within what INT8 rounds off, whole and from the float path, which finds the checkpoint again."""
    raw = tiny_config("qwen3", tie_word_embeddings=True)
    plain = random_tensors(raw)
    made = quantized(plain, np.random.default_rng(0))
    for name in made.tensors:  # wide enough for all that comes
        if name.endswith("input_scale"):
            module = name.removesuffix(".input_scale")
            factor = np.float32(4)
            made.tensors[name] = made.tensors[name] * factor
            bits = made.tensors[f"{module}.deq_scale"].astype(np.uint32).view(np.float32) * factor
            made.tensors[f"{module}.deq_scale"] = bits.view(np.int32).astype(np.int64)
    write_checkpoint(tmp_path / "slim", raw, made)
    bundle = open_bundle(import_model(tmp_path / "slim", target=tmp_path / "bundle"))
    ids = list(range(24))
    found, wanted = [
        runner.forward(runner.open(), ids, wanted=24)
        for runner in (load_runner(bundle, RuntimeConfig(context=32, float_path=path), 20)[0] for path in (False, True))
    ]
    assert np.corrcoef(found.ravel(), wanted.ravel())[0, 1] > 0.95
    assert set(bundle.manifest["profile"]["linears"]) == set(bundle.decoder.linears())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plain")
    make(folder / "slim", config={"intermediate_size": 128})
    return open_bundle(import_model(folder / "slim", target=folder / "bundle"))


def logits_of(bundle, **options):
    """Of a prompt of 20 tokens and two steps."""
    options = {"threads": 2, "context": 128, "chunk": 64, "activations": "static"} | options
    runner = load_runner(bundle, RuntimeConfig(**options), 40)[0]
    sequence = runner.open()
    rows = [runner.forward(sequence, list(range(20)), wanted=20)] + [runner.forward(sequence, [token]) for token in (7, 8)]
    sequence.close()
    return np.concatenate(rows)


EXACT = "emulated:310p:s8gemm"


@pytest.mark.parametrize(
    "way",
    [{"memory": "160KiB"}, {"device": EXACT, "placement": "split"}, {"device": EXACT, "placement": "card"}, {"device": "onnx"}],
    ids=str,
)
def test_streamed_and_on_other_devices_it_has_the_hosts_bits(plain, way):
    assert np.array_equal(logits_of(plain, device="host"), logits_of(plain, **{"device": "host"} | way))


@pytest.mark.parametrize("placement", ["split", "card"])
def test_a_card_adds_the_offset_itself(plain, placement, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", "emulated")
    wanted = logits_of(plain, device="host")
    found = logits_of(plain, device="ascend", placement=placement, kv_tokens=512)
    assert np.abs(found - wanted).max() <= 0.15 * np.abs(wanted).max()


@pytest.mark.parametrize(
    ("weights", "description", "shards"),
    [
        ("quant_model_weights", "quant_model_description.json", 1),
        ("quant_model_weight_w8a8", "quant_model_description_w8a8.json", 1),
        ("quant_model_weight_w8a8", "quant_model_description.json", 3),
        ("model", "quant_model_description.json", 2),
    ],
)
def test_every_name_of_the_files(tmp_path, weights, description, shards):
    written = {"weights": weights, "description": description, "shards": shards}
    made = make(tmp_path / "slim", config={"num_hidden_layers": 1}, written=written)
    check_same(open_bundle(import_model(tmp_path / "slim" / description, target=tmp_path / "bundle")), made)


def test_what_is_told(tmp_path):
    made = make(tmp_path / "slim", static=lambda module: not module.endswith("down_proj"), config={"num_hidden_layers": 1})
    made.tensors["model.layers.0.self_attn.o_proj.weight"][3, 5] = -128
    write_checkpoint(tmp_path / "slim", json.loads((tmp_path / "slim" / "config.json").read_text()), made)
    said: list[str] = []
    import_model(tmp_path / "slim", target=tmp_path / "bundle", notice=said.append)
    assert "3 linears are INT8 in the source: their weights and static scales are taken over as they are" in said
    assert "1 linears that the source left in float are kept in float16" in said
    assert "1 weights of -128 became -127, the least that products hold here" in said


LAYER = "model.layers.0."


def _without(name):
    return lambda made: made.tensors.pop(LAYER + name)


def _set(name, value):
    def change(made):
        made.tensors[LAYER + name] = value(made.tensors[LAYER + name])

    return change


def _kind(name, kind):
    def change(made):
        made.kinds[LAYER + name] = kind

    return change


def _more(name, kind):
    return lambda made: made.tensors.update({LAYER + name: np.ones((112, 1), kind)})


BAD = {
    "no deq_scale": (_without("mlp.down_proj.deq_scale"), InvalidModel, "mlp.down_proj.deq_scale"),
    "no quant_bias": (_without("self_attn.q_proj.quant_bias"), InvalidModel, "self_attn.q_proj.quant_bias"),
    "no input_scale": (_without("self_attn.q_proj.input_scale"), InvalidModel, "self_attn.q_proj.input_scale"),
    "no input_offset": (_without("mlp.up_proj.input_offset"), InvalidModel, "mlp.up_proj.input_offset"),
    "no weight": (_without("mlp.up_proj.weight"), InvalidModel, "mlp.up_proj.weight"),
    "float weight": (_set("mlp.up_proj.weight", lambda old: old.astype(np.float32)), InvalidModel, "F32"),
    "wide weight": (_set("mlp.up_proj.weight", lambda old: old.astype(np.int32)), InvalidModel, "I32"),
    "turned weight": (_set("mlp.up_proj.weight", lambda old: old.T), InvalidModel, r"\[64, 112\]"),
    "short scale": (_set("mlp.up_proj.deq_scale", lambda old: old[1:]), InvalidModel, r"\[111\]"),
    "int32 scale": (_set("mlp.up_proj.deq_scale", lambda old: old.astype(np.int32)), InvalidModel, "I32"),
    "negative bits": (_set("mlp.up_proj.deq_scale", lambda old: old - (1 << 40)), InvalidModel, "not the bits"),
    "scale without end": (_set("mlp.up_proj.deq_scale", lambda old: old * 0 + 0x7F800000), InvalidModel, "no scale"),
    "two input scales": (_set("mlp.up_proj.input_scale", lambda old: np.repeat(old, 2)), InvalidModel, r"\[2\]"),
    "input scale 0": (_set("mlp.down_proj.input_scale", lambda old: old * 0), InvalidModel, "no scale"),
    "other input scale": (_set("mlp.up_proj.input_scale", lambda old: old * 2), UnsupportedModel, "must be alike"),
    "other offset": (_set("self_attn.v_proj.input_offset", lambda old: old + 1), UnsupportedModel, "must be alike"),
    "half an offset": (_set("mlp.down_proj.input_offset", lambda old: old + 0.5), InvalidModel, "whole number"),
    "float bias": (_set("mlp.up_proj.quant_bias", lambda old: old.astype(np.float32)), InvalidModel, "F32"),
    "W8A8S": (_kind("mlp.down_proj.weight", "W8A8S"), UnsupportedModel, "W8A8S"),
    "W4A8": (_kind("mlp.down_proj.weight", "W4A8_DYNAMIC"), UnsupportedModel, "W4A8_DYNAMIC"),
    "W8A8_DYNAMIC": (_kind("mlp.down_proj.weight", "W8A8_DYNAMIC"), UnsupportedModel, "W8A8_DYNAMIC"),
    "no text": (_kind("mlp.down_proj.weight", 8), UnsupportedModel, "`8`"),
    "weights with a float offset": (_more("mlp.up_proj.weight_offset", np.float32), UnsupportedModel, "weight_offset"),
    "weights with an int8 offset": (_more("mlp.up_proj.weight_offset", np.int8), UnsupportedModel, "weight_offset"),
    "weights with an int32 offset": (_more("mlp.up_proj.weight_offset", np.int32), UnsupportedModel, "weight_offset"),
    "kinds mixed": (_kind("self_attn.k_proj.weight", "FLOAT"), UnsupportedModel, "INT8"),
    "factors of an input": (_more("mlp.down_proj.div.mul_scale", np.float32), UnsupportedModel, "div.mul_scale` has no place"),
    "a module in a module": (_more("self_attn.o_proj.linear.weight", np.float32), UnsupportedModel, "o_proj.linear.weight"),
    "what nobody knows": (_more("mlp.up_proj.another", np.float32), UnsupportedModel, "mlp.up_proj.another"),
    "norm with a bias": (
        lambda made: made.tensors.update({LAYER + "input_layernorm.bias": np.ones(64, np.float32)}),
        UnsupportedModel,
        "input_layernorm.bias",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_refused_by_name(tmp_path, case):
    change, error, said = BAD[case]
    raw = tiny_config("llama", num_hidden_layers=1)
    made = quantized(random_tensors(raw), np.random.default_rng(0))
    change(made)
    if case == "kinds mixed":
        made.tensors[LAYER + "self_attn.k_proj.weight"] = made.tensors[LAYER + "self_attn.k_proj.weight"].astype(np.float32)
    write_checkpoint(tmp_path / "slim", raw, made)
    with pytest.raises(error, match=said):
        import_model(tmp_path / "slim", target=tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_how_another_engine_keeps_keys_is_no_matter(tmp_path):
    raw = tiny_config("llama", num_hidden_layers=1)
    made = quantized(random_tensors(raw), np.random.default_rng(0))
    parts = ("cache_scale", "cache_offset", "scale")
    made.tensors |= {f"{LAYER}self_attn.k_proj.kv_{part}": np.ones(32, np.float32) for part in parts}
    write_checkpoint(tmp_path / "slim", raw, made)
    assert import_model(tmp_path / "slim", target=tmp_path / "bundle").is_dir()


def test_a_norm_whose_bias_is_zero_is_taken(tmp_path):
    raw = tiny_config("llama", num_hidden_layers=1)
    made = quantized(random_tensors(raw), np.random.default_rng(0))
    made.tensors |= {f"{LAYER}input_layernorm.{part}": np.zeros(64, np.float32) for part in ("bias", "module.bias")}
    check_same(open_bundle(import_model(write_checkpoint(tmp_path / "slim", raw, made), target=tmp_path / "bundle")), made)


@pytest.mark.parametrize("norm", ["model.norm", f"{LAYER}input_layernorm", f"{LAYER}post_attention_layernorm"])
def test_a_gain_that_is_scaled_for_its_readers_is_the_one_that_is_used(tmp_path, norm):
    """The same checkpoint with the scaled gain in its place, and beside the float model's gain, gives the same weights."""
    raw = tiny_config("llama", num_hidden_layers=1)
    made = quantized(random_tensors(raw), np.random.default_rng(0), offsets=False)
    if norm == "model.norm":  # its reader
        head = Checkpoint({f"{LAYER}mlp.down_proj.weight": made.tensors.pop("lm_head.weight")}, {})
        head = quantized(head.tensors, np.random.default_rng(0), offsets=False)
        renamed = {name.replace(f"{LAYER}mlp.down_proj", "lm_head"): array for name, array in head.tensors.items()}
        made.tensors |= renamed
        made.kinds |= dict.fromkeys(renamed, "W8A8")
    gain = made.tensors[f"{norm}.weight"]
    plain = import_model(write_checkpoint(tmp_path / "plain", raw, made), target=tmp_path / "bundle-plain")
    made.tensors |= {f"{norm}.module.weight": gain, f"{norm}.module.bias": gain * 0, f"{norm}.weight": gain * 3 + 1}
    wrapped = import_model(write_checkpoint(tmp_path / "wrapped", raw, made), target=tmp_path / "bundle-wrapped")
    assert (plain / "weights.bin").read_bytes() == (wrapped / "weights.bin").read_bytes()
    made.tensors[f"{norm}.module.weight"] = gain[:-1]
    with pytest.raises(InvalidModel, match="norm"):
        import_model(write_checkpoint(tmp_path / "short", raw, made), target=tmp_path / "bundle-short")


def test_a_float_reader_has_the_gain_of_the_float_model(tmp_path):
    raw = tiny_config("llama", num_hidden_layers=1)
    made = quantized(random_tensors(raw), np.random.default_rng(0), static=lambda module: "mlp" in module)
    scaled = {name: made.tensors[f"{name}.weight"] * 3 for name in ("model.norm", f"{LAYER}input_layernorm")}
    made.tensors |= {f"{name}.module.weight": values for name, values in scaled.items()}
    with open_source(write_checkpoint(tmp_path / "slim", raw, made)) as source:
        assert all(np.array_equal(source.read(f"{name}.weight"), made.tensors[f"{name}.weight"]) for name in scaled)


def test_an_offset_that_no_bias_takes_out_again_is_a_bias(tmp_path):
    raw = tiny_config("llama", num_hidden_layers=1)
    made = quantized(random_tensors(raw), np.random.default_rng(0))
    for name in made.tensors:
        if name.endswith("quant_bias"):
            made.tensors[name] = made.tensors[name] * 0
    bundle = open_bundle(import_model(write_checkpoint(tmp_path / "slim", raw, made), target=tmp_path / "bundle"))
    assert all(linear.bias for linear in bundle.decoder.layers[0].linears)
    check_same(bundle, made)


@pytest.mark.parametrize(
    "wish", [{"keep_float": True}, {"weights": LayerBits("w4")}, {"outliers": Outliers(schemes=(("*.down", "float16"),))}]
)
def test_what_cannot_be_asked_of_it(tmp_path, wish):
    make(tmp_path / "slim", config={"num_hidden_layers": 1})
    with pytest.raises(UsageError, match="quantized already.*leave --"):
        import_model(tmp_path / "slim", target=tmp_path / "bundle", **wish)


def test_the_source_reads_as_the_dequantized_model(tmp_path):
    raw = tiny_config("qwen2", num_hidden_layers=1)
    plain = random_tensors(raw)
    made = quantized(plain, np.random.default_rng(0))
    with open_source(write_checkpoint(tmp_path / "slim", raw, made)) as source:
        for name in LINEARS:
            weight = source.read(f"{LAYER}{name}.weight")
            wanted = plain[f"{LAYER}{name}.weight"]
            assert np.abs(weight - wanted).max() <= np.abs(wanted).max() / 127
        bias, step = source.read(f"{LAYER}self_attn.q_proj.bias"), source.static(f"{LAYER}self_attn.q_proj").deq_scale
        assert np.abs(bias - plain[f"{LAYER}self_attn.q_proj.bias"]).max() <= step.max()
        before = source.digest()
    kinds = json.loads((tmp_path / "slim" / "quant_model_description.json").read_text())
    (tmp_path / "slim" / "quant_model_description.json").write_text(json.dumps(kinds | {"version": "1.0.1"}))
    with open_source(tmp_path / "slim") as source:
        assert source.digest() != before


def test_the_command(tmp_path):
    make(tmp_path / "slim", config={"num_hidden_layers": 1})
    home = {**os.environ, "EDGE_LLM_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "edge_llm"]
    made = subprocess.run([*command, "import", str(tmp_path / "slim")], env=home, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert "taken over as they are" in made.stderr
    again = subprocess.run([*command, "import", str(tmp_path / "slim")], env=home, capture_output=True, text=True)
    assert "nothing to do" in again.stderr
    ran = subprocess.run([*command, "run", "slim", "hello", "--max-tokens", "3"], env=home, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("shards", [1, 2])
def test_a_repository_of_the_hub(tmp_path, shards):
    """Online, and from the cache: only what an import reads is fetched; what config.json says of quantization is no matter."""
    make(tmp_path / "slim", config={"num_hidden_layers": 1}, written={"shards": shards})
    files = {path.name: path.read_bytes() for path in (tmp_path / "slim").iterdir()}
    large = tuple(name for name in files if name.endswith(".safetensors"))
    stub = Stub(files | {"README.md": b"# no", "quant_model_weights.bin": b"x"}, large=large)
    script = "import sys; from edge_llm.convert.importer import import_model; print(import_model('org/tiny', sys.argv[1]))"
    with serving(stub):
        for name, more in (("online", {}), ("offline", {"HF_HUB_OFFLINE": "1"})):
            home = environment(tmp_path / "hf", stub.endpoint, EDGE_LLM_HOME=str(tmp_path / "home"), **more)
            ran = subprocess.run([sys.executable, "-c", script, name], env=home, capture_output=True, text=True, timeout=60)
            assert ran.returncode == 0, ran.stderr
            with open_bundle(Path(ran.stdout.strip())) as bundle:
                assert bundle.manifest["linears"]["layers.0.down"]["input_offset"] != 0
    assert not stub.asked("GET", "README.md") and not stub.asked("GET", "weights.bin")
