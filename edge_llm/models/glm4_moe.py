"""GLM-4.5, 4.6 and 4.7: a mixture whose router is a sigmoid, with shared experts beside it, behind a few dense layers."""

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
from edge_llm.models.mixtures import experts, read_count, read_used, router, shared_experts
from edge_llm.operations.base import Gain
from edge_llm.operations.router import SIGMOID


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: glm4_moe`` config.json."""
    shape, fields = read_shape(raw, kv_heads=8, head_dim=128, context=131072, eps=1e-5), Fields(raw)
    activation, count = read_activation(raw, "hidden_act", default="silu"), read_count(raw)
    groups = fields.integer("n_group", 1, count, 1)
    route = router(
        shape, count, read_used(raw, count), scores=SIGMOID, normalised=fields.flag("norm_topk_prob", True), least_sum=1e-20,
        factor=fields.number("routed_scaling_factor", 1e-9, 1e9, 1.0), groups=groups,
        groups_used=fields.integer("topk_group", 1, groups, 1),
        choice_bias=Gain("router_bias", "mlp.gate.e_score_correction_bias", count),
    )  # fmt: skip
    width = fields.integer("moe_intermediate_size", 1, 1 << 20, 1408)
    shared = width * fields.integer("n_shared_experts", 1, 64, 1)
    names = {"q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm"} if fields.flag("use_qk_norm", False) else {}
    norms = {name: gain(name, module, shape.head_dim) for name, module in names.items()}
    attends = attention(shape, read_rope(raw, shape, partial=0.5), **norms)
    attended = (qkv(shape, bias=fields.flag("attention_bias", False)), attends, output(shape))
    mixture = experts(shape, width, route, activation=activation)
    sparse = pre_norm_layer(shape, attended, (mixture, *shared_experts(shape, shared, activation=activation)))
    dense = pre_norm_layer(shape, attended, mlp(shape, activation=activation))
    first = fields.integer("first_k_dense_replace", 0, shape.layers, 1)
    return described(shape, [dense if index < first else sparse for index in range(shape.layers)], last_norm(shape))
