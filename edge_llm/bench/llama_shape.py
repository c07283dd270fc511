"""The numbers of a model whose layers are Llama's: what files of other engines are made by."""

from __future__ import annotations

from edge_llm.config import LlamaConfig, ModelConfig, RopeScaling
from edge_llm.errors import UsageError
from edge_llm.models import describe
from edge_llm.models.llama_like import llama_decoder
from edge_llm.operations.attention import Rope
from edge_llm.operations.glu import GLU
from edge_llm.operations.rope_kinds import Llama3


def llama_shape(config: ModelConfig) -> LlamaConfig:
    """The numbers of the model of ``config``.  Raises `UsageError` where its layers are not like Llama's."""
    if isinstance(config, LlamaConfig):
        return config
    decoder = describe(config)
    layer = decoder.layers[0]
    attention, by_name = layer.attention, {linear.name: linear for linear in layer.linears}
    inner = [operation.width for operation in layer.operations if isinstance(operation, GLU)]
    found = LlamaConfig(
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        context=config.context,
        tied_embeddings=config.tied_embeddings,
        intermediate_size=inner[0] if inner else 1,
        num_layers=len(decoder.layers),
        num_heads=attention.heads,
        num_kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        norm_eps=decoder.norm.eps,
        rope_theta=attention.rope.theta,
        rope_scaling=_scaling(attention.rope),
        qkv_bias=layer.projection.bias,
        output_bias="o" in by_name and by_name["o"].bias,
        mlp_bias="down" in by_name and by_name["down"].bias,
        qk_norm=attention.q_norm is not None,
    )
    if llama_decoder(found).layers != decoder.layers:
        raise UsageError(f"no other engine's file is made here of layers like those of `{config.family}`", param="peer")
    return found


def _scaling(rope: Rope) -> RopeScaling | None:
    kind = rope.scaling
    if not isinstance(kind, Llama3):
        return None
    return RopeScaling(kind.stretch, kind.low_frequency_factor, kind.high_frequency_factor, kind.original_context)
