"""Phi-3, Phi-3.5 and Phi-4 (arXiv 2404.14219): Llama with fused tensors, a rotation of part of a head, and LongRoPE."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import (
    attention,
    described,
    last_norm,
    linear,
    mlp,
    output,
    pre_norm_layer,
    read_activation,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.operations.linear import SourceRows
from edge_llm.operations.scores import Scores


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: phi3`` config.json."""
    fields = Fields(raw)
    shape = read_shape(raw, context=4096, eps=1e-5)
    window = fields.integer("sliding_window", 1, MAX_CONTEXT) if raw.get("sliding_window") is not None else 0
    original = fields.integer("original_max_position_embeddings", 1, MAX_CONTEXT, 4096)
    rope = read_rope(_with_original(raw, original), shape, partial=1.0)
    sizes, rows = (shape.q_size, shape.kv_size, shape.kv_size), shape.q_size + 2 * shape.kv_size
    firsts = (0, shape.q_size, shape.q_size + shape.kv_size)
    sources = [SourceRows("self_attn.qkv_proj", size, first, rows) for size, first in zip(sizes, firsts, strict=True)]
    attended = (
        linear("qkv", sources, shape.hidden, "normed", "qkv"),
        attention(shape, rope, scores=Scores(window=window)),
        output(shape),
    )
    activation = read_activation(raw, "hidden_act", default="silu")
    layer = pre_norm_layer(shape, attended, mlp(shape, activation=activation, fused=True))
    return described(shape, [layer] * shape.layers, last_norm(shape))


def _with_original(raw: dict[str, Any], original: int) -> dict[str, Any]:
    """config.json with the context that LongRoPE is for, and its kind under the name of today."""
    older = {"su": "longrope", "yarn": "longrope"}
    sections = {key: dict(raw[key]) for key in ("rope_parameters", "rope_scaling") if isinstance(raw.get(key), dict)}
    for section in sections.values():
        section |= {name: older[section[name]] for name in ("type", "rope_type") if str(section.get(name)) in older}
    return raw | sections | {"original_max_position_embeddings": original}
