"""OLMo 3: OLMo 2 with a window in three of four layers, and a stretched rotation in the others alone."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import SLIDING, attention, described, every, last_norm, read_layer_types, read_rope, read_shape
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.models.olmo2 import layer_of, norms_of_all
from edge_llm.operations.scores import Scores


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: olmo3`` config.json."""
    shape = read_shape(raw, context=2048, eps=1e-5)
    fields = Fields(raw)
    window, bias = fields.integer("sliding_window", 1, MAX_CONTEXT, 4096), fields.flag("attention_bias", False)
    plain = {key: value for key, value in raw.items() if key != "rope_scaling"}
    ropes = {kind: read_rope(plain if kind == SLIDING else raw, shape, kind=kind, theta=5e5) for kind in every(2, 2)}
    kinds = read_layer_types(raw, shape.layers, every(4, shape.layers))
    layers = {
        kind: layer_of(
            raw,
            shape,
            attention(shape, ropes[kind], scores=Scores(window=window if kind == SLIDING else 0), **norms_of_all(shape)),
            bias=bias,
        )
        for kind in set(kinds)
    }
    return described(shape, [layers[kind] for kind in kinds], last_norm(shape))
