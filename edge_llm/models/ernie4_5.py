"""ERNIE 4.5 dense: Llama whose rotation pairs are neighbours."""

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
    """Read a ``model_type: ernie4_5`` config.json."""
    shape = read_shape(raw, kv_heads=2, head_dim=128, context=131072, eps=1e-5, tied=True)
    bias, rope = Fields(raw).flag("use_bias", False), read_rope(raw, shape, theta=5e5)
    attended = (
        qkv(shape, bias=bias, pairs=rope.dim),
        attention(shape, rope),
        output(shape, bias=bias),
    )
    activation = read_activation(raw, "hidden_act", default="silu")
    layer = pre_norm_layer(shape, attended, mlp(shape, activation=activation, bias=bias))
    return described(shape, [layer] * shape.layers, last_norm(shape))
