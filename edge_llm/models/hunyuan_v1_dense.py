"""HunYuan dense: Llama with heads that are normed behind the rotation."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import (
    attention,
    described,
    gain,
    last_norm,
    mlp,
    output,
    pre_norm_layer,
    qkv,
    read_activation,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import Fields

ARCHITECTURE = "HunYuanDenseV1ForCausalLM"


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: hunyuan_v1_dense`` config.json."""
    shape = read_shape(raw, context=2048, eps=1e-5)
    bias = Fields(raw).flag("attention_bias", False)
    norms = {
        "q_norm": gain("q_norm", "self_attn.query_layernorm", shape.head_dim),
        "k_norm": gain("k_norm", "self_attn.key_layernorm", shape.head_dim),
    }
    attended = (
        qkv(shape, bias=bias),
        attention(shape, read_rope(raw, shape), norm_last=True, **norms),
        output(shape, bias=bias),
    )
    layer = pre_norm_layer(shape, attended, mlp(shape, activation=read_activation(raw, "hidden_act", default="silu")))
    return described(shape, [layer] * shape.layers, last_norm(shape))
