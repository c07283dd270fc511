"""Gated linear units (Shazeer, 2020, arXiv 2002.05202)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edge_llm.kernels.activation import Activation
from edge_llm.operations.arithmetic import ACTIVATIONS, RELUS, sigmoid
from edge_llm.operations.base import (
    Arithmetic,
    Back,
    Buffers,
    FloatRun,
    Folding,
    Op,
    Operation,
    Passes,
    Place,
)

if TYPE_CHECKING:
    from edge_llm.operations.host_call import HostCall
    from edge_llm.operations.questions import AnyLayer, AnyLinear

CLAMPED = "clamped_silu"
"""gpt-oss's gate: ``(clamp(up, -limit, limit) + 1) * h * sigmoid(1.702 h)`` with ``h = min(gate, limit)``."""
STEEP = 1.702
"""Of `CLAMPED`."""
PRODUCTS = "products"
"""The place of its channels."""


@dataclass(frozen=True)
class GLU(Operation):
    """``writes = activation(gate) * up`` of ``reads`` [tokens, gate | up], each ``width`` wide."""

    KIND: ClassVar[str] = "glu"

    width: int
    reads: str
    writes: str
    activation: str = "silu"
    """One of `edge_llm.operations.arithmetic.ACTIVATIONS`, or `CLAMPED`."""
    limit: float = 0.0
    """Of `CLAMPED`; else 0."""

    def __post_init__(self) -> None:
        known = self.activation in ACTIVATIONS or self.activation == CLAMPED
        if self.width < 1 or not known or (self.limit > 0) != (self.activation == CLAMPED):
            what = f"`{self.activation}` of {self.width} channels with the limit {self.limit:g}"
            raise ValueError(f"the gate into `{self.writes}` is {what}")

    @property
    def read_width(self) -> int:
        return 2 * self.width

    @property
    def write_width(self) -> int:
        return self.width

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        gate, up = np.split(buffers[self.reads], 2, axis=1)
        if self.activation == CLAMPED:
            passed, shifted, _ = self._clamped(gate, up, run.arithmetic)
            return passed * shifted
        activation, _ = ACTIVATIONS[self.activation]
        return activation(gate, run.arithmetic) * up

    def _clamped(
        self, gate: np.ndarray, up: np.ndarray, arithmetic: Arithmetic
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The gate behind its activation, the up half with the one that is added, and the activation's slope."""
        limit, steep = np.float32(self.limit), np.float32(STEEP)
        held = np.minimum(gate, limit)
        share = sigmoid(steep * held, arithmetic)
        slope = np.where(gate < limit, share + steep * held * share * (1 - share), np.float32(0))
        return held * share, np.clip(up, -limit, limit) + np.float32(1), slope

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        gate, up = np.split(buffers[self.reads], 2, axis=1)
        if self.activation == CLAMPED:
            passed, shifted, steepness = self._clamped(gate, up, run.arithmetic)
            within = np.abs(up) < np.float32(self.limit)

            def back_clamped(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
                return [(self.reads, np.concatenate([gradient * shifted * steepness, gradient * passed * within], axis=1))]

            return passed * shifted, back_clamped
        activation, slope = ACTIVATIONS[self.activation]
        passed = activation(gate, run.arithmetic)

        def back(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
            at_gate = gradient * up * slope(gate, run.arithmetic)
            return [(self.reads, np.concatenate([at_gate, gradient * passed], axis=1))]

        return passed * up, back

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        linear = self.gate_in_writer(layer)
        if linear is not None and passes.whole(linear):
            return []
        return [(f"{self.reads}.{self.writes}.glu", Op("glu", (self.reads,), (self.writes,), self))]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.width}

    def add_call(self, call: HostCall) -> None:
        x, out = call.buffers[call.op.reads[0]], call.buffers[call.op.writes[0]]
        call.native.gated(x, self.gate, out=out)

    @property
    def gate(self) -> Activation:
        return Activation(self.activation, self.limit)

    def gate_in_writer(self, layer: AnyLayer) -> AnyLinear | None:
        """None if others need the linear's product, or what the result would overwrite."""
        writer = self.gate_up(layer)
        if writer is None:
            return None
        used = {name for one in layer.between(writer, self) for name in (one.writes, *one.read_by)}
        return None if self.writes in used else writer

    def gate_up(self, layer: AnyLayer) -> AnyLinear | None:
        """The linear that writes for this alone."""
        writer = layer.writer(self.reads, self)
        if writer is None or not layer.gives_only(writer, self):
            return None
        return next(iter(writer.linears), None)

    @property
    def evens_its_input(self) -> bool:
        return self.activation != CLAMPED

    @property
    def zeroes(self) -> bool:
        return self.activation in RELUS

    @property
    def pairs_its_input(self) -> bool:
        return True

    def places(self, layer: AnyLayer) -> Iterator[Place]:
        if self.activation != CLAMPED and (readers := layer.multipliers(self)) and self.gate_up(layer) is not None:
            yield Place(PRODUCTS, self, readers, (self.width,))

    def fold(self, layer: AnyLayer, place: Place, factors: np.ndarray, folding: Folding) -> None:
        gate_up = self.gate_up(layer)
        assert gate_up is not None
        folding.rows[gate_up.name] = np.concatenate([np.ones_like(factors), 1 / factors])
