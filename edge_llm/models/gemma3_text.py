"""Gemma 3 (arXiv 2503.19786): norms before and behind every part, GeGLU, windows in five of six layers, which turn faster."""

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
    mlp,
    output,
    qkv,
    read_activation,
    read_layer_types,
    read_rope,
    read_shape,
    root,
)
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.models.gemma2 import cap_of, layer_of
from edge_llm.operations.base import Operation
from edge_llm.operations.scores import Scores

ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3TextModel")


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: gemma3_text`` config.json."""
    fields = Fields(raw)
    shape = read_shape(raw, kv_heads=4, head_dim=256, context=131072, tied=True)
    both_ways = fields.flag("use_bidirectional_attention", False)
    bias = fields.flag("attention_bias", False)
    scale = fields.number("query_pre_attn_scalar", 1e-6, 1e9, 256) ** -0.5
    window = fields.integer("sliding_window", 1, MAX_CONTEXT, 4096)
    window = window // 2 + 1 if both_ways else window  # then a token sees half of it on either side
    pattern = fields.integer("sliding_window_pattern", 1, 1024, 6)
    kinds = read_layer_types(raw, shape.layers, every(pattern, shape.layers))
    local = read_rope(_local(raw), shape, kind=SLIDING, theta_key="rope_local_base_freq")
    ropes = {True: local, False: read_rope(raw, shape, kind="full_attention", theta=1e6)}
    norms = {
        f"{which}_norm": gain(f"{which}_norm", f"self_attn.{which}_norm", shape.head_dim, plus=1.0) for which in ("q", "k")
    }
    activation = read_activation(raw, "hidden_activation", default="gelu_pytorch_tanh")

    def layer(kind: str) -> tuple[Operation, ...]:
        cap = cap_of(fields, "attn_logit_softcapping", 0.0)
        scores = Scores(scale, window if kind == SLIDING else 0, cap, ahead=both_ways)
        return layer_of(
            shape,
            (
                qkv(shape, bias=bias),
                attention(shape, ropes[kind == SLIDING], scores=scores, **norms),
                output(shape, bias=bias, writes="mixed"),
            ),
            mlp(shape, activation=activation, writes="mixed"),
        )

    factor = root(shape.hidden)
    # an encoder's states are what is wanted, not what a tied table makes of them
    norm = last_norm(shape, plus=1.0, factor=1 / factor if shape.tied and not both_ways else 1.0)
    cap = cap_of(fields, "final_logit_softcapping", 0.0)
    return described(shape, [layer(kind) for kind in kinds], norm, factor=factor, cap=cap)


def _local(raw: dict[str, Any]) -> dict[str, Any]:
    """What config.json says of layers with a window: none of them is stretched in files that name no kinds."""
    return {key: value for key, value in raw.items() if key not in ("rope_scaling", "rope_theta")}
