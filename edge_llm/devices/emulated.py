"""An Ascend chip emulated on the CPU: its own memory and cores, and it refuses what the chip would refuse.

The chip multiplies INT8 rows by INT8 weights in static subgraphs; all that is float runs on the CPU's lane.  Data reaches the
chip and leaves it by explicit copies only.  Both lanes run for real, each on cores of its own; how long the chip itself would
take is in `card_cost`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock

import numpy as np

from edge_llm.devices.base import Buffers, DeviceModel, DeviceOptions, Rows, RunSubgraph, Watch
from edge_llm.devices.card_cost import card_costs
from edge_llm.devices.card_memory import CardArray, CardMemory
from edge_llm.devices.card_weights import CardBlock, CardWeights
from edge_llm.devices.chips import ChipLaw, MatmulRoute, chip_law
from edge_llm.devices.host import HostDevice, build_op
from edge_llm.devices.kv_pages import LayerPages
from edge_llm.devices.model import HostArrays, PlacedModel, builder
from edge_llm.devices.split import build_split_op
from edge_llm.errors import DeviceError
from edge_llm.models.layer import Decoder, Linear
from edge_llm.models.rope import RopeTables
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.subgraphs.ops import Op, Subgraph
from edge_llm.subgraphs.placement import AUTO, choose_placement
from edge_llm.weights.base import Weights
from kernels import ThreadPool
from kernels.linear import linear_int8

FLOAT16_MAX = np.float32(65504.0)


@dataclass(frozen=True)
class CardLinear:
    """One linear in card memory, padded with zeros to the chip's multiples; unpadded, N is ``rows`` and K is ``columns``."""

    tiles: CardArray
    """int8 [N/16, K/4, 16, 4]: the bytes of the chip's NZ layout in another order."""
    scale: CardArray
    """float32 [N], activation scale * weight scale; of 19 bits where the route packs it."""
    row_sum: CardArray
    """int32 [N]: sums over K, which the CPU's INT8 kernel wants beside the tiles."""
    bias: CardArray | None
    """float32 [N] added to the product, or int32 [N] added to the accumulator where the route does so."""
    rows: int
    columns: int


class EmulatedChip:
    """The chip alone: memory, and INT8 products of card arrays in the arithmetic of ``route``."""

    def __init__(self, law: ChipLaw, route: MatmulRoute, pool: ThreadPool, memory: CardMemory) -> None:
        self.law = law
        self.route = route
        self.memory = memory
        self._pool = pool

    def load(self, linear: Int8Weight) -> CardLinear:
        """Copy a linear into new card memory.  Raises `DeviceError` if the chip cannot multiply it or has no room."""
        if linear.tiles.dtype != np.int8:
            raise DeviceError(f"{self.law.soc} takes int8 weights here, not {linear.tiles.dtype}")
        columns, outputs = self.law.padded(linear.columns, linear.rows)
        self.law.check_product(1, columns, outputs)
        bias = None if linear.bias is None else self.memory.upload(self._bias(linear), (outputs,))
        return CardLinear(
            tiles=self.memory.upload(linear.tiles, (outputs // 16, columns // 4, 16, 4)),
            scale=self.memory.upload(self._scale(linear), (outputs,)),
            row_sum=self.memory.upload(linear.row_sum, (outputs,)),
            bias=bias,
            rows=linear.rows,
            columns=linear.columns,
        )

    def reload(self, linear: Int8Weight, card: CardLinear) -> None:
        """Copy a linear of the same shape over ``card``."""
        self.memory.copy_in(linear.tiles, card.tiles)
        self.memory.copy_in(self._scale(linear), card.scale)
        self.memory.copy_in(linear.row_sum, card.row_sum)
        if card.bias is not None:
            self.memory.copy_in(self._bias(linear), card.bias)

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
        scale, row_sum = linear.scale.values, linear.row_sum.values
        linear_int8(x.values, linear.tiles.values, len(scale), scale, row_sum, self._pool, bias=bias, out=out.values)

    def _float16_product(self, x: CardArray, linear: CardLinear, out: CardArray) -> None:
        """(accumulator + bias) * scale, saturated and rounded to float16."""
        scale, row_sum = linear.scale.values, linear.row_sum.values
        sums = linear_int8(x.values, linear.tiles.values, len(scale), np.ones_like(scale), row_sum, self._pool)
        if linear.bias is not None:
            sums += linear.bias.values
        sums *= scale
        out.values[...] = np.clip(sums, -FLOAT16_MAX, FLOAT16_MAX)

    def _check(self, x: CardArray, linear: CardLinear, out: CardArray) -> None:
        for name, array in (("x1", x), ("x2", linear.tiles), ("out", out)):
            if not isinstance(array, CardArray):
                raise DeviceError(f"{self.law.soc} cannot use `{name}`: a {type(array).__name__} is not in the card's memory")
        if x.dtype != np.int8 or linear.tiles.dtype != np.int8:
            raise DeviceError(f"{self.law.soc} multiplies int8 by int8 here, not {x.dtype} by {linear.tiles.dtype}")
        rows, columns = x.shape
        outputs = linear.scale.shape[0]
        self.law.check_product(rows, columns, outputs)
        if columns != 4 * linear.tiles.shape[1] or out.shape != (rows, outputs):
            raise DeviceError(
                f"{self.law.soc} refuses x1 {list(x.shape)} with weights of {4 * linear.tiles.shape[1]} columns "
                f"and out {list(out.shape)}: the sizes do not meet"
            )
        if self.route.call.startswith("npu_quant_matmul"):
            bias = None if linear.bias is None or self.route.exact else "int32"
            self.law.check_form(self.route.output, "float32" if self.route.exact else "int64", bias)

    def _scale(self, linear: Int8Weight) -> np.ndarray:
        if self.route.exact:
            return linear.scale
        # Packing cuts the 13 lowest bits off; rounding to the nearest first leaves nothing to cut and half the error.
        bits = linear.scale.view(np.uint32) + np.uint32(0x1000)
        return (bits & np.uint32(0xFFFFE000)).view(np.float32)

    def _bias(self, linear: Int8Weight) -> np.ndarray:
        assert linear.bias is not None
        if self.route.exact:
            return linear.bias
        limits = np.iinfo(np.int32)
        return np.clip(np.rint(linear.bias / self._scale(linear).astype(np.float64)), limits.min, limits.max).astype(np.int32)


class EmulatedDevice:
    """``chip`` (310p, 310b or 910b) beside this machine's CPU: half of ``threads`` cores each, at least one.

    ``route`` names another matmul route than the chip's best; ``memory`` is another ceiling in bytes than the chip's;
    ``shadow=False`` drops the outliers.  Raises `DeviceError` for an unknown chip or route.
    """

    def __init__(
        self,
        chip: str,
        threads: int,
        *,
        shadow: bool = True,
        route: str | None = None,
        memory: int | None = None,
        placement: str = AUTO,
    ) -> None:
        law = chip_law(chip)
        self.name = f"emulated:{law.name}"
        self.placement = choose_placement(placement, law.placements, f"the device `{self.name}`")
        self.cpu_cores, self.npu_cores = split_cores(threads)
        pool = ThreadPool(len(self.npu_cores), self.npu_cores)
        self.chip = EmulatedChip(law, law.route(route), pool, CardMemory(law, memory))
        self._host = HostDevice(len(self.cpu_cores), shadow=shadow, cores=self.cpu_cores)
        self._shadow = shadow
        self._stream = Lock()

    def open(
        self,
        decoder: Decoder,
        weights: Weights,
        tables: RopeTables,
        *,
        tokens: int,
        lengths: Sequence[int],
        watch: Watch | None = None,
    ) -> DeviceModel:
        on_card = CardWeights(weights, self.chip, len(decoder.layers))
        build = builder(self.build, tables, watch)
        return PlacedModel(decoder, on_card, self.placement, build, HostArrays(), tokens=tokens, lengths=lengths)

    def build(self, subgraph: Subgraph, tables: RopeTables) -> RunSubgraph:
        return self._build_on_chip(subgraph) if subgraph.lane == "npu" else self._build_on_cpu(subgraph, tables)

    def costs(self, linears: Iterable[Linear], lengths: Iterable[int]) -> dict[str, float]:
        """Seconds that the chip itself would take for each of its tasks, by cost key ``part/rows``."""
        return card_costs(self.chip.law, self.chip.route, linears, lengths)

    def _build_on_cpu(self, subgraph: Subgraph, tables: RopeTables) -> RunSubgraph:
        pool, shadow = self._host.pool, self._shadow
        steps = tuple(build_split_op(op, pool, shadow) or build_op(op, tables, pool, shadow) for op in subgraph.ops)

        def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            with on_core(self.cpu_cores[0]):
                for step in steps:
                    step(weights, buffers, rows, pages)

        return run

    def _build_on_chip(self, subgraph: Subgraph) -> RunSubgraph:
        steps = tuple(_Product(self.chip, op, subgraph.rows) for op in subgraph.ops)

        def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            if rows.static != subgraph.rows:
                raise DeviceError(
                    f"subgraph `{subgraph.part}` is static: it takes {subgraph.rows} rows and refuses `{rows.static}`"
                )
            with self._stream, on_core(self.npu_cores[0]):
                for step in steps:
                    step.run(weights, buffers, rows.count)

        return run


def open_device(name: str, options: DeviceOptions) -> EmulatedDevice:
    """The device called ``emulated:CHIP``, or ``emulated:CHIP:ROUTE`` for another matmul route than the chip's best."""
    chip, _, route = name.partition(":")[2].partition(":")
    return EmulatedDevice(
        chip,
        options.threads,
        shadow=options.shadow,
        route=route or None,
        memory=options.card_memory,
        placement=options.placement,
    )


class _Product:
    """One INT8 product of a static subgraph, and the card arrays it works in."""

    def __init__(self, chip: EmulatedChip, op: Op, rows: int) -> None:
        law, memory = chip.law, chip.memory
        if op.kind != "matmul":
            raise DeviceError(f"{law.soc} runs INT8 products here and nothing else, not `{op.kind}`")
        self._chip = chip
        self._op = op
        self._columns = op.linear.columns
        columns, outputs = law.padded(op.linear.columns, op.linear.rows)
        law.check_product(rows, columns, outputs)
        self._x = memory.allocate((rows, columns), np.int8)
        if chip.route.exact:
            self._accumulator = memory.allocate((rows, outputs), np.int32)  # counted; the CPU's kernel needs none
        self._out = memory.allocate((rows, outputs), np.float32 if chip.route.exact else np.float16)

    def run(self, weights: BlockWeights, buffers: Buffers, count: int) -> None:
        """Copy ``count`` rows in, multiply all static rows, copy ``count`` rows out as float32."""
        if not isinstance(weights, CardBlock):
            raise DeviceError(f"the weights of `{self._op.linear.name}` are not in the card's memory")
        memory = self._chip.memory
        memory.copy_in(self._quantized(buffers, count), self._x)
        self._chip.product(self._x, weights.card[self._op.linear.name], self._out)
        product = buffers[self._op.writes[0]][:count]
        if self._out.dtype == product.dtype:
            memory.copy_out(self._out, product)
        else:
            received = np.empty(product.shape, self._out.dtype)
            memory.copy_out(self._out, received)
            product[...] = received

    def _quantized(self, buffers: Buffers, count: int) -> np.ndarray:
        rows: np.ndarray = buffers[self._op.reads[0]][:count]
        if rows.dtype != np.int8 or rows.shape != (count, self._columns):
            raise DeviceError(
                f"the product `{self._op.linear.name}` takes int8 [{count}, {self._columns}], "
                f"not {rows.dtype} {list(rows.shape)}"
            )
        return rows


def split_cores(threads: int) -> tuple[list[int], list[int]]:
    """Cores for the CPU's lane and for the chip: of ``threads`` half each, the odd one to the chip; of one, the same."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    cores = [allowed[index % len(allowed)] for index in range(threads)]
    half = len(cores) // 2
    return cores[:half] or cores, cores[half:]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """The calling thread, which is a pool's first worker, on ``core`` alone; on any core if the system cannot bind threads."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)
