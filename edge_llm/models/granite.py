"""Granite 3: Llama with numbers that multiply embeddings, what is added to the residual stream, scores and logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import (
    Shape,
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
from edge_llm.operations.norm import Norm
from edge_llm.operations.scores import Scores


@dataclass(frozen=True)
class Numbers:
    """What Granites multiply with."""

    embedding: float
    residual: float
    attention: float
    logits: float
    """What logits are divided by."""

    def norm(self, shape: Shape) -> Norm:
        """The norm behind all layers, with the number of the logits in it."""
        return last_norm(shape, factor=1 / (self.logits * self.embedding) if shape.tied else 1 / self.logits)


def read_numbers(raw: dict[str, Any]) -> Numbers:
    """The four numbers in a config.json."""
    keys = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
    return Numbers(*(Fields(raw).number(key, 1e-9, 1e9, 1.0) for key in keys))


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: granite`` config.json."""
    fields, numbers = Fields(raw), read_numbers(raw)
    shape = read_shape(raw, context=2048)
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    activation = read_activation(raw, "hidden_act", default="silu")
    attended = (
        qkv(shape, bias=bias),
        attention(shape, read_rope(raw, shape), scores=Scores(numbers.attention)),
        output(shape, bias=bias, factor=numbers.residual),
    )
    layer = pre_norm_layer(shape, attended, mlp(shape, activation=activation, bias=mlp_bias, factor=numbers.residual))
    return described(shape, [layer] * shape.layers, numbers.norm(shape), factor=numbers.embedding)
