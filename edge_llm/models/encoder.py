"""What encoders of BERT's kind are built of: tokens see all of their text, and norms come behind what is added."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.models.blocks import Shape, attention, gain, linear, read_activation, read_shape
from edge_llm.models.fields import Fields
from edge_llm.models.layer import Decoder, DescribedConfig
from edge_llm.models.reading import Reading
from edge_llm.operations.activation import Activate
from edge_llm.operations.attention import Rope
from edge_llm.operations.base import HIDDEN, Gain, Operation
from edge_llm.operations.embedding import Embedding
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.operations.norm import Norm
from edge_llm.operations.positions import Positions
from edge_llm.operations.scores import Scores

_STILL = Rope(0, 10000.0)
"""Nothing is rotated: positions are learned."""
_SUM = "summed"
"""The buffer between what is added and its norm."""


def encoder(raw: dict[str, Any], inside: str, *, padded: bool = False) -> ModelConfig:
    """The model of a config.json.

    inside: what tensors begin with where a head stands beside the encoder.  padded: positions begin behind the padding token.
    """
    fields = Fields(raw)
    if (kind := raw.get("position_embedding_type", "absolute")) not in (None, "absolute"):
        raise UnsupportedModel(f"config.json: position_embedding_type `{shown(kind)}` does not run here; `absolute` does")
    if fields.flag("is_decoder", False):
        raise UnsupportedModel("config.json: is_decoder `true`: an encoder that writes does not run here")
    shape = read_shape(raw, context=512, eps=1e-12, eps_key="layer_norm_eps", tied=True)
    first = fields.integer("pad_token_id", 0, shape.context, 1) + 1 if padded else 0
    if shape.context <= first:
        raise InvalidModel(f"config.json: max_position_embeddings `{shape.context}` leaves no position behind the padding")
    prefix = inside if any(not name.endswith("Model") for name in raw.get("architectures") or []) else ""
    activation = read_activation(raw, "hidden_act", default="gelu")
    layers = _layers(shape, prefix, first, fields.integer("type_vocab_size", 0, 1024, 2), activation)
    last = _norm(shape, "final_norm", f"{prefix}encoder.layer.{shape.layers - 1}.output.LayerNorm", HIDDEN, "normed")
    output = Linear("output", (SourceRows("lm_head", shape.vocab),), shape.hidden, reads="normed", writes="logits")
    decoder = Decoder(
        embedding=Embedding(f"{prefix}embeddings.word_embeddings.weight", shape.vocab, shape.hidden),
        layers=tuple(Layer(f"{prefix}encoder.layer.{index}.", one) for index, one in enumerate(layers)),
        norm=last,
        output=output,
        tied=True,
        reading=Reading(),
    )
    return DescribedConfig(
        family=shape.family,
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        context=shape.context - first,
        tied_embeddings=True,
        decoder=decoder,
    )


def _layers(shape: Shape, prefix: str, first: int, types: int, activation: str) -> list[tuple[Operation, ...]]:
    """The operations of every layer; the last norm of the last layer is the model's."""
    begins = _begins(shape, f"{prefix}embeddings.", first, types)
    attended = _attended(shape)
    inner = (*attended, *_mlp(shape, activation, _SUM), _norm(shape, "mlp_norm", "output.LayerNorm", _SUM, HIDDEN))
    layers = [inner] * (shape.layers - 1) + [(*attended, *_mlp(shape, activation, HIDDEN))]
    return [(*begins, *layers[0]), *layers[1:]]


def _begins(shape: Shape, prefix: str, first: int, types: int) -> tuple[Operation, ...]:
    """Before the first layer: positions, types and their norm."""

    def table(name: str, rows: int) -> Gain:
        return Gain(name, f"{prefix}{name}_embeddings.weight", shape.hidden, rows=rows, whole_name=True)

    kinds = table("token_type", types) if types else None
    norm = _norm(shape, "embedding_norm", f"{prefix}LayerNorm", _SUM, HIDDEN, whole_name=True)
    return Positions(table("position", shape.context), HIDDEN, _SUM, first, kinds), norm


def _attended(shape: Shape) -> tuple[Operation, ...]:
    sources = [SourceRows(f"attention.self.{part}", shape.hidden) for part in ("query", "key", "value")]
    given = SourceRows("attention.output.dense", shape.hidden)
    return (
        linear("qkv", sources, shape.hidden, HIDDEN, "qkv", bias=True),
        attention(shape, _STILL, scores=Scores(ahead=True)),
        linear("o", (given,), shape.q_size, "attended", _SUM, adds=HIDDEN, bias=True),
        _norm(shape, "attention_norm", "attention.output.LayerNorm", _SUM, HIDDEN),
    )


def _mlp(shape: Shape, activation: str, writes: str) -> tuple[Operation, ...]:
    up, down = SourceRows("intermediate.dense", shape.inner), SourceRows("output.dense", shape.hidden)
    return (
        linear("up", (up,), shape.hidden, HIDDEN, "up", bias=True),
        Activate(shape.inner, reads="up", writes="activated", activation=activation),
        linear("down", (down,), shape.inner, "activated", writes, adds=HIDDEN, bias=True),
    )


def _norm(shape: Shape, name: str, module: str, reads: str, writes: str, *, whole_name: bool = False) -> Norm:
    """A layer norm with a bias."""
    of, bias = gain(name, module, shape.hidden), Gain(f"{name}_bias", f"{module}.bias", shape.hidden)
    of, bias = (replace(one, whole_name=whole_name) for one in (of, bias))
    return Norm(of, shape.eps, reads, writes, centred=True, bias=bias)
