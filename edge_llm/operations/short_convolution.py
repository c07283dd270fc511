"""A short convolution over tokens between two gates (LFM2): what a layer may have in the place of attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edge_llm.kernels import ThreadPool
from edge_llm.kernels.recurrent import MAX_TAPS, short_convolution
from edge_llm.operations.base import Back, Buffers, FloatRun, Gain, Op, Operation, Passes
from edge_llm.operations.keeps import Fixed, Kept, concurrent_runs, one_run
from edge_llm.operations.recurrent_back import convolution_gradient

if TYPE_CHECKING:
    from edge_llm.operations.host_call import AnyRows, HostCall
    from edge_llm.operations.questions import AnyLayer

TAIL = "convolution_tail"
"""The last rows of what is convolved."""


@dataclass(frozen=True)
class ShortConvolution(Operation):
    """``writes = c * (taps of b * u (+ bias))`` of ``reads`` = b | c | u; the last tap meets the row itself.

    Each channel has taps of its own: ``taps`` is [width, taps].
    """

    KIND: ClassVar[str] = "short_convolution"
    HOST_ALONE: ClassVar[str] = "a short convolution"

    taps: Gain
    reads: str
    writes: str
    bias: Gain | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.taps.size <= MAX_TAPS or self.taps.rows < 1:
            raise ValueError(f"the convolution `{self.taps.name}` of {self.taps.rows} channels has {self.taps.size} taps")
        if self.bias is not None and self.bias.size != self.taps.rows:
            raise ValueError(f"the bias of the convolution `{self.taps.name}` is of another width")

    @property
    def width(self) -> int:
        """Channels that are convolved."""
        return self.taps.rows

    @property
    def tail(self) -> Fixed:
        """What it keeps: the last rows of b * u."""
        return Fixed(TAIL, (self.taps.size - 1, self.width))

    @property
    def keeps(self) -> tuple[Kept, ...]:
        return (self.tail,)

    @property
    def read_width(self) -> int:
        return 3 * self.width

    @property
    def write_width(self) -> int:
        return self.width

    @property
    def gains(self) -> tuple[Gain, ...]:
        return (self.taps,) if self.bias is None else (self.taps, self.bias)

    # -- float ---------------------------------------------------------------------------------------------------------

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        x, pool = buffers[self.reads], ThreadPool(1)
        out = np.empty((len(x), self.width), np.float32)
        taps, bias = self._vectors(run.weights.gains)

        def step(rows: slice, before: np.ndarray) -> np.ndarray:
            tails = before[None].copy()
            self._mix(x[rows], taps, bias, tails, one_run(rows.stop - rows.start), pool, out[rows])
            return np.asarray(tails[0])

        run.through(self.tail, len(x), step)
        return out

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        x, (taps, bias) = buffers[self.reads], self._vectors(run.weights.gains)
        b, c, u = np.split(x, 3, axis=1)
        tails = np.zeros((1, *self.tail.shape), np.float32)
        convolved = short_convolution(b * u, taps, bias, tails, one_run(len(x)), ThreadPool(1))

        def back(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
            at_product = convolution_gradient(gradient * c, taps)
            return [(self.reads, np.concatenate([at_product * u, gradient * convolved, at_product * b], axis=1))]

        return c * convolved, back

    def _vectors(self, gains: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
        """Taps [taps, width] from the oldest row's on, and the bias."""
        return np.ascontiguousarray(gains[self.taps.name].T), None if self.bias is None else gains[self.bias.name]

    def _mix(
        self,
        x: np.ndarray,
        taps: np.ndarray,
        bias: np.ndarray | None,
        tails: np.ndarray,
        runs: np.ndarray,
        pool: ThreadPool,
        out: np.ndarray,
    ) -> None:
        """What rows x [T, b | c | u] of ``runs`` become, into ``out`` [T, width]; ``tails`` are kept up."""
        b, c, u = (x[:, first : first + self.width] for first in range(0, 3 * self.width, self.width))
        np.multiply(c, short_convolution(b * u, taps, bias, tails, runs, pool), out=out)

    # -- devices -------------------------------------------------------------------------------------------------------

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [(self.taps.name, Op("short_convolution", (self.reads,), (self.writes,), self))]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.width}

    def add_call(self, call: HostCall) -> None:
        x, out, tails = call.buffers[self.reads], call.buffers[self.writes], call.states[TAIL]
        vectors = cache(partial(self._vectors, call.gains))  # at the first run: a streamed layer has not come before

        def step(rows: AnyRows) -> None:
            for taken, runs in concurrent_runs(rows.spans):
                self._mix(x[taken], *vectors(), tails, runs, call.pool, out[taken])

        call.add_rows(step)
