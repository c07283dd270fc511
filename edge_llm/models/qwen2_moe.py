"""Qwen1.5-MoE and Qwen2-MoE (arXiv 2407.10671): Qwen2's attention, and a mixture beside a shared expert with a gate."""

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
from edge_llm.models.llama_like import sliding_window
from edge_llm.models.mixtures import experts, read_count, read_dense_layers, read_used, router, shared_experts
from edge_llm.operations.scores import Scores


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: qwen2_moe`` config.json."""
    shape, fields = read_shape(raw, kv_heads=16, context=32768), Fields(raw)
    activation, count = read_activation(raw, "hidden_act", default="silu"), read_count(raw)
    window = sliding_window(raw) if fields.flag("use_sliding_window", False) else None
    attends = attention(shape, read_rope(raw, shape), scores=Scores(window=window or 0))
    attended = (qkv(shape, bias=fields.flag("qkv_bias", True)), attends, output(shape))
    route = router(shape, count, read_used(raw, count), normalised=fields.flag("norm_topk_prob", False))
    mixture = experts(shape, fields.integer("moe_intermediate_size", 1, 1 << 20, 1408), route, activation=activation)
    width = fields.integer("shared_expert_intermediate_size", 1, 1 << 20, 5632)
    shared = shared_experts(shape, width, activation=activation, module="mlp.shared_expert", gate="mlp.shared_expert_gate")
    sparse, dense = (pre_norm_layer(shape, attended, one) for one in ((mixture, *shared), mlp(shape, activation=activation)))
    without = read_dense_layers(raw, shape.layers)
    return described(shape, [dense if index in without else sparse for index in range(shape.layers)], last_norm(shape))
