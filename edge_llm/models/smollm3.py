"""SmolLM3: Llama without rotation in every fourth layer."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel
from edge_llm.files import shown
from edge_llm.models.blocks import (
    FULL,
    SLIDING,
    attention,
    described,
    last_norm,
    mlp,
    output,
    pre_norm_layer,
    qkv,
    read_activation,
    read_layer_types,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.operations.attention import Rope
from edge_llm.operations.base import Operation
from edge_llm.operations.scores import Scores


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: smollm3`` config.json."""
    fields = Fields(raw)
    shape = read_shape(raw, kv_heads=4, context=32768, tied=True)
    rope, still = read_rope(raw, shape, theta=2e6), Rope(0, 2e6)
    turns = _turns(raw, shape.layers)
    window = fields.integer("sliding_window", 1, MAX_CONTEXT) if raw.get("sliding_window") is not None else 0
    windowed = fields.flag("use_sliding_window", False) and window > 0
    default = [SLIDING if windowed and not turning else FULL for turning in turns]
    kinds = read_layer_types(raw, shape.layers, default)
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    activation = read_activation(raw, "hidden_act", default="silu")

    def layer(turning: bool, kind: str) -> tuple[Operation, ...]:
        scores = Scores(window=window if kind == SLIDING else 0)
        attended = (
            qkv(shape, bias=bias),
            attention(shape, rope if turning else still, scores=scores),
            output(shape, bias=bias),
        )
        return pre_norm_layer(shape, attended, mlp(shape, activation=activation, bias=mlp_bias))

    return described(shape, [layer(*one) for one in zip(turns, kinds, strict=True)], last_norm(shape))


def _turns(raw: dict[str, Any], layers: int) -> list[bool]:
    """Whether each layer rotates: ``no_rope_layers`` has a 1 for those that do."""
    said = raw.get("no_rope_layers")
    if said is None:
        interval = Fields(raw).integer("no_rope_layer_interval", 1, 1024, 4)
        return [bool((index + 1) % interval) for index in range(layers)]
    if not isinstance(said, list) or len(said) != layers or not all(type(one) is int and one in (0, 1) for one in said):
        raise InvalidModel(f"config.json: no_rope_layers must have a 0 or 1 for each of {layers} layers, not `{shown(said)}`")
    return [one == 1 for one in said]
