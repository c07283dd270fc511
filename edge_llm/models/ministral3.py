"""Ministral 3: Llama with YaRN, whose queries grow with their position."""

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
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.operations.attention import QueryGrowth
from edge_llm.operations.scores import Scores

_ROPE = {
    "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384, "mscale": 1.0,
    "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
}  # fmt: skip
"""What a config.json without a word of it means."""


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: ministral3`` config.json."""
    if all(raw.get(key) is None for key in ("rope_parameters", "rope_scaling")):
        raw = raw | {"rope_parameters": _ROPE}
    fields = Fields(raw)
    shape = read_shape(raw, kv_heads=8, head_dim=128, context=262144, eps=1e-5)
    window = fields.integer("sliding_window", 1, MAX_CONTEXT) if raw.get("sliding_window") is not None else 0
    attended = (
        qkv(shape),
        attention(shape, read_rope(raw, shape), scores=Scores(window=window), growth=_growth(raw)),
        output(shape),
    )
    layer = pre_norm_layer(shape, attended, mlp(shape, activation=read_activation(raw, "hidden_act", default="silu")))
    return described(shape, [layer] * shape.layers, last_norm(shape))


def _growth(raw: dict[str, Any]) -> QueryGrowth | None:
    section = Fields(Fields(raw).section("rope_parameters") or Fields(raw).section("rope_scaling"))
    if section.raw.get("llama_4_scaling_beta") is None:
        return None
    beta = section.number("llama_4_scaling_beta", 0.0, 1e3)
    return QueryGrowth(beta, section.integer("original_max_position_embeddings", 1, MAX_CONTEXT, 16384)) if beta else None
