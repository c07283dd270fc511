"""The chip of an emulated card: its own memory, INT8 products of card arrays, and it refuses what the chip would refuse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_llm.ascend.devices.card_memory import CardArray, CardMemory
from edge_llm.ascend.devices.card_weights import CardBlock
from edge_llm.ascend.npu.chips import ChipLaw, MatmulRoute
from edge_llm.ascend.npu.law import check_product
from edge_llm.devices.base import Buffers
from edge_llm.errors import DeviceError
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.linear import linear_int8, linear_rounded
from edge_llm.kernels.types import TILE_CHANNELS, TILE_DEPTH, Rounding
from edge_llm.operations.base import Op
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight


@dataclass(frozen=True)
class CardLinear:
    """One linear in card memory, padded with zeros to the chip's multiples; unpadded, N is ``rows`` and K is ``columns``."""

    tiles: CardArray
    """int8 [N/16, K/4, 16, 4]: the bytes of the chip's NZ layout in another order."""
    product_scale: CardArray
    """float32 [N], input_scale * weight_scale; of 19 bits where the route packs it."""
    row_sum: CardArray
    """int32 [N]: sums over K, which the CPU's INT8 kernel wants beside the tiles."""
    bias: CardArray | None
    """float32 [N] added to the product, or int32 [N] added to the accumulator where the route does so; zeros if it must be."""
    rows: int
    columns: int


class EmulatedChip:
    """The chip alone: memory, and INT8 products of card arrays in the arithmetic of ``route``."""

    def __init__(self, law: ChipLaw, route: MatmulRoute, pool: ThreadPool, memory: CardMemory) -> None:
        self.law = law
        self.route = route
        self.memory = memory
        self.pool = pool
        """Threads that stand for its cores."""

    @property
    def rounds(self) -> bool:
        return not self.route.exact

    def load(self, linear: Int8Weight, tiles: CardArray | None = None) -> CardLinear:
        """Copy a linear into new card memory, but for its ``tiles`` if they lie there already.

        Raises `DeviceError` if the chip cannot multiply it or has no room.
        """
        if linear.tiles.dtype != np.int8:
            raise DeviceError(f"{self.law.soc} takes int8 weights here, not {linear.tiles.dtype}")
        columns, outputs = self.law.padded(linear.columns, linear.rows)
        check_product(self.law, self.route, 1, columns, outputs, bias=linear.bias is not None)
        shape = (outputs // TILE_CHANNELS, columns // TILE_DEPTH, TILE_CHANNELS, TILE_DEPTH)
        bias = self._bias_or_zeros(linear)
        with self.memory.all_or_nothing():
            return CardLinear(
                tiles=tiles if tiles is not None and tiles.shape == shape else self.memory.upload(linear.tiles, shape),
                product_scale=self.memory.upload(self._product_scale(linear), (outputs,)),
                row_sum=self.memory.upload(linear.row_sum, (outputs,)),
                bias=None if bias is None else self.memory.upload(bias, (outputs,)),
                rows=linear.rows,
                columns=linear.columns,
            )

    def reload(self, linear: Int8Weight, card: CardLinear) -> CardLinear:
        """Copy a linear over ``card`` if that has the same shape, else into new memory in its stead."""
        bias = self._bias_or_zeros(linear)
        shape = linear.rows, linear.columns, bias is None
        if shape != (card.rows, card.columns, card.bias is None):
            self.free(card)
            return self.load(linear)
        self.memory.copy_in(linear.tiles, card.tiles)
        self.memory.copy_in(self._product_scale(linear), card.product_scale)
        self.memory.copy_in(linear.row_sum, card.row_sum)
        if card.bias is not None and bias is not None:
            self.memory.copy_in(bias, card.bias)
        return card

    def free(self, card: CardLinear) -> None:
        """Give the memory of a linear back."""
        for array in (card.tiles, card.product_scale, card.row_sum, card.bias):
            if array is not None and array.allocated:
                self.memory.free(array)

    def product(self, x: CardArray, linear: CardLinear, out: CardArray) -> None:
        """out[R, N] = the product of x[R, K] int8 and ``linear``, as float32, or float16 where the route ends there.

        Raises `DeviceError` for an operand that is not on the card, or has a type or size that the chip refuses.
        """
        self._check(x, linear, out)
        if self.route.exact:
            self._int32_product(x, linear, out)
        else:
            self._float16_product(x, linear, out)

    def _int32_product(self, x: CardArray, linear: CardLinear, out: CardArray) -> None:
        """The accumulator, then Cast, Mul and Add in float32: here one call of the kernel that defines these bits."""
        bias = None if linear.bias is None else linear.bias.values
        product_scale, row_sum = linear.product_scale.values, linear.row_sum.values
        outputs = len(product_scale)
        linear_int8(x.values, linear.tiles.values, outputs, product_scale, row_sum, self.pool, bias=bias, out=out.values)

    def _float16_product(self, x: CardArray, linear: CardLinear, out: CardArray) -> None:
        """(accumulator + bias) * product_scale, saturated and rounded to float16: the kernel that defines these bits."""
        rounding = Rounding(linear.product_scale.values, None if linear.bias is None else linear.bias.values)
        tiles, row_sum = linear.tiles.values, linear.row_sum.values
        out.values[...] = linear_rounded(x.values, tiles, len(row_sum), rounding, row_sum, self.pool)

    def _check(self, x: CardArray, linear: CardLinear, out: CardArray) -> None:
        for name, array in (("x1", x), ("x2", linear.tiles), ("out", out)):
            if not isinstance(array, CardArray):
                raise DeviceError(f"{self.law.soc} cannot use `{name}`: a {type(array).__name__} is not in the card's memory")
        if x.dtype != np.int8 or linear.tiles.dtype != np.int8:
            raise DeviceError(f"{self.law.soc} multiplies int8 by int8 here, not {x.dtype} by {linear.tiles.dtype}")
        rows, columns = x.shape
        outputs = linear.product_scale.shape[0]
        check_product(self.law, self.route, rows, columns, outputs, bias=linear.bias is not None)
        if columns != TILE_DEPTH * linear.tiles.shape[1] or out.shape != (rows, outputs):
            raise DeviceError(
                f"{self.law.soc} refuses x1 {list(x.shape)} with weights of {TILE_DEPTH * linear.tiles.shape[1]} columns "
                f"and out {list(out.shape)}: the sizes do not meet"
            )

    def _bias_or_zeros(self, linear: Int8Weight) -> np.ndarray | None:
        if linear.bias is None and self.route.needs_bias:
            return np.zeros(linear.rows, np.int32)
        return None if linear.bias is None else self._bias(linear)

    def _product_scale(self, linear: Int8Weight) -> np.ndarray:
        return linear.product_scale if self.route.exact else linear.rounding.scale

    def _bias(self, linear: Int8Weight) -> np.ndarray:
        bias = linear.bias if self.route.exact else linear.rounding.bias
        assert bias is not None
        return bias


class Product:
    """One INT8 product of a static subgraph, and the card arrays it works in; its rows come from the host and go back there."""

    def __init__(self, chip: EmulatedChip, op: Op, rows: int) -> None:
        law, memory = chip.law, chip.memory
        if op.kind != "matmul":
            raise DeviceError(f"{law.soc} runs INT8 products here and nothing else, not `{op.kind}`")
        self._chip = chip
        self._op = op
        self._columns = op.linear.columns
        columns, outputs = law.padded(op.linear.columns, op.linear.rows)
        check_product(law, chip.route, rows, columns, outputs, bias=op.linear.bias)
        self._x = memory.allocate((rows, columns), np.int8)
        if chip.route.exact:
            self._accumulator = memory.allocate((rows, outputs), np.int32)  # counted; the CPU's kernel needs none
        self._out = memory.allocate((rows, outputs), np.float32 if chip.route.exact else np.float16)

    def run(self, weights: BlockWeights, buffers: Buffers, count: int) -> None:
        """Copy ``count`` rows in, multiply all static rows, give ``count`` rows out as float32."""
        if not isinstance(weights, CardBlock):
            raise DeviceError(f"the weights of `{self._op.linear.name}` are not in the card's memory")
        self._take_in(self._quantized(buffers, count))
        self._chip.product(self._x, weights.card[self._op.linear.name], self._out)
        self._give_out(buffers[self._op.writes[0]][:count])

    def _take_in(self, rows: np.ndarray) -> None:
        self._chip.memory.copy_in(rows, self._x)

    def _give_out(self, product: np.ndarray) -> None:
        received = product if self._out.dtype == product.dtype else np.empty(product.shape, self._out.dtype)
        self._chip.memory.copy_out(self._out, received)
        if received is not product:
            product[...] = received

    def _quantized(self, buffers: Buffers, count: int) -> np.ndarray:
        rows: np.ndarray = buffers[self._op.reads[0]][:count]
        if rows.dtype != np.int8 or rows.shape != (count, self._columns):
            raise DeviceError(
                f"the product `{self._op.linear.name}` takes int8 [{count}, {self._columns}], "
                f"not {rows.dtype} {list(rows.shape)}"
            )
        return rows


class CardProduct(Product):
    """The same of rows that lie on the card, and whose product stays there."""

    def _take_in(self, rows: np.ndarray) -> None:
        self._x.values[: len(rows), : rows.shape[1]] = rows

    def _give_out(self, product: np.ndarray) -> None:
        product[...] = self._out.values[: len(product), : product.shape[1]]
