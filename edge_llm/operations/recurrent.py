"""What the mixers with a state of fixed size share: a short convolution, a recurrence over rows, a norm beside a gate.

The recurrence runs row after row in prompts as in answers, so that a text has the same bits however it is cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from edge_llm.kernels import ThreadPool, floats, pointwise, recurrent
from edge_llm.operations.base import Buffers, FloatRun, Gain, Op, Operation, Passes
from edge_llm.operations.keeps import Fixed, Kept, concurrent_runs, one_run

if TYPE_CHECKING:
    from edge_llm.operations.host_call import AnyRows, HostCall
    from edge_llm.operations.questions import AnyLayer

_LENGTH_EPS = 1e-6
"""Added to the square of a length that is made 1."""


class Columns(NamedTuple):
    """Where the parts of what a mixer reads lie: q, k and v among the convolved columns, the others among all."""

    convolved: slice
    q: slice
    k: slice
    v: slice
    gate: slice
    steps: slice
    write: slice | None
    """What says how much a row writes; None: its step."""


class Constants(NamedTuple):
    """The vectors of a mixer as its kernels take them."""

    weight: np.ndarray
    bias: np.ndarray | None
    rate: np.ndarray
    step_bias: np.ndarray
    gain: np.ndarray
    skip: np.ndarray | None


@dataclass(frozen=True)
class Recurrent(Operation):
    """A mixer with a state [key_dim, value_dim] of every head; `columns` says how what it reads is laid out."""

    CORRECTS: ClassVar[bool]
    """Whether it is a delta rule: queries and keys have the length 1, and a value replaces what its key had."""
    GATE_FIRST: ClassVar[bool]
    """Whether the gate is before the norm."""

    heads: int
    groups: int
    """Heads of queries and keys, each for heads / groups neighbouring heads of values."""
    key_dim: int
    value_dim: int
    eps: float
    """Of the norm."""
    reads: str
    writes: str
    convolution: Gain
    """[convolved columns, taps], the oldest input first."""
    fade: Gain
    """[heads]: states fade by exp(-step exp(fade))."""
    step_bias: Gain
    """[heads]: steps are softplus(steps + it)."""
    norm: Gain
    """[value_dim] for all heads, or of all their channels."""
    convolution_bias: Gain | None = None
    skip: Gain | None = None
    """[heads]: how much of a value goes past the state."""
    least_step: float = 0.0
    most_step: float = 0.0
    """0: steps have no bound."""
    tiled: bool = False
    """Whether a head of queries and keys is for every ``groups``-th head of values, not for neighbours: llama.cpp's order."""

    def __post_init__(self) -> None:
        sizes = f"{self.heads} heads, {self.groups} key heads of {self.key_dim} channels and values of {self.value_dim}"
        if min(self.heads, self.groups, self.key_dim, self.value_dim) < 1 or self.heads % self.groups:
            raise ValueError(f"a recurrent mixer of {sizes}")
        if self.key_dim > recurrent.MAX_KEYS or self.value_dim % recurrent.VALUE_STEP:
            raise ValueError(f"no kernel has a recurrent mixer of {sizes}")
        wide = 2 * self.groups * self.key_dim + self.heads * self.value_dim
        taps, bias = self.convolution.size, self.convolution_bias
        if self.convolution.rows != wide or not 1 <= taps <= recurrent.MAX_TAPS or (bias is not None and bias.size != wide):
            raise ValueError(f"the convolution `{self.convolution.name}` is not of {wide} columns")
        if any(one is not None and one.size != self.heads for one in (self.fade, self.step_bias, self.skip)):
            raise ValueError(f"a recurrent mixer of {self.heads} heads has vectors of others")
        if self.norm.size not in (self.value_dim, self.write_width) or not self.eps > 0 or self.write_width % self.group:
            raise ValueError(f"the norm `{self.norm.name}` of {self.norm.size} channels fits no mixer of {sizes}")

    @property
    def columns(self) -> Columns:
        raise NotImplementedError

    @property
    def group(self) -> int:
        """Channels that are normed together."""
        raise NotImplementedError

    @property
    def write_width(self) -> int:
        return self.heads * self.value_dim

    @property
    def gains(self) -> tuple[Gain, ...]:
        found = (self.convolution, self.convolution_bias, self.fade, self.step_bias, self.norm, self.skip)
        return tuple(gain for gain in found if gain is not None)

    @cached_property
    def tail(self) -> Fixed:
        """The inputs of the convolution before a row."""
        return Fixed("tail", (self.convolution.size - 1, self.convolution.rows))

    @cached_property
    def state(self) -> Fixed:
        """What all rows so far have become."""
        return Fixed("state", (self.heads, self.key_dim, self.value_dim))

    @property
    def keeps(self) -> tuple[Kept, ...]:
        return (self.tail, self.state)

    # -- float ---------------------------------------------------------------------------------------------------------

    def forward(self, buffers: Buffers, run: FloatRun) -> np.ndarray:
        mixed, pool = np.ascontiguousarray(buffers[self.reads], np.float32), ThreadPool(1)
        constants, out = self.constants(run.weights.gains), np.empty((len(mixed), self.write_width), np.float32)
        convolved = np.empty((len(mixed), self.convolution.rows), np.float32)

        def convolve(rows: slice, before: np.ndarray) -> np.ndarray:
            tails, runs = before[None].copy(), one_run(rows.stop - rows.start)
            self._convolve(mixed[rows], constants, tails, runs, pool, convolved[rows])
            return np.asarray(tails[0])

        def recur(rows: slice, before: np.ndarray) -> np.ndarray:
            states, runs = before[None].copy(), one_run(rows.stop - rows.start)
            self._recur(mixed[rows], convolved[rows], constants, states, runs, pool, out[rows])
            return np.asarray(states[0])

        run.through(self.tail, len(mixed), convolve)
        run.through(self.state, len(mixed), recur)
        return out

    def constants(self, gains: Mapping[str, np.ndarray]) -> Constants:
        """Its ``gains`` as the kernels take them."""
        bias, skip = (None if one is None else gains[one.name] for one in (self.convolution_bias, self.skip))
        weight, rate = np.ascontiguousarray(gains[self.convolution.name].T), -floats.exp(gains[self.fade.name])
        return Constants(weight, bias, rate, gains[self.step_bias.name], gains[self.norm.name], skip)

    def _convolve(
        self, mixed: np.ndarray, constants: Constants, tails: np.ndarray, runs: np.ndarray, pool: ThreadPool, out: np.ndarray
    ) -> None:
        """q, k and v of ``mixed``: convolved, behind silu, and of a delta rule queries and keys as long as 1."""
        taken = mixed[:, self.columns.convolved]
        recurrent.short_convolution(taken, constants.weight, constants.bias, tails, runs, pool, silu=True, out=out)
        for columns, gain, eps in self.lengths():
            pointwise.head_norm(self.of_keys(out[:, columns]), gain, eps, pool)

    def lengths(self) -> tuple[tuple[slice, np.ndarray, float], ...]:
        """Norms of heads that make queries and keys of a delta rule as long as 1, and scale queries: columns, gain, epsilon."""
        if not self.CORRECTS:
            return ()
        eps, root = _LENGTH_EPS / self.key_dim, self.key_dim**-0.5  # a length of 1 is a root mean square of dim^-1/2
        scales = ((self.columns.q, root * root), (self.columns.k, root))
        return tuple((columns, np.full(self.key_dim, scale, np.float32), eps) for columns, scale in scales)

    def of_keys(self, columns: np.ndarray) -> np.ndarray:
        """Queries or keys [T, groups * key_dim] by heads: a view [T, groups, key_dim]."""
        return columns.reshape(len(columns), self.groups, self.key_dim)

    def for_heads(self, keys: np.ndarray) -> np.ndarray:
        """Queries or keys [T, groups, key_dim], one for each head of values: [T, heads, key_dim]."""
        served = self.heads // self.groups
        return np.tile(keys, (1, served, 1)) if self.tiled else np.repeat(keys, served, axis=1)

    def of_values(self, columns: np.ndarray) -> np.ndarray:
        """Values [T, heads * value_dim] by heads: a view [T, heads, value_dim]."""
        return columns.reshape(len(columns), self.heads, self.value_dim)

    @property
    def longest_step(self) -> float:
        """The bound of steps."""
        return self.most_step or math.inf

    def _recur(
        self,
        mixed: np.ndarray,
        convolved: np.ndarray,
        constants: Constants,
        states: np.ndarray,
        runs: np.ndarray,
        pool: ThreadPool,
        out: np.ndarray,
    ) -> None:
        """What the states give for rows, behind norm and gate, into ``out`` [T, write_width]."""
        at = self.columns
        write = None if at.write is None else mixed[:, at.write]
        decay, strength = recurrent.rates(
            mixed[:, at.steps], constants.step_bias, constants.rate, write, pool, low=self.least_step, high=self.longest_step
        )
        q, k = (self.of_keys(convolved[:, one]) for one in (at.q, at.k))
        if self.tiled:
            q, k = self.for_heads(q), self.for_heads(k)
        recurrent.recurrence(
            q, k, self.of_values(convolved[:, at.v]), decay, strength, constants.skip, states, runs, pool,
            corrects=self.CORRECTS, out=self.of_values(out),
        )  # fmt: skip
        gate = mixed[:, at.gate]
        recurrent.gated_norm(out, gate, constants.gain, self.eps, self.group, pool, gate_first=self.GATE_FIRST, out=out)

    # -- the host ------------------------------------------------------------------------------------------------------

    def host_parts(self, layer: AnyLayer, passes: Passes) -> Iterable[tuple[str, Op]]:
        return [(self.KIND, Op(self.KIND, (self.reads,), (self.writes,), self))]

    def op_widths(self, op: Op) -> dict[str, int]:
        return {op.writes[0]: self.write_width}

    def add_call(self, call: HostCall) -> None:
        x, written, pool = call.buffers[self.reads], call.buffers[self.writes], call.pool
        tails, states = call.states[self.tail.name], call.states[self.state.name]
        ready = cache(partial(self.constants, call.gains))  # at the first run: a streamed layer has not come before

        def step(rows: AnyRows) -> None:
            constants = ready()
            for taken, runs in concurrent_runs(rows.spans):
                mixed, convolved = x[taken], np.empty((taken.stop - taken.start, self.convolution.rows), np.float32)
                self._convolve(mixed, constants, tails, runs, pool, convolved)
                self._recur(mixed, convolved, constants, states, runs, pool, written[taken])

        call.add_rows(step)
