"""Qwen3-MoE (arXiv 2505.09388): Qwen3's attention, and a mixture of many small experts in every layer, or in most."""

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
    pre_norm_layer,
    qkv,
    read_activation,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import Fields
from edge_llm.models.llama_like import sliding_window
from edge_llm.models.mixtures import experts, read_count, read_dense_layers, read_used, router
from edge_llm.operations.scores import Scores


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: qwen3_moe`` config.json."""
    shape, fields = read_shape(raw, kv_heads=4, context=32768), Fields(raw)
    bias, activation = fields.flag("attention_bias", False), read_activation(raw, "hidden_act", default="silu")
    window = sliding_window(raw) if fields.flag("use_sliding_window", False) else None
    norms = {f"{which}_norm": gain(f"{which}_norm", f"self_attn.{which}_norm", shape.head_dim) for which in "qk"}
    attends = attention(shape, read_rope(raw, shape), scores=Scores(window=window or 0), **norms)
    attended = (qkv(shape, bias=bias), attends, output(shape, bias=bias))
    count, width = read_count(raw), fields.integer("moe_intermediate_size", 1, 1 << 20, 768)
    route = router(shape, count, read_used(raw, count), normalised=fields.flag("norm_topk_prob", False))
    sparse = pre_norm_layer(shape, attended, (experts(shape, width, route, activation=activation),))
    dense = pre_norm_layer(shape, attended, mlp(shape, activation=activation))
    without = read_dense_layers(raw, shape.layers)
    return described(shape, [dense if index in without else sparse for index in range(shape.layers)], last_norm(shape))
