"""OPT (arXiv 2205.01068): learned positions, layer norms before attention and MLP, biases, ReLU without a gate."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown
from edge_llm.models.blocks import Shape, attention, centred_norm, linear, output, plain_mlp, read_activation, read_shape
from edge_llm.models.fields import Fields
from edge_llm.models.layer import Decoder, DescribedConfig
from edge_llm.operations.attention import Rope
from edge_llm.operations.base import HIDDEN, Gain, Operation
from edge_llm.operations.embedding import Embedding
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.operations.positions import Positions

_FIRST = 2
"""Row of position 0 in the table of positions: those before it were meant for padding."""
_STILL = Rope(0, 10000.0)
"""Nothing is rotated: positions are learned."""
_MODEL = "model.decoder."
_NEEDED = {"do_layer_norm_before": True, "enable_bias": True, "layer_norm_elementwise_affine": True}
"""What all sizes have but 350M, whose norms come behind what is added."""


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: opt`` config.json."""
    fields = Fields(raw)
    for key, wanted in _NEEDED.items():
        if fields.flag(key, wanted) != wanted:
            raise UnsupportedModel(f"config.json: {key} `{str(not wanted).lower()}` does not run here; `true` does")
    if fields.flag("_remove_final_layer_norm", False):
        raise UnsupportedModel("config.json: _remove_final_layer_norm `true` does not run here; `false` does")
    inner = fields.integer("ffn_dim", 1, 1 << 20)
    sizes = raw | {"intermediate_size": inner, "num_key_value_heads": None, "head_dim": None}
    shape = read_shape(sizes, context=2048, eps=1e-5, tied=True)
    if (width := fields.integer("word_embed_proj_dim", 1, 1 << 17, shape.hidden)) != shape.hidden:
        raise UnsupportedModel(f"config.json: a word_embed_proj_dim of `{shown(width)}` does not run here; {shape.hidden} does")
    activation = read_activation(raw, "activation_function", default="relu")
    return DescribedConfig.of(_decoder(shape, _layer(shape, activation)), shape.family, shape.context)


def _layer(shape: Shape, activation: str) -> tuple[Operation, ...]:
    return (
        centred_norm(shape, "attention_norm", "self_attn_layer_norm"),
        _qkv(shape),
        attention(shape, _STILL),
        output(shape, bias=True, module="self_attn.out_proj"),
        centred_norm(shape, "mlp_norm", "final_layer_norm"),
        *plain_mlp(shape, activation, up="fc1", down="fc2", bias=True),
    )


def _qkv(shape: Shape) -> Linear:
    sources = [SourceRows(f"self_attn.{part}_proj", shape.hidden) for part in "qkv"]
    return linear("qkv", sources, shape.hidden, "normed", "qkv", bias=True)


def _decoder(shape: Shape, layer: tuple[Operation, ...]) -> Decoder:
    source, rows = f"{_MODEL}embed_positions.weight", shape.context + _FIRST
    table = Gain("position", source, shape.hidden, rows=rows, whole_name=True)
    layers = [(Positions(table, HIDDEN, HIDDEN, _FIRST), *layer), *[layer] * (shape.layers - 1)]
    return Decoder(
        embedding=Embedding(f"{_MODEL}embed_tokens.weight", shape.vocab, shape.hidden),
        layers=tuple(Layer(f"{_MODEL}layers.{index}.", one) for index, one in enumerate(layers)),
        norm=centred_norm(shape, "final_norm", f"{_MODEL}final_layer_norm"),
        output=Linear("output", (SourceRows("lm_head", shape.vocab),), shape.hidden, reads="normed", writes="logits"),
        tied=shape.tied,
    )
