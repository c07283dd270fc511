"""llama.cpp's names for the tensors of a decoder, those of Hugging Face, and what its converter changes in them."""

from __future__ import annotations

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
"""Parts of a layer, which both number."""
WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BERT = {
    "token_embd": "embeddings.word_embeddings", "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings", "token_embd_norm": "embeddings.LayerNorm",
}  # fmt: skip
_WHOLE_OF = {"bert": _BERT, "nomic-bert": _BERT | {"token_embd_norm": "emb_ln"}}
_LAYERS = {"bert": "encoder.layer.{}.", "nomic-bert": "encoder.layers.{}."}
"""By architecture, where tensors of the whole model and of its layers are called differently."""
FREQUENCIES = "rope_freqs.weight"
"""Divisors of the frequencies of a scaled rotary embedding."""
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
"""LongRoPE's divisors, for long texts and for short ones."""
FUSED = "attn_qkv"
"""Rows of queries, of keys, then of values, in one tensor."""
PARTS_OF_FUSED = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
EXPERTS = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
}
"""Stacks of the matrices of all experts of a layer, with braces for an expert's number."""

_NORMS_BEHIND = {"post_attention_norm": "post_attention_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
_GEMMA = {"ffn_norm": "pre_feedforward_layernorm"} | _NORMS_BEHIND
_MIXTRAL = "block_sparse_moe"
_DELTA = "linear_attn"
_QWEN35 = {
    "post_attention_norm": "post_attention_layernorm", FUSED: f"{_DELTA}.in_proj_qkv", "attn_gate": f"{_DELTA}.in_proj_z",
    "ssm_beta": f"{_DELTA}.in_proj_b", "ssm_alpha": f"{_DELTA}.in_proj_a", "ssm_conv1d": f"{_DELTA}.conv1d",
    "ssm_dt": f"{_DELTA}.dt_bias", "ssm_a": f"{_DELTA}.A_log", "ssm_norm": f"{_DELTA}.norm", "ssm_out": f"{_DELTA}.out_proj",
}  # fmt: skip
_SHARED = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"ffn_{name}_shexp": f"mlp.shared_expert.{name}_proj" for name in ("gate", "up", "down")},
}
_OTHERS = {
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35 | _SHARED,
    "gpt-oss": {
        "post_attention_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.router", "attn_sinks": "self_attn.sinks",
    },
    "granitemoe": {"ffn_gate_inp": f"{_MIXTRAL}.router.layer"},
    "qwen2moe": _SHARED,
    "glm4moe": {
        "post_attention_norm": "post_attention_layernorm", "exp_probs_b": "mlp.gate.e_score_correction_bias",
        **{f"ffn_{name}_shexp": f"mlp.shared_experts.{name}_proj" for name in ("gate", "up", "down")},
    },
    "llama": {
        "ffn_gate_inp": f"{_MIXTRAL}.gate",
        "ffn_gate_exps": f"{_MIXTRAL}.experts.{{}}.w1",
        "ffn_up_exps": f"{_MIXTRAL}.experts.{{}}.w3",
        "ffn_down_exps": f"{_MIXTRAL}.experts.{{}}.w2",
    },
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "gemma-embedding": _GEMMA,
    "bert": {
        "attn_q": "attention.self.query", "attn_k": "attention.self.key", "attn_v": "attention.self.value",
        "attn_output": "attention.output.dense", "attn_output_norm": "attention.output.LayerNorm",
        "ffn_up": "intermediate.dense", "ffn_down": "output.dense", "layer_output_norm": "output.LayerNorm",
    },
    "nomic-bert": {
        FUSED: "attn.Wqkv", "attn_output": "attn.out_proj", "attn_output_norm": "norm1", "ffn_up": "mlp.fc11",
        "ffn_gate": "mlp.fc12", "ffn_down": "mlp.fc2", "layer_output_norm": "norm2",
    },
    "phi3": {FUSED: "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"},
    "olmo2": _NORMS_BEHIND,
    "exaone4": _NORMS_BEHIND,
    "glm4": {
        "post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm",
        "ffn_up": "mlp.gate_up_proj",
    },
    "hunyuan-dense": {"attn_q_norm": "self_attn.query_layernorm", "attn_k_norm": "self_attn.key_layernorm"},
}  # fmt: skip
"""By architecture: parts of a layer that are called differently, or are one tensor in both."""
ROWS = ("shared_expert_gate", "token_type_embeddings")
"""Ends of the names of modules whose matrix of one row is a vector in files, or may be one."""
BARE = ("self_attn.sinks", "mlp.gate.e_score_correction_bias", f"{_DELTA}.dt_bias", f"{_DELTA}.A_log")
"""Hugging Face's names that are whole, without weight or bias behind them."""
TURNED_IN_PAIRS = frozenset(("llama", "granite", "granitemoe", "mistral3", "smollm3"))
"""Architectures whose rows of queries and keys are reordered, from halves of a head to neighbouring pairs."""
NORMS_PLUS_ONE = frozenset(("gemma", "gemma2", "gemma3", "gemma-embedding", "qwen35", "qwen35moe"))
"""Architectures whose norms are stored as 1 + w."""
PLAIN_NORM = f"{_DELTA}.norm.weight"
"""The end of the name of a norm that is not, in any of them."""
FADE = f"{_DELTA}.A_log"
"""The end of the name of a vector x that files have as -exp(x)."""
TAPS = f"{_DELTA}.conv1d.weight"
"""The end of the name of a matrix [channels, taps] that has an axis more, of one, between them."""


def whole_names(architecture: str) -> dict[str, str]:
    """Hugging Face's names of tensors of the whole model by llama.cpp's."""
    return _WHOLE_OF.get(architecture, WHOLE)


def layer_prefix(architecture: str, layer: str) -> str:
    """What Hugging Face's names of the tensors of the ``layer`` of that number begin with."""
    return _LAYERS.get(architecture, "model.layers.{}.").format(layer)


def layer_names(architecture: str) -> dict[str, str]:
    """Hugging Face's names of the parts of a layer by llama.cpp's."""
    return LAYER | EXPERTS | _OTHERS.get(architecture, {})
