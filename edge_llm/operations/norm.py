"""Norms: of the root mean square (Zhang and Sennrich, 2019, arXiv 1910.07467), and of layers (Ba et al., 2016, 1607.06450)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edge_llm.operations.arithmetic import layer_norm, layer_norm_gradient, rms_norm, rms_norm_gradient
from edge_llm.operations.base import (
    Back,
    Buffers,
    FloatRun,
    Folding,
    Gain,
    Op,
    Operation,
    Passes,
    Place,
)

if TYPE_CHECKING:
    from edge_llm.operations.host_call import HostCall
    from edge_llm.operations.questions import AnyLayer


@dataclass(frozen=True)
class Norm(Operation):
    """``writes = reads / sqrt(mean(reads^2) + eps) * gain (+ adds)``; a layer norm takes the mean off ``reads`` first."""

    KIND: ClassVar[str] = "norm"

    gain: Gain
    eps: float
    reads: str
    writes: str
    adds: str = ""
    centred: bool = False
    """Whether it is a layer norm, whose mean is 0."""
    bias: Gain | None = None
    """Added behind the gain of a layer norm."""

    def __post_init__(self) -> None:
        if self.gain.size < 1 or not self.eps > 0:
            raise ValueError(f"the norm `{self.gain.name}` of {self.gain.size} channels has the epsilon {self.eps:g}")
        if self.bias is not None and (not self.centred or self.bias.size != self.gain.size):
            raise ValueError(f"the norm `{self.gain.name}` cannot have the bias `{self.bias.name}`")

    @property
    def read_width(self) -> int:
        return self.gain.size

    @property
    def write_width(self) -> int:
        return self.gain.size

    @property
    def gains(self) -> tuple[Gain, ...]:
        return (self.gain,) if self.bias is None else (self.gain, self.bias)

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        y = self.applied(buffers[self.reads], np.stack([run.weights.gains[gain.name] for gain in self.gains]))
        return buffers[self.adds] + y if self.adds else y

    def named(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Its ``vectors``, the gain [K] or gain and bias [2, K], by their names."""
        return {gain.name: values for gain, values in zip(self.gains, np.atleast_2d(vectors), strict=True)}

    def applied(self, x: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """It alone, of x [..., K] by its ``vectors``, see `named`."""
        gain, *bias = np.atleast_2d(vectors)
        return layer_norm(x, gain, bias[0] if bias else None, self.eps) if self.centred else rms_norm(x, gain, self.eps)

    def through(self, x: np.ndarray, vectors: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """The gradient at x [..., K] of that at `applied`."""
        gain = np.atleast_2d(vectors)[0]
        return (layer_norm_gradient if self.centred else rms_norm_gradient)(x, gain, self.eps, gradient)

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        x, gain = buffers[self.reads], run.weights.gains[self.gain.name]

        def back(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
            at_input = (self.reads, self.through(x, gain, gradient))
            return [(self.adds, gradient), at_input] if self.adds else [at_input]

        return self.forward(buffers, run), back

    def op(self) -> Op:
        """It alone, on a device."""
        return Op("layer_norm" if self.centred else "rms_norm", self.read_by, (self.writes,), self)

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [] if self.norm_in_readers(layer) else [(self.gain.name, self.op())]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.gain.size}

    def add_call(self, call: HostCall) -> None:
        x, out = call.buffers[call.op.reads[0]], call.buffers[call.op.writes[0]]
        gain, add = call.gains[self.gain.name], call.buffers[self.adds] if self.adds else None
        if self.centred:
            bias = None if self.bias is None else call.gains[self.bias.name]
            call.native.layer_norm(x, gain, bias, self.eps, out=out, add=add)
        else:
            call.native.rms_norm(x, gain, self.eps, out=out, add=add)

    @property
    def fits_linears(self) -> bool:
        """Whether linears can do it first."""
        return not (self.adds or self.centred)

    def norm_in_readers(self, layer: AnyLayer) -> Norm | None:
        """None if anything but linears reads it, if what it reads has changed by then, or if linears cannot do it."""
        readers = layer.multipliers(self) if self.fits_linears else ()
        between = layer.between(self, readers[-1]) if readers else ()
        return self if readers and all(one.writes != self.reads for one in between) else None

    def places(self, layer: AnyLayer) -> Iterator[Place]:
        if not self.adds and (readers := layer.multipliers(self)):
            yield Place(readers[0].name, self, readers, (self.gain.size,))

    def fold(self, layer: AnyLayer, place: Place, factors: np.ndarray, folding: Folding) -> None:
        for gain in self.gains:
            folding.gains[gain.name] = folding.gains[gain.name] / factors
