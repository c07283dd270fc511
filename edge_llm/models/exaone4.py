"""EXAONE 4 (arXiv 2507.11407): norms behind attention and MLP alone, normed heads, no rotation where there is no window."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import (
    SLIDING,
    attention,
    described,
    every,
    gain,
    last_norm,
    read_layer_types,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.models.olmo2 import layer_of
from edge_llm.operations.attention import Rope
from edge_llm.operations.base import Operation
from edge_llm.operations.scores import Scores


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: exaone4`` config.json."""
    fields = Fields(raw)
    shape = read_shape(raw, kv_heads=32, context=2048, eps=1e-5)
    window = 0 if fields.is_null("sliding_window") else fields.integer("sliding_window", 1, MAX_CONTEXT, 4096)
    rope = read_rope(raw, shape)
    norms = {f"{which}_norm": gain(f"{which}_norm", f"self_attn.{which}_norm", shape.head_dim) for which in ("q", "k")}
    kinds = read_layer_types(raw, shape.layers, _kinds(raw, shape.layers, window))

    def layer(kind: str) -> tuple[Operation, ...]:
        local = kind == SLIDING and window > 0
        turns = rope if local or not window else Rope(0, rope.theta)
        return layer_of(raw, shape, attention(shape, turns, scores=Scores(window=window if local else 0), **norms))

    return described(shape, [layer(kind) for kind in kinds], last_norm(shape))


def _kinds(raw: dict[str, Any], layers: int, window: int) -> list[str]:
    """The kinds of layers by ``sliding_window_pattern``: a number, or letters such as LLLG that repeat."""
    pattern = raw.get("sliding_window_pattern", 4)
    if isinstance(pattern, str) and pattern and set(pattern) <= {"L", "G"}:
        return [SLIDING if pattern[index % len(pattern)] == "L" else "full_attention" for index in range(layers)]
    return every(Fields(raw).integer("sliding_window_pattern", 1, 1024, 4) if window else 1, layers)
