"""GGUF files of models with gated delta rules, by the rules of llama.cpp's converter: the same model as the folder."""

import json

import numpy as np
import pytest
from families import family_folder
from gguf_families import LAYER, OWN, WHOLE, stacked
from gguf_files import floats, gguf_bytes, tokenizer_pairs
from model_files import VOCAB_SIZE
from safetensors.numpy import load_file

from edge_llm.config import RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.importer import import_model
from edge_llm.errors import InvalidModel
from edge_llm.formats.bundle import open_bundle
from edge_llm.models import describe
from edge_llm.models.reference import FloatModel
from edge_llm.models.weights import check_tensors
from edge_llm.opening.runner import load_runner
from edge_llm.sources import open_source

TOKENS = np.random.default_rng(1).integers(0, VOCAB_SIZE, 60).tolist()
NAMES = LAYER | OWN["qwen2moe"] | {
    "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
    "linear_attn.in_proj_z": "attn_gate",
    "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha", "linear_attn.conv1d": "ssm_conv1d",
    "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out",
}  # fmt: skip


def tiled(values, raw, width, axis=0):
    """Heads of values, each ``width`` long: not those of a key head together, but the first of all, then the second."""
    heads, groups = raw["linear_num_value_heads"], raw["linear_num_key_heads"]
    order = np.arange(heads * width).reshape(groups, heads // groups, width).swapaxes(0, 1).ravel()
    return np.take(values, order, axis=axis)


def converted(name, values, raw):
    """A tensor of a layer in the file: its name behind the layer's number, and its values."""
    stem, _, suffix = name.rpartition(".")
    keys, width = 2 * raw["linear_num_key_heads"] * raw["linear_key_head_dim"], raw["linear_value_head_dim"]
    match name:
        case "linear_attn.A_log":
            return "ssm_a", tiled(-np.exp(values), raw, 1)
        case "linear_attn.dt_bias":
            return "ssm_dt.bias", tiled(values, raw, 1)
        case "linear_attn.conv1d.weight" | "linear_attn.in_proj_qkv.weight":
            values = values.reshape(len(values), -1)
            values = np.concatenate([values[:keys], tiled(values[keys:], raw, width)])
        case "linear_attn.in_proj_z.weight":
            values = tiled(values, raw, width)
        case "linear_attn.in_proj_b.weight" | "linear_attn.in_proj_a.weight":
            values = tiled(values, raw, 1)
        case "linear_attn.out_proj.weight":
            values = tiled(values, raw, width, axis=1)
        case _ if name.endswith("norm.weight") and not name.startswith("linear_attn"):
            values = values + np.float32(1)
    return f"{NAMES[stem]}.{suffix}", values


def qwen35(folder, **more):
    raw, tensors = json.loads((folder / "config.json").read_text()), []
    for name, values in stacked(load_file(folder / "model.safetensors")).items():
        stem, _, suffix = name.rpartition(".")
        if stem.startswith("blk."):
            tensors.append(floats(name, values))
        elif stem in WHOLE:
            values = values + np.float32(1) if stem == "model.norm" else values
            tensors.append(floats(f"{WHOLE[stem]}.{suffix}", values))
        else:
            layer, part = name.removeprefix("model.layers.").split(".", 1)
            own, values = converted(part, values, raw)
            tensors.append(floats(f"blk.{layer}.{own}", values))
    head = raw["head_dim"]
    said = {
        "block_count": raw["num_hidden_layers"], "context_length": raw["max_position_embeddings"],
        "embedding_length": raw["hidden_size"],
        "attention.head_count": raw["num_attention_heads"], "attention.head_count_kv": raw["num_key_value_heads"],
        "attention.key_length": head, "attention.value_length": head, "attention.layer_norm_rms_epsilon": raw["rms_norm_eps"],
        "rope.freq_base": raw["rope_parameters"]["rope_theta"], "rope.dimension_count": head // 4,
        "ssm.conv_kernel": raw["linear_conv_kernel_dim"], "ssm.state_size": raw["linear_key_head_dim"],
        "ssm.group_count": raw["linear_num_key_heads"], "ssm.time_step_rank": raw["linear_num_value_heads"],
        "ssm.inner_size": raw["linear_num_value_heads"] * raw["linear_value_head_dim"], "full_attention_interval": 3,
    }  # fmt: skip
    if experts := raw.get("num_experts"):
        said |= {"expert_count": experts, "expert_used_count": raw["num_experts_per_tok"]}
        said |= {"expert_feed_forward_length": raw["moe_intermediate_size"]}
        said |= {"expert_shared_feed_forward_length": raw["shared_expert_intermediate_size"]}
    else:
        said |= {"feed_forward_length": raw["intermediate_size"]}
    arch = "qwen35moe" if experts else "qwen35"
    pairs = {f"{arch}.{key}": one for key, one in (said | more).items()}
    return gguf_bytes({"general.architecture": arch, "general.file_type": 0} | pairs | tokenizer_pairs(), tensors)


@pytest.fixture(scope="module", params=["qwen3_5_text", "qwen3_5_moe_text"])
def both(request, tmp_path_factory):
    folder, _ = family_folder(tmp_path_factory.mktemp("qwen35") / "hf", request.param)
    file = folder.parent / "m.gguf"
    file.write_bytes(qwen35(folder))
    return folder, file


def test_the_model_is_the_same_from_both(both):
    folder, file = both
    with open_source(file) as mine, open_source(folder) as theirs:
        assert mine.config.family == theirs.config.family
        assert sorted(mine.names()) == sorted(theirs.names()) and not check_tensors(mine, describe(mine.config))
        found, wanted = (FloatModel(one, one.config).forward(TOKENS) for one in (mine, theirs))
    assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max()


def test_a_file_runs_as_it_is(both, tmp_path):
    folder, file = both
    with open_source(folder) as source:
        exact = FloatModel(source, source.config).forward(TOKENS)
    with open_bundle(import_model(file, target=tmp_path / "bundle", weights=LayerBits("blocks"))) as opened:
        found = []
        for chunk in (16, 64):
            runner, _ = load_runner(opened, RuntimeConfig(threads=2, context=128, chunk=chunk), 100)
            found.append(runner.forward(runner.open(), TOKENS, wanted=len(TOKENS)))
    assert np.array_equal(*found)
    assert np.linalg.norm(found[0] - exact) < 0.2 * np.linalg.norm(exact)


def test_sizes_that_do_not_fit_are_refused_in_a_line(both, tmp_path):
    (tmp_path / "m.gguf").write_bytes(qwen35(both[0], **{"ssm.inner_size": 65}))
    with pytest.raises(InvalidModel, match=r"ssm.inner_size.*65"):
        open_source(tmp_path / "m.gguf")
