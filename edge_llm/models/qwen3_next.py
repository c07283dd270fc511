"""Qwen3-Next: Qwen3.5's layers with a mixture in every layer, or in most; what its gated delta rules read is by key heads."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import mlp, read_activation, read_shape
from edge_llm.models.fields import Fields
from edge_llm.models.gated_delta_layers import gated_delta_config
from edge_llm.models.mixtures import experts, read_count, read_dense_layers, read_used, router, shared_experts


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: qwen3_next`` config.json."""
    shape, fields = read_shape(raw, kv_heads=2, head_dim=256, context=32768), Fields(raw)
    activation, count = read_activation(raw, "hidden_act", default="silu"), read_count({"num_experts": 512} | raw)
    used = read_used({"num_experts_per_tok": 10} | raw, count)
    route = router(shape, count, used, normalised=fields.flag("norm_topk_prob", True))
    mixture = experts(shape, fields.integer("moe_intermediate_size", 1, 1 << 20, 512), route, activation=activation)
    width = fields.integer("shared_expert_intermediate_size", 1, 1 << 20, 512)
    shared = shared_experts(shape, width, activation=activation, module="mlp.shared_expert", gate="mlp.shared_expert_gate")
    dense, sparse, without = mlp(shape, activation=activation), (mixture, *shared), read_dense_layers(raw, shape.layers)
    inner = [dense if index in without else sparse for index in range(shape.layers)]
    return gated_delta_config(raw, shape, inner, by_key_head=True)
