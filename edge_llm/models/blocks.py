"""What families are built of: sizes, rotary embeddings and kinds of layers out of a config.json, and the usual operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.models.fields import MAX_CONTEXT, MAX_THETA, Fields
from edge_llm.models.layer import Decoder, DescribedConfig
from edge_llm.operations.activation import Activate
from edge_llm.operations.attention import Attention, Rope
from edge_llm.operations.base import HIDDEN, Gain, Operation
from edge_llm.operations.embedding import Embedding
from edge_llm.operations.glu import GLU
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.operations.norm import Norm
from edge_llm.operations.rope_kinds import Alpha, Dynamic, Llama3, LongRope, RopeKind, Stretched, Yarn

MAX_HEAD_DIM = 256
SLIDING, FULL = "sliding_attention", "full_attention"
_ACTIVATIONS = {
    "silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh", "relu": "relu", "relu2": "relu_squared",
    "gelu": "gelu_erf",
}  # fmt: skip
"""As config.json has them, and as `edge_llm.operations.glu` does."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder."""

    family: str
    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    eps: float
    tied: bool

    @property
    def q_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


def read_shape(
    raw: dict[str, Any],
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    context: int,
    eps: float = 1e-6,
    eps_key: str = "rms_norm_eps",
    tied: bool = False,
) -> Shape:
    """The sizes in a config.json; the arguments are the family's own values for keys that are absent.

    None, and null there, means as many key heads as query heads, and hidden size / heads.
    """
    fields = Fields(raw)
    kv_heads = None if fields.is_null("num_key_value_heads") else kv_heads
    head_dim = None if fields.is_null("head_dim") else head_dim
    hidden = fields.integer("hidden_size", 1, 1 << 17)
    heads = fields.integer("num_attention_heads", 1, 4096)
    kv = fields.integer("num_key_value_heads", 1, 4096, heads if kv_heads is None else kv_heads)
    if kv > heads or heads % kv:
        raise InvalidModel(f"config.json: num_attention_heads `{heads}` must be a multiple of num_key_value_heads, not `{kv}`")
    return Shape(
        family=raw["model_type"],
        vocab=fields.integer("vocab_size", 1, 1 << 22),
        hidden=hidden,
        inner=fields.integer("intermediate_size", 1, 1 << 20),
        layers=fields.integer("num_hidden_layers", 1, 1024),
        heads=heads,
        kv_heads=kv,
        head_dim=read_head_dim(fields, hidden, heads, head_dim),
        context=fields.integer("max_position_embeddings", 1, MAX_CONTEXT, context),
        eps=fields.number(eps_key, 1e-20, 1.0, eps),
        tied=fields.flag("tie_word_embeddings", tied),
    )


def read_head_dim(fields: Fields, hidden: int, heads: int, default: int | None) -> int:
    """Channels of a head; ``default`` None: hidden size / heads."""
    if default is None and fields.raw.get("head_dim") is None:
        if hidden % heads:
            raise InvalidModel(f"config.json: hidden_size `{hidden}` must be a multiple of num_attention_heads `{heads}`")
        default = hidden // heads
    value = fields.integer("head_dim", 1, 1 << 17, default)
    if value % 8 or value > MAX_HEAD_DIM:
        raise UnsupportedModel(
            f"config.json: a head_dim of `{value}` does not run here; multiples of 8 up to {MAX_HEAD_DIM} do"
        )
    return value


def read_activation(raw: dict[str, Any], *keys: str, default: str) -> str:
    """The activation of gates: the first of ``keys`` that config.json has."""
    named = next((raw[key] for key in keys if raw.get(key) is not None), default)
    if not isinstance(named, str) or named not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise UnsupportedModel(f"config.json: the activation `{shown(named)}` does not run here; these do: {known}")
    return _ACTIVATIONS[named]


def read_layer_types(raw: dict[str, Any], layers: int, default: Sequence[str]) -> list[str]:
    """`SLIDING` or `FULL` of every layer; ``default`` where config.json does not say it."""
    kinds = raw.get("layer_types")
    if kinds is None:
        return list(default)
    if not isinstance(kinds, list) or len(kinds) != layers or not all(isinstance(kind, str) for kind in kinds):
        raise InvalidModel(f"config.json: layer_types must name the kind of each of {layers} layers, not `{shown(kinds)}`")
    if foreign := sorted(set(kinds) - {SLIDING, FULL}):
        raise UnsupportedModel(f"config.json: the layer type `{shown(foreign[0])}` does not run here")
    return kinds


def every(count: int, layers: int) -> list[str]:
    """Every so-many-th layer is `FULL`, the others are `SLIDING`."""
    return [SLIDING if (index + 1) % count else FULL for index in range(layers)]


def read_rope(
    raw: dict[str, Any],
    shape: Shape,
    *,
    theta: float = 10000.0,
    kind: str = "",
    theta_key: str = "rope_theta",
    partial: float | None = None,
) -> Rope:
    """The rotary embedding in a config.json: of all layers, or of those of a ``kind`` of their own.

    It stands in rope_parameters (of each kind, where kinds differ) or in rope_scaling beside ``theta_key``.  ``partial`` is the
    share of a head that turns where nothing is said; None: the family turns whole heads, whatever is said.
    """
    fields = Fields(raw)
    parameters = fields.section("rope_parameters")
    by_kind = parameters.get(kind) if kind else None
    section = by_kind if isinstance(by_kind, dict) else parameters if parameters and not _is_by_kind(parameters) else None
    section = section if section is not None else fields.section("rope_scaling")
    rope = Fields(section)
    base = base_of(fields, rope, theta_key, theta)
    dim = shape.head_dim
    if partial is not None:
        said = fields.number("partial_rotary_factor", 0.0, 1.0, partial)
        dim = int(dim * rope.number("partial_rotary_factor", 0.0, 1.0, said))
    if dim % 2:
        raise UnsupportedModel(f"config.json: a partial_rotary_factor that turns `{dim}` channels does not run here")
    return _rope(fields, section, dim, base, shape.context)


def rope_of(raw: dict[str, Any], head_dim: int, context: int) -> Rope:
    """The rotary embedding of whole heads in a config.json, where all layers have the same."""
    fields = Fields(raw)
    section = fields.section("rope_parameters") or fields.section("rope_scaling")
    return _rope(fields, section, head_dim, base_of(fields, Fields(section)), context)


def base_of(fields: Fields, rope: Fields, theta_key: str = "rope_theta", theta: float = 10000.0) -> float:
    """The base of a rotation: in the section that describes it, or beside it; ``theta`` where neither says it."""
    base = fields.number(theta_key, 1.0, MAX_THETA, theta)
    if rope.raw.get("rope_theta") is None:
        return base
    inner = rope.number("rope_theta", 1.0, MAX_THETA)
    if fields.raw.get(theta_key) is not None and inner != base:
        raise InvalidModel(f"config.json gives two values for rope_theta: `{base:g}` and `{inner:g}`")
    return inner


def _rope(fields: Fields, section: dict[str, Any], dim: int, base: float, context: int) -> Rope:
    original = fields.raw.get("original_max_position_embeddings")
    rope = Fields(section if original is None else section | {"original_max_position_embeddings": original})
    try:
        return Rope(dim, base, _scaling(rope, context))
    except ValueError as error:
        raise InvalidModel(f"config.json: {error}") from None


def _is_by_kind(parameters: dict[str, Any]) -> bool:
    return bool({SLIDING, FULL} & set(parameters))


def _scaling(rope: Fields, context: int) -> RopeKind | None:
    named = rope.raw.get("rope_type", rope.raw.get("type", "default"))
    if named == "dynamic" and rope.raw.get("alpha") is not None:
        return Alpha(rope.number("alpha", 1e-3, 1e6))
    make = {"default": _plain, "linear": _linear, "dynamic": _dynamic, "llama3": _llama3, "yarn": _yarn, "longrope": _longrope}
    if not isinstance(named, str) or named not in make:
        known = ", ".join(make)
        raise UnsupportedModel(f"config.json: the rotary embedding type `{shown(named)}` does not run here; these do: {known}")
    return make[named](rope, context)


def _plain(rope: Fields, context: int) -> None:
    return None


def _linear(rope: Fields, context: int) -> RopeKind:
    return Stretched(rope.number("factor", 1e-3, 1e6))


def _dynamic(rope: Fields, context: int) -> RopeKind:
    return Dynamic(rope.number("factor", 1e-3, 1e6), context, context)


def _llama3(rope: Fields, context: int) -> RopeKind:
    return llama3_of(rope)


def llama3_of(rope: Fields) -> Llama3:
    """Llama 3's kind, as the section ``rope`` says it."""
    low, high = (rope.number(f"{which}_freq_factor", 1e-6, 1e6) for which in ("low", "high"))
    if low >= high:
        raise InvalidModel(f"config.json: low_freq_factor `{low:g}` must be below high_freq_factor `{high:g}`")
    original = rope.integer("original_max_position_embeddings", 1, MAX_CONTEXT)
    return Llama3(rope.number("factor", 1e-3, 1e6), low, high, original)


def _yarn(rope: Fields, context: int) -> RopeKind:
    original = rope.integer("original_max_position_embeddings", 1, MAX_CONTEXT, context)
    optional = {key: rope.number(key, 0.0, 1e6) if rope.raw.get(key) is not None else None for key in _YARN_SCALES}
    return Yarn(
        rope.number("factor", 1e-3, 1e6),
        original,
        rope.number("beta_fast", 1e-6, 1e6, 32.0),
        rope.number("beta_slow", 1e-6, 1e6, 1.0),
        rope.flag("truncate", True),
        *(optional[key] for key in _YARN_SCALES),
    )


_YARN_SCALES = ("attention_factor", "mscale", "mscale_all_dim")


def _longrope(rope: Fields, context: int) -> RopeKind:
    short, long = (_divisors(rope.raw.get(key), key) for key in ("short_factor", "long_factor"))
    original = rope.integer("original_max_position_embeddings", 1, MAX_CONTEXT, context)
    factor = rope.number("attention_factor", 0.0, 1e6) if rope.raw.get("attention_factor") is not None else None
    stretched = original * rope.number("factor", 1e-3, 1e6) if rope.raw.get("factor") is not None else context
    return LongRope(short, long, original, max(1, round(stretched)), context, factor)


def _divisors(values: object, key: str) -> tuple[float, ...]:
    good = isinstance(values, list) and all(type(value) in (int, float) and 1e-6 <= value < 1e9 for value in values)
    if not good or not isinstance(values, list):
        raise InvalidModel(f"config.json: {key} must be a list of numbers from 1e-6 on, not `{shown(values)}`")
    return tuple(float(value) for value in values)


# -- operations ------------------------------------------------------------------------------------------------------------


def gain(name: str, module: str, size: int, *, plus: float = 0.0, factor: float = 1.0) -> Gain:
    """The gain ``<module>.weight`` of a norm."""
    return Gain(name, f"{module}.weight", size, plus, factor)


def linear(name: str, sources: Sequence[SourceRows], columns: int, reads: str, writes: str, **more: Any) -> Linear:
    """A linear of ``sources``; ``more`` are further fields."""
    return Linear(name, tuple(sources), columns, reads=reads, writes=writes, **more)


def qkv(shape: Shape, *, bias: bool = False, reads: str = "normed", pairs: int = 0, module: str = "self_attn") -> Linear:
    """Queries, keys and values; neighbours of the first ``pairs`` channels of a head are rotation pairs in the source."""
    turning = {"head": shape.head_dim, "pairs": pairs} if pairs else {}
    sources = (
        SourceRows(f"{module}.q_proj", shape.q_size, **turning),
        SourceRows(f"{module}.k_proj", shape.kv_size, **turning),
        SourceRows(f"{module}.v_proj", shape.kv_size),
    )
    return linear("qkv", sources, shape.hidden, reads, "qkv", bias=bias)


def attention(shape: Shape, rope: Rope, **more: Any) -> Attention:
    """What reads `qkv`; ``more`` are further fields."""
    return Attention(shape.heads, shape.kv_heads, shape.head_dim, rope, reads="qkv", writes="attended", eps=shape.eps, **more)


def output(
    shape: Shape, *, bias: bool = False, writes: str = HIDDEN, factor: float = 1.0, module: str = "self_attn.o_proj"
) -> Linear:
    """What attention gives, added to the residual stream or written elsewhere."""
    adds = HIDDEN if writes == HIDDEN else ""
    rows = SourceRows(module, shape.hidden, factor=factor)
    return linear("o", (rows,), shape.q_size, "attended", writes, adds=adds, bias=bias)


def mlp(
    shape: Shape,
    *,
    activation: str = "silu",
    bias: bool = False,
    reads: str = "normed",
    writes: str = HIDDEN,
    factor: float = 1.0,
    fused: bool = False,
) -> tuple[Operation, ...]:
    """A gated MLP, added to the residual stream or written elsewhere; ``fused``: the source has gate and up in one module."""
    names = ("mlp.gate_up_proj",) * 2 if fused else ("mlp.gate_proj", "mlp.up_proj")
    whole = {"module_rows": 2 * shape.inner} if fused else {}
    gate = SourceRows(names[0], shape.inner, **whole)
    up = SourceRows(names[1], shape.inner, first=shape.inner if fused else 0, **whole)
    adds = HIDDEN if writes == HIDDEN else ""
    down = SourceRows("mlp.down_proj", shape.hidden, factor=factor)
    return (
        linear("gate_up", (gate, up), shape.hidden, reads, "gate_up", bias=bias),
        GLU(shape.inner, reads="gate_up", writes="activated", activation=activation),
        linear("down", (down,), shape.inner, "activated", writes, adds=adds, bias=bias),
    )


def plain_mlp(
    shape: Shape, activation: str, *, up: str = "mlp.up_proj", down: str = "mlp.down_proj", bias: bool = False
) -> tuple[Operation, ...]:
    """An MLP without a gate, added to the residual stream."""
    return (
        linear("up", (SourceRows(up, shape.inner),), shape.hidden, "normed", "up", bias=bias),
        Activate(shape.inner, reads="up", writes="activated", activation=activation),
        linear("down", (SourceRows(down, shape.hidden),), shape.inner, "activated", HIDDEN, adds=HIDDEN, bias=bias),
    )


def centred_norm(shape: Shape, name: str, module: str, *, plus: float = 0.0) -> Norm:
    """A layer norm of the residual stream, with a bias."""
    bias = Gain(f"{name}_bias", f"{module}.bias", shape.hidden)
    return Norm(gain(name, module, shape.hidden, plus=plus), shape.eps, HIDDEN, "normed", centred=True, bias=bias)


def pre_norm_layer(shape: Shape, attended: Sequence[Operation], mlp: Sequence[Operation]) -> tuple[Operation, ...]:
    """Llama's layer: a norm before attention, and one before the MLP, which both add to the residual stream."""

    def norm(name: str, module: str) -> Norm:
        return Norm(gain(name, module, shape.hidden), shape.eps, HIDDEN, "normed")

    return (
        norm("attention_norm", "input_layernorm"), *attended, norm("mlp_norm", "post_attention_layernorm"), *mlp,
    )  # fmt: skip


def described(
    shape: Shape, layers: Sequence[tuple[Operation, ...]], norm: Norm, *, factor: float = 1.0, cap: float = 0.0
) -> DescribedConfig:
    """The model of ``layers`` and the last ``norm``; ``factor`` is that of embeddings, ``cap`` that of logits.

    A tied table has the factor in it, so the last norm divides by it.
    """
    output = Linear("output", (SourceRows("lm_head", shape.vocab),), shape.hidden, reads=norm.writes, writes="logits")
    decoder = Decoder(
        embedding=Embedding("model.embed_tokens.weight", shape.vocab, shape.hidden, factor=factor),
        layers=tuple(Layer(f"model.layers.{index}.", operations) for index, operations in enumerate(layers)),
        norm=norm,
        output=output,
        tied=shape.tied,
        cap=cap,
    )
    return DescribedConfig.of(decoder, shape.family, shape.context)


def last_norm(shape: Shape, *, plus: float = 0.0, factor: float = 1.0, centred: bool = False) -> Norm:
    """The norm behind all layers."""
    return Norm(
        gain("final_norm", "model.norm", shape.hidden, plus=plus, factor=factor), shape.eps, HIDDEN, "normed", centred=centred
    )


def root(value: float) -> float:
    """The square root, rounded to float32 as models have it."""
    return float(np.float32(math.sqrt(value)))
