"""Where everything lies in a bundle's ``weights.bin``: it follows from the model's shapes and hot channels alone.

A block is one layer, the embedding, the last norm or the output matrix.  It starts on a 4096-byte boundary and its
tensors on 64-byte boundaries, so a block is one aligned read and its tensors are aligned for the kernels.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from edge_llm.models.layer import Decoder
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.schemes import TensorSpec, linear_tensors
from edge_llm.schemes.neurons import COLUMNS

HEAD = "head"
"""The block of what stands behind the pooling."""
BLOCK_ALIGNMENT = 4096
TENSOR_ALIGNMENT = 64
PIECE_BYTES = 64 << 10
TABLES = tuple(f"{table}.{integers}" for table in ("embedding", "output") for integers in ("tiles", "codes", "blocks"))
"""Tensors of which parts are read alone, so each piece of them has a checksum of its own."""
DTYPES = {"int8": np.int8, "uint8": np.uint8, "int32": np.int32, "float16": np.float16, "float32": np.float32}


@dataclass(frozen=True)
class TensorRange:
    """Where a tensor lies in ``weights.bin``.  Up to ``end`` there is only zero padding that belongs to it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    end: int
    crc32c: int = 0
    pieces: tuple[int, ...] = ()
    """CRC32C of every `piece_bytes` of it; only `TABLES` have them, and not in bundles of older versions."""

    @property
    def piece_bytes(self) -> int:
        """Bytes of a piece of a table, whose first axis are panels: whole panels, about `PIECE_BYTES`."""
        panel = math.prod(self.shape[1:])
        return -(-PIECE_BYTES // panel) * panel

    @property
    def piece_count(self) -> int:
        """Pieces of a table; the last may be shorter."""
        return -(-self.nbytes // self.piece_bytes)


@dataclass(frozen=True)
class BlockRange:
    """A run of tensors that is read at once: ``offset`` and ``nbytes`` are multiples of 4096."""

    name: str
    offset: int
    nbytes: int
    tensors: tuple[TensorRange, ...]


def tensor_layout(decoder: Decoder, hot: Mapping[str, int]) -> list[TensorRange]:
    """The whole of ``weights.bin`` in file order; ``hot`` gives the number of hot channels by linear (default 0).

    Order: embedding, layers, final_norm, output, and for some what stands behind the pooling.  Tied embeddings are also the
    output matrix, whose hot channels are known last, so their one block stands where the output would.  An
    expert's tensors are a block inside that of its layer.
    """
    ranges: list[TensorRange] = []
    offset = 0
    for block, tensors in _blocks(decoder, hot):
        offset = align(offset, BLOCK_ALIGNMENT)
        for index, (name, dtype, shape) in enumerate(tensors):
            nbytes = math.prod(shape) * np.dtype(DTYPES[dtype]).itemsize
            unit = unit_of(f"{block}.{name}")
            last = index == len(tensors) - 1 or unit_of(f"{block}.{tensors[index + 1][0]}") != unit
            end = align(offset + nbytes, BLOCK_ALIGNMENT if last else TENSOR_ALIGNMENT)
            ranges.append(TensorRange(f"{block}.{name}" if name else block, dtype, shape, offset, nbytes, end))
            offset = end
    return ranges


def layer_name(index: int) -> str:
    """The block of layer ``index``."""
    return f"layers.{index}"


def unit_of(tensor: str) -> str:
    """What is read at once with ``tensor``: its block, such as ``layers.3``, or an expert inside, ``layers.3.experts.17``.

    The columns of a linear whose neurons are read one by one, ``layers.3.down.columns``, stand for themselves.
    """
    parts = tensor.split(".")
    if parts[-1] == COLUMNS:
        return tensor
    return parts[0] if parts[0] != "layers" else ".".join(parts[: max(2, len(parts) - 2)])


def _blocks(decoder: Decoder, hot: Mapping[str, int]) -> Iterator[tuple[str, list[TensorSpec]]]:
    embedding = "embedding", _linear_specs("", decoder.table, hot.get("output", 0) if decoder.tied else 0)
    if not decoder.tied:
        yield embedding
    for index, layer in enumerate(decoder.layers):
        block = layer_name(index)
        yield block, list(layer_tensors(layer, {linear.name: hot.get(f"{block}.{linear.name}", 0) for linear in layer.linears}))
    vectors = len(decoder.norm.gains)
    yield "final_norm", [("", "float32", (decoder.hidden_size,) if vectors == 1 else (vectors, decoder.hidden_size))]
    if decoder.tied:
        yield embedding
    else:
        yield "output", _linear_specs("", decoder.output, hot.get("output", 0))
    if decoder.head_tensors:
        yield HEAD, [(gain.name, "float32", gain.shape) for gain in decoder.head_tensors]


def layer_tensors(layer: Layer, hot: Mapping[str, int]) -> Iterator[TensorSpec]:
    """The tensors of one layer in file order, columns of neurons last; ``hot`` gives the number of hot channels by its
    linears' names.
    """
    columns: list[TensorSpec] = []
    for operation in layer.operations:
        for linear in layer.linears_of(operation):
            for spec in _linear_specs(f"{linear.name}.", linear, hot[linear.name]):
                if spec[0].endswith(f".{COLUMNS}"):
                    columns.append(spec)
                else:
                    yield spec
        for vector in operation.vectors:
            yield vector.name, "float32", vector.shape
    yield from columns


def _linear_specs(prefix: str, linear: Linear, hot: int) -> list[TensorSpec]:
    return [(prefix + name, dtype, shape) for name, dtype, shape in linear_tensors(linear, hot)]


def tensors_digest(tensors: Mapping[str, TensorRange]) -> str:
    """SHA-256 of the names, shapes and checksums of a bundle's ``tensors``: the same for the same weights alone."""
    facts = sorted((name, one.dtype, one.shape, one.crc32c) for name, one in tensors.items())
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def align(offset: int, alignment: int) -> int:
    """The next multiple of ``alignment`` from ``offset`` on."""
    return -(-offset // alignment) * alignment


def group_blocks(ranges: list[TensorRange]) -> dict[str, BlockRange]:
    """The blocks that the tensors of a whole file form, by name in file order."""
    groups: dict[str, list[TensorRange]] = {}
    for tensor in ranges:
        parts = tensor.name.split(".")
        groups.setdefault(".".join(parts[:2]) if parts[0] == "layers" else parts[0], []).append(tensor)
    return {name: _block_of(name, group) for name, group in groups.items()}


def group_units(block: BlockRange) -> dict[str, BlockRange]:
    """The units of weights inside the ``block`` of a layer by their names, such as ``layers.3.experts.17``, in file order.

    Each can be read alone, as blocks are.  What every row of the layer needs belongs to none.
    """
    groups: dict[str, list[TensorRange]] = {}
    for tensor in block.tensors:
        if (unit := unit_of(tensor.name)) != block.name:
            groups.setdefault(unit, []).append(tensor)
    return {name: _block_of(name, group) for name, group in groups.items()}


def beside_columns(block: BlockRange) -> BlockRange:
    """The ``block`` without the columns of neurons, which are its end."""
    tensors = [tensor for tensor in block.tensors if not tensor.name.endswith(f".{COLUMNS}")]
    return block if len(tensors) == len(block.tensors) else _block_of(block.name, tensors)


def _block_of(name: str, tensors: list[TensorRange]) -> BlockRange:
    return BlockRange(name, tensors[0].offset, tensors[-1].end - tensors[0].offset, tuple(tensors))
