"""Scheme ``neurons``: INT8 whose columns lie together, for a linear behind ReLU, where most of a row's inputs are zero.

What meets zeros is neither read nor multiplied (LLM in a flash, arXiv 2312.11514).  Sums are whole numbers, so the product is
that of scheme ``int8`` without a turn and with a scale for each row, bit for bit:

    y = sw * (q[:, active] @ Wq[:, active].T) * s[row] + bias

A run of neurons is what a page of a disk holds of their columns, one at least: a smaller read takes as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from edge_llm.config import NEURONS
from edge_llm.files import shown
from edge_llm.kernels import ThreadPool, pointwise
from edge_llm.kernels.activation import Activation
from edge_llm.kernels.checksum import crc32c
from edge_llm.kernels.layout import unpack_tiles
from edge_llm.kernels.neurons import add_columns
from edge_llm.kernels.program import Program
from edge_llm.operations.linear import Linear
from edge_llm.quant.channels import NO_CHANNELS
from edge_llm.quant.scheme import LIMIT, quantize_weight
from edge_llm.quant.shadow import Treatment, product_cost
from edge_llm.schemes.base import Facts, TensorSpec, check_finite, check_keys

NAME = NEURONS
COLUMNS, CHECKSUMS = "columns", "checksums"
PAGE = 4096
"""Bytes that a disk reads at least."""
_CACHED = 1 << 16
"""Values that are rounded at a time: they stay in a cache."""
LEAST = np.float32(1e-30)
"""The least magnitude that becomes 127."""


class Runs(NamedTuple):
    """How the columns of a linear are cut into runs that are read at once."""

    neurons: int
    """Of a run; the last may have fewer, and zeros."""
    total: int
    """Runs of all neurons."""
    nbytes: int
    """Bytes of a run, whole pages."""


def runs_of(linear: Linear) -> Runs:
    """The runs of ``linear``."""
    return _runs(linear.rows, linear.columns)


def _runs(rows: int, columns: int) -> Runs:
    neurons = max(1, PAGE // rows)
    return Runs(neurons, -(-columns // neurons), -(-neurons * rows // PAGE) * PAGE)


class Found(NamedTuple):
    """Runs that are in memory now."""

    runs: np.ndarray
    """Their numbers, int64 [R]."""
    held: np.ndarray
    """Memory with their columns: int8 [B]."""
    places: np.ndarray
    """Where in there each begins, int64 [R]."""


class HeldColumns(Protocol):
    """The columns of a linear, wherever they lie."""

    @property
    def nbytes(self) -> int:
        """Bytes of memory that they take."""
        ...

    def take(self, runs: np.ndarray, rows: int) -> Iterator[Found]:
        """``runs`` (int64, ascending) that a step of ``rows`` rows needs: some at a time, each valid until the next is taken.

        Raises `StorageError`, `CorruptBundle`.
        """
        ...


@dataclass(frozen=True)
class ResidentColumns:
    """All columns in memory: int8 [runs, bytes of a run]."""

    columns: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.columns.nbytes

    def take(self, runs: np.ndarray, rows: int) -> Iterator[Found]:
        yield Found(runs, self.columns.reshape(-1), runs * self.columns.shape[1])


@dataclass(frozen=True)
class NeuronWeight:
    """A weight of which a product takes the columns of active neurons."""

    rows: int
    """Output channels N."""
    columns: int
    """Input channels K: neurons."""
    run: int
    """Neurons of a run."""
    weight_scale: np.ndarray
    """float32 [N]."""
    held: HeldColumns
    bias: np.ndarray | None = None
    """float32 [N]."""

    @property
    def nbytes(self) -> int:
        return self.held.nbytes + self.weight_scale.nbytes + (0 if self.bias is None else self.bias.nbytes)

    @property
    def integers(self) -> np.ndarray:
        """All of its columns: int8 [N, K]."""
        rows = np.empty((-(-self.columns // self.run), self.run, self.rows), np.int8)
        for found in self.held.take(np.arange(len(rows)), 0):
            for run, place in zip(found.runs.tolist(), found.places.tolist(), strict=True):
                rows[run] = found.held[place : place + rows[run].size].reshape(self.run, self.rows)
        return np.ascontiguousarray(rows.reshape(-1, self.rows)[: self.columns].T)

    @property
    def in_experts(self) -> None:
        return None

    def prepare(self, first: NeuronWeight) -> None:
        """Nothing: no program multiplies it."""

    def add_to(self, program: Program, x: np.ndarray, **more: Any) -> bool:
        """False: what a product reads is known when it is computed."""
        return False

    def apply(
        self,
        x: np.ndarray,
        pool: ThreadPool,
        *,
        add: np.ndarray | None = None,
        shadow: bool = True,
        gain: np.ndarray | None = None,
        eps: float = 0.0,
        gate: Activation | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        if gate is not None and add is not None:
            raise ValueError("`gate` takes no `add`")
        _check("x", x, (len(x), self.columns))
        _check("add", add, (len(x), self.rows))
        _check("out", out, (len(x), self.rows // (1 if gate is None else 2)))
        q, scale = rounded_rows(x if gain is None else pointwise.rms_norm(x, gain, eps, pool))
        y = self._sums(q, pool).astype(np.float32)
        y *= self.weight_scale
        y *= scale[:, None]
        for added in (self.bias, add):
            if added is not None:
                y += added
        y = y if gate is None else pointwise.gated(y, gate, pool)
        if out is None:
            return y
        out[:] = y
        return out

    def _sums(self, q: np.ndarray, pool: ThreadPool) -> np.ndarray:
        """q int8 [M, K] times the columns of all neurons that are active in any row: int32 [M, N]."""
        sums = np.zeros((len(q), self.rows), np.int32)
        active = np.flatnonzero(q.any(axis=0))
        of_active = active // self.run
        for found in self.held.take(np.unique(of_active), len(q)):
            start = np.full(-(-self.columns // self.run), -1, np.int64)
            start[found.runs] = found.places
            begins = start[of_active]
            these = begins >= 0
            neurons = active[these]
            add_columns(q, neurons, found.held, begins[these] + neurons % self.run * self.rows, sums, pool)
        return sums


def _check(name: str, array: np.ndarray | None, shape: tuple[int, int]) -> None:
    if array is not None and (array.dtype != np.float32 or array.shape != shape):
        raise ValueError(f"`{name}` must be float32{list(shape)}; got {array.dtype}{list(array.shape)}")


def rounded_rows(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x float32 [M, K] in INT8, every row by a scale of its own, as `kernels.reference.quantize_rows` rounds: q, scale [M]."""
    q, most = np.empty(x.shape, np.int8), np.empty(len(x), np.float32)
    step = max(1, _CACHED // max(1, x.shape[1]))
    room = np.empty((min(step, len(x)), x.shape[1]), np.float32)
    for start in range(0, len(x), step):
        some, here = x[start : start + step], slice(start, start + step)
        steps = room[: len(some)]
        np.abs(some, out=steps).max(axis=1, initial=0, out=most[here])
        np.maximum(most[here], LEAST, out=most[here])
        with np.errstate(invalid="ignore"):  # what is not finite is refused below
            np.multiply(some, (np.float32(LIMIT) / most[here])[:, None], out=steps)
            np.rint(np.clip(steps, np.float32(-LIMIT), np.float32(LIMIT), out=steps), out=steps)
            q[here] = steps
    if not np.isfinite(most).all():
        raise ValueError("non-finite activation")
    return q, most / np.float32(LIMIT)


def tensors(linear: Linear, hot: int) -> list[TensorSpec]:
    runs = runs_of(linear)
    return [
        (COLUMNS, "int8", (runs.total, runs.nbytes)),
        (CHECKSUMS, "int32", (runs.total,)),
        ("scale", "float32", (linear.rows,)),
    ]


def facts(record: Mapping[str, Any]) -> Facts:
    check_keys(record, {"active"})
    active = record.get("active", 1.0)
    if type(active) is not float or not 0 <= active <= 1:
        raise ValueError(f"the share `{shown(active)}` of active neurons")
    return {"active": active}


def facts_of(treatment: Treatment) -> Facts:
    return {"active": treatment.active}


def active_runs(x: np.ndarray, linear: Linear) -> float:
    """Share of the runs of ``linear`` that a row of x float32 [M, K] activates; 1 where there are no rows."""
    if not len(x):
        return 1.0
    q, _ = rounded_rows(x)
    starts = np.arange(0, linear.columns, runs_of(linear).neurons)
    return float(np.logical_or.reduceat(q != 0, starts, axis=1).mean())


def convert(weight: np.ndarray, hot: np.ndarray, name: str) -> dict[str, np.ndarray]:
    made = quantize_weight(weight, NO_CHANNELS, name)
    return in_runs(unpack_tiles(made.tiles, *weight.shape), made.weight_scale)


def in_runs(matrix: np.ndarray, scale: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of `tensors` for integers int8 [N, K] and their scales float32 [N]."""
    rows, columns = matrix.shape
    runs = _runs(rows, columns)
    whole = np.zeros((runs.total * runs.neurons, rows), np.int8)
    whole[:columns] = matrix.T
    found = np.zeros((runs.total, runs.nbytes), np.int8)
    found[:, : runs.neurons * rows] = whole.reshape(runs.total, -1)
    return {COLUMNS: found, CHECKSUMS: checksums_of(found), "scale": scale}


def checksums_of(runs: np.ndarray) -> np.ndarray:
    """CRC32C of each of ``runs`` [R, bytes], as int32 [R]."""
    return np.array([crc32c(run) for run in runs], np.uint32).view(np.int32)


def check(linear: Linear, name: str, array: np.ndarray) -> None:
    if name == "scale":
        check_finite(array)
        if array.min(initial=0) < 0:
            raise ValueError("holds a scale below 0")


def open(linear: Linear, arrays: Mapping[str, np.ndarray], facts: Facts) -> NeuronWeight:
    held = ResidentColumns(arrays[COLUMNS])
    return NeuronWeight(linear.rows, linear.columns, runs_of(linear).neurons, arrays["scale"], held, arrays.get("bias"))


def cost(linear: Linear) -> float:
    return product_cost(linear.rows, linear.columns)
