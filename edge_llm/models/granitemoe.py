"""Granite 3 with experts: Granite's four numbers, and a mixture whose weights are a softmax over the chosen experts."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import (
    attention,
    described,
    output,
    pre_norm_layer,
    qkv,
    read_activation,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import Fields
from edge_llm.models.granite import read_numbers
from edge_llm.models.mixtures import fused_experts, read_count, read_used, router
from edge_llm.operations.router import CHOSEN
from edge_llm.operations.scores import Scores

_MODULE = "block_sparse_moe"


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: granitemoe`` config.json."""
    shape, fields, numbers = read_shape(raw, context=2048), Fields(raw), read_numbers(raw)
    bias, count = fields.flag("attention_bias", False), read_count(raw)
    attended = (
        qkv(shape, bias=bias),
        attention(shape, read_rope(raw, shape), scores=Scores(numbers.attention)),
        output(shape, bias=bias, factor=numbers.residual),
    )
    used, module = read_used(raw, count), f"{_MODULE}.router.layer"
    route = router(shape, count, used, module=module, scores=CHOSEN, factor=numbers.residual)
    mixture = fused_experts(
        shape, shape.inner, route, activation=read_activation(raw, "hidden_act", default="silu"),
        gate_up=f"{_MODULE}.input_linear", down=f"{_MODULE}.output_linear", apart=fields.flag("experts_apart", False),
    )  # fmt: skip
    layer = pre_norm_layer(shape, attended, (mixture,))
    return described(shape, [layer] * shape.layers, numbers.norm(shape), factor=numbers.embedding)
