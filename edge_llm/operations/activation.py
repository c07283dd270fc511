"""Activations alone: the inside of an MLP without a gate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edge_llm.kernels.activation import Activation
from edge_llm.operations.arithmetic import ACTIVATIONS, RELUS
from edge_llm.operations.base import Back, Buffers, FloatRun, Folding, Op, Operation, Passes, Place

if TYPE_CHECKING:
    from edge_llm.operations.host_call import HostCall
    from edge_llm.operations.questions import AnyLayer, AnyLinear

ACTIVATED = "activated"
"""The place of its channels."""
_DEGREES = {"relu": 1, "relu_squared": 2}
"""Activations of which ``a(f x) = f^degree a(x)`` for every f above 0."""


@dataclass(frozen=True)
class Activate(Operation):
    """``writes = activation(reads)``, each ``width`` wide."""

    KIND: ClassVar[str] = "activation"

    width: int
    reads: str
    writes: str
    activation: str
    """One of `edge_llm.operations.arithmetic.ACTIVATIONS`."""

    def __post_init__(self) -> None:
        if self.width < 1 or self.activation not in ACTIVATIONS:
            raise ValueError(f"the activation into `{self.writes}` is `{self.activation}` of {self.width} channels")

    @property
    def read_width(self) -> int:
        return self.width

    @property
    def write_width(self) -> int:
        return self.width

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        activation, _ = ACTIVATIONS[self.activation]
        return activation(buffers[self.reads], run.arithmetic)

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        x, (_, slope) = buffers[self.reads], ACTIVATIONS[self.activation]
        return self.forward(buffers, run), lambda gradient: [(self.reads, gradient * slope(x, run.arithmetic))]

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [(f"{self.reads}.{self.writes}.activate", Op("activate", (self.reads,), (self.writes,), self))]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.width}

    def add_call(self, call: HostCall) -> None:
        x, out = call.buffers[call.op.reads[0]], call.buffers[call.op.writes[0]]
        call.native.activate(x, Activation(self.activation), out=out)

    @property
    def evens_its_input(self) -> bool:
        return self.activation in _DEGREES

    @property
    def zeroes(self) -> bool:
        return self.activation in RELUS

    def places(self, layer: AnyLayer) -> Iterator[Place]:
        if self.activation in _DEGREES and (readers := layer.multipliers(self)) and self._up(layer) is not None:
            yield Place(ACTIVATED, self, readers, (self.width,))

    def fold(self, layer: AnyLayer, place: Place, factors: np.ndarray, folding: Folding) -> None:
        up = self._up(layer)
        assert up is not None
        folding.rows[up.name] = 1 / (factors if _DEGREES[self.activation] == 1 else np.sqrt(factors))

    def _up(self, layer: AnyLayer) -> AnyLinear | None:
        """The linear that writes for this alone."""
        writer = layer.writer(self.reads, self)
        return None if writer is None or not layer.gives_only(writer, self) else next(iter(writer.linears), None)
