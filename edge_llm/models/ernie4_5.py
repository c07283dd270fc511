"""ERNIE 4.5 dense: Llama whose rotation pairs are neighbours."""

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
    qkv,
    read_activation,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import Fields
from edge_llm.operations.base import HIDDEN, Operation
from edge_llm.operations.norm import Norm


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: ernie4_5`` config.json."""
    shape = read_shape(raw, kv_heads=2, head_dim=128, context=131072, eps=1e-5, tied=True)
    bias, rope = Fields(raw).flag("use_bias", False), read_rope(raw, shape, theta=5e5)
    layer: tuple[Operation, ...] = (
        Norm(gain("attention_norm", "input_layernorm", shape.hidden), shape.eps, HIDDEN, "normed"),
        qkv(shape, bias=bias, pairs=rope.dim),
        attention(shape, rope),
        output(shape, bias=bias),
        Norm(gain("mlp_norm", "post_attention_layernorm", shape.hidden), shape.eps, HIDDEN, "normed"),
        *mlp(shape, activation=read_activation(raw, "hidden_act", default="silu"), bias=bias),
    )
    return described(shape, [layer] * shape.layers, last_norm(shape))
