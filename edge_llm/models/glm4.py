"""GLM-4-0414: norms before and behind every part, a rotation of neighbours in half of a head, a fused gate and up."""

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
    """Read a ``model_type: glm4`` config.json."""
    shape = read_shape(raw, kv_heads=2, head_dim=128, context=131072, eps=1.5625e-7)
    rope = read_rope(raw, shape, partial=0.5)

    def norm(name: str, module: str, reads: str, writes: str, adds: str = "") -> Norm:
        return Norm(gain(name, module, shape.hidden), shape.eps, reads, writes, adds)

    layer: tuple[Operation, ...] = (
        norm("attention_norm", "input_layernorm", HIDDEN, "normed"),
        qkv(shape, bias=Fields(raw).flag("attention_bias", True), pairs=rope.dim),
        attention(shape, rope),
        output(shape, writes="mixed"),
        norm("attention_post_norm", "post_self_attn_layernorm", "mixed", HIDDEN, HIDDEN),
        norm("mlp_norm", "post_attention_layernorm", HIDDEN, "normed"),
        *mlp(shape, activation=read_activation(raw, "hidden_act", default="silu"), writes="mixed", fused=True),
        norm("mlp_post_norm", "post_mlp_layernorm", "mixed", HIDDEN, HIDDEN),
    )
    return described(shape, [layer] * shape.layers, last_norm(shape))
