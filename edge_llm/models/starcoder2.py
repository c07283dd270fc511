"""StarCoder2 (arXiv 2402.19173): layer norms, biases everywhere, an MLP without a gate."""

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
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.operations.scores import Scores


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: starcoder2`` config.json."""
    fields = Fields(raw)
    shape = read_shape(raw, kv_heads=2, context=4096, eps=1e-5, eps_key="norm_epsilon", tied=True)
    bias = fields.flag("use_bias", True)
    window = fields.integer("sliding_window", 1, MAX_CONTEXT) if raw.get("sliding_window") is not None else 0
    activation = read_activation(raw, "hidden_act", default="gelu_pytorch_tanh")
    layer = (
        centred_norm(shape, "attention_norm", "input_layernorm"),
        qkv(shape, bias=bias),
        attention(shape, read_rope(raw, shape), scores=Scores(window=window)),
        output(shape, bias=bias),
        centred_norm(shape, "mlp_norm", "post_attention_layernorm"),
        *plain_mlp(shape, activation, up="mlp.c_fc", down="mlp.c_proj", bias=bias),
    )
    return described(shape, [layer] * shape.layers, centred_norm(shape, "final_norm", "model.norm"))
