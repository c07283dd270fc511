"""Schemes such as ``q4_k``: a weight in the blocks of a GGUF file, by the names of `kernels.blocks.KINDS`.

Activations have one INT8 scale for 32 columns of a row, so a row depends on nothing but itself (`kernels.blocks`).  Sources of
a linear that are of different kinds are parts with a tensor each: ``q4_k,q4_k,q6_k``.  A linear is all in blocks or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.activation import Activation
from edge_llm.kernels.blocks import KINDS, BlockKind, BlockLinear, block_linear, lay_out
from edge_llm.kernels.experts import InExperts
from edge_llm.kernels.pointwise import gated
from edge_llm.kernels.program import Program
from edge_llm.kernels.types import TILE_CHANNELS
from edge_llm.operations.linear import Linear
from edge_llm.quant.blocks import Q8_0, to_q8_0
from edge_llm.quant.shadow import Treatment, product_cost
from edge_llm.schemes.base import Facts, TensorSpec, check_keys
from edge_llm.schemes.joint import Part, in_parts, schemes_in

PANELS = "blocks"
"""What a tensor of a bundle is called that holds panels; of a linear in parts a number follows."""
_LARGEST_EXPONENT = 174
"""Of MXFP4: weights stay below 1e15, as those of every source do."""
_CHECKED_BYTES = 1 << 20


def is_in_blocks(scheme: str) -> bool:
    """Whether linears of ``scheme`` are kept in blocks."""
    return KINDS.keys() >= set(schemes_in(scheme))


def parts_in_blocks(linear: Linear) -> list[Part]:
    """The parts of ``linear`` in order.  Raises ValueError where its scheme does not suit it."""
    parts = in_parts(linear)
    if any(linear.columns % KINDS[part.scheme].columns for part in parts):
        raise ValueError(f"`{linear.name}` cannot have the scheme `{linear.scheme}`: its columns are not whole blocks")
    return parts


def panels_shape(kind: BlockKind, rows: int, columns: int) -> tuple[int, int]:
    """Of the panels of a matrix."""
    return -(-rows // TILE_CHANNELS), kind.panel_bytes(columns)


@dataclass(frozen=True)
class BlocksWeight:
    """A weight [N, K] in one part or several."""

    integers: Mapping[str, np.ndarray]
    """Panels uint8 [P, bytes of a panel] of every part, by their names in a bundle."""
    kinds: tuple[BlockKind, ...]
    """Of every part."""
    channels: tuple[int, ...]
    """Output channels of every part."""
    columns: int
    """Input channels K."""
    bias: np.ndarray | None = None
    """float32 [N]."""

    @property
    def rows(self) -> int:
        return sum(self.channels)

    @property
    def kind(self) -> BlockKind:
        """That of a weight in one part."""
        (found,) = self.kinds
        return found

    @property
    def nbytes(self) -> int:
        return sum(one.nbytes for one in self.integers.values()) + (0 if self.bias is None else self.bias.nbytes)

    @cached_property
    def native(self) -> BlockLinear:
        """The weight for the kernels, which check its shapes when it is made."""
        return BlockLinear(list(zip(self.integers.values(), self.kinds, self.channels, strict=True)), self.columns)

    def apply(
        self,
        x: np.ndarray,
        pool: ThreadPool,
        *,
        add: np.ndarray | None = None,
        shadow: bool = True,
        gain: np.ndarray | None = None,
        eps: float = 0.0,
        gate: Activation | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        if gate is not None and not self.native.gated_in_one_pass:
            product = block_linear(x, self.native, pool, bias=self.bias, gain=gain, eps=eps)
            return gated(product, gate, pool, out=out)
        return block_linear(x, self.native, pool, bias=self.bias, add=add, gain=gain, eps=eps, gate=gate, out=out)

    def add_to(
        self,
        program: Program,
        x: np.ndarray,
        *,
        add: np.ndarray | None,
        shadow: bool,
        gain: np.ndarray | None,
        eps: float,
        gate: Activation | None,
        out: np.ndarray,
    ) -> bool:
        program.block_linear(x, self.native, bias=self.bias, add=add, gain=gain, eps=eps, gate=gate, out=out)
        return True

    @property
    def in_experts(self) -> InExperts | None:
        return InExperts(self.native, bias=self.bias) if len(self.kinds) == 1 else None

    def add_rows(self, program: Program, factor: float, *, out: np.ndarray) -> None:
        """Add the look-up of the rows that tokens number, times ``factor``, of a table."""
        (panels,) = self.integers.values()
        program.block_embedding(panels, self.kind, self.rows, self.columns, out=out, factor=factor)

    def prepare(self, first: BlocksWeight) -> None:
        _ = self.native


@dataclass(frozen=True)
class Blocks:
    """The scheme ``NAME``: a kind of blocks, or one for each source of a linear."""

    NAME: str

    def tensors(self, linear: Linear, hot: int) -> list[TensorSpec]:
        parts = parts_in_blocks(linear)
        shapes = [panels_shape(KINDS[part.scheme], part.channels, linear.columns) for part in parts]
        return [(name, "uint8", shape) for name, shape in zip(_names(len(parts)), shapes, strict=True)]

    def facts(self, record: Mapping[str, Any]) -> Facts:
        check_keys(record, set())
        return {}

    def facts_of(self, treatment: Treatment) -> Facts:
        return {}

    def convert(self, weight: np.ndarray, hot: np.ndarray, name: str) -> dict[str, np.ndarray]:
        """Of floats only Q8_0 is made; every other kind comes out of files."""
        if Q8_0.name != self.NAME:
            raise InvalidModel(f"`{name}` is in float; blocks of the kind {self.NAME} are taken over from GGUF files only")
        rows, columns = weight.shape
        return {PANELS: lay_out(to_q8_0(weight, name).reshape(-1), Q8_0, rows, columns, ThreadPool(1))}

    def open(self, linear: Linear, arrays: Mapping[str, np.ndarray], facts: Facts) -> BlocksWeight:
        parts = parts_in_blocks(linear)
        integers = {name: arrays[name] for name in _names(len(parts))}
        kinds, channels = tuple(KINDS[part.scheme] for part in parts), tuple(part.channels for part in parts)
        return BlocksWeight(integers, kinds, channels, linear.columns, arrays.get("bias"))

    def check(self, linear: Linear, name: str, array: np.ndarray) -> None:
        part = parts_in_blocks(linear)[int(name.removeprefix(PANELS) or 0)]
        check_scales(array, KINDS[part.scheme], linear.columns)

    def cost(self, linear: Linear) -> float:
        return product_cost(linear.rows, linear.columns)


def _names(parts: int) -> Sequence[str]:
    return [PANELS] if parts == 1 else [f"{PANELS}{number}" for number in range(parts)]


def check_scales(panels: np.ndarray, kind: BlockKind, columns: int) -> None:
    """Raises ValueError where ``panels`` have a scale or a minimum that is not finite: it follows a tensor's name."""
    blocks = columns // kind.columns
    own = TILE_CHANNELS * (1 if kind.name == "mxfp4" else 4 if kind.has_least else 2)
    step = max(1, _CHECKED_BYTES // (blocks * kind.head))
    for first in range(0, len(panels), step):
        some = panels[first : first + step, : blocks * kind.head]
        found = np.ascontiguousarray(some.reshape(len(some), blocks, kind.head)[:, :, :own])
        if kind.name == "mxfp4":
            is_good = found.max(initial=0) <= _LARGEST_EXPONENT
        else:
            is_good = (found.view(np.uint16) & np.uint16(0x7FFF)).max(initial=0) < 0x7C00
        if not is_good:
            raise ValueError("holds a scale that is not finite, or too large")


# ---- rows of panels ---------------------------------------------------------------------------------------------


def row_bytes(kind: BlockKind, columns: int) -> int:
    """Bytes of a row within a panel, the padding behind scales left out."""
    return _places(kind, columns).shape[1]


def rows_in_panels(panels: np.ndarray, kind: BlockKind, columns: int, numbers: np.ndarray) -> np.ndarray:
    """The bytes of the rows ``numbers`` (int64 [M]) of ``panels``: uint8 [M, `row_bytes`]."""
    places = _places(kind, columns)
    return np.asarray(panels[numbers[:, None] // TILE_CHANNELS, places[numbers % TILE_CHANNELS]])


def panels_of_rows(rows: np.ndarray, kind: BlockKind, columns: int) -> np.ndarray:
    """Panels whose row i has the bytes ``rows[i]``, as `rows_in_panels` gives them."""
    panels = np.zeros(panels_shape(kind, len(rows), columns), np.uint8)
    numbers = np.arange(len(rows))
    panels[numbers[:, None] // TILE_CHANNELS, _places(kind, columns)[numbers % TILE_CHANNELS]] = rows
    return panels


def _places(kind: BlockKind, columns: int) -> np.ndarray:
    """Where the bytes of every row lie in a panel: int64 [16, `row_bytes`]."""
    row = np.arange(TILE_CHANNELS)[:, None]
    own = 1 if kind.name == "mxfp4" else 2
    each = [own] + ([2] if kind.has_least else [])
    starts = TILE_CHANNELS * np.cumsum([0, *each])
    head = [start + size * row + np.arange(size) for start, size in zip(starts, each, strict=False)]
    fine = (kind.head - int(starts[-1])) // TILE_CHANNELS
    head.append(int(starts[-1]) + TILE_CHANNELS * np.arange(fine) + row)
    heads = _repeated(np.concatenate(head, axis=1), columns // kind.columns, kind.head)
    units = 4 * row + np.arange(4)  # 4 bytes of each row, side by side
    group = _repeated(units, kind.group_bytes // (4 * TILE_CHANNELS), 4 * TILE_CHANNELS)
    groups = columns // 32
    codes = kind.panel_bytes(columns) - groups * kind.group_bytes + _repeated(group, groups, kind.group_bytes)
    return np.concatenate([heads, codes], axis=1)


def _repeated(places: np.ndarray, count: int, step: int) -> np.ndarray:
    """``places`` [16, B] again and again, ``step`` bytes apart: [16, count * B]."""
    return np.asarray((places[:, None] + step * np.arange(count)[:, None]).reshape(len(places), -1))
