"""Command R7B (Cohere 2): attention and MLP beside each other behind one layer norm; no rotation where there is no window."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import (
    SLIDING,
    attention,
    described,
    every,
    gain,
    last_norm,
    mlp,
    output,
    qkv,
    read_activation,
    read_layer_types,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.operations.attention import Rope
from edge_llm.operations.base import HIDDEN, Operation
from edge_llm.operations.norm import Norm
from edge_llm.operations.scores import Scores


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: cohere2`` config.json."""
    fields = Fields(raw)
    shape = read_shape(raw, context=8192, eps=1e-5, eps_key="layer_norm_eps", tied=True)
    bias, window = fields.flag("attention_bias", False), fields.integer("sliding_window", 1, MAX_CONTEXT, 4096)
    rope = read_rope(raw, shape)
    kinds = read_layer_types(raw, shape.layers, every(fields.integer("sliding_window_pattern", 1, 1024, 4), shape.layers))
    activation = read_activation(raw, "hidden_act", default="silu")

    def layer(local: bool) -> tuple[Operation, ...]:
        turns, scores = (rope, Scores(window=window)) if local else (Rope(0, rope.theta), Scores())
        return (
            Norm(gain("norm", "input_layernorm", shape.hidden), shape.eps, HIDDEN, "normed", centred=True),
            qkv(shape, bias=bias, pairs=rope.dim if local else 0),
            *mlp(shape, activation=activation)[:2],
            attention(shape, turns, scores=scores),
            output(shape, bias=bias),
            *mlp(shape, activation=activation)[2:],
        )

    norm = last_norm(shape, factor=fields.number("logit_scale", 1e-9, 1e9, 0.0625), centred=True)
    return described(shape, [layer(kind == SLIDING) for kind in kinds], norm)
