"""What Qwen3-Next and Qwen3.5 are built of: layers of a gated delta rule, and attention with an output gate between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.kernels.recurrent import MAX_KEYS, MAX_TAPS, VALUE_STEP
from edge_llm.models.blocks import FULL, Shape, attention, described, gain, last_norm, linear, read_rope
from edge_llm.models.fields import Fields
from edge_llm.operations.base import HIDDEN, Gain, Operation
from edge_llm.operations.gated_delta import GatedDelta
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.operations.norm import Norm
from edge_llm.operations.wide_gate import WideGate

RECURRENT = "linear_attention"
"""What config.json calls layers without attention."""
_DELTA = "linear_attn"


def read_mixers(raw: dict[str, Any], shape: Shape, *, default: Sequence[str]) -> list[str]:
    """`RECURRENT` or `FULL` of every layer; ``default`` where config.json does not say it."""
    kinds = list(default) if raw.get("layer_types") is None else raw["layer_types"]
    if not isinstance(kinds, list) or len(kinds) != shape.layers or not all(isinstance(kind, str) for kind in kinds):
        raise InvalidModel(f"config.json: layer_types must name the kind of all {shape.layers} layers, not `{shown(kinds)}`")
    if foreign := sorted(set(kinds) - {RECURRENT, FULL}):
        raise UnsupportedModel(f"config.json: the layer type `{shown(foreign[0])}` does not run here")
    if FULL not in kinds:
        raise UnsupportedModel(f"config.json: layer_types without `{FULL}` do not run here")
    return kinds


def gated_delta_config(
    raw: dict[str, Any], shape: Shape, mlps: Sequence[Sequence[Operation]], *, by_key_head: bool = False
) -> ModelConfig:
    """The model whose layers have ``mlps`` behind their mixers.

    ``by_key_head``: two modules have what a gated delta rule reads, with all that belongs to a key head together.
    """
    fields = Fields(raw)
    every = fields.integer("full_attention_interval", 1, 1024, 4)
    default = [RECURRENT if (index + 1) % every else FULL for index in range(shape.layers)]
    norms = [
        Norm(gain(f"{name}_norm", module, shape.hidden, plus=1.0), shape.eps, HIDDEN, "normed")
        for name, module in (("attention", "input_layernorm"), ("mlp", "post_attention_layernorm"))
    ]
    mixers = {RECURRENT: _delta(fields, shape, by_key_head), FULL: _gated_attention(raw, shape)}
    layers = [
        (norms[0], *mixers[kind], norms[1], *mlp)
        for kind, mlp in zip(read_mixers(raw, shape, default=default), mlps, strict=True)
    ]
    return described(shape, layers, last_norm(shape, plus=1.0))


def _delta(fields: Fields, shape: Shape, by_key_head: bool) -> tuple[Operation, ...]:
    """A gated delta rule between its linears."""
    heads = fields.integer("linear_num_value_heads", 1, 4096, 32)
    groups = fields.integer("linear_num_key_heads", 1, 4096, 16)
    key_dim = fields.integer("linear_key_head_dim", 1, MAX_KEYS, 128)
    value_dim = fields.integer("linear_value_head_dim", 1, 1 << 16, 128)
    if value_dim % VALUE_STEP:
        raise UnsupportedModel(
            f"config.json: a linear_value_head_dim of `{value_dim}` does not run here; multiples of {VALUE_STEP} do"
        )
    if heads % groups:
        raise InvalidModel(f"config.json: linear_num_value_heads `{heads}` is no multiple of linear_num_key_heads `{groups}`")
    keys, values = groups * key_dim, heads * value_dim
    taps = fields.integer("linear_conv_kernel_dim", 1, MAX_TAPS, 4)
    sources: tuple[SourceRows, ...] = (
        SourceRows(f"{_DELTA}.in_proj_qkv", 2 * keys + values),
        SourceRows(f"{_DELTA}.in_proj_z", values),
        SourceRows(f"{_DELTA}.in_proj_b", heads),
        SourceRows(f"{_DELTA}.in_proj_a", heads),
    )
    if by_key_head:
        served = heads // groups
        sizes = [key_dim, key_dim, served * value_dim, served * value_dim]
        sources = (
            *_interleaved(f"{_DELTA}.in_proj_qkvz", groups, sizes), *_interleaved(f"{_DELTA}.in_proj_ba", groups, [served] * 2),
        )  # fmt: skip
    delta = GatedDelta(
        heads, groups, key_dim, value_dim, shape.eps, "mixed", "recurred",
        convolution=channel_taps(f"{_DELTA}.conv1d.weight", 2 * keys + values, taps),
        fade=Gain("fade", f"{_DELTA}.A_log", heads),
        step_bias=Gain("step_bias", f"{_DELTA}.dt_bias", heads),
        norm=gain("mixer_norm", f"{_DELTA}.norm", value_dim),
        tiled=fields.flag("value_heads_tiled", False),
    )  # fmt: skip
    rows = SourceRows(f"{_DELTA}.out_proj", shape.hidden)
    return (
        linear("mixed", sources, shape.hidden, "normed", "mixed"),
        delta,
        linear("o", (rows,), values, "recurred", HIDDEN, adds=HIDDEN),
    )


def _interleaved(module: str, heads: int, sizes: Sequence[int]) -> tuple[SourceRows, ...]:
    """Parts of so many rows of each head, of a module in which all parts of a head are together."""
    step = sum(sizes)
    firsts = [sum(sizes[:index]) for index in range(len(sizes))]
    return tuple(
        SourceRows(module, heads * size, first, heads * step, step, run=size) for size, first in zip(sizes, firsts, strict=True)
    )


def channel_taps(source: str, channels: int, taps: int) -> Gain:
    """The weight of a convolution of each channel by itself, as PyTorch has it."""
    return Gain("convolution", source, taps, rows=channels, source_shape=(channels, 1, taps))


def _gated_attention(raw: dict[str, Any], shape: Shape) -> tuple[Operation, ...]:
    """Attention whose result a sigmoid of a linear of its input gates: q_proj has of every head queries, then the gate."""
    bias, module = Fields(raw).flag("attention_bias", False), "self_attn"
    if not Fields(raw).flag("attn_output_gate", True):
        raise UnsupportedModel("config.json: attention without an output gate (attn_output_gate `false`) does not run here")
    queries, gates = (
        SourceRows(f"{module}.q_proj", shape.q_size, first, 2 * shape.q_size, 2 * shape.head_dim, run=shape.head_dim)
        for first in (0, shape.head_dim)
    )
    keys, values = (SourceRows(f"{module}.{name}_proj", shape.kv_size) for name in "kv")
    norms = {f"{which}_norm": gain(f"{which}_norm", f"{module}.{which}_norm", shape.head_dim, plus=1.0) for which in "qk"}
    attends = attention(shape, read_rope(raw, shape, partial=0.25), **norms)
    output = Linear(
        "o", (SourceRows(f"{module}.o_proj", shape.hidden),), shape.q_size, "gated", HIDDEN, adds=HIDDEN, bias=bias
    )
    return (
        linear("qkv", (queries, keys, values), shape.hidden, "normed", "qkv", bias=bias),
        linear("gate", (gates,), shape.hidden, "normed", "gate", bias=bias),
        attends,
        WideGate(shape.q_size, "attended", "gate", "gated"),
        output,
    )
