"""The tensors of a GGUF file under the names, in the order of rows and with the values that Hugging Face's files have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.gguf import GgufModel
from edge_llm.formats.gguf_blocks import TYPES, BlockType
from edge_llm.formats.gguf_names import (
    BARE,
    EXPERTS,
    FADE,
    FREQUENCIES,
    FUSED,
    LONG_FACTORS,
    NORMS_PLUS_ONE,
    PARTS_OF_FUSED,
    PLAIN_NORM,
    ROWS,
    SHORT_FACTORS,
    TAPS,
    TURNED_IN_PAIRS,
    layer_names,
    layer_prefix,
    whole_names,
)
from edge_llm.kernels.floats import log64
from edge_llm.models.layer import Decoder
from edge_llm.models.weights import gain_name

_ROTATION = (FREQUENCIES, LONG_FACTORS, SHORT_FACTORS)
"""Tensors that config.json has in numbers."""


@dataclass(frozen=True)
class _Part:
    """A tensor of the file, or ``rows`` of it."""

    tensor: str
    rows: range | None = None
    as_row: bool | None = None
    """Whether a vector of the file is the row of a matrix here, or a row of its matrix a vector here; None: neither."""

    def shape(self, of: tuple[int, ...]) -> tuple[int, ...]:
        """Its shape here, where that of the tensor is ``of``."""
        if self.as_row is not None:
            return (1, *of[-1:]) if self.as_row else of[-1:]
        return of if self.rows is None else (len(self.rows), *of[1:][-1:])


class GgufTensors:
    """Tensors of ``model`` by Hugging Face's names.

    Raises `InvalidModel` for two that are the same one, `UnsupportedModel` for a bias that ``decoder`` does not add.  A bias
    that the file lacks where others of its kind are is zero.
    """

    def __init__(self, model: GgufModel, decoder: Decoder) -> None:
        self._model = model
        self._architecture = model.text("general.architecture")
        self._attention = decoder.attentions[0]
        self._layer_names, self._whole_names = layer_names(self._architecture), whole_names(self._architecture)
        self._parts: dict[str, _Part] = {}
        ahead = model.integer(f"{self._architecture}.nextn_predict_layers", 0, 1024, 0)
        self._behind = range(len(decoder.layers), len(decoder.layers) + ahead)
        for info in model.tensors:
            if info.name not in _ROTATION:
                self._add(info.name)
        self._zeros = self._lacking_biases(decoder)

    def names(self) -> list[str]:
        return [*self._parts, *self._zeros]

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self._zeros:
            return (self._zeros[name],)
        part = self._parts.get(name, _Part(name))
        shape = part.shape(self._model.tensor(part.tensor).shape)
        return (shape[0], 1, *shape[1:]) if name.endswith(TAPS) else shape

    def read(self, name: str) -> np.ndarray:
        """`GgufModel.read` of the tensor ``name``."""
        if name in self._zeros:
            return np.zeros(self._zeros[name], np.float32)
        part = self._parts.get(name, _Part(name))
        values = self._model.read(part.tensor, part.rows).reshape(self.shape(name))
        if self._architecture in NORMS_PLUS_ONE and name.endswith("norm.weight") and not name.endswith(PLAIN_NORM):
            values -= np.float32(1)
        if name.endswith(FADE):
            return self._logarithms(name, -values)
        heads = self._heads_in_pairs(name)
        return values if heads is None else _halves(values, heads)

    def block_type(self, name: str) -> BlockType:
        """ggml's type of the tensor ``name``."""
        return TYPES[0] if name in self._zeros else self._model.tensor(self._parts.get(name, _Part(name)).tensor).kind

    def raw_rows(self, name: str, numbers: np.ndarray) -> np.ndarray:
        """The bytes of the rows ``numbers`` (int64 [M], not empty) of the matrix ``name`` as in the file: uint8 [M, B].

        All bytes between the first and the last of them in the file are read.
        """
        part = self._parts.get(name, _Part(name))
        heads = self._heads_in_pairs(name)
        if heads is not None:
            numbers = _halves(np.arange(self.shape(name)[0]), heads)[numbers]
        first, end = int(numbers.min()), int(numbers.max()) + 1
        start = 0 if part.rows is None else part.rows.start
        raw = self._model.read_raw(part.tensor, range(start + first, start + end)).reshape(end - first, -1)
        return raw if np.array_equal(numbers, np.arange(first, end)) else raw[numbers - first]

    def _heads_in_pairs(self, name: str) -> int | None:
        """Heads of a tensor whose rows are in pairs in the file; None for any other."""
        heads = {"q_proj": self._attention.heads, "k_proj": self._attention.kv_heads}.get(name.split(".")[-2])
        return heads if self._architecture in TURNED_IN_PAIRS else None

    def _logarithms(self, name: str, values: np.ndarray) -> np.ndarray:
        if not (values > 0).all():
            raise InvalidModel(f"{self._model.where}: `{shown(name)}` has no logarithm; convert the model again")
        return log64(values).astype(np.float32)

    def _add(self, own: str) -> None:
        for name, part in self._found(own):
            if (other := self._parts.setdefault(name, part)) != part:
                raise InvalidModel(
                    f"{self._model.where}: `{shown(other.tensor)}` and `{shown(own)}` are the same tensor; convert the model "
                    "again"
                )

    def _found(self, own: str) -> list[tuple[str, _Part]]:
        """Hugging Face's names of what is in ``own``; that which nobody knows keeps its name."""
        stem, _, suffix = own.rpartition(".")
        if stem in self._whole_names:
            return [(f"{self._whole_names[stem]}.{suffix}", _Part(own, None, self._as_row(own, self._whole_names[stem])))]
        words = stem.split(".")
        if suffix in self._layer_names and len(words) == 2:  # a vector without weight or bias behind its name
            words, suffix = [*words, suffix], ""
        if len(words) < 3 or words[0] != "blk" or not words[1].isdecimal():
            return [(own, _Part(own))]
        if int(words[1]) in self._behind:  # which predict further tokens
            return []
        if len(words) != 3:
            return [(own, _Part(own))]
        prefix = layer_prefix(self._architecture, words[1])
        if words[2] in EXPERTS:
            return self._of_experts(own, prefix + self._layer_names[words[2]], suffix)
        if words[2] in self._layer_names:
            name = self._layer_names[words[2]]
            part = _Part(own, None, self._as_row(own, name))
            return [(prefix + name if name in BARE else f"{prefix}{name}.{suffix}", part)]
        if words[2] != FUSED:
            return [(own, _Part(own))]
        kv = self._attention.kv_size
        ends = np.cumsum([0, self._attention.q_size, kv, kv]).tolist()
        if (rows := self._model.tensor(own).shape[0]) != ends[-1]:
            raise InvalidModel(f"{self._model.where}: `{shown(own)}` has `{rows}` rows; q, k and v are {ends[-1]}")
        spans = zip(PARTS_OF_FUSED, ends, ends[1:], strict=False)
        return [(f"{prefix}{part}.{suffix}", _Part(own, range(start, end))) for part, start, end in spans]

    def _as_row(self, own: str, module: str) -> bool | None:
        return True if module.endswith(ROWS) and len(self._model.tensor(own).shape) == 1 else None

    def _of_experts(self, own: str, module: str, suffix: str) -> list[tuple[str, _Part]]:
        """Matrices or vectors of all experts, in one tensor."""
        shape = self._model.tensor(own).shape
        if len(shape) not in (2, 3):
            return [(own, _Part(own))]
        rows, as_row = (shape[1], None) if len(shape) == 3 else (1, False)
        spans = [range(rows * expert, rows * (expert + 1)) for expert in range(shape[0])]
        return [(f"{module.format(expert)}.{suffix}", _Part(own, span, as_row)) for expert, span in enumerate(spans)]

    def _lacking_biases(self, decoder: Decoder) -> dict[str, int]:
        """Rows of the biases that ``decoder`` adds and the file lacks."""
        linears = [(layer.prefix, linear) for layer in decoder.layers for linear in layer.linears if linear.bias]
        wanted = {
            f"{prefix}{rows.source}.bias": rows.module_rows or rows.count
            for prefix, linear in linears
            for rows in linear.sources
        }
        gains = {gain_name(layer.prefix, gain) for layer in decoder.layers for gain in layer.gains}
        gains |= {gain.source for gain in (*decoder.norm.gains, *decoder.head_tensors)}
        for name, part in self._parts.items():
            if name.endswith(".bias") and name not in wanted and name not in gains:
                raise UnsupportedModel(
                    f"{self._model.where}: `{shown(part.tensor)}` is added to what the model computes, which does not run here"
                )
        return {name: rows for name, rows in wanted.items() if name not in self._parts}


def _halves(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows of every head from neighbouring pairs, as llama.cpp turns them, back to two halves."""
    rows = values.shape[0]
    pairs = values.reshape(heads, rows // heads // 2, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)
