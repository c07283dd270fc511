"""Qwen3.5-MoE and 3.6-MoE, the text model: the layers of `qwen3_5_text` with a mixture beside a shared expert with a gate."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import read_activation, read_shape
from edge_llm.models.fields import Fields
from edge_llm.models.gated_delta_layers import gated_delta_config
from edge_llm.models.mixtures import experts, fused_experts, read_count, read_used, router, shared_experts


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: qwen3_5_moe_text`` config.json."""
    fields, count = Fields(raw), read_count({"num_experts": 256} | raw)
    width = fields.integer("moe_intermediate_size", 1, 1 << 20, 512)
    shape = read_shape({"intermediate_size": width} | raw, kv_heads=2, head_dim=256, context=32768)
    activation = read_activation(raw, "hidden_act", default="silu")
    route = router(shape, count, read_used({"num_experts_per_tok": 8} | raw, count), normalised=True)
    if fields.flag("experts_fused", False):
        mixture = fused_experts(
            shape, width, route, activation=activation, gate_up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj"
        )
    else:
        mixture = experts(shape, width, route, activation=activation)
    beside = fields.integer("shared_expert_intermediate_size", 1, 1 << 20, 512)
    shared = shared_experts(shape, beside, activation=activation, module="mlp.shared_expert", gate="mlp.shared_expert_gate")
    return gated_delta_config(raw, shape, [(mixture, *shared)] * shape.layers)
