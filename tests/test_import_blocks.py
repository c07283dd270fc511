"""A GGUF file is imported with its blocks as they are, in seconds; everything else must be asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from block_files import NUMBERS, config, in_types, mixed, random_blocks, write_blocks
from gguf_files import floats, gguf_bytes, gguf_name, model_gguf, model_pairs, model_tensors, tokenizer_pairs
from model_files import random_tensors, tiny_config, write_model

from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.convert import blocks
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.errors import InvalidModel, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.gguf_blocks import TYPES, decode
from edge_llm.formats.manifest import WEIGHTS
from edge_llm.kernels.blocks import KINDS
from edge_llm.kernels.reference.blocks import rows_of
from edge_llm.models import describe, load_config
from edge_llm.models.weights import layer_shapes, read_embedding, read_final_norm, read_layer
from edge_llm.opening.runner import load_runner
from edge_llm.quant.blocks import Q8_0, scaled, to_q8_0
from edge_llm.schemes.blocks import parts_in_blocks
from edge_llm.sources import open_source
from edge_llm.sources.lora_places import Wish


def imported(file: Path, folder: Path, **how):
    said: list[str] = []
    return open_bundle(import_model(file, target=folder, notice=said.append, **how)), said


def values_of(bundle, place, linear):
    """The float32 matrix that a linear's panels hold."""
    parts = parts_in_blocks(linear)
    names = [f"{place}.blocks{number if len(parts) > 1 else ''}" for number in range(len(parts))]
    return np.concatenate([
        rows_of(bundle.read(name), KINDS[part.scheme], linear.columns, np.arange(part.channels))
        for name, part in zip(names, parts, strict=True)
    ])


def holds_the_file(bundle, file):
    """Whether every tensor of ``bundle`` is what ``file`` says, in Hugging Face's order of rows."""
    with open_source(file) as source:
        plain = describe(source.config)
        for index, layer in enumerate(plain.layers):
            floats_of = read_layer(source, layer)
            for linear in bundle.decoder.layers[index].linears:
                place = f"layers.{index}.{linear.name}"
                assert np.array_equal(values_of(bundle, place, linear), floats_of.linears[linear.name].weight), place
                if linear.bias:
                    assert np.array_equal(bundle.read(f"{place}.bias"), floats_of.linears[linear.name].bias)
            assert all(np.array_equal(bundle.read(f"layers.{index}.{name}"), one) for name, one in floats_of.gains.items())
        assert np.array_equal(
            values_of(bundle, "embedding", bundle.decoder.table) * np.float32(plain.embedding.factor),
            read_embedding(source, plain),
        )
        if not plain.tied:
            assert np.array_equal(values_of(bundle, "output", bundle.decoder.output), source.read("lm_head.weight"))


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
@pytest.mark.parametrize("family", [
    {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32}, {"attention_bias": True},
    {"tie_word_embeddings": True},
])  # fmt: skip
def test_every_value_of_the_file_is_in_the_bundle(kind, family, tmp_path):
    name_of = mixed if kind == "mixed" else lambda name: kind
    file = write_blocks(tmp_path / "m.gguf", name_of, config(**family), general__file_type=15)
    bundle, said = imported(file, tmp_path / "bundle")
    holds_the_file(bundle, file)
    assert said[0].startswith("kept in the file's blocks: Q4_K_M, ") and said[0].endswith("nothing is rounded again")
    assert "calibration" not in "".join(said)
    assert bundle.manifest["source"]["weights"] == "blocks" and bundle.manifest["source"]["from"] == "Q4_K_M"


def test_q_k_and_v_in_one_tensor_are_cut_by_rows(tmp_path):
    raw = tiny_config("qwen2", hidden_size=256, intermediate_size=256)
    tensors = in_types(lambda name: "q5_k", model_tensors(raw, random_tensors(raw)))
    given = ("attn_q", "attn_k", "attn_v")
    fused, layers = [], {}
    for name, number, shape, data in tensors:
        words = name.split(".")
        if words[-2] in given:
            layers.setdefault((words[1], words[-1]), {})[words[-2]] = (number, shape, data)
        else:
            fused.append((name, number, shape, data))
    for (layer, suffix), parts in layers.items():
        ordered = [parts[name] for name in given]
        rows = sum(shape[0] for _, shape, _ in ordered)
        shape = (rows, *ordered[0][1][1:])
        fused.append((f"blk.{layer}.attn_qkv.{suffix}", ordered[0][0], shape, b"".join(data for _, _, data in ordered)))
    file, apart = tmp_path / "m.gguf", tmp_path / "apart.gguf"
    file.write_bytes(gguf_bytes(model_pairs(raw) | tokenizer_pairs(), fused))
    apart.write_bytes(gguf_bytes(model_pairs(raw) | tokenizer_pairs(), tensors))
    bundle, _ = imported(file, tmp_path / "bundle")
    holds_the_file(bundle, file)
    assert (bundle.folder / WEIGHTS).read_bytes() == (imported(apart, tmp_path / "other")[0].folder / WEIGHTS).read_bytes()


def test_matrices_without_a_kernel_become_q8_0_and_it_is_said(tmp_path):
    def name_of(name):
        return "f16" if "attn_output" in name else "" if "ffn_down" in name else "q4_0"

    file = write_blocks(tmp_path / "m.gguf", name_of, config())
    bundle, said = imported(file, tmp_path / "bundle")
    assert said[0].endswith("matrices of other types become Q8_0: 2 of F16, 2 of F32")
    schemes = {name.rpartition(".")[2]: linear.scheme for name, linear in bundle.decoder.linears().items()}
    assert schemes == {"qkv": "q4_0", "o": "q8_0", "gate_up": "q4_0", "down": "q8_0", "output": "q4_0"}
    with open_source(file) as source:
        wanted = source.read("model.layers.1.mlp.down_proj.weight")
    found = values_of(bundle, "layers.1.down", bundle.decoder.layers[1].linear("down"))
    step = np.abs(wanted.reshape(-1, 32)).max(axis=1) / 127
    assert (np.abs(found - wanted).reshape(-1, 32).max(axis=1) <= step * 0.55).all()


def test_q2_k_and_q3_k_become_q8_0(tmp_path):
    raw = config()
    rng = np.random.default_rng(0)

    def packed(number, shape):
        kind = TYPES[number]
        made = rng.integers(0, 256, (shape[0] * shape[1] // 256, kind.nbytes), np.uint8)
        for at in (80, 82) if number == 10 else (108,):
            made[:, at : at + 2] = np.full(len(made), 0.002, "<f2").view(np.uint8).reshape(-1, 2)
        return made.tobytes()

    tensors = []
    for name, number, shape, data in in_types(lambda name: "q4_k", model_tensors(raw, random_tensors(raw))):
        new = 10 if "ffn_up" in name else 11 if "attn_q." in name else None
        tensors.append((name, new, shape, packed(new, shape)) if new else (name, number, shape, data))
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf_bytes(model_pairs(raw) | tokenizer_pairs(), tensors))
    bundle, said = imported(file, tmp_path / "bundle")
    assert "2 of Q3_K" in said[0] and "2 of Q2_K" in said[0]
    assert bundle.decoder.layers[0].linear("gate_up").scheme == "q4_k,q8_0"
    assert bundle.decoder.layers[0].linear("qkv").scheme == "q8_0,q4_k,q4_k"
    runner, _ = load_runner(bundle, RuntimeConfig(threads=2, context=64), 8)
    assert np.isfinite(runner.forward(runner.open(), [1, 2, 3], wanted=3)).all()


def test_a_matrix_whose_columns_are_no_blocks_is_kept_in_float16(tmp_path):
    raw = tiny_config("llama", hidden_size=64, intermediate_size=72)

    def name_of(name):
        return "" if "ffn_down" in name else "q4_0"

    bundle, _ = imported(write_blocks(tmp_path / "m.gguf", name_of, raw), tmp_path / "bundle")
    assert {bundle.decoder.layers[0].linear(name).scheme for name in ("qkv", "o", "gate_up")} == {"q4_0"}
    assert bundle.decoder.layers[0].linear("down").scheme == "float16"
    one, other = (
        load_runner(bundle, RuntimeConfig(threads=2, context=64, float_path=exact), 8)[0] for exact in (False, True)
    )
    found, expected = (runner.forward(runner.open(), list(range(8)), wanted=8) for runner in (one, other))
    assert np.linalg.norm(found - expected) < 0.03 * np.linalg.norm(expected)


def test_runs_of_rows_are_the_whole(tmp_path, monkeypatch):
    file = write_blocks(tmp_path / "m.gguf", mixed, config())
    whole, _ = imported(file, tmp_path / "whole")
    asked = []
    made = blocks.KeptBlocks._rows
    monkeypatch.setattr(blocks, "RUN_BYTES", 1)
    monkeypatch.setattr("edge_llm.formats.layout.PIECE_BYTES", 1)
    monkeypatch.setattr(blocks.KeptBlocks, "_rows", lambda *given: (asked.append(made(*given)), asked[-1])[1])
    parts, _ = imported(file, tmp_path / "parts")
    assert (parts.folder / WEIGHTS).read_bytes() == (whole.folder / WEIGHTS).read_bytes()
    assert max(len(one) for one in asked) == 16


def test_gemmas_embedding_is_multiplied_when_it_is_looked_up(tmp_path):
    raw = config(num_hidden_layers=4, head_dim=64, sliding_window=32, tie_word_embeddings=True)
    raw |= {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "query_pre_attn_scalar": 64}
    raw |= {"hidden_activation": "gelu_pytorch_tanh"}
    rng, plain = np.random.default_rng(0), describe(load_config(raw))
    shapes = {plain.embedding.source: (280, 256), "model.norm.weight": (256,)}
    shapes |= {name: shape for layer in plain.layers for name, shape in layer_shapes(layer).items()}
    tensors = {name: 0.05 * rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    names = {"pre_feedforward_layernorm": "ffn_norm", "post_attention_layernorm": "post_attention_norm",
             "post_feedforward_layernorm": "post_ffw_norm"}  # fmt: skip
    written = []
    for name, values in tensors.items():
        stem = name.split(".")[-2]
        own = f"blk.{name.split('.')[2]}.{names[stem]}.weight" if stem in names else gguf_name(name)
        values = values + 1 if name.endswith("norm.weight") else values
        written.append(floats(own, values))
    pairs = model_pairs(raw | {"model_type": "gemma3"}) | tokenizer_pairs()
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf_bytes(pairs, in_types(lambda name: "q8_0" if "token" in name else "q5_0", written)))
    bundle, _ = imported(file, tmp_path / "bundle")
    holds_the_file(bundle, file)
    with open_source(file) as source:
        plain = describe(source.config)
        assert plain.tied and plain.embedding.factor != 1
        gain = read_final_norm(source, plain) * np.float32(plain.embedding.factor)
    assert np.allclose(bundle.read("final_norm"), gain, rtol=1e-6)
    way = {"threads": 2, "context": 64}
    found, expected, streamed = (
        runner.forward(runner.open(), list(range(20)), wanted=20)
        for runner, _ in (
            load_runner(bundle, RuntimeConfig(**way, **more), 20) for more in ({}, {"float_path": True}, {"memory": "60%"})
        )
    )
    assert np.linalg.norm(found - expected) < 0.03 * np.linalg.norm(expected)
    assert np.array_equal(found, streamed)


def test_the_same_import_again_does_nothing_and_another_is_another(tmp_path, edge_llm_home):
    file = write_blocks(tmp_path / "m.gguf", mixed, config())
    said: list[str] = []
    folder = import_model(file, "m", notice=said.append)
    before = (folder / WEIGHTS).stat().st_mtime_ns
    import_model(file, "m", notice=said.append)
    assert "nothing to do" in said[-1] and (folder / WEIGHTS).stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="--overwrite"):
        import_model(file, "m", weights=LayerBits())
    other = open_bundle(import_model(file, "m", weights=LayerBits(), overwrite=True))
    assert {one.scheme for one in other.decoder.linears().values()} == {"int8"}


def test_a_file_of_floats_is_quantized_unless_its_blocks_are_asked_for(tmp_path):
    raw = config()
    (tmp_path / "m.gguf").write_bytes(model_gguf(raw, random_tensors(raw)))
    plain, said = imported(tmp_path / "m.gguf", tmp_path / "plain")
    assert {one.scheme for one in plain.decoder.linears().values()} == {"int8"} and "becomes weights of 8 bits" in said[0]
    asked, said = imported(tmp_path / "m.gguf", tmp_path / "asked", weights=LayerBits("blocks"))
    assert {one.scheme for one in asked.decoder.linears().values()} == {"q8_0"} and "become Q8_0: " in said[0]
    write_model(tmp_path / "hf", raw)
    with pytest.raises(UsageError, match="--weights blocks"):
        import_model(tmp_path / "hf", target=tmp_path / "n", weights=LayerBits("blocks"))


def test_what_a_bias_adds_to_every_key_is_taken_off(tmp_path):
    raw = config(attention_bias=True, num_hidden_layers=1)
    tensors = random_tensors(raw)
    bias = np.random.default_rng(0).standard_normal(128, np.float32) * 30
    tensors["model.layers.0.self_attn.k_proj.bias"] = bias
    made = in_types(lambda name: "q8_0", model_tensors(raw, tensors))
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(model_pairs(raw) | tokenizer_pairs(), made))
    bundle, _ = imported(tmp_path / "m.gguf", tmp_path / "bundle")
    offset = bundle.read("layers.0.k_offset")
    slowest = offset.shape[1] // 2 - 1  # turns by less than a radian over all positions
    assert offset.any() and np.allclose(offset[:, slowest], bias.reshape(offset.shape)[:, slowest], atol=3)
    one, other = (load_runner(bundle, RuntimeConfig(context=64, threads=2, float_path=exact), 20)[0] for exact in (False, True))
    found, expected = (runner.forward(runner.open(), list(range(20)), wanted=20) for runner in (one, other))
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


@pytest.mark.parametrize(("asked", "how"), [
    ("--calibration", {"calibration": "self"}), ("--shadow", {"outliers": Outliers("full")}),
    ("--float16", {"outliers": Outliers(schemes=(("layers.0.o", "float16"),))}), ("--no-fold", {"fold": False}),
    ("--turn", {"turn": 0}), ("--keep-float", {"keep_float": True}),
])  # fmt: skip
def test_what_says_how_weights_are_quantized_is_refused(asked, how, tmp_path):
    file = write_blocks(tmp_path / "m.gguf", mixed, config())
    with pytest.raises(UsageError, match=f"^{asked} .*--weights int8"):
        import_model(file, target=tmp_path / "bundle", **how)
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_an_adapter_is_refused_with_the_way_out(tmp_path):
    raw = config()
    file = write_blocks(tmp_path / "m.gguf", mixed, raw)
    up, down = (np.random.default_rng(0).standard_normal(shape, np.float32) for shape in ((256, 2), (2, 256)))
    adapter = adapter_of(tmp_path / "a.gguf", up, down)
    with pytest.raises(UsageError, match="--weights int8"):
        import_model(file, target=tmp_path / "bundle", lora=[Wish(str(adapter))])
    merged = import_model(file, target=tmp_path / "bundle", lora=[Wish(str(adapter))], weights=LayerBits())
    assert open_bundle(merged).decoder.output.scheme == "int8"


def adapter_of(path, up, down):
    pairs = {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 2.0}
    name = "blk.0.ffn_down.weight.lora_"
    path.write_bytes(gguf_bytes(pairs, [floats(f"{name}a", down), floats(f"{name}b", up)]))
    return path


@pytest.mark.parametrize("name", ["blk.1.ffn_up.weight", "token_embd.weight", "blk.0.attn_k.weight"])
def test_a_scale_that_is_not_finite_is_refused_and_nothing_stays(name, tmp_path):
    raw = config()
    tensors = []
    for own, number, shape, data in in_types(mixed, model_tensors(raw, random_tensors(raw))):
        if own == name:
            bad = bytearray(data)
            bad[1] = 0x7E
            data = bytes(bad)
        tensors.append((own, number, shape, data))
    (tmp_path / "m.gguf").write_bytes(gguf_bytes(model_pairs(raw) | tokenizer_pairs(), tensors))
    with pytest.raises(InvalidModel, match="not finite"):
        import_model(tmp_path / "m.gguf", target=tmp_path / "bundle")
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


def test_q8_0_is_rounded_as_ggml_rounds():
    gguf = pytest.importorskip("gguf")
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((64, 96)) * 10.0 ** rng.integers(-8, 3, (64, 1))).astype(np.float32)
    values[3] = 0
    values[4, :32] = 127 * np.resize([1, 0.5, 1.5, -0.5, -2.5], 32) / 127
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    assert np.array_equal(to_q8_0(values, "w"), expected.reshape(64, -1))
    for bad, way_out in ((np.inf, "download"), (np.nan, "download"), (1e9, "--weights int8")):
        with pytest.raises(InvalidModel, match=f"`w` .*{way_out}"):
            to_q8_0(np.full((1, 32), bad, np.float32), "w")


@pytest.mark.parametrize("tiny", [1e-36, 1e-38, 1e-40, 1e-45])
def test_floats_that_are_next_to_nothing_become_0(tiny):
    """Trained tables have rows of them; what is beside them in the row keeps its value."""
    values = np.full((2, 64), np.float32(tiny))
    values[:, 32:] = np.linspace(-1, 1, 32)
    found = decode(TYPES[Q8_0.ggml], to_q8_0(values, "w")).reshape(2, 64)
    assert not found[:, :32].any() and np.abs(found - values).max() < 1 / 127


@pytest.mark.parametrize("kind", [kind for name, kind in KINDS.items() if name != "mxfp4"], ids=lambda kind: kind.name)
def test_scales_of_blocks_are_multiplied(kind):
    raw = random_blocks(kind, 16, 512)
    one, other = (decode(TYPES[kind.ggml], part) for part in (raw, scaled(raw, kind, 0.22)))
    assert np.allclose(other, one * np.float32(0.22), rtol=2e-3, atol=2e-3 * np.abs(one).max())


def test_the_command_says_what_it_keeps(tmp_path, edge_llm_home, capsys):
    file = write_blocks(tmp_path / "tiny.gguf", mixed, config(), general__file_type=15)
    assert run(["import", str(file), "--fast"]) == 0
    assert "kept in the file's blocks: Q4_K_M" in capsys.readouterr().err
    assert run(["show", "tiny"]) == 0
    shown = capsys.readouterr().out
    assert "q4_k,q4_k,q6_k 1, q4_k 1" in shown and "q5_0 1" in shown and "q6_k 1" in shown
    assert run(["show", "tiny", "--json"]) == 0
    weights = json.loads(capsys.readouterr().out)["weights"]
    assert weights["by_kind"]["embedding"]["schemes"] == {"q5_0": 1}
    assert weights["by_kind"]["gate_up"]["bits_per_weight"] == 4.625
    assert run(["show", "tiny", "--sensitive", "-"]) == 2
    assert run(["list"]) == 0
    assert "q4_k" in capsys.readouterr().out
    assert run(["plan", "tiny"]) == 0
    for wrong in (["--turn", "0"], ["--bits", "5"], ["--head", "w4"]):
        assert run(["import", str(file), "--name", "other", *wrong]) == 2
    assert run(["import", str(file), "--name", "eight", "--weights", "int8", "--fast"]) == 0
    assert "loses twice" not in capsys.readouterr().err
    assert open_bundle(edge_llm_home / "models" / "eight").decoder.output.scheme == "int8"


def test_types_have_their_numbers():
    assert all(NUMBERS[name] == kind.ggml for name, kind in KINDS.items())
