"""The machine's limits, measured: what a kernel's speed is quoted against."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np

from edge_llm.kernels import _native
from edge_llm.kernels._native import ThreadPool

_ROUNDS = 5  # the best counts: others may use the machine
_PASSES = 15  # the median counts: on a shared memory bus the best pass is luck that no test of some seconds has


def int8_rate(pool: ThreadPool, seconds: float = 0.2) -> float:
    """INT8 operations/s (a multiply-add is two) of the bare microkernel of the current ISA, operands in L1, all threads."""
    return _rate(_native.int8_operations, pool, seconds)


def float_rate(pool: ThreadPool, seconds: float = 0.2) -> float:
    """Float32 operations/s (a multiply-add is two) of fused multiply-adds in registers, current ISA, all threads."""
    return _rate(_native.float_operations, pool, seconds)


def read_bandwidth(pool: ThreadPool, nbytes: int = 512 << 20) -> float:
    """Bytes/s of a sequential read of `nbytes` of memory, more than any cache holds, all threads: the median of its passes."""
    data = np.ones(nbytes, np.int8)
    return nbytes / median(_times(partial(_native.read_stream, data, pool), _PASSES))


def _rate(work: Callable[[int, ThreadPool], int], pool: ThreadPool, seconds: float) -> float:
    """Operations/s of `work`, which does so many repeats and returns its operations; all in all some `seconds`."""
    repeats = 64
    while _best_time(partial(work, repeats, pool), rounds=2) < seconds / (2 * _ROUNDS):
        repeats *= 2
    return work(repeats, pool) / _best_time(partial(work, repeats, pool))


def _best_time(work: Callable[[], object], rounds: int = _ROUNDS) -> float:
    return min(_times(work, rounds))


def _times(work: Callable[[], object], rounds: int) -> list[float]:
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times
