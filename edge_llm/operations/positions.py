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
    """``writes = reads + table[position + first] (+ types[0 in a first text, 1 in the second of a pair])``."""

    KIND: ClassVar[str] = "positions"

    table: Gain | None
    """None: positions are not learned."""
    reads: str
    writes: str
    first: int = 0
    """Row of position 0."""
    types: Gain | None = None
    """Rows for the first text of a pair, and for the second."""

    def __post_init__(self) -> None:
        if not self.gains or any(one.size != self.gains[0].size or one.size < 1 or one.rows < 1 for one in self.gains):
            raise ValueError(f"the tables of positions and types into `{self.writes}` do not fit each other")
        if self.first and (self.table is None or self.first >= self.table.rows):
            raise ValueError(f"the positions into `{self.writes}` begin at {self.first}, beyond their table")

    @property
    def read_width(self) -> int:
        return self.gains[0].size

    @property
    def write_width(self) -> int:
        return self.gains[0].size

    @property
    def gains(self) -> tuple[Gain, ...]:
        return tuple(one for one in (self.table, self.types) if one is not None)

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        x, gains = buffers[self.reads], run.weights.gains
        start = self.first + (0 if run.past is None else run.past.length)
        y = x if self.table is None else x + gains[self.table.name][start : start + len(x)]
        return y if self.types is None else y + gains[self.types.name][self._kinds(np.arange(len(x)), run.second)]

    def _kinds(self, positions: np.ndarray, second: int) -> np.ndarray:
        """The rows of types at ``positions``, where the second text begins at ``second``; 0: there is none."""
        has_two = self.types is not None and self.types.rows > 1
        return np.asarray((positions >= second) & bool(second and has_two), np.int64)

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        return self.forward(buffers, run), lambda gradient: [(self.reads, gradient)]

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [(self.gains[0].name, Op("positions", (self.reads,), (self.writes,), self))]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.write_width}

    def add_call(self, call: HostCall) -> None:
        x, out = call.buffers[self.reads], call.buffers[self.writes]
        table = None if self.table is None else call.gains[self.table.name]
        types = None if self.types is None else call.gains[self.types.name]

        def add(rows: AnyRows) -> None:
            count = len(rows.position)
            if table is None:
                out[:count] = x[:count]
            else:
                np.add(x[:count], table[rows.position + self.first], out=out[:count])
            if types is not None:
                out[:count] += types[0] if rows.kinds is None else types[np.minimum(rows.kinds, len(types) - 1)]

        call.add_rows(add)
