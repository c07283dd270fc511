"""Granite 4-H: nine of ten layers are Mamba2's, the others attention, mostly without rotation; a mixture and a shared MLP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.kernels.recurrent import MAX_KEYS, MAX_TAPS, VALUE_STEP
from edge_llm.models.blocks import (
    FULL,
    Shape,
    attention,
    described,
    gain,
    linear,
    output,
    pre_norm_layer,
    qkv,
    read_activation,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import Fields
from edge_llm.models.gated_delta_layers import RECURRENT, channel_taps, read_mixers
from edge_llm.models.granite import Numbers, read_numbers
from edge_llm.models.mixtures import fused_experts, read_used, router
from edge_llm.operations.attention import Rope
from edge_llm.operations.base import HIDDEN, Gain, Operation
from edge_llm.operations.glu import GLU
from edge_llm.operations.linear import SourceRows
from edge_llm.operations.mamba2 import Mamba2
from edge_llm.operations.router import CHOSEN
from edge_llm.operations.scores import Scores

ARCHITECTURE = "GraniteMoeHybridForCausalLM"
_OLDER = {"mamba": RECURRENT, "attention": FULL}
"""What older files call the kinds of layers."""
_MIXER, _MIXTURE, _SHARED = "mamba", "block_sparse_moe", "shared_mlp"


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: granitemoehybrid`` config.json."""
    shape, fields, numbers = read_shape(raw, context=2048), Fields(raw), read_numbers(raw)
    kinds = raw.get("layer_types", raw.get("layers_block_type"))
    named = [_OLDER.get(kind, kind) if isinstance(kind, str) else kind for kind in kinds] if isinstance(kinds, list) else kinds
    mixers = read_mixers(raw | {"layer_types": named}, shape, default=[RECURRENT] * shape.layers)
    inner = _mlp(raw, fields, shape, numbers)
    found = _mixers(raw, fields, shape, numbers, set(mixers))
    layers = {kind: pre_norm_layer(shape, mixer, inner) for kind, mixer in found.items()}
    return described(shape, [layers[kind] for kind in mixers], numbers.norm(shape), factor=numbers.embedding)


def _mixers(
    raw: dict[str, Any], fields: Fields, shape: Shape, numbers: Numbers, kinds: set[str]
) -> dict[str, tuple[Operation, ...]]:
    """The operations of every kind of mixer that the model has."""
    found: dict[str, tuple[Operation, ...]] = {}
    if FULL in kinds:
        bias = fields.flag("attention_bias", False)
        attends = attention(shape, _rope(raw, shape), scores=Scores(numbers.attention))
        found[FULL] = (qkv(shape, bias=bias), attends, output(shape, bias=bias, factor=numbers.residual))
    if RECURRENT in kinds:
        found[RECURRENT] = _mamba(fields, shape, numbers)
    return found


def _rope(raw: dict[str, Any], shape: Shape) -> Rope:
    """That of attention: none, unless config.json says so."""
    kind = raw.get("position_embedding_type")
    if kind not in (None, "rope", "nope"):
        raise UnsupportedModel(f"config.json: the position_embedding_type `{shown(kind)}` does not run here; rope and nope do")
    rope = read_rope(raw, shape)
    return rope if kind == "rope" else Rope(0, rope.theta)


def _mamba(fields: Fields, shape: Shape, numbers: Numbers) -> tuple[Operation, ...]:
    """A Mamba2 mixer between its linears."""
    heads = fields.integer("mamba_n_heads", 1, 4096, 128)
    values = fields.integer("mamba_expand", 1, 64, 2) * shape.hidden
    said = fields.raw.get("mamba_d_head")
    value_dim = values // heads if said in (None, "auto") else fields.integer("mamba_d_head", 1, 1 << 16)
    groups = fields.integer("mamba_n_groups", 1, 4096, 1)
    if value_dim * heads != values or heads % groups:
        raise InvalidModel(
            f"config.json: mamba_n_heads `{heads}` of {value_dim} channels in {groups} groups do not make {values} channels"
        )
    if value_dim % VALUE_STEP:
        raise UnsupportedModel(f"config.json: a mamba_d_head of `{value_dim}` does not run here; multiples of {VALUE_STEP} do")
    keys, taps = groups * fields.integer("mamba_d_state", 1, MAX_KEYS, 256), fields.integer("mamba_d_conv", 1, MAX_TAPS, 4)
    bias, wide = fields.flag("mamba_proj_bias", False), values + 2 * keys
    least, most = _limits(fields.raw.get("time_step_limit"))
    convolved = Gain("convolution_bias", f"{_MIXER}.conv1d.bias", wide) if fields.flag("mamba_conv_bias", True) else None
    mixer = Mamba2(
        heads, groups, keys // groups, value_dim, shape.eps, "mixed", "recurred",
        convolution=channel_taps(f"{_MIXER}.conv1d.weight", wide, taps),
        fade=Gain("fade", f"{_MIXER}.A_log", heads),
        step_bias=Gain("step_bias", f"{_MIXER}.dt_bias", heads),
        norm=gain("mixer_norm", f"{_MIXER}.norm", values),
        convolution_bias=convolved,
        skip=Gain("skip", f"{_MIXER}.D", heads),
        least_step=least,
        most_step=most,
    )  # fmt: skip
    into = SourceRows(f"{_MIXER}.in_proj", values + wide + heads)
    out = SourceRows(f"{_MIXER}.out_proj", shape.hidden, factor=numbers.residual)
    return (
        linear("mixed", (into,), shape.hidden, "normed", "mixed", bias=bias),
        mixer,
        linear("o", (out,), values, "recurred", HIDDEN, adds=HIDDEN, bias=bias),
    )


def _limits(said: Any) -> tuple[float, float]:
    """The least and the largest step; 0 for one without a bound."""
    if said is None:
        return 0.0, 0.0
    found = [_number(one) for one in said] if isinstance(said, list) and len(said) == 2 else [None]
    if None in found or not 0 <= found[0] <= found[1]:  # type: ignore[operator]
        raise InvalidModel(f"config.json: time_step_limit must be two ascending numbers from 0 on, not `{shown(said)}`")
    low, high = (float(one) for one in found if one is not None)
    return low, 0.0 if math.isinf(high) else high


def _number(value: Any) -> float | None:
    """A number, infinity too, which newer files write as an object; None for anything else."""
    value = value.get("__float__") if isinstance(value, dict) else value
    if value in ("Infinity", "inf"):
        return math.inf
    return float(value) if type(value) in (int, float) and not math.isnan(value) else None


def _mlp(raw: dict[str, Any], fields: Fields, shape: Shape, numbers: Numbers) -> tuple[Operation, ...]:
    """The mixture, where there are experts, and the MLP that every row goes to."""
    width = fields.integer("shared_intermediate_size", 1, 1 << 20, 1024)
    activation = read_activation(raw, "hidden_act", default="silu")
    module, whole = f"{_SHARED}.input_linear", {"module_rows": 2 * width}
    gate_up = (SourceRows(module, width, **whole), SourceRows(module, width, first=width, **whole))
    down = SourceRows(f"{_SHARED}.output_linear", shape.hidden, factor=numbers.residual)
    shared: Sequence[Operation] = (
        linear("shared_gate_up", gate_up, shape.hidden, "normed", "shared_gate_up"),
        GLU(width, reads="shared_gate_up", writes="shared_activated", activation=activation),
        linear("shared_down", (down,), width, "shared_activated", HIDDEN, adds=HIDDEN),
    )
    count = fields.integer("num_local_experts", 0, 4096, 8)
    if not count:
        return tuple(shared)
    used = read_used({"num_experts_per_tok": 2} | raw, count)
    route = router(shape, count, used, module=f"{_MIXTURE}.router.layer", scores=CHOSEN, factor=numbers.residual)
    mixture = fused_experts(
        shape, shape.inner, route, activation=activation, gate_up=f"{_MIXTURE}.input_linear",
        down=f"{_MIXTURE}.output_linear", apart=fields.flag("experts_apart", False),
    )  # fmt: skip
    return (mixture, *shared)
