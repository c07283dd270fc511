"""Float weights of a decoder by their names in the source, stacked the way the runtime multiplies them.

A source is whatever knows tensor names, shapes and float32 data (`WeightSource`); nothing is read before it is asked for, and
a layer at a time.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.kernels.types import MAX_COLUMNS
from edge_llm.models.layer import Decoder
from edge_llm.operations.base import FloatLinear, Gain, LayerWeights
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear, SourceRows

_IGNORED = (
    "rotary_emb.inv_freq", "self_attn.masked_bias", "self_attn.bias",
    "embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias",
)  # fmt: skip
"""Buffers that old exports wrote beside the weights, of which config.json has the facts; and what an encoder was trained with
and no vector needs."""


class WeightSource(Protocol):
    """Named tensors, such as those of a Hugging Face folder, or of the float weights that a bundle keeps."""

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> np.ndarray:
        """The tensor as float32, finite."""
        ...


def layer_shapes(layer: Layer) -> dict[str, tuple[int, ...]]:
    """Names and shapes of one layer's tensors in the source."""
    shapes: dict[str, tuple[int, ...]] = {}
    for linear in layer.linears:
        rows = {part.source: part.module_rows or part.count for part in linear.sources}
        shapes |= {f"{module}.weight": (count, linear.columns) for module, count in rows.items()}
        if linear.bias:
            shapes |= {f"{module}.bias": (count,) for module, count in rows.items()}
    gains = {gain_name(layer.prefix, gain): gain.source_shape or gain.shape for gain in layer.gains}
    return gains | {layer.prefix + name: shape for name, shape in shapes.items()}


def gain_name(prefix: str, gain: Gain) -> str:
    """The tensor of ``gain`` in the source, of a layer whose tensors begin with ``prefix``."""
    return gain.source if gain.whole_name else prefix + gain.source


def check_tensors(source: WeightSource, decoder: Decoder) -> list[str]:
    """Compare the source with the model's description before anything is read.

    Every tensor that the model needs must be there in its shape, else `InvalidModel`; `UnsupportedModel` for one that is too
    wide for the kernels.  Returns the names of tensors that nothing uses, for a warning.
    """
    for name, linear in decoder.linears().items():
        if linear.columns > MAX_COLUMNS:
            raise UnsupportedModel(f"`{name}` has {linear.columns} input channels; up to {MAX_COLUMNS} run here")
    present = set(source.names())
    table, output = (decoder.vocab_size, decoder.hidden_size), _output_name(decoder)
    needed: dict[str, tuple[int, ...]] = {decoder.embedding.source: table}
    for layer in decoder.layers:
        needed |= layer_shapes(layer)
    needed |= dict.fromkeys((gain.source for gain in decoder.norm.gains), (decoder.hidden_size,))
    needed |= {gain.source: gain.shape for gain in decoder.head_tensors}
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
    linears = {linear.name: read_linear(source, layer.prefix, linear) for linear in layer.linears}
    return LayerWeights(linears, read_gains(source, layer))


def read_gains(source: WeightSource, layer: Layer) -> dict[str, np.ndarray]:
    """The vectors of ``layer``, float32, by their names here."""
    return {gain.name: _read_gain(source, layer.prefix, gain) for gain in layer.gains}


def _read_gain(source: WeightSource, prefix: str, gain: Gain) -> np.ndarray:
    values = source.read(gain_name(prefix, gain))
    values = values.reshape(gain.shape) if gain.source_shape else values
    values = values + np.float32(gain.plus) if gain.plus else values
    return values * np.float32(gain.factor) if gain.factor != 1 else values


def read_linear(source: WeightSource, prefix: str, linear: Linear) -> FloatLinear:
    """The float32 weight and bias of ``linear``, whose modules' names begin with ``prefix``."""
    return FloatLinear(_stacked(source, prefix, linear, "weight"), read_bias(source, prefix, linear) if linear.bias else None)


def read_bias(source: WeightSource, prefix: str, linear: Linear) -> np.ndarray:
    """The bias float32 [N] of ``linear``, which has one."""
    return _stacked(source, prefix, linear, "bias")


def _stacked(source: WeightSource, prefix: str, linear: Linear, kind: str) -> np.ndarray:
    """The tensors ``kind`` of the modules of ``linear``, one under the other."""
    if len(linear.sources) == 1:
        return _rows(source, prefix, linear.sources[0], kind)
    out = np.empty((linear.rows, linear.columns) if kind == "weight" else linear.rows, np.float32)
    start = 0
    for part in linear.sources:
        out[start : start + part.count] = _rows(source, prefix, part, kind)
        start += part.count
    return out


def _rows(source: WeightSource, prefix: str, part: SourceRows, kind: str) -> np.ndarray:
    values = arranged(source.read(f"{prefix}{part.source}.{kind}"), part)
    return values * np.float32(part.factor) if part.factor != 1 else values


def arranged(values: np.ndarray, part: SourceRows) -> np.ndarray:
    """The rows of ``part`` among the ``values`` [rows, ...] of its module, in the order that a linear has them."""
    if part.module_rows:
        values = values[part.numbers()] if part.run > 1 else values[part.first :: part.step][: part.count]
    if not part.pairs:
        return values
    heads = values.reshape(-1, part.head, *values.shape[1:])
    turning = heads[:, : part.pairs]
    return np.concatenate([turning[:, ::2], turning[:, 1::2], heads[:, part.pairs :]], axis=1).reshape(values.shape)


def read_embedding(source: WeightSource, decoder: Decoder) -> np.ndarray:
    """Token embedding, float32 [vocab, hidden]."""
    table, factor = source.read(decoder.embedding.source), decoder.embedding.factor
    return table * np.float32(factor) if factor != 1 else table


def read_final_norm(source: WeightSource, decoder: Decoder) -> np.ndarray:
    """Vectors of the norm before the output, float32: the gain [hidden], or gain and bias [2, hidden]."""
    vectors = [_read_gain(source, "", gain) for gain in decoder.norm.gains]
    return vectors[0] if len(vectors) == 1 else np.stack(vectors)


def read_head(source: WeightSource, decoder: Decoder) -> dict[str, np.ndarray]:
    """The tensors behind the pooling, float32, by their names here."""
    return {gain.name: _read_gain(source, "", gain).reshape(gain.shape) for gain in decoder.head_tensors}


def read_output(source: WeightSource, decoder: Decoder) -> np.ndarray:
    """Output matrix, float32 [vocab, hidden]; the embedding when the two are tied."""
    return read_embedding(source, decoder) if decoder.tied else source.read(_output_name(decoder))
