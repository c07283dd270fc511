"""Float weights of a decoder by their names in the source, stacked the way the runtime multiplies them.

A source is whatever knows tensor names, shapes and float32 data (`WeightSource`); nothing is read before it is asked for, and
a layer at a time.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from edge_llm.errors import InvalidModel
from edge_llm.models.layer import Decoder
from edge_llm.operations.base import FloatLinear, LayerWeights
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear

_IGNORED = ("rotary_emb.inv_freq", "self_attn.masked_bias", "self_attn.bias")
"""Buffers that old exports wrote beside the weights; config.json has the same facts."""


class WeightSource(Protocol):
    """Named tensors, such as those of a Hugging Face folder, or of the float weights that a bundle keeps."""

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> np.ndarray:
        """The tensor as float32, finite."""
        ...


def layer_shapes(layer: Layer) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer's tensors in the source."""
    shapes: dict[str, tuple[int, ...]] = {gain.source: (gain.size,) for gain in layer.gains}
    for linear in layer.linears:
        shapes |= {f"{part.source}.weight": (part.count, linear.columns) for part in linear.sources}
        if linear.bias:
            shapes |= {f"{part.source}.bias": (part.count,) for part in linear.sources}
    return {layer.prefix + name: shape for name, shape in shapes.items()}


def check_tensors(source: WeightSource, decoder: Decoder) -> list[str]:
    """Compare the source with the model's description before anything is read.

    Every tensor that the model needs must be there in its shape, else `InvalidModel`.  Returns the names of tensors
    that nothing uses, for a warning.
    """
    present = set(source.names())
    table, output = (decoder.vocab_size, decoder.hidden_size), _output_name(decoder)
    needed: dict[str, tuple[int, ...]] = {decoder.embedding.source: table}
    for layer in decoder.layers:
        needed |= layer_shapes(layer)
    needed[decoder.norm.gain.source] = (decoder.hidden_size,)
    if not decoder.tied:
        needed[output] = table
    for name, shape in needed.items():
        hint = "; set tie_word_embeddings if the embedding serves for it" if name == output else ""
        _check(source, present, name, shape, hint)
    if decoder.tied and output in present:
        _check_tied(source, decoder)
        needed[output] = table
    return sorted(name for name in present - set(needed) if not name.endswith(_IGNORED))


def _check(source: WeightSource, present: set[str], name: str, shape: tuple[int, ...], hint: str) -> None:
    if name not in present:
        raise InvalidModel(f"the model lacks the tensor `{name}` {list(shape)} that its config.json asks for{hint}")
    found = tuple(source.shape(name))
    if found != shape:
        raise InvalidModel(f"tensor `{name}` has the shape `{list(found)}`, but config.json makes it {list(shape)}")


def _check_tied(source: WeightSource, decoder: Decoder) -> None:
    output = _output_name(decoder)
    if not np.array_equal(source.read(output), source.read(decoder.embedding.source)):
        raise InvalidModel(
            f"config.json says tie_word_embeddings `true`, but `{output}` differs from `{decoder.embedding.source}`; "
            "set it to false"
        )


def _output_name(decoder: Decoder) -> str:
    return f"{decoder.output.sources[0].source}.weight"


def read_layer(source: WeightSource, layer: Layer) -> LayerWeights:
    """Read ``layer``; the peak is this layer plus one of its matrices."""
    return LayerWeights(
        linears={linear.name: _read_linear(source, layer.prefix, linear) for linear in layer.linears},
        gains={gain.name: source.read(layer.prefix + gain.source) for gain in layer.gains},
    )


def _read_linear(source: WeightSource, prefix: str, linear: Linear) -> FloatLinear:
    weight, bias = ([f"{prefix}{part.source}.{kind}" for part in linear.sources] for kind in ("weight", "bias"))
    return FloatLinear(_stacked(source, weight), _stacked(source, bias) if linear.bias else None)


def _stacked(source: WeightSource, names: list[str]) -> np.ndarray:
    if len(names) == 1:
        return source.read(names[0])
    rows = [source.shape(name)[0] for name in names]
    out = np.empty((sum(rows), *source.shape(names[0])[1:]), np.float32)
    start = 0
    for name, count in zip(names, rows, strict=True):
        out[start : start + count] = source.read(name)
        start += count
    return out


def read_embedding(source: WeightSource, decoder: Decoder) -> np.ndarray:
    """Token embedding, float32 [vocab, hidden]."""
    return source.read(decoder.embedding.source)


def read_final_norm(source: WeightSource, decoder: Decoder) -> np.ndarray:
    """Gain of the norm before the output, float32 [hidden]."""
    return source.read(decoder.norm.gain.source)


def read_output(source: WeightSource, decoder: Decoder) -> np.ndarray:
    """Output matrix, float32 [vocab, hidden]; the embedding when the two are tied."""
    return source.read(decoder.embedding.source if decoder.tied else _output_name(decoder))
