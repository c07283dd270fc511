"""What each family's config.json means, what is refused and why, and weights by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bad_models import CONFIGS, BadConfig
from model_files import FAMILIES as LLAMA_LIKE
from model_files import VOCAB_SIZE, random_tensors, tiny_config, write_model

from edge_llm.config import LlamaConfig, RopeScaling
from edge_llm.errors import InvalidModel
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import describe, families, load_config
from edge_llm.models.weights import (
    check_tensors,
    read_embedding,
    read_final_norm,
    read_layer,
    read_output,
)

PLAIN = LlamaConfig(
    family="llama", vocab_size=VOCAB_SIZE, hidden_size=64, intermediate_size=112, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=16, context=256, norm_eps=1e-5, rope_theta=10000.0,
)  # fmt: skip
LLAMA3 = {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SCALED = RopeScaling(8.0, 1.0, 4.0, 8192)


class Arrays:
    """A `WeightSource` in memory."""

    def __init__(self, tensors: dict[str, np.ndarray]) -> None:
        self.tensors = tensors

    def names(self) -> list[str]:
        return list(self.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.tensors[name].shape

    def read(self, name: str) -> np.ndarray:
        return self.tensors[name]


def test_families_are_the_files() -> None:
    assert families() == [
        "bert", "cohere2", "ernie4_5", "exaone4", "gemma2", "gemma3", "gemma3_text", "glm", "glm4", "glm4_moe", "glm4v",
        "gpt_oss", "granite", "granitemoe", "granitemoehybrid", "hunyuan_v1_dense", "lfm2", "llama", "ministral3",
        "mistral", "mistral3", "mixtral", "modernbert", "nemotron", "nomic_bert", "olmo2", "olmo3", "olmoe", "opt", "phi3",
        "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text",
        "qwen3_5_text", "qwen3_moe", "qwen3_next", "qwen3_vl", "roberta", "smollm3", "stablelm", "starcoder2",
        "xlm_roberta",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("llama", {}, {}),
        ("llama", {"attention_bias": True}, {"qkv_bias": True, "output_bias": True}),
        ("llama", {"mlp_bias": True}, {"mlp_bias": True}),
        ("llama", {"num_key_value_heads": ...}, {"num_kv_heads": 4}),
        ("llama", {"head_dim": None}, {}),
        ("llama", {"head_dim": 8}, {"head_dim": 8}),
        ("llama", {"architectures": ["LLaMAForCausalLM"]}, {}),
        ("llama", {"architectures": None}, {}),
        ("llama", {"quantization_config": None}, {}),
        ("llama", {"rope_scaling": None, "rope_theta": 5e5}, {"rope_theta": 5e5}),
        ("llama", {"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, {"rope_scaling": SCALED}),
        ("llama", {"rope_scaling": {"type": "llama3", **LLAMA3}}, {"rope_scaling": SCALED}),
        ("llama", {"rope_theta": ..., "rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}},
         {"rope_theta": 5e5}),
        ("llama", {"rope_theta": ..., "rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **LLAMA3}},
         {"rope_theta": 5e5, "rope_scaling": SCALED}),
        ("llama", {"rope_theta": ...}, {}),
        ("llama", {"torch_dtype": ..., "dtype": "bfloat16"}, {}),
        ("llama", {"tie_word_embeddings": True}, {"tied_embeddings": True}),
        ("mistral", {}, {}),
        ("mistral", {"sliding_window": 96}, {"context": 96}),
        ("mistral", {"sliding_window": 4096}, {}),
        ("mistral", {"num_key_value_heads": ..., "num_attention_heads": 8}, {"num_kv_heads": 8, "num_heads": 8,
                                                                             "head_dim": 8}),
        ("qwen2", {}, {"qkv_bias": True, "tied_embeddings": True}),
        ("qwen2", {"sliding_window": 32}, {"qkv_bias": True, "tied_embeddings": True}),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True},
         {"qkv_bias": True, "tied_embeddings": True, "context": 32}),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True, "layer_types": ["full_attention"] * 2},
         {"qkv_bias": True, "tied_embeddings": True}),
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 1},
         {"qkv_bias": True, "tied_embeddings": True, "context": 32}),
        *[(family, {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": layers}, more)
          for layers in (2, 28)
          for family, more in (("qwen2", {"qkv_bias": True, "tied_embeddings": True}),
                               ("qwen3", {"qk_norm": True, "head_dim": 24}))],
        ("qwen2", {"sliding_window": 32, "use_sliding_window": True, "max_window_layers": 2,
                   "layer_types": ["full_attention", "sliding_attention"]},
         {"qkv_bias": True, "tied_embeddings": True, "context": 32}),
        ("qwen3", {}, {"qk_norm": True, "head_dim": 24}),
        ("qwen3", {"head_dim": ...}, {"qk_norm": True, "head_dim": 128}),
        ("qwen3", {"attention_bias": True}, {"qk_norm": True, "head_dim": 24, "qkv_bias": True, "output_bias": True}),
    ],
)  # fmt: skip
def test_config(family: str, changes: dict[str, Any], expected: dict[str, Any]) -> None:
    assert load_config(tiny_config(family, **changes)) == replace(PLAIN, family=family, **expected)


@pytest.mark.parametrize("bad", CONFIGS, ids=lambda bad: bad.id)
def test_bad_config(bad: BadConfig) -> None:
    with pytest.raises(bad.error, match=bad.message) as caught:
        load_config(tiny_config(bad.family, **bad.changes))
    assert type(caught.value) is bad.error
    assert str(caught.value).isprintable()


INTEGERS = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "max_position_embeddings", "head_dim")  # fmt: skip


@pytest.mark.parametrize("key", INTEGERS)
@pytest.mark.parametrize("value", [0, -1, 1 << 31, 1 << 63, 1 << 64, 10**400, 1.0, "1", [1], {}, False])
def test_every_integer_is_bounded(key: str, value: Any) -> None:
    with pytest.raises(InvalidModel, match=key) as caught:
        load_config(tiny_config("qwen3", **{key: value}))
    assert len(str(caught.value)) < 300


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_a_config_that_transformers_wrote(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(family, **{k: v for k, v in tiny_config(family).items()
                                                          if k not in ("model_type", "torch_dtype")})  # fmt: skip
    theirs.save_pretrained(tmp_path)
    folder = write_model(tmp_path / "model", tiny_config(family))
    (folder / "config.json").write_text((tmp_path / "config.json").read_text())
    with open_model_folder(folder) as source:
        assert load_config(source.config) == load_config(tiny_config(family))
        assert check_tensors(source, describe(load_config(source.config))) == []


# ---- weights


def test_layer_is_fused_in_row_order(tiny_model: Callable[..., Path]) -> None:
    raw = tiny_config("llama", attention_bias=True, mlp_bias=True)
    tensors = random_tensors(raw)
    with open_model_folder(tiny_model("llama", attention_bias=True, mlp_bias=True)) as source:
        weights = read_layer(source, describe(load_config(raw)).layers[1])

    def of(name: str) -> np.ndarray:
        return tensors[f"model.layers.1.{name}"]

    def rows(*names: str) -> np.ndarray:
        return np.concatenate([of(name) for name in names])

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    expected = {
        "qkv": (rows(*(f"{n}.weight" for n in qkv)), rows(*(f"{n}.bias" for n in qkv))),
        "o": (of("self_attn.o_proj.weight"), of("self_attn.o_proj.bias")),
        "gate_up": (
            rows("mlp.gate_proj.weight", "mlp.up_proj.weight"),
            rows("mlp.gate_proj.bias", "mlp.up_proj.bias"),
        ),
        "down": (of("mlp.down_proj.weight"), of("mlp.down_proj.bias")),
    }
    assert list(weights.linears) == list(expected)
    for name, (weight, bias) in expected.items():
        linear = weights.linears[name]
        assert linear.bias is not None
        np.testing.assert_array_equal(linear.weight, weight, err_msg=name)
        np.testing.assert_array_equal(linear.bias, bias, err_msg=name)
    assert list(weights.gains) == ["attention_norm", "mlp_norm"]
    np.testing.assert_array_equal(weights.gains["attention_norm"], of("input_layernorm.weight"))
    np.testing.assert_array_equal(weights.gains["mlp_norm"], of("post_attention_layernorm.weight"))


def test_ends_of_the_model() -> None:
    for tied in (False, True):
        raw = tiny_config("llama", tie_word_embeddings=tied)
        tensors, decoder = random_tensors(raw), describe(load_config(raw))
        source = Arrays(tensors)
        embedding = tensors["model.embed_tokens.weight"]
        np.testing.assert_array_equal(read_embedding(source, decoder), embedding)
        np.testing.assert_array_equal(read_final_norm(source, decoder), tensors["model.norm.weight"])
        np.testing.assert_array_equal(read_output(source, decoder), embedding if tied else tensors["lm_head.weight"])


def test_c21_each_missing_tensor_is_named() -> None:
    raw = tiny_config("qwen3", attention_bias=True)
    tensors, decoder = random_tensors(raw), describe(load_config(raw))
    for name in tensors:
        fewer = {other: values for other, values in tensors.items() if other != name}
        with pytest.raises(InvalidModel, match=f"lacks the tensor `{name}`"):
            check_tensors(Arrays(fewer), decoder)


def test_c10_c11_c21_each_wrong_shape_is_named() -> None:
    raw = tiny_config("qwen2", tie_word_embeddings=False)
    tensors, decoder = random_tensors(raw), describe(load_config(raw))
    for name, values in tensors.items():
        for wrong in (values[1:], np.concatenate([values, values[:1]]), values[None]):
            with pytest.raises(InvalidModel, match=f"`{name}` has the shape"):
                check_tensors(Arrays(tensors | {name: wrong}), decoder)
    down = "model.layers.0.mlp.down_proj.weight"
    with pytest.raises(InvalidModel, match=f"`{down}` has the shape"):
        check_tensors(Arrays(tensors | {down: tensors[down].T}), decoder)


def test_c21_unused_tensors_are_listed_for_a_warning() -> None:
    raw = tiny_config()
    more = {name: np.ones(3, np.float32) for name in ("vision.weight", "model.layers.2.input_layernorm.weight",
                                                      "model.layers.0.self_attn.rotary_emb.inv_freq")}  # fmt: skip
    unused = check_tensors(Arrays(random_tensors(raw) | more), describe(load_config(raw)))
    assert unused == ["model.layers.2.input_layernorm.weight", "vision.weight"]


def test_c16_tie_must_not_contradict_the_tensors() -> None:
    raw = tiny_config("llama", tie_word_embeddings=True)
    tensors, config = random_tensors(raw), load_config(raw)
    same = tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].copy()}
    assert check_tensors(Arrays(same), describe(config)) == []
    other = tensors | {"lm_head.weight": 2 * tensors["model.embed_tokens.weight"]}
    with pytest.raises(InvalidModel, match="tie_word_embeddings"):
        check_tensors(Arrays(other), describe(config))
    with pytest.raises(InvalidModel, match=r"lm_head.weight.*tie_word_embeddings"):
        check_tensors(Arrays(tensors), describe(replace(config, tied_embeddings=False)))


def test_reading_a_layer_takes_little_more_than_the_layer(tmp_path: Path) -> None:
    import tracemalloc

    raw = tiny_config("llama", hidden_size=256, intermediate_size=1024, num_hidden_layers=6)
    with open_model_folder(write_model(tmp_path, raw, dtype="BF16")) as source:
        layer = describe(load_config(source.config)).layers[3]
        tracemalloc.start()
        weights = read_layer(source, layer)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    matrices = [linear.weight for linear in weights.linears.values()]
    size = sum(values.nbytes for values in (*matrices, *weights.gains.values()))
    assert peak < 1.6 * size
