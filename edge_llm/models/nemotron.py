"""Nemotron-4 and Minitron (arXiv 2402.16819): layer norms, a rotation of half of a head, squared ReLU without a gate."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import (
    attention,
    centred_norm,
    described,
    output,
    plain_mlp,
    qkv,
    read_activation,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import Fields


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: nemotron`` config.json."""
    fields = Fields(raw)
    shape = read_shape(raw, context=4096, eps=1e-5, eps_key="norm_eps")
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    layer = (
        centred_norm(shape, "attention_norm", "input_layernorm", plus=1.0),
        qkv(shape, bias=bias),
        attention(shape, read_rope(raw, shape, partial=0.5)),
        output(shape, bias=bias),
        centred_norm(shape, "mlp_norm", "post_attention_layernorm", plus=1.0),
        *plain_mlp(shape, read_activation(raw, "hidden_act", default="relu2"), bias=mlp_bias),
    )
    return described(shape, [layer] * shape.layers, centred_norm(shape, "final_norm", "model.norm", plus=1.0))
