"""OLMo 2 (arXiv 2501.00656): norms behind attention and MLP alone, and norms of all queries and all keys."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.blocks import (
    Shape,
    attention,
    described,
    gain,
    last_norm,
    mlp,
    output,
    qkv,
    read_activation,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import Fields
from edge_llm.operations.attention import Attention
from edge_llm.operations.base import HIDDEN, Operation
from edge_llm.operations.norm import Norm


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: olmo2`` config.json."""
    shape = read_shape(raw, context=2048, eps=1e-5)
    attends = attention(shape, read_rope(raw, shape), **norms_of_all(shape))
    layer = layer_of(raw, shape, attends, bias=Fields(raw).flag("attention_bias", False))
    return described(shape, [layer] * shape.layers, last_norm(shape))


def norms_of_all(shape: Shape) -> dict[str, Any]:
    """The fields of an attention that norms all queries together, and all keys."""
    sizes = {"q": shape.q_size, "k": shape.kv_size}
    return {f"{which}_norm": gain(f"{which}_norm", f"self_attn.{which}_norm", size) for which, size in sizes.items()}


def layer_of(raw: dict[str, Any], shape: Shape, attends: Attention, *, bias: bool = False) -> tuple[Operation, ...]:
    """A layer whose norms stand behind its parts; ``bias`` is that of attention's linears."""
    activation = read_activation(raw, "hidden_act", default="silu")

    def norm(name: str, module: str) -> Norm:
        return Norm(gain(name, module, shape.hidden), shape.eps, "mixed", HIDDEN, HIDDEN)

    return (
        qkv(shape, bias=bias, reads=HIDDEN),
        attends,
        output(shape, bias=bias, writes="mixed"),
        norm("attention_post_norm", "post_attention_layernorm"),
        *mlp(shape, activation=activation, reads=HIDDEN, writes="mixed"),
        norm("mlp_post_norm", "post_feedforward_layernorm"),
    )


