"""OLMoE (arXiv 2409.02060): norms of all queries and all keys, and a mixture whose weights are not normalised."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown
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
from edge_llm.models.fields import Fields
from edge_llm.models.mixtures import experts, read_count, read_used, router
from edge_llm.models.olmo2 import norms_of_all


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: olmoe`` config.json."""
    fields = Fields(raw)
    if raw.get("clip_qkv") is not None:
        raise UnsupportedModel(f"config.json: a clip_qkv of `{shown(raw['clip_qkv'])}` does not run here; only null does")
    shape, bias = read_shape(raw, context=4096, eps=1e-5), fields.flag("attention_bias", False)
    count = read_count(raw)
    route = router(shape, count, read_used(raw, count), normalised=fields.flag("norm_topk_prob", False))
    attended = (qkv(shape, bias=bias), attention(shape, read_rope(raw, shape), **norms_of_all(shape)), output(shape, bias=bias))
    mixture = experts(shape, shape.inner, route, activation=read_activation(raw, "hidden_act", default="silu"))
    return described(shape, [pre_norm_layer(shape, attended, (mixture,))] * shape.layers, last_norm(shape))
