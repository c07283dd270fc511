"""Qwen3.5 and 3.6, the text model: three of four layers are gated delta rules, the others attention with an output gate."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import mlp, read_activation, read_shape
from edge_llm.models.gated_delta_layers import gated_delta_config


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: qwen3_5_text`` config.json."""
    shape = read_shape(raw, kv_heads=4, head_dim=256, context=32768)
    inner = mlp(shape, activation=read_activation(raw, "hidden_act", default="silu"))
    return gated_delta_config(raw, shape, [inner] * shape.layers)
