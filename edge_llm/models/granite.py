"""Granite 3: Llama with numbers that multiply embeddings, what is added to the residual stream, scores and logits."""

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
from edge_llm.operations.scores import Scores


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: granite`` config.json."""
    fields = Fields(raw)
    shape = read_shape(raw, context=2048)
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    embedding, residual, scale, logits = (
        fields.number(key, 1e-9, 1e9, 1.0)
        for key in ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    )
    activation = read_activation(raw, "hidden_act", default="silu")
    attended = (
        qkv(shape, bias=bias),
        attention(shape, read_rope(raw, shape), scores=Scores(scale)),
        output(shape, bias=bias, factor=residual),
    )
    layer = pre_norm_layer(shape, attended, mlp(shape, activation=activation, bias=mlp_bias, factor=residual))
    norm = last_norm(shape, factor=1 / (logits * embedding) if shape.tied else 1 / logits)
    return described(shape, [layer] * shape.layers, norm, factor=embedding)
