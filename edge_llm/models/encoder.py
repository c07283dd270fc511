"""What encoders of BERT's kind are built of: tokens see all of their text, and norms come behind what is added."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.models.blocks import Shape, attention, gain, linear, read_activation, read_shape
from edge_llm.models.fields import Fields
from edge_llm.models.layer import Decoder, DescribedConfig
from edge_llm.models.reading import FIRST, TANH, Dense, Reading, dense, score_by
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
SUM = "summed"
"""The buffer between what is added and its norm."""
Parts = tuple[tuple[Operation, ...], tuple[Operation, ...], tuple[Operation, ...]]
"""What stands before the first layer, and of each layer attention and MLP, without their norms."""
MakeHead = Callable[[str, int], tuple[Dense, ...]]
"""The steps of a head, of what the encoder's tensors begin with and its channels."""


@dataclass(frozen=True)
class Names:
    """What tensors are called, behind what all begin with."""

    embedding_norm: str
    layer: str
    """What those of a layer begin with, with braces for its number."""
    attention_norm: str
    mlp_norm: str


_NAMES = Names("embeddings.LayerNorm", "encoder.layer.{}.", "attention.output.LayerNorm", "output.LayerNorm")


def encoder(raw: dict[str, Any], inside: str, *, padded: bool = False, head: MakeHead) -> ModelConfig:
    """The model of a config.json.

    inside: what tensors begin with where a head stands beside the encoder.  padded: positions begin behind the padding token.
    head: what scores pairs of texts, where it is a reranker.
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
    prefix = inside if has_head(raw) else ""
    activation = read_activation(raw, "hidden_act", default="gelu")
    types, norm = fields.integer("type_vocab_size", 0, 1024, 2), f"{prefix}{_NAMES.embedding_norm}"
    begins = begun(shape, f"{prefix}embeddings.", norm, types, positions=shape.context, first=first)
    reading = reranker(raw, head(prefix, shape.hidden)) if is_classifier(raw) else Reading()
    return post_norm(shape, prefix, _NAMES, (begins, _attended(shape), _mlp(shape, activation)), reading, shape.context - first)


def post_norm(shape: Shape, prefix: str, names: Names, parts: Parts, reading: Reading, context: int) -> ModelConfig:
    """The model whose layers are the ``parts``: what stands before the first, attention, and an MLP, which both write the sum
    that a norm is taken of."""
    begins, attended, mixed = parts
    behind = (*attended, _norm(shape, "attention_norm", names.attention_norm, SUM, HIDDEN))
    whole = (*behind, *mixed, _norm(shape, "mlp_norm", names.mlp_norm, SUM, HIDDEN))
    last = (*behind, *mixed[:-1], replace(cast(Linear, mixed[-1]), writes=HIDDEN))  # its norm is the model's
    layers = [whole] * (shape.layers - 1) + [last]
    layers[0] = (*begins, *layers[0])
    layer = f"{prefix}{names.layer}"
    decoder = Decoder(
        embedding=Embedding(f"{prefix}embeddings.word_embeddings.weight", shape.vocab, shape.hidden),
        layers=tuple(Layer(layer.format(index), one) for index, one in enumerate(layers)),
        norm=_norm(shape, "final_norm", f"{layer.format(shape.layers - 1)}{names.mlp_norm}", HIDDEN, "normed"),
        output=Linear("output", (SourceRows("lm_head", shape.vocab),), shape.hidden, reads="normed", writes="logits"),
        tied=True,
        reading=reading,
    )
    return DescribedConfig.of(decoder, shape.family, context)


def begun(
    shape: Shape, tables: str, norm: str, types: int, *, positions: int = 0, first: int = 0
) -> tuple[Operation, ...]:
    """Before the first layer: learned positions, the kinds of texts, and their norm; ``tables`` is what the two begin with."""

    def table(name: str, rows: int) -> Gain | None:
        source = f"{tables}{name}_embeddings.weight"
        return Gain(name, source, shape.hidden, rows=rows, whole_name=True) if rows else None

    at, kinds = table("position", positions), table("token_type", types)
    added = (Positions(at, HIDDEN, SUM, first, kinds),) if at or kinds else ()
    return *added, _norm(shape, "embedding_norm", norm, SUM if added else HIDDEN, HIDDEN, whole_name=True)


def has_head(raw: dict[str, Any]) -> bool:
    """Whether a head stands beside the encoder."""
    return any(not name.endswith("Model") for name in raw.get("architectures") or [])


def is_classifier(raw: dict[str, Any]) -> bool:
    """Whether that is a head that scores texts."""
    return any(name.endswith("ForSequenceClassification") for name in raw.get("architectures") or [])


def reranker(raw: dict[str, Any], head: tuple[Dense, ...], pooling: str = FIRST) -> Reading:
    """What scores pairs of texts by ``head``.  Raises `UnsupportedModel` for a head of several labels."""
    labels = raw.get("id2label")
    count = len(labels) if isinstance(labels, dict) else Fields(raw).integer("num_labels", 1, 1 << 20, 2)
    if count != 1:
        raise UnsupportedModel(f"config.json: a classifier of `{count}` labels does not run here; rerankers, which have 1, do")
    settings = Fields(raw).section("sentence_transformers")
    named = settings.get("activation_fn") or raw.get("sbert_ce_default_activation_function")
    try:
        return Reading(pooling, head=head, score=score_by(named))
    except ValueError as error:
        raise UnsupportedModel(f"config.json: the activation `{shown(named)}` does not run here: {error}") from None


def pooled_head(prefix: str, hidden: int) -> tuple[Dense, ...]:
    """BERT's: its pooler, and a classifier."""
    pooler = dense("pooler", f"{prefix}pooler.dense", hidden, hidden, activation=TANH)
    return pooler, dense("classifier", "classifier", hidden, 1)


def classified_head(prefix: str, hidden: int) -> tuple[Dense, ...]:
    """RoBERTa's, which has no pooler."""
    before = dense("dense", "classifier.dense", hidden, hidden, activation=TANH)
    return before, dense("classifier", "classifier.out_proj", hidden, 1)


def _attended(shape: Shape) -> tuple[Operation, ...]:
    sources = [SourceRows(f"attention.self.{part}", shape.hidden) for part in ("query", "key", "value")]
    given = SourceRows("attention.output.dense", shape.hidden)
    return (
        linear("qkv", sources, shape.hidden, HIDDEN, "qkv", bias=True),
        attention(shape, _STILL, scores=Scores(ahead=True)),
        linear("o", (given,), shape.q_size, "attended", SUM, adds=HIDDEN, bias=True),
    )


def _mlp(shape: Shape, activation: str) -> tuple[Operation, ...]:
    up, down = SourceRows("intermediate.dense", shape.inner), SourceRows("output.dense", shape.hidden)
    return (
        linear("up", (up,), shape.hidden, HIDDEN, "up", bias=True),
        Activate(shape.inner, reads="up", writes="activated", activation=activation),
        linear("down", (down,), shape.inner, "activated", SUM, adds=HIDDEN, bias=True),
    )


def _norm(shape: Shape, name: str, module: str, reads: str, writes: str, *, whole_name: bool = False) -> Norm:
    """A layer norm with a bias."""
    of, bias = gain(name, module, shape.hidden), Gain(f"{name}_bias", f"{module}.bias", shape.hidden)
    of, bias = (replace(one, whole_name=whole_name) for one in (of, bias))
    return Norm(of, shape.eps, reads, writes, centred=True, bias=bias)
