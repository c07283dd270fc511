"""Products with weights: what most of a layer's time goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

import numpy as np

from edge_llm.config import DEFAULT_SCHEME
from edge_llm.operations.arithmetic import apply_float
from edge_llm.operations.base import (
    HOT,
    NORMED,
    OVERFLOW,
    PRODUCT,
    QUANTIZED,
    RESIDUAL,
    SHADOW,
    Arithmetic,
    Back,
    Buffers,
    FloatRun,
    HeadTurns,
    Op,
    Operation,
    Passes,
)

if TYPE_CHECKING:
    from edge_llm.kernels import LowRank
    from edge_llm.operations.host_call import HostCall, HostWeight
    from edge_llm.operations.questions import AnyLayer, AnyLinear, AnyNorm

_ROWS = 8192
"""Rows of a matrix that are multiplied at a time: it is not copied whole."""


@dataclass(frozen=True)
class SourceRows:
    """Output rows of a linear that come from one module of the source: ``<source>.weight``, and ``<source>.bias``."""

    source: str
    count: int
    first: int = 0
    """Of the module's rows, where these begin."""
    module_rows: int = 0
    """All rows of the module; 0: these are all."""
    step: int = 1
    """Rows of the module from one of these to the next, or from one run of them to the next."""
    factor: float = 1.0
    """What they are multiplied with, in float32."""
    head: int = 0
    """Rows of a head of queries or keys, if its ``pairs`` lie otherwise in the source; 0: all rows stay in their order."""
    pairs: int = 0
    """Of the first so many rows of a head neighbours are a rotation pair; here the pair's rows are half of them apart."""
    run: int = 1
    """Neighbouring rows of the module that are taken together, such as the queries of a head that has other rows too."""

    def numbers(self) -> np.ndarray:
        """Those of the module's rows that these are, in the module's order: int64 [count]."""
        rows = np.arange(self.count)
        return self.first + self.step * (rows // self.run) + rows % self.run


class Cut(NamedTuple):
    """A linear that a card multiplies as INT8: what the host does before, both products, and what the host does behind."""

    quantize: Op
    matmul: Op
    shadow: Op
    merge: Op


@dataclass(frozen=True)
class Linear(Operation):
    """``writes = reads @ W.T (+ bias) (+ adds)``; W [rows, columns] is its sources one under the other."""

    KIND: ClassVar[str] = "linear"
    CHOSEN: ClassVar[tuple[str, ...]] = ("scheme", "turn")

    name: str
    sources: tuple[SourceRows, ...]
    columns: int
    """Input channels K."""
    reads: str
    writes: str
    adds: str = ""
    bias: bool = False
    scheme: str = DEFAULT_SCHEME
    """How its weight is stored and multiplied: one of `edge_llm.schemes`."""
    turn: int = 0
    """Block of input channels that are turned before they are rounded (`kernels.pointwise.turn`); 0: none.  The stored weight
    has the inverse in its columns, so float paths, which multiply the source's weight, turn nothing."""

    def __post_init__(self) -> None:
        if not self.sources or min(self.columns, *(part.count for part in self.sources)) < 1:
            raise ValueError(f"the linear `{self.name}` has no rows or no columns")

    @cached_property
    def rows(self) -> int:
        """Output channels N."""
        return sum(part.count for part in self.sources)

    @property
    def linears(self) -> tuple[Linear, ...]:
        return (self,)

    @property
    def read_width(self) -> int:
        return self.columns

    @property
    def write_width(self) -> int:
        return self.rows

    def with_schemes(self, scheme_of: Callable[[str], str | None]) -> Self:
        return replace(self, scheme=scheme_of(self.name) or self.scheme)

    def with_turns(self, turn_of: Callable[[str], int], heads: HeadTurns) -> Self:
        return replace(self, turn=turn_of(self.name))

    # -- float ---------------------------------------------------------------------------------------------------------

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        x, linear = buffers[self.reads], run.weights.linears[self.name]
        if run.observe is not None:
            run.observe(self.name, x)
        y = apply_float(linear, x, run.arithmetic) if run.apply is None else run.apply(self, linear, x)
        return buffers[self.adds] + y if self.adds else y

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        x, linear = buffers[self.reads], run.weights.linears[self.name]

        def back(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
            if run.observe_back is not None:
                run.observe_back(self.name, x, gradient)
            at_input = (self.reads, through_weight(linear.weight, run.arithmetic, gradient))
            return [(self.adds, gradient), at_input] if self.adds else [at_input]

        y = apply_float(linear, x, run.arithmetic)
        return buffers[self.adds] + y if self.adds else y, back

    # -- devices -------------------------------------------------------------------------------------------------------

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [(self.name, self.whole_op(layer, passes))]

    def whole_op(self, layer: AnyLayer, passes: Passes) -> Op:
        """All of it in one pass, with the norm before it and the gate behind it that it does itself."""
        norm = norm_of(layer, self)
        reads = (norm.reads if norm else self.reads, *self.read_by[1:])
        gate = next((one for one in layer.readers(self) if one.gate_in_writer(layer) == self), None)
        if gate is None:
            return Op("linear", reads, (self.writes,), self, norm)
        product = () if passes.gate_in_tiles(self) else (PRODUCT,)
        return Op("linear_glu", reads, (gate.writes, *product), self, norm, gate.gate)

    def cut(self, norm: AnyNorm | None) -> Cut:
        """It for a card that multiplies, behind the ``norm`` that quantizing does first."""
        product = f"{self.name}.product" if self.adds else self.writes  # what is added may lie where the result goes
        normed = (NORMED,) if norm else ()
        return Cut(
            Op("quantize", (norm.reads if norm else self.reads,), (QUANTIZED, HOT, RESIDUAL, *normed), self, norm),
            Op("matmul", (QUANTIZED,), (product,), self),
            Op("shadow", (HOT, RESIDUAL), (SHADOW, OVERFLOW), self),
            Op("merge", (product, SHADOW, OVERFLOW, RESIDUAL, *self.read_by[1:]), (self.writes,), self),
        )

    def op_widths(self, op: Op) -> dict[str, int]:
        if op.kind == "quantize":
            return {NORMED: self.columns} if op.norm else {}
        if op.kind == "shadow":  # behind a turn no channel is hot
            return dict.fromkeys((OVERFLOW,) if self.turn else (SHADOW, OVERFLOW), self.rows)
        if op.kind == "linear_glu":
            return {op.writes[0]: self.rows // 2} | ({PRODUCT: self.rows} if PRODUCT in op.writes else {})
        return {op.writes[0]: self.rows}

    def add_call(self, call: HostCall) -> None:
        op, weight = call.op, call.linears[self.name]
        x, out = call.buffers[op.reads[0]], call.buffers[op.writes[0]]
        add = call.buffers[op.adds] if op.adds else None
        gain, eps = (call.gains[op.norm.gain.name], op.norm.eps) if op.norm else (None, 0.0)
        product = _rows_of(call.buffers[PRODUCT], len(x), self.rows) if PRODUCT in op.writes else None
        into, in_pass = (out, op.gate) if product is None else (product, None)
        shadow, pool = call.shadow, call.pool
        low_rank = call.low_ranks.get(self.name)
        if low_rank is not None:
            self._add_adapted(call, weight, low_rank)
            return
        if weight.add_to(call.native, x, add=add, shadow=shadow, gain=gain, eps=eps, gate=in_pass, out=into):
            if product is not None:
                assert op.gate is not None
                call.native.gated(product, op.gate, out=out)
            return

        def apply(rows: int, late: np.ndarray | None) -> None:
            added, result = None if add is None else add[:rows], late if out is None else out[:rows]
            weight.apply(x[:rows], pool, add=added, shadow=shadow, gain=gain, eps=eps, gate=op.gate, out=result)

        call.add(apply)

    def _add_adapted(self, call: HostCall, weight: HostWeight, low_rank: LowRank) -> None:
        """It, with what the rows' adapters add to its product before the gate."""
        op, native = call.op, call.native
        x, out = call.buffers[op.reads[0]], call.buffers[op.writes[0]]
        add = call.buffers[op.adds] if op.adds else None
        gain, eps = (call.gains[op.norm.gain.name], op.norm.eps) if op.norm else (None, 0.0)
        between = call.scratch("ranks", len(x), low_rank.widest)
        product = out if op.gate is None else call.scratch("product", len(x), self.rows)
        native.low_rank_down(x, low_rank, gain=gain, eps=eps, out=between)  # first: the result may lie where x does
        if not weight.add_to(native, x, add=add, shadow=call.shadow, gain=gain, eps=eps, gate=None, out=product):
            call.add(lambda rows, _: self._apply(call, weight, x[:rows], add, gain, eps, product[:rows]))
        native.low_rank_up(between, low_rank, out=product)
        if op.gate is not None:
            native.gated(product, op.gate, out=out)

    @staticmethod
    def _apply(
        call: HostCall,
        weight: HostWeight,
        x: np.ndarray,
        add: np.ndarray | None,
        gain: np.ndarray | None,
        eps: float,
        out: np.ndarray,
    ) -> None:
        added = None if add is None else add[: len(x)]
        weight.apply(x, call.pool, add=added, shadow=call.shadow, gain=gain, eps=eps, out=out)


def norm_of(layer: AnyLayer, linear: AnyLinear) -> AnyNorm | None:
    """The norm that ``linear`` does itself; None if it does none."""
    writer = layer.writer(linear.reads, linear)
    return None if writer is None else writer.norm_in_readers(layer)


def _rows_of(buffer: np.ndarray, rows: int, width: int) -> np.ndarray:
    """An array [rows, width] in ``buffer``, whose rows may be wider."""
    return buffer.reshape(-1)[: rows * width].reshape(rows, width)


def through_weight(weight: np.ndarray, arithmetic: Arithmetic, gradient: np.ndarray) -> np.ndarray:
    """From the output [T, N] to the input [T, K] of a ``weight`` [N, K]; `_ROWS` of its rows are turned over at a time."""
    found = np.zeros((len(gradient), weight.shape[1]), np.float32)
    for rows in row_blocks(len(weight)):
        found += arithmetic.product(np.ascontiguousarray(gradient[:, rows]), np.ascontiguousarray(weight[rows].T))
    return found


def row_blocks(rows: int) -> list[slice]:
    """Runs of ``rows`` rows that are multiplied at a time."""
    return [slice(start, start + _ROWS) for start in range(0, rows, _ROWS)]
