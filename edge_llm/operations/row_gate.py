"""A gate of whole rows: what shared experts give counts as much as a sigmoid of what they read says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edge_llm.operations.arithmetic import same_bits_by, sigmoid
from edge_llm.operations.base import Arithmetic, Back, Buffers, FloatRun, Gain, Op, Operation, Passes

if TYPE_CHECKING:
    from edge_llm.operations.host_call import HostCall
    from edge_llm.operations.questions import AnyLayer


@dataclass(frozen=True)
class RowGate(Operation):
    """``writes = reads * sigmoid(by @ gain) (+ adds)``; all are as wide as the ``gain`` [1, width]."""

    KIND: ClassVar[str] = "row_gate"
    HOST_ALONE: ClassVar[str] = "a gate of whole rows"

    gain: Gain
    reads: str
    by: str
    """The buffer that says how much every row counts."""
    writes: str
    adds: str = ""

    def __post_init__(self) -> None:
        if self.gain.rows != 1 or self.gain.size < 1:
            raise ValueError(f"the gate `{self.gain.name}` of rows is not one row")

    @property
    def read_by(self) -> tuple[str, ...]:
        return (self.reads, self.by, *((self.adds,) if self.adds else ()))

    @property
    def read_width(self) -> int:
        return self.gain.size

    @property
    def write_width(self) -> int:
        return self.gain.size

    @property
    def gains(self) -> tuple[Gain, ...]:
        return (self.gain,)

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        shares = self._shares(buffers[self.by], run.weights.gains[self.gain.name], run.arithmetic)
        y = buffers[self.reads] * shares
        return buffers[self.adds] + y if self.adds else y

    def _shares(self, by: np.ndarray, gain: np.ndarray, arithmetic: Arithmetic) -> np.ndarray:
        """How much every row counts: float32 [T, 1]."""
        return sigmoid(arithmetic.product(by, gain), arithmetic)

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        x, gain = buffers[self.reads], run.weights.gains[self.gain.name]
        shares = self._shares(buffers[self.by], gain, run.arithmetic)

        def back(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
            at_shares = (gradient * x).sum(axis=1, keepdims=True) * shares * (1 - shares)
            found = [(self.reads, gradient * shares), (self.by, at_shares * gain)]
            return [(self.adds, gradient), *found] if self.adds else found

        return self.forward(buffers, run), back

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [(self.gain.name, Op("row_gate", self.read_by, (self.writes,), self))]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.gain.size}

    def add_call(self, call: HostCall) -> None:
        x, by, out = call.buffers[self.reads], call.buffers[self.by], call.buffers[self.writes]
        add, gain = call.buffers[self.adds] if self.adds else None, call.gains[self.gain.name]
        arithmetic = same_bits_by(call.pool)

        def step(rows: int, late: np.ndarray | None) -> None:
            y = x[:rows] * self._shares(by[:rows], gain, arithmetic)
            if add is None:
                out[:rows] = y
            else:
                np.add(add[:rows], y, out=out[:rows])

        call.add(step)
