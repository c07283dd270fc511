"""Learned positions: what is added to a token for where it stands, and for the kind of text that it is in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edge_llm.operations.base import Back, Buffers, FloatRun, Gain, Op, Operation, Passes

if TYPE_CHECKING:
    from edge_llm.operations.host_call import AnyRows, HostCall
    from edge_llm.operations.questions import AnyLayer


@dataclass(frozen=True)
class Positions(Operation):
    """``writes = reads + table[position + first] (+ the first row of types)``."""

    KIND: ClassVar[str] = "positions"

    table: Gain
    reads: str
    writes: str
    first: int = 0
    """Row of position 0."""
    types: Gain | None = None
    """Rows for the first text of a pair, and for the second."""

    def __post_init__(self) -> None:
        if self.table.size < 1 or not 0 <= self.first < self.table.rows:
            raise ValueError(f"the positions `{self.table.name}` of {self.table.rows} rows begin at {self.first}")
        if self.types is not None and (self.types.size != self.table.size or self.types.rows < 1):
            raise ValueError(f"the types `{self.types.name}` do not fit the positions `{self.table.name}`")

    @property
    def read_width(self) -> int:
        return self.table.size

    @property
    def write_width(self) -> int:
        return self.table.size

    @property
    def gains(self) -> tuple[Gain, ...]:
        return (self.table,) if self.types is None else (self.table, self.types)

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        x, gains = buffers[self.reads], run.weights.gains
        start = self.first + (0 if run.past is None else run.past.length)
        y = x + gains[self.table.name][start : start + len(x)]
        return y if self.types is None else y + gains[self.types.name][0]

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        return self.forward(buffers, run), lambda gradient: [(self.reads, gradient)]

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [(self.table.name, Op("positions", (self.reads,), (self.writes,), self))]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.table.size}

    def add_call(self, call: HostCall) -> None:
        x, out, table = call.buffers[self.reads], call.buffers[self.writes], call.gains[self.table.name]
        types = None if self.types is None else call.gains[self.types.name]

        def add(rows: AnyRows) -> None:
            count = len(rows.position)
            np.add(x[:count], table[rows.position + self.first], out=out[:count])
            if types is not None:
                out[:count] += types[0]

        call.add_rows(add)
