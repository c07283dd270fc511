"""Mixtral (arXiv 2401.04088): Mistral's decoder with a mixture of a few large experts in every layer."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import (
    attention,
    described,
    last_norm,
    output,
    pre_norm_layer,
    qkv,
    read_activation,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.models.mixtures import experts, read_count, read_used, router
from edge_llm.operations.scores import Scores

_MODULE = "block_sparse_moe"


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: mixtral`` config.json."""
    shape, fields = read_shape(raw, kv_heads=8, context=4096 * 32, eps=1e-5), Fields(raw)
    window = fields.integer("sliding_window", 1, MAX_CONTEXT) if raw.get("sliding_window") is not None else 0
    count = read_count(raw)
    route = router(shape, count, read_used(raw, count), module=f"{_MODULE}.gate", normalised=True)
    attends = attention(shape, read_rope(raw, shape, theta=1e6), scores=Scores(window=window))
    mixture = experts(
        shape, shape.inner, route, activation=read_activation(raw, "hidden_act", default="silu"),
        module=f"{_MODULE}.experts", names=("w1", "w3", "w2"),
    )  # fmt: skip
    layer = pre_norm_layer(shape, (qkv(shape), attends, output(shape)), (mixture,))
    return described(shape, [layer] * shape.layers, last_norm(shape))
