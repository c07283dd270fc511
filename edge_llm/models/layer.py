"""What a decoder is, said once: embedding, layers, last norm, output matrix.

A family describes its layers with operations (`edge_llm.operations`).  Reading weights, the float reference, calibration,
quantization, the bundle's layout, subgraphs, buffers and costs walk over the description; none of them knows a linear by its
name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from edge_llm.config import NEURONS, ModelConfig
from edge_llm.models.reading import Reading
from edge_llm.operations.base import HIDDEN, Gain, HeadTurns

if TYPE_CHECKING:
    from edge_llm.operations.attention import Attention
    from edge_llm.operations.embedding import Embedding
    from edge_llm.operations.layer import Layer
    from edge_llm.operations.linear import Linear
    from edge_llm.operations.norm import Norm


@dataclass(frozen=True)
class Decoder:
    """A decoder: embedding, layers, last norm, output matrix."""

    embedding: Embedding
    layers: tuple[Layer, ...]
    norm: Norm
    output: Linear
    """The output matrix; its source is not read when the embedding is the output matrix too."""
    tied: bool
    cap: float = 0.0
    """Logits l are ``cap * tanh(l / cap)``; 0: no cap."""
    reading: Reading | None = None
    """How a text becomes a vector; None: the model was not trained for that."""

    def __post_init__(self) -> None:
        if not self.attentions:
            raise ValueError("no layer has an attention")
        hidden = self.output.columns
        widths = {self.embedding.columns, self.norm.gain.size, *(layer.widths[HIDDEN] for layer in self.layers)}
        if not self.layers or widths != {hidden} or self.embedding.rows != self.output.rows:
            raise ValueError("embedding, layers, last norm and output matrix do not fit each other")
        if (self.embedding.writes, self.norm.reads, self.output.reads) != (HIDDEN, HIDDEN, self.norm.writes):
            raise ValueError("embedding, layers, last norm and output matrix do not hand on to each other")
        if self.reading and self.reading.head and self.reading.head[0].weight.size != hidden:
            raise ValueError(f"what stands behind the pooling does not read {hidden} channels")

    @property
    def table(self) -> Linear:
        """How the embedding is stored: as the output matrix where that is the embedding too, turned back when it is read."""
        return self.output if self.tied else replace(self.output, scheme=self.embedding.scheme, turn=0)

    @property
    def head_tensors(self) -> tuple[Gain, ...]:
        """What stands behind the pooling of its states."""
        return () if self.reading is None else self.reading.tensors

    @property
    def is_encoder(self) -> bool:
        """Whether tokens see those behind them: a text is computed as a whole, and nothing is written on."""
        return any(attention.scores.ahead for attention in self.attentions)

    @property
    def vocab_size(self) -> int:
        return self.output.rows

    @property
    def hidden_size(self) -> int:
        return self.output.columns

    @property
    def parameters(self) -> int:
        """Number of weights, biases left out."""
        table = self.vocab_size * self.hidden_size
        layers = sum(
            sum(linear.rows * linear.columns for linear in layer.linears) + sum(math.prod(gain.shape) for gain in layer.gains)
            for layer in self.layers
        )
        return table * (1 if self.tied else 2) + layers + sum(gain.size for gain in self.norm.gains)

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """The attention of every layer that has one."""
        return tuple(attention for layer in self.layers for attention in layer.attentions)

    @property
    def state_bytes(self) -> int:
        """Bytes that a sequence keeps in a fixed shape, however long it is."""
        return sum(kept.nbytes for layer in self.layers for kept in layer.fixed)

    @property
    def host_alone(self) -> str:
        """What of it no card can do, as messages call it; empty: nothing."""
        behind = "attention to the tokens behind one" if self.is_encoder else ""
        apart = "weights of neurons that lie apart" if any(one.scheme == NEURONS for one in self.linears().values()) else ""
        of_layers = (one.HOST_ALONE for layer in self.layers for one in layer.operations if one.HOST_ALONE)
        return behind or apart or next(of_layers, "")

    @property
    def beside_cards(self) -> str:
        """What of it the host does beside a card, as messages call it; empty: nothing."""
        return next((one.BESIDE_CARDS for layer in self.layers for one in layer.operations if one.BESIDE_CARDS), "")

    @property
    def head_turns(self) -> HeadTurns:
        """Those that all attentions share."""
        return HeadTurns(self.attentions[0].turn, self.attentions[0].value_turn) if self.attentions else HeadTurns()

    def with_schemes(self, schemes: Mapping[str, str]) -> Decoder:
        """This decoder with the weight schemes that ``schemes`` gives, by the names that `linears` has, and of an
        ``embedding`` that is not the output matrix too."""
        layers = tuple(_with_schemes(layer, f"layers.{index}.", schemes) for index, layer in enumerate(self.layers))
        output = replace(self.output, scheme=schemes.get("output", self.output.scheme))
        embedding = replace(self.embedding, scheme=schemes.get("embedding", self.embedding.scheme))
        return replace(self, embedding=embedding, layers=layers, output=output)

    def with_turns(self, turns: Mapping[str, int], heads: HeadTurns) -> Decoder:
        """This decoder with the ``turns`` of linears, by the names that `linears` has, and those of ``heads``."""
        layers = tuple(_with_turns(layer, f"layers.{index}.", turns, heads) for index, layer in enumerate(self.layers))
        return replace(self, layers=layers, output=replace(self.output, turn=turns.get("output", 0)))

    def linears(self) -> dict[str, Linear]:
        """Every linear of the model by its name in a bundle, in execution order."""
        named = {f"layers.{index}.{linear.name}": linear for index, layer in enumerate(self.layers) for linear in layer.linears}
        return named | {"output": self.output}


@dataclass(frozen=True, kw_only=True)
class DescribedConfig(ModelConfig):
    """A model that carries its description, as bundles do."""

    decoder: Decoder

    @classmethod
    def of(cls, decoder: Decoder, family: str, context: int) -> DescribedConfig:
        """What is said of the model ``decoder`` of a ``family``, made for texts of ``context`` tokens."""
        return cls(
            family=family,
            vocab_size=decoder.vocab_size,
            hidden_size=decoder.hidden_size,
            context=context,
            tied_embeddings=decoder.tied,
            decoder=decoder,
        )


def _with_schemes(layer: Layer, prefix: str, schemes: Mapping[str, str]) -> Layer:
    """``layer`` itself where no scheme changes, so that like layers go on sharing their operations."""
    if all(schemes.get(prefix + linear.name, linear.scheme) == linear.scheme for linear in layer.linears):
        return layer
    operations = tuple(one.with_schemes(lambda name: schemes.get(prefix + name)) for one in layer.operations)
    return replace(layer, operations=operations)


def _with_turns(layer: Layer, prefix: str, turns: Mapping[str, int], heads: HeadTurns) -> Layer:
    operations = tuple(one.with_turns(lambda name: turns.get(prefix + name, 0), heads) for one in layer.operations)
    return layer if operations == layer.operations else replace(layer, operations=operations)
