"""RMS norm (Zhang and Sennrich, 2019, arXiv 1910.07467)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edge_llm.operations.arithmetic import rms_norm, rms_norm_gradient
from edge_llm.operations.base import (
    Back,
    Buffers,
    FloatRun,
    Folding,
    Gain,
    HostCall,
    Op,
    Operation,
    Passes,
    Place,
)

if TYPE_CHECKING:
    from edge_llm.operations.layer import Layer


@dataclass(frozen=True)
class Norm(Operation):
    """``writes = reads / sqrt(mean(reads^2) + eps) * gain`` (RMS norm)."""

    KIND: ClassVar[str] = "norm"

    gain: Gain
    eps: float
    reads: str
    writes: str

    def __post_init__(self) -> None:
        if self.gain.size < 1 or not self.eps > 0:
            raise ValueError(f"the norm `{self.gain.name}` of {self.gain.size} channels has the epsilon {self.eps:g}")

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
        return rms_norm(buffers[self.reads], run.weights.gains[self.gain.name], self.eps)

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        x, gain = buffers[self.reads], run.weights.gains[self.gain.name]
        return rms_norm(x, gain, self.eps), lambda gradient: [(self.reads, rms_norm_gradient(x, gain, self.eps, gradient))]

    def op(self) -> Op:
        """It alone, on a device."""
        return Op("rms_norm", (self.reads,), (self.writes,), self)

    def host_parts(self, layer: Layer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [] if self.norm_in_readers(layer) else [(self.gain.name, self.op())]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.gain.size}

    def add_call(self, call: HostCall) -> None:
        x, out = call.buffers[call.op.reads[0]], call.buffers[call.op.writes[0]]
        call.native.rms_norm(x, call.gains[self.gain.name], self.eps, out=out)

    def norm_in_readers(self, layer: Layer) -> Norm | None:
        """None if anything but linears reads it, or if what it reads has changed by then."""
        readers = layer.multipliers(self)
        between = layer.between(self, readers[-1]) if readers else ()
        return self if readers and all(one.writes != self.reads for one in between) else None

    def places(self, layer: Layer) -> Iterator[Place]:
        if readers := layer.multipliers(self):
            yield Place(readers[0].name, self, readers, (self.gain.size,))

    def fold(self, layer: Layer, place: Place, factors: np.ndarray, folding: Folding) -> None:
        folding.gains[self.gain.name] = folding.gains[self.gain.name] / factors
