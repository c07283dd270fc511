"""LFM2 and 2.5: most layers have a short convolution in the place of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.kernels.recurrent import MAX_TAPS
from edge_llm.models.blocks import (
    FULL,
    Shape,
    attention,
    described,
    gain,
    linear,
    output,
    qkv,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import Fields
from edge_llm.operations.base import HIDDEN, Gain, Operation
from edge_llm.operations.glu import GLU
from edge_llm.operations.linear import SourceRows
from edge_llm.operations.norm import Norm
from edge_llm.operations.short_convolution import ShortConvolution

CONVOLUTION = "conv"
"""The kind of a layer with a convolution, as config.json names it."""


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: lfm2`` config.json."""
    shape = _shape(raw)
    fields = Fields(raw)
    norms = {name: gain(name, f"self_attn.{name[0]}_layernorm", shape.head_dim) for name in ("q_norm", "k_norm")}
    attended = (
        qkv(shape), attention(shape, read_rope(raw, shape, theta=1e6), **norms), output(shape, module="self_attn.out_proj"),
    )  # fmt: skip
    convolved = _convolution(shape, fields.integer("conv_L_cache", 2, MAX_TAPS, 3), fields.flag("conv_bias", False))
    layers = [_layer(shape, convolved if kind == CONVOLUTION else attended) for kind in _kinds(raw, shape.layers)]
    return described(shape, layers, _norm(shape, "final_norm", "model.embedding_norm"))


def _shape(raw: dict[str, Any]) -> Shape:
    """The sizes; the width of an MLP is two thirds of what config.json says, in whole blocks, unless it says otherwise."""
    tied = Fields(raw).flag("tie_embedding", True)
    inner = {"intermediate_size": raw["block_ff_dim"]} if raw.get("block_ff_dim") is not None else {}
    shape = read_shape({**raw, **inner}, kv_heads=8, context=128000, eps=1e-5, eps_key="norm_eps", tied=tied)
    fields = Fields(raw)
    if not fields.flag("block_auto_adjust_ff_dim", True):
        return shape
    width = int(2 * shape.inner / 3)
    if raw.get("block_ffn_dim_multiplier", 1.0) is not None:
        block = fields.integer("block_multiple_of", 1, 1 << 20, 256)
        width = int(fields.number("block_ffn_dim_multiplier", 1e-3, 1e3, 1.0) * width)
        width = block * -(-width // block)
    return replace(shape, inner=max(1, width))


def _kinds(raw: dict[str, Any], layers: int) -> list[str]:
    """`FULL` or `CONVOLUTION` of every layer."""
    kinds, full = raw.get("layer_types"), raw.get("full_attn_idxs")
    if kinds is None:
        if full is not None and (not isinstance(full, list) or not all(type(index) is int for index in full)):
            raise InvalidModel(f"config.json: full_attn_idxs must be a list of layers, not `{shown(full)}`")
        return [FULL if full is None or index in full else CONVOLUTION for index in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(isinstance(kind, str) for kind in kinds):
        raise InvalidModel(f"config.json: layer_types must name the kind of each of {layers} layers, not `{shown(kinds)}`")
    if foreign := sorted(set(kinds) - {FULL, CONVOLUTION}):
        raise UnsupportedModel(f"config.json: the layer type `{shown(foreign[0])}` does not run here")
    if FULL not in kinds:
        raise UnsupportedModel("config.json: layer_types without `full_attention` do not run here")
    return kinds


def _convolution(shape: Shape, taps: int, bias: bool) -> tuple[Operation, ...]:
    hidden = shape.hidden
    into, given = SourceRows("conv.in_proj", 3 * hidden), SourceRows("conv.out_proj", hidden)
    tap = Gain("taps", "conv.conv.weight", taps, rows=hidden, source_shape=(hidden, 1, taps))
    return (
        linear("conv_in", (into,), hidden, "normed", "bcu", bias=bias),
        ShortConvolution(tap, "bcu", "convolved", Gain("taps_bias", "conv.conv.bias", hidden) if bias else None),
        linear("conv_out", (given,), hidden, "convolved", HIDDEN, adds=HIDDEN, bias=bias),
    )


def _layer(shape: Shape, mixed: tuple[Operation, ...]) -> tuple[Operation, ...]:
    gate, up = SourceRows("feed_forward.w1", shape.inner), SourceRows("feed_forward.w3", shape.inner)
    down = SourceRows("feed_forward.w2", shape.hidden)
    return (
        _norm(shape, "operator_norm", "operator_norm"),
        *mixed,
        _norm(shape, "mlp_norm", "ffn_norm"),
        linear("gate_up", (gate, up), shape.hidden, "normed", "gate_up"),
        GLU(shape.inner, reads="gate_up", writes="activated"),
        linear("down", (down,), shape.inner, "activated", HIDDEN, adds=HIDDEN),
    )


def _norm(shape: Shape, name: str, module: str) -> Norm:
    return Norm(gain(name, module, shape.hidden), shape.eps, HIDDEN, "normed")
