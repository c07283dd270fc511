"""What the families share: reading config.json with bounds, and the settings that all of them have."""

from __future__ import annotations

from typing import Any

from edge_llm.config import LlamaConfig, ModelConfig, RopeScaling
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.models.blocks import base_of, llama3_of, read_activation, read_head_dim, rope_of
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.models.layer import Decoder, DescribedConfig
from edge_llm.operations.attention import Attention, Rope
from edge_llm.operations.base import HIDDEN, Gain, Operation
from edge_llm.operations.embedding import Embedding
from edge_llm.operations.glu import GLU
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.operations.norm import Norm
from edge_llm.operations.rope_kinds import Llama3

_SILU = "silu"


def decoder_config(
    raw: dict[str, Any],
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    context: int,
    norm_eps: float = 1e-6,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    window: int | None = None,
) -> ModelConfig:
    """The `LlamaConfig` of a llama-like decoder; one with its description where its rotation or its activation is another.

    ``kv_heads``, ``head_dim``, ``context`` and ``norm_eps`` are the family's own values for keys that are absent
    (None means as many key heads as query heads, and hidden size / heads).  ``window`` is the reach of a sliding
    attention window in tokens: inside it windowed and full attention are the same, so it bounds the context.
    """
    fields = Fields(raw)
    activation = read_activation(raw, "hidden_act", default=_SILU)
    hidden = fields.integer("hidden_size", 1, 1 << 17)
    heads = fields.integer("num_attention_heads", 1, 4096)
    kv = fields.integer("num_key_value_heads", 1, 4096, heads if kv_heads is None else kv_heads)
    if kv > heads or heads % kv:
        raise InvalidModel(f"config.json: num_attention_heads `{heads}` must be a multiple of num_key_value_heads, not `{kv}`")
    theta, scaling = _rope(fields)
    longest = _longest(fields, context)
    plain = LlamaConfig(
        family=raw["model_type"],
        vocab_size=fields.integer("vocab_size", 1, 1 << 22),
        hidden_size=hidden,
        intermediate_size=fields.integer("intermediate_size", 1, 1 << 20),
        num_layers=fields.integer("num_hidden_layers", 1, 1024),
        num_heads=heads,
        num_kv_heads=kv,
        head_dim=read_head_dim(fields, hidden, heads, head_dim),
        context=longest if window is None else min(longest, window),
        norm_eps=fields.number("rms_norm_eps", 1e-20, 1.0, norm_eps),
        rope_theta=theta,
        rope_scaling=scaling,
        tied_embeddings=fields.flag("tie_word_embeddings", False),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
    )
    rope = llama_rope(plain) if scaling or not _section(fields) else rope_of(raw, plain.head_dim, plain.context)
    if activation == _SILU and (scaling or rope.scaling is None):
        return plain
    return DescribedConfig.of(llama_decoder(plain, rope, activation), plain.family, plain.context)


def sliding_window(raw: dict[str, Any]) -> int | None:
    """Tokens that a sliding window reaches (the token itself included), or None when attention is full."""
    fields = Fields(raw)
    kinds = raw.get("layer_types") or []
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise InvalidModel(f"config.json: layer_types must be a list of names, not `{shown(kinds)}`")
    foreign = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if foreign:
        raise UnsupportedModel(f"config.json: the layer type `{shown(foreign[0])}` does not run here")
    if raw.get("sliding_window") is None or (kinds and "sliding_attention" not in kinds):
        return None
    layers = fields.integer("num_hidden_layers", 1, 1024)
    if not kinds and fields.integer("max_window_layers", 0, 1 << 20, 0) >= layers:
        return None  # the layers below it have full attention
    return fields.integer("sliding_window", 1, MAX_CONTEXT)


def _section(fields: Fields) -> dict[str, Any]:
    """What is said of the rotation: with its base (transformers 5), or beside rope_theta."""
    return fields.section("rope_parameters") or fields.section("rope_scaling")


def _longest(fields: Fields, context: int) -> int:
    """The longest text; YaRN over a first context that is said reaches so many times as far."""
    longest, rope = fields.integer("max_position_embeddings", 1, MAX_CONTEXT, context), Fields(_section(fields))
    first = rope.raw.get("original_max_position_embeddings")
    if first is None or rope.raw.get("rope_type", rope.raw.get("type")) != "yarn":
        return longest
    reach = rope.integer("original_max_position_embeddings", 1, MAX_CONTEXT) * rope.number("factor", 1e-3, 1e6)
    return min(max(longest, round(reach)), MAX_CONTEXT)


def _rope(fields: Fields) -> tuple[float, RopeScaling | None]:
    """The base and Llama 3's scaling; of another kind the base alone."""
    section = _section(fields)
    rope = Fields(section)
    for where in (fields, rope):
        if where.number("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0:
            raise UnsupportedModel("config.json: a partial_rotary_factor other than 1 does not run here")
    theta = base_of(fields, rope)
    if section.get("rope_type", section.get("type", "default")) != "llama3":
        return theta, None
    kind = llama3_of(rope)
    return theta, RopeScaling(kind.stretch, kind.low_frequency_factor, kind.high_frequency_factor, kind.original_context)


def llama_decoder(config: LlamaConfig, rope: Rope | None = None, activation: str = _SILU) -> Decoder:
    """Llama's decoder, which most families have: attention, then a gated MLP, each behind an RMS norm.

    rope: another one than that of ``config``.
    """
    operations = _llama_layer(config, rope or llama_rope(config), activation)
    return Decoder(
        embedding=Embedding("model.embed_tokens.weight", config.vocab_size, config.hidden_size),
        layers=tuple(Layer(f"model.layers.{index}.", operations) for index in range(config.num_layers)),
        norm=_norm(config, "final_norm", "model.norm.weight", "normed"),
        output=Linear(
            "output", (SourceRows("lm_head", config.vocab_size),), config.hidden_size, reads="normed", writes="logits"
        ),
        tied=config.tied_embeddings,
    )


def _llama_layer(config: LlamaConfig, rope: Rope, activation: str) -> tuple[Operation, ...]:
    hidden, inner = config.hidden_size, config.intermediate_size
    kv = config.kv_size
    queries = SourceRows("self_attn.q_proj", config.q_size)
    qkv = (queries, SourceRows("self_attn.k_proj", kv), SourceRows("self_attn.v_proj", kv))
    gate_up = (SourceRows("mlp.gate_proj", inner), SourceRows("mlp.up_proj", inner))
    return (
        _norm(config, "attention_norm", "input_layernorm.weight", "normed"),
        Linear("qkv", qkv, hidden, reads="normed", writes="qkv", bias=config.qkv_bias),
        _attention(config, rope),
        Linear(
            "o", (SourceRows("self_attn.o_proj", hidden),), config.q_size,
            reads="attended", writes=HIDDEN, adds=HIDDEN, bias=config.output_bias,
        ),
        _norm(config, "mlp_norm", "post_attention_layernorm.weight", "normed"),
        Linear("gate_up", gate_up, hidden, reads="normed", writes="gate_up", bias=config.mlp_bias),
        GLU(inner, reads="gate_up", writes="activated", activation=activation),
        Linear(
            "down", (SourceRows("mlp.down_proj", hidden),), inner,
            reads="activated", writes=HIDDEN, adds=HIDDEN, bias=config.mlp_bias,
        ),
    )  # fmt: skip


def _norm(config: LlamaConfig, name: str, source: str, writes: str) -> Norm:
    return Norm(Gain(name, source, config.hidden_size), config.norm_eps, reads=HIDDEN, writes=writes)


def llama_rope(config: LlamaConfig) -> Rope:
    """The rotary embedding of whole heads."""
    scaling = config.rope_scaling
    if scaling is None:
        return Rope(config.head_dim, config.rope_theta)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    return Rope(config.head_dim, config.rope_theta, Llama3(scaling.factor, low, high, scaling.original_context))


def _attention(config: LlamaConfig, rope: Rope) -> Attention:
    norms = {name: Gain(name, f"self_attn.{name}.weight", config.head_dim) for name in ("q_norm", "k_norm")}
    return Attention(
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rope=rope,
        reads="qkv",
        writes="attended",
        q_norm=norms["q_norm"] if config.qk_norm else None,
        k_norm=norms["k_norm"] if config.qk_norm else None,
        eps=config.norm_eps,
    )
