"""gpt-oss (arXiv 2508.10925): a sink in every head's softmax, windows in every other layer, and experts with a clamped gate."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import UnsupportedModel
from edge_llm.models.blocks import (
    SLIDING,
    attention,
    described,
    every,
    last_norm,
    output,
    pre_norm_layer,
    qkv,
    read_layer_types,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.models.mixtures import fused_experts, read_count, read_used, router
from edge_llm.operations.base import Gain
from edge_llm.operations.glu import CLAMPED, STEEP
from edge_llm.operations.router import CHOSEN
from edge_llm.operations.scores import Scores


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: gpt_oss`` config.json."""
    shape, fields = read_shape(raw, kv_heads=8, head_dim=64, context=131072, eps=1e-5), Fields(raw)
    if (alpha := fields.number("swiglu_alpha", 0.0, 1e3, STEEP)) != STEEP:
        raise UnsupportedModel(f"config.json: a swiglu_alpha of `{alpha:g}` does not run here; only {STEEP:g} does")
    bias, count = fields.flag("attention_bias", True), read_count(raw)
    kinds = read_layer_types(raw, shape.layers, every(2, shape.layers))
    window = fields.integer("sliding_window", 1, MAX_CONTEXT, 128) if SLIDING in kinds else 0
    route = router(
        shape, count, read_used(raw, count), module="mlp.router", scores=CHOSEN,
        bias=Gain("router_bias", "mlp.router.bias", count),
    )  # fmt: skip
    mixture = fused_experts(
        shape, shape.inner, route, gate_up="mlp.experts.gate_up_proj", down="mlp.experts.down_proj", activation=CLAMPED,
        limit=fields.number("swiglu_limit", 1e-6, 1e6, 7.0), bias=True, alternate=True,
        apart=fields.flag("experts_apart", False),
    )  # fmt: skip
    rope, sinks = read_rope(raw, shape, theta=150000.0), Gain("sinks", "self_attn.sinks", shape.heads)
    layers = []
    for kind in kinds:
        attends = attention(shape, rope, scores=Scores(window=window if kind == SLIDING else 0), sinks=sinks)
        layers.append(pre_norm_layer(shape, (qkv(shape, bias=bias), attends, output(shape, bias=bias)), (mixture,)))
    return described(shape, layers, last_norm(shape))
