"""GGUF files of the tiny models of `families`, by the rules of llama.cpp's converter."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from families import FAMILIES
from gguf_files import Tensor, floats, gguf_bytes, in_pairs, tokenizer_pairs
from safetensors.numpy import load_file

from edge_llm.models.mixtures import COUNT_KEYS

_NOT = ("glm", "nemotron", "opt", "starcoder2", "stablelm")
IN_GGUF = [name for name in FAMILIES if name.partition(",")[0] not in _NOT and name != "llama, relu"]
IN_GGUF += ("olmoe", "mixtral", "qwen3_moe", "qwen2_moe", "glm4_moe")
"""Those models of `FAMILIES` and `MIXTURES` whose GGUF files are read."""
GEMMA = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
BEHIND = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
OWN = {
    "gemma2": GEMMA,
    "gemma3": GEMMA,
    "olmo2": BEHIND,
    "exaone4": BEHIND,
    "phi3": {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"},
    "glm4": {
        "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm", "mlp.gate_up_proj": "ffn_up",
    },
    "llama": {"block_sparse_moe.gate": "ffn_gate_inp"},
    "granitemoe": {"block_sparse_moe.router.layer": "ffn_gate_inp"},
    "gpt-oss": {"post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"},
    "qwen2moe": {f"mlp.shared_expert.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    "glm4moe": {
        "post_attention_layernorm": "post_attention_norm",
        **{f"mlp.shared_experts.{name}_proj": f"ffn_{name}_shexp" for name in ("gate", "up", "down")},
    },
    "hunyuan-dense": {"self_attn.query_layernorm": "attn_q_norm", "self_attn.key_layernorm": "attn_k_norm"},
}  # fmt: skip
"""Names of parts of a layer, by architecture."""
LAYER = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
}  # fmt: skip
WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
IN_PAIRS = ("llama", "granite", "granitemoe", "smollm3", "mistral3")
"""Whose converters are or come from Llama's."""
ARCHITECTURE = {
    "gemma3_text": "gemma3", "mixtral": "llama", "qwen3_moe": "qwen3moe", "qwen2_moe": "qwen2moe",
    "glm4_moe": "glm4moe", "gpt_oss": "gpt-oss",
    "olmo3": "olmo2", "hunyuan_v1_dense": "hunyuan-dense", "ministral3": "mistral3",
}  # fmt: skip
"""By model type, where they differ."""


def family_pairs(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says of the model whose config.json, as transformers 5 writes it, is ``raw``."""
    kind = raw["model_type"]
    arch = ARCHITECTURE.get(kind, kind)
    head = raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"]
    ropes = raw["rope_parameters"]
    rope, local = ropes.get("full_attention", ropes), ropes.get("sliding_attention", {})
    said: dict[str, Any] = {
        "block_count": raw["num_hidden_layers"], "context_length": raw["max_position_embeddings"],
        "embedding_length": raw["hidden_size"], "feed_forward_length": raw["intermediate_size"],
        "attention.head_count": raw["num_attention_heads"], "attention.head_count_kv": raw["num_key_value_heads"],
        "rope.freq_base": rope["rope_theta"],
    }  # fmt: skip
    eps = "layer_norm_eps" if kind == "cohere2" else "rms_norm_eps"
    said["attention.layer_norm_epsilon" if kind == "cohere2" else "attention.layer_norm_rms_epsilon"] = raw[eps]
    if raw.get("head_dim"):
        said |= {"attention.key_length": head, "attention.value_length": head}
    if local:
        said["rope.freq_base_swa"] = local["rope_theta"]
    if rope["rope_type"] == "linear":
        said |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        original = rope["original_max_position_embeddings"]
        said |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"]}
        said |= {"rope.scaling.original_context_length": original}
        said |= {f"rope.scaling.yarn_{key}": rope[key] for key in ("beta_fast", "beta_slow") if key in rope}
        if "attention_factor" in rope:
            said["rope.scaling.yarn_attn_factor"] = rope["attention_factor"]
    if raw.get("num_experts_per_tok"):
        said |= {"expert_used_count": raw["num_experts_per_tok"]}
        said |= {"expert_count": next(raw[key] for key in COUNT_KEYS if raw.get(key))}
        said |= {"expert_feed_forward_length": raw["moe_intermediate_size"]} if "moe_intermediate_size" in raw else {}
    said |= _own_pairs(kind, raw, rope, head)
    return {"general.architecture": arch, "general.file_type": 0} | {f"{arch}.{key}": value for key, value in said.items()}


def _own_pairs(kind: str, raw: Mapping[str, Any], rope: Mapping[str, Any], head: int) -> dict[str, Any]:
    """What a family's own converter adds."""
    window = {} if raw.get("sliding_window") is None else {"attention.sliding_window": raw["sliding_window"]}
    flags = {"attention.sliding_window_pattern": [one == "sliding_attention" for one in raw.get("layer_types") or []]}
    if kind == "gemma2":
        caps = {key: raw[key] for key in ("attn_logit_softcapping", "final_logit_softcapping")}
        return window | caps
    if kind == "gemma3_text":
        return window
    if kind in ("olmo3", "exaone4"):
        return window | flags if window else {}
    if kind == "phi3":
        original = {"rope.scaling.original_context_length": raw["original_max_position_embeddings"]}
        scales = {"rope.scaling.attn_factor": _longropes(raw, rope)} if "long_factor" in rope else {}
        turned = {"rope.dimension_count": int(rope["partial_rotary_factor"] * head)}
        return {"attention.sliding_window": 0} | window | original | turned | scales
    if kind == "qwen2_moe":
        return {"expert_shared_feed_forward_length": raw["shared_expert_intermediate_size"]}
    if kind == "glm4_moe":
        return {
            "expert_shared_count": raw["n_shared_experts"], "leading_dense_block_count": raw["first_k_dense_replace"],
            "expert_weights_scale": raw["routed_scaling_factor"], "expert_weights_norm": raw["norm_topk_prob"],
            "expert_gating_func": 2, "expert_group_count": raw["n_group"], "expert_group_used_count": raw["topk_group"],
            "rope.dimension_count": int(head * rope["partial_rotary_factor"]),
        }  # fmt: skip
    if kind == "gpt_oss":
        return window
    if kind in ("granite", "granitemoe"):
        return {
            "attention.scale": raw["attention_multiplier"], "embedding_scale": raw["embedding_multiplier"],
            "residual_scale": raw["residual_multiplier"], "logit_scale": raw["logits_scaling"], "rope.dimension_count": head,
        }  # fmt: skip
    if kind == "glm4":
        return {"rope.dimension_count": int(head * rope["partial_rotary_factor"])}
    if kind == "hunyuan_v1_dense" and rope["rope_type"] == "dynamic":
        base = rope["rope_theta"] * rope["alpha"] ** (head / (head - 2))
        return {"rope.freq_base": base, "rope.scaling.type": "none", "rope.scaling.factor": 1.0, "context_length": 256 * 1024}
    if kind == "cohere2":
        return window | {"logit_scale": raw["logit_scale"], "rope.dimension_count": head, "rope.scaling.type": "none"}
    if kind == "ministral3":
        growth = {"attention.temperature_scale": rope["llama_4_scaling_beta"]}
        return growth | {"rope.scaling.yarn_log_multiplier": rope["mscale_all_dim"], "rope.dimension_count": head}
    return {"rope.dimension_count": head} if kind == "smollm3" else {}


def _longropes(raw: Mapping[str, Any], rope: Mapping[str, Any]) -> float:
    original = rope["original_max_position_embeddings"]
    stretch = raw["max_position_embeddings"] / original
    return math.sqrt(1 + math.log(stretch) / math.log(original))


_EXPERT = re.compile(r"model\.layers\.(\d+)\.\w+\.experts\.(\d+)\.(\w+)\.weight")
_STACKS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
_OF_LAYERS = re.compile(r"model\.layers\.(\d+)\.(.+)")


def stacked(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """``tensors`` with what belongs to experts under its names in the file: the matrices of all experts of a layer in one."""
    found, stacks = {}, dict[str, dict[int, np.ndarray]]()
    for name, values in tensors.items():
        if part := _EXPERT.fullmatch(name):
            stacks.setdefault(f"blk.{part[1]}.ffn_{_STACKS[part[3]]}_exps.weight", {})[int(part[2])] = values
        elif part := _OF_LAYERS.fullmatch(name):
            found |= {f"blk.{part[1]}.{one}": made for one, made in _of_mixture(part[2], values).items()} or {name: values}
        else:
            found[name] = values
    return found | {name: np.stack([own[expert] for expert in range(len(own))]) for name, own in stacks.items()}


def _of_mixture(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """What a file makes of the tensor ``name`` of a layer, where that is not what it makes of any other."""
    half = values.shape[1] // 2 if values.ndim > 1 else 0
    match name:
        case "self_attn.sinks":
            return {"attn_sinks.weight": values}
        case "mlp.gate.e_score_correction_bias":
            return {"exp_probs_b.bias": values}
        case "mlp.shared_expert_gate.weight":
            return {"ffn_gate_inp_shexp.weight": values[0]}
        case "block_sparse_moe.input_linear.weight":
            return {"ffn_gate_exps.weight": values[:, :half], "ffn_up_exps.weight": values[:, half:]}
        case "block_sparse_moe.output_linear.weight":
            return {"ffn_down_exps.weight": values}
        case "mlp.experts.gate_up_proj":
            gate, up = values[..., ::2], values[..., 1::2]
            return {"ffn_gate_exps.weight": gate.swapaxes(1, 2), "ffn_up_exps.weight": up.swapaxes(1, 2)}
        case "mlp.experts.gate_up_proj_bias":
            return {"ffn_gate_exps.bias": values[:, ::2], "ffn_up_exps.bias": values[:, 1::2]}
        case "mlp.experts.down_proj":
            return {"ffn_down_exps.weight": values.swapaxes(1, 2)}
        case "mlp.experts.down_proj_bias":
            return {"ffn_down_exps.bias": values}
    return {}


def family_tensors(raw: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> list[Tensor]:
    arch = ARCHITECTURE.get(raw["model_type"], raw["model_type"])
    found = []
    for name, values in stacked(tensors).items():
        stem, _, suffix = name.rpartition(".")
        if stem in WHOLE:
            own = WHOLE[stem]
        elif stem.startswith("blk."):
            own = stem
        else:
            layer, part = stem.removeprefix("model.layers.").split(".", 1)
            own = f"blk.{layer}.{(LAYER | OWN.get(arch, {}))[part]}"
        heads = {"q_proj": raw["num_attention_heads"], "k_proj": raw["num_key_value_heads"]}.get(stem.split(".")[-1])
        if heads and arch in IN_PAIRS:
            values = in_pairs(values, heads)
        if arch in ("gemma2", "gemma3") and name.endswith("norm.weight"):
            values = values + np.float32(1)
        found.append(floats(f"{own}.{suffix}", values))
    rope = raw["rope_parameters"]
    lengths = [length for length in ("long", "short") if f"{length}_factor" in rope]
    return found + [floats(f"rope_factors_{length}.weight", np.array(rope[f"{length}_factor"])) for length in lengths]


def family_gguf(folder: Path, **more: Any) -> bytes:
    """The GGUF file of the Hugging Face model in ``folder``; ``more`` pairs have ``__`` for dots."""
    raw = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    pairs = family_pairs(raw) | tokenizer_pairs() | {key.replace("__", "."): value for key, value in more.items()}
    return gguf_bytes(pairs, family_tensors(raw, tensors))
