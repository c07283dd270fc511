"""A short convolution over tokens between two gates (LFM2): what a layer may have in the place of attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from edge_llm.operations.base import Back, Buffers, FloatRun, Gain, Op, Operation, Passes
from edge_llm.operations.keeps import Fixed, Kept

if TYPE_CHECKING:
    from edge_llm.operations.host_call import HostCall
    from edge_llm.operations.keeps import Span
    from edge_llm.operations.questions import AnyLayer

TAIL = "convolution_tail"
"""The last rows of what is convolved."""


@dataclass(frozen=True)
class ShortConvolution(Operation):
    """``writes = c * (taps of b * u (+ bias))`` of ``reads`` = b | c | u; the last tap meets the row itself.

    Each channel has taps of its own: ``taps`` is [width, taps].  Sums go from the oldest row to the newest, whatever rows come
    together.
    """

    KIND: ClassVar[str] = "short_convolution"
    HOST_ALONE: ClassVar[str] = "a short convolution"

    taps: Gain
    reads: str
    writes: str
    bias: Gain | None = None

    def __post_init__(self) -> None:
        if self.taps.size < 2 or self.taps.rows < 1 or (self.bias is not None and self.bias.size != self.taps.rows):
            raise ValueError(f"the convolution `{self.taps.name}` has no two taps, or a bias of another width")

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
        x, gains = buffers[self.reads], run.weights.gains
        out = np.empty((len(x), self.width), np.float32)
        taps, bias = self._vectors(gains)

        def step(rows: slice, tail: np.ndarray) -> np.ndarray:
            out[rows], after = self._mixed(x[rows], tail, taps, bias)
            return after

        run.through(self.tail, len(x), step)
        return out

    def forward_and_back(self, buffers: Buffers, run: FloatRun) -> tuple[np.ndarray, Back]:
        x, (taps, bias) = buffers[self.reads], self._vectors(run.weights.gains)
        b, c, u = np.split(x, 3, axis=1)
        convolved, _ = self._convolved(b * u, np.zeros(self.tail.shape, np.float32), taps, bias)

        def back(gradient: np.ndarray) -> list[tuple[str, np.ndarray]]:
            ahead = np.concatenate([gradient * c, np.zeros(self.tail.shape, np.float32)])
            rows, last = len(x), len(taps) - 1
            at_product = sum(ahead[last - tap : last - tap + rows] * taps[tap] for tap in range(last + 1))
            return [(self.reads, np.concatenate([at_product * u, gradient * convolved, at_product * b], axis=1))]

        return c * convolved, back

    def _vectors(self, gains: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray | None]:
        """Taps [taps, width] from the oldest row's on, and the bias."""
        return np.ascontiguousarray(gains[self.taps.name].T), None if self.bias is None else gains[self.bias.name]

    def _mixed(
        self, x: np.ndarray, tail: np.ndarray, taps: np.ndarray, bias: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """What rows x [T, b | c | u] behind a ``tail`` become: [T, width], and the tail behind them."""
        b, c, u = (x[:, first : first + self.width] for first in range(0, 3 * self.width, self.width))
        convolved, after = self._convolved(b * u, tail, taps, bias)
        return c * convolved, after

    def _convolved(
        self, product: np.ndarray, tail: np.ndarray, taps: np.ndarray, bias: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = np.concatenate([tail, product])
        out = rows[: len(product)] * taps[0]
        for tap in range(1, len(taps)):
            out += rows[tap : tap + len(product)] * taps[tap]
        return out if bias is None else out + bias, rows[len(product) :].copy()

    # -- devices -------------------------------------------------------------------------------------------------------

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [(self.taps.name, Op("short_convolution", (self.reads,), (self.writes,), self))]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.width}

    def add_call(self, call: HostCall) -> None:
        x, out, states = call.buffers[self.reads], call.buffers[self.writes], call.states[TAIL]
        taps, bias = self._vectors(call.gains)

        def step(span: Span) -> None:
            rows = slice(span.first, span.end)
            out[rows], states[span.writes] = self._mixed(x[rows], states[span.reads], taps, bias)

        call.add_spans(step)
