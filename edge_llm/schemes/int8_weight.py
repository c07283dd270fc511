"""An opened weight of scheme ``int8``: the type of the embedding and the output matrix, and what a card takes apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from edge_llm.kernels import ThreadPool, linear
from edge_llm.kernels.activation import Activation
from edge_llm.kernels.experts import InExperts
from edge_llm.kernels.pointwise import rms_norm
from edge_llm.kernels.program import Program
from edge_llm.kernels.types import TILE_CHANNELS, TILE_DEPTH, Residual, Rounding
from edge_llm.kernels.w4 import GROUP, expand, take_groups

TILES, CODES = "tiles", "codes"
"""What tensors of a bundle are called that hold the integers of a linear; of one in parts a number follows."""
_BLOCKS = GROUP // TILE_DEPTH
"""Tiles side by side in a group of columns that share steps."""
WIDER = 3.0
"""Import chooses a narrow scale where the cold residual is added back.  Of 1, 2, 3, 4 and 8 times that scale, this one had the
least divergence where it is cut off instead (`edge-llm perplexity` of the built-in model on a card, see benchmarks/LOG.md)."""
_WIDEST_PAD = 256
"""A card fills K up with zeros, to a multiple of at most this many."""


def holds_integers(tensor: str) -> bool:
    """Whether ``tensor``, a name in a bundle, holds tiles or codes."""
    return tensor.rpartition(".")[2].startswith((TILES, CODES))


def is_codes(integers: np.ndarray) -> bool:
    """Whether an array of integers holds codes, and not tiles."""
    return integers.dtype == np.uint8


def by_blocks(residual: Residual) -> tuple[np.ndarray, Residual]:
    """The blocks of four input channels that ``residual`` needs, ascending, and the residual by the channels' numbers there."""
    blocks, places = np.unique(residual.column // TILE_DEPTH, return_inverse=True)
    column = (TILE_DEPTH * places + residual.column % TILE_DEPTH).astype(np.int32)
    return blocks, residual._replace(column=column)


def expand_blocks(codes: np.ndarray, columns: int, blocks: np.ndarray) -> np.ndarray:
    """The tiles with the input channels 4b to 4b + 3 for b in ``blocks`` (integers [B]) of ``codes``: int8 [P, B, 16, 4].

    Only the groups that these channels belong to are expanded.
    """
    groups, places = np.unique(blocks // _BLOCKS, return_inverse=True)
    taken = take_groups(codes, columns, groups)
    tiles = expand(taken, TILE_CHANNELS * len(codes), GROUP * len(groups), ThreadPool(1))
    return np.ascontiguousarray(tiles[:, _BLOCKS * places + blocks % _BLOCKS])


def no_channels(rows: int) -> np.ndarray:
    """Tiles of ``rows`` output channels that hold no input channel."""
    return np.empty((-(-rows // TILE_CHANNELS), 0, TILE_CHANNELS, TILE_DEPTH), np.int8)


@dataclass(frozen=True, kw_only=True)
class Int8Product:
    """The product of an opened weight whose integers are multiplied as INT8, in whatever form they are kept."""

    rows: int
    """Output channels N."""
    columns: int
    """Input channels K."""
    input_scale: float
    """Static per-tensor scale s of the activations."""
    weight_scale: np.ndarray
    """float32 [N]."""
    row_sum: np.ndarray
    """int32 [N]."""
    hot_index: np.ndarray
    """int32 [H]."""
    hot_weight: np.ndarray
    """float16 [H, N]."""
    bias: np.ndarray | None = None
    """float32 [N]."""
    residual: bool = True
    """The cold residual is added; else what overflows is clipped."""
    row_scales: bool = False
    """Every row of the input has a scale of its own; ``input_scale`` is not used, and nothing overflows."""
    turn: int = 0
    """Block of input channels that are turned before they are rounded; 0: none."""
    input_offset: int = 0
    """Steps that are added to a rounded activation, within what INT8 holds; ``bias`` takes them out again."""
    rounds: bool = False
    """The product ends in float16 as `rounding` says: the weight multiplies as a card does."""

    @property
    def integers(self) -> Mapping[str, np.ndarray]:
        """Tiles, and the codes that expand to them, by their names in a bundle."""
        raise NotImplementedError

    @property
    def native(self) -> linear.Int8Linear:
        """The weight for the kernels, which check it when it is made and trust it from then on."""
        raise NotImplementedError

    @property
    def nbytes(self) -> int:
        scales = (self.weight_scale,) if self.row_scales else (self.weight_scale, self.product_scale)
        vectors = (*scales, self.row_sum, self.hot_index, self.hot_weight, self.bias)
        return sum(array.nbytes for array in (*self.integers.values(), *vectors) if array is not None)

    @property
    def beside(self) -> tuple[Any, ...]:
        """The arguments of `Int8Linear` behind the input scale, but for the turn."""
        ends = (None, *self.rounding) if self.rounds else (self.bias,)
        return self.product_scale, self.row_sum, self.hot_index, self.hot_weight, *ends

    @property
    def linear_scale(self) -> float | None:
        """The `input_scale` of the kernels' linear: None where every row has its own."""
        return None if self.row_scales else self.input_scale

    @cached_property
    def product_scale(self) -> np.ndarray:
        """What an int32 sum is multiplied with: input_scale * weight_scale, or weight_scale where the row's own scale comes
        behind: float32 [N]."""
        return self.weight_scale if self.row_scales else np.asarray(np.float32(self.input_scale) * self.weight_scale)

    def prepare(self, first: Int8Product) -> None:
        if not self.row_scales:  # else it is the weight scale, which lies in the buffer beside the integers
            self.__dict__["product_scale"] = first.product_scale  # where a cached property keeps its value
        _ = self.native

    @cached_property
    def rounding(self) -> Rounding:
        """What a card that ends its products in float16 is given: the product scale of 19 bits, the bias in its steps.

        A card cuts the 13 lowest bits of a scale off; rounding them away first leaves nothing to cut and half the error.  It
        adds the bias to the accumulator in int32, so a bias is clipped to what leaves room there for any product.
        """
        bits = self.product_scale.view(np.uint32) + np.uint32(0x1000)
        scale = (bits & np.uint32(0xFFFFE000)).view(np.float32)
        if self.bias is None:
            return Rounding(scale, None)
        columns = -(-self.columns // _WIDEST_PAD) * _WIDEST_PAD
        most = np.iinfo(np.int32).max - 127 * 127 * columns
        steps = np.divide(self.bias, scale, out=np.zeros(self.rows), where=scale != 0, dtype=np.float64)
        return Rounding(scale, np.clip(np.rint(steps), -most, most).astype(np.int32))

    @cached_property
    def rounded(self) -> Self:
        """The same weight with products that end in float16 as `rounding` says: it multiplies as such a card does."""
        return replace(self, rounds=True)

    def overflow(self, residual: Residual) -> tuple[np.ndarray, Residual]:
        """Tiles that hold all input channels of ``residual``, and the residual by their numbers in there."""
        raise NotImplementedError

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
        merged = shadow and self.residual
        if self.input_offset:
            x, gain = self.shifted(x if gain is None else rms_norm(x, gain, eps, pool)), None
        return linear.linear(x, self.native, pool, add=add, shadow=merged, gain=gain, eps=eps, gate=gate, out=out)

    def shifted(self, x: np.ndarray) -> np.ndarray:
        """The rows that are rounded to INT8 without an offset as ``x`` is with it."""
        return x + np.float32(self.input_offset) * np.float32(self.input_scale) if self.input_offset else x

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
        if self.input_offset:  # programs have no operation for it
            return False
        merged = shadow and self.residual
        program.linear(x, self.native, add=add, shadow=merged, gain=gain, eps=eps, gate=gate, out=out)
        return True

    @property
    def in_experts(self) -> InExperts | None:
        if self.rounds or self.input_offset or not (self.row_scales and self.native.swiglu_in_one_pass):
            return None
        return InExperts(self.native, self.turn)

    def add_rows(self, program: Program, factor: float, *, out: np.ndarray) -> None:
        """Add the look-up of the rows that tokens number; a table has ``factor`` in it already."""
        (integers,) = self.integers.values()
        hot = self.hot_index, self.hot_weight
        program.embedding(integers, self.columns, self.weight_scale, *hot, out=out, turn=self.turn)


@dataclass(frozen=True)
class Int8Weight(Int8Product):
    """A weight that is kept as its products read it."""

    tiles: np.ndarray
    """int8 [ceil(N/16), ceil(K/4), 16, 4]."""

    @property
    def integers(self) -> Mapping[str, np.ndarray]:
        return {TILES: self.tiles}

    @cached_property
    def native(self) -> linear.Int8Linear:
        """The same for the kernels, which check it here and trust it from then on."""
        return linear.Int8Linear(self.tiles, self.rows, self.columns, self.linear_scale, *self.beside, turn=self.turn)

    def overflow(self, residual: Residual) -> tuple[np.ndarray, Residual]:
        return self.tiles, residual

    @property
    def clipped(self) -> Self:
        """The same weight for a device that adds no cold residual: a wider input scale cuts less off."""
        return replace(self, input_scale=WIDER * self.input_scale, residual=False) if self.residual else self


class CodedProduct(Int8Product):
    """The same of a weight that is kept in codes, all of it or a part."""

    @property
    def parts_in_order(self) -> Sequence[tuple[np.ndarray, int]]:
        """The tiles or codes of every part, and its output channels."""
        raise NotImplementedError

    def make_tiles(self, pool: ThreadPool) -> np.ndarray:
        """The tiles that it stands for."""
        return _side_by_side([
            expand(integers, channels, self.columns, pool) if is_codes(integers) else integers
            for integers, channels in self.parts_in_order
        ])

    def overflow(self, residual: Residual) -> tuple[np.ndarray, Residual]:
        blocks, found = by_blocks(residual)
        tiles = [
            expand_blocks(integers, self.columns, blocks) if is_codes(integers) else integers[:, blocks]
            for integers, _ in self.parts_in_order
        ]
        return _side_by_side(tiles), found

    def expanded(self, pool: ThreadPool) -> Int8Weight:
        """The INT8 weight that it stands for."""
        return self.with_tiles(self.make_tiles(pool))

    def with_tiles(self, tiles: np.ndarray) -> Int8Weight:
        """The INT8 weight of ``tiles``, which are those that it stands for, or channels of them."""
        return Int8Weight(tiles, **{field.name: getattr(self, field.name) for field in fields(Int8Product)})


def _side_by_side(tiles: Sequence[np.ndarray]) -> np.ndarray:
    """The tiles of all parts, which are not copied where there is only one."""
    return tiles[0] if len(tiles) == 1 else np.concatenate(tiles)
