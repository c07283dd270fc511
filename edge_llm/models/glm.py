"""GLM-4 9B of 2024: Llama whose rotation turns neighbours in half of a head, with a fused gate and up."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import (
    attention,
    described,
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


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: glm`` config.json."""
    shape = read_shape(raw, kv_heads=2, head_dim=128, context=131072, eps=1.5625e-7)
    rope = read_rope(raw, shape, partial=0.5)
    bias = Fields(raw).flag("attention_bias", True)
    attended = (qkv(shape, bias=bias, pairs=rope.dim), attention(shape, rope), output(shape))
    activation = read_activation(raw, "hidden_act", default="silu")
    layer = pre_norm_layer(shape, attended, mlp(shape, activation=activation, fused=True))
    return described(shape, [layer] * shape.layers, last_norm(shape))
