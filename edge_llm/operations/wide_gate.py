"""A gate of every channel: what attention gives counts as much as a sigmoid of a linear of its input says."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edge_llm.kernels.recurrent import sigmoid_gate
from edge_llm.operations.arithmetic import sigmoid
from edge_llm.operations.base import Back, Buffers, FloatRun, Op, Operation, Passes

if TYPE_CHECKING:
    from edge_llm.operations.host_call import HostCall
    from edge_llm.operations.questions import AnyLayer


@dataclass(frozen=True)
class WideGate(Operation):
    """``writes = reads * sigmoid(by)``; all are ``width`` wide."""

    KIND: ClassVar[str] = "wide_gate"
    HOST_ALONE: ClassVar[str] = "a gate behind attention"

    width: int
    reads: str
    by: str
    writes: str

    def __post_init__(self) -> None:
        if self.width < 1:
            raise ValueError(f"the gate into `{self.writes}` is of {self.width} channels")

    @property
    def read_by(self) -> tuple[str, ...]:
        return (self.reads, self.by)

    @property
    def read_width(self) -> int:
        return self.width

    @property
    def write_width(self) -> int:
        return self.width

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        return np.asarray(buffers[self.reads] * sigmoid(buffers[self.by], run.arithmetic))

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        x, share = buffers[self.reads], sigmoid(buffers[self.by], run.arithmetic)

        def back(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
            return [(self.reads, gradient * share), (self.by, gradient * x * share * (1 - share))]

        return x * share, back

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [(f"{self.reads}.{self.by}.gate", Op(self.KIND, self.read_by, (self.writes,), self))]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.width}

    def add_call(self, call: HostCall) -> None:
        x, by, out, pool = call.buffers[self.reads], call.buffers[self.by], call.buffers[self.writes], call.pool

        def step(rows: int, late: np.ndarray | None) -> None:
            sigmoid_gate(x[:rows], by[:rows], pool, out[:rows])

        call.add(step)
