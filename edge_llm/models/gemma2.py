"""Gemma 2 (arXiv 2408.00118): norms before and behind every part, GeGLU, caps, a window in every other layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import UnsupportedModel
from edge_llm.models.blocks import (
    SLIDING,
    Shape,
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
from edge_llm.operations.base import HIDDEN, Operation
from edge_llm.operations.norm import Norm
from edge_llm.operations.scores import Scores


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: gemma2`` config.json."""
    fields = Fields(raw)
    shape = read_shape(raw, kv_heads=4, head_dim=256, context=8192, tied=True)
    bias = fields.flag("attention_bias", False)
    scale = fields.number("query_pre_attn_scalar", 1e-6, 1e9, 256) ** -0.5
    cap = cap_of(fields, "attn_logit_softcapping", 50.0)
    if fields.flag("use_bidirectional_attention", False):
        raise UnsupportedModel("config.json: use_bidirectional_attention does not run here")
    window = fields.integer("sliding_window", 1, MAX_CONTEXT, 4096)
    kinds = read_layer_types(raw, shape.layers, every(2, shape.layers))
    rope = read_rope(raw, shape)
    activation = read_activation(raw, "hidden_activation", default="gelu_pytorch_tanh")

    def layer(kind: str) -> tuple[Operation, ...]:
        scores = Scores(scale, window if kind == SLIDING else 0, cap)
        attended = (qkv(shape, bias=bias), attention(shape, rope, scores=scores), output(shape, bias=bias, writes="mixed"))
        return layer_of(shape, attended, mlp(shape, activation=activation, writes="mixed"))

    factor = root(shape.hidden)
    norm = last_norm(shape, plus=1.0, factor=1 / factor if shape.tied else 1.0)
    logits = cap_of(fields, "final_logit_softcapping", 30.0)
    return described(shape, [layer(kind) for kind in kinds], norm, factor=factor, cap=logits)


def cap_of(fields: Fields, key: str, default: float) -> float:
    """A cap; null and 0 mean none."""
    return 0.0 if fields.is_null(key) else fields.number(key, 0.0, 1e9, default)


def layer_of(shape: Shape, attended: Sequence[Operation], mlp: Sequence[Operation]) -> tuple[Operation, ...]:
    """A layer of Gemma: a norm before each part, and one of what it gives, which is added to the residual stream."""

    def norm(name: str, module: str, reads: str, writes: str, adds: str = "") -> Norm:
        return Norm(gain(name, module, shape.hidden, plus=1.0), shape.eps, reads, writes, adds)

    return (
        norm("attention_norm", "input_layernorm", HIDDEN, "normed"),
        *attended,
        norm("attention_post_norm", "post_attention_layernorm", "mixed", HIDDEN, HIDDEN),
        norm("mlp_norm", "pre_feedforward_layernorm", HIDDEN, "normed"),
        *mlp,
        norm("mlp_post_norm", "post_feedforward_layernorm", "mixed", HIDDEN, HIDDEN),
    )
