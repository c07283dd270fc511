"""The float16 linear against the roofs: multiply-adds in registers for many rows, a read of memory for one row.

    python benchmarks/half_linear.py                      every instruction set, one and two threads; about a minute
    python benchmarks/half_linear.py --threads 1 --isa avx2

Every call finds its weight in memory: copies take turns.  ``before`` is `kernels.linear.hot_product` of all channels, by which
float16 linears were multiplied once.  Medians and, in brackets, the best; compare figures of one run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from edge_llm import kernels
from edge_llm.kernels import linear
from edge_llm.kernels.half_linear import half_linear
from edge_llm.kernels.roofs import float_rate, read_bandwidth

SHAPES = [(576, 960), (1536, 576), (896, 9728)]
"""K and N of linears of small models."""
ROWS = (1, 2, 4, 8, 32, 256)
MEMORY = 128 << 20
"""Bytes of all copies of a weight: more than caches hold."""
SECONDS = 0.25
LEAST = 7


def seconds_of(work: Callable[[], object]) -> list[float]:
    """Of several calls, in ascending order."""
    work()
    found: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(found) < LEAST or time.perf_counter() < end:
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return sorted(found)


def weights_of(k: int, n: int) -> Iterator[np.ndarray]:
    """Copies of a weight [K, N] in one piece of memory, one after the other without end."""
    random = np.random.default_rng(0)
    one = random.standard_normal((k, n)).astype(np.float16)
    copies = np.empty((max(1, MEMORY // one.nbytes), k, n), np.float16)
    copies[:] = one
    return itertools.cycle(copies)


def report(k: int, n: int, pool: kernels.ThreadPool, operations: float, read_bytes: float) -> None:
    weights, every = weights_of(k, n), np.arange(k, dtype=np.int32)
    for rows in ROWS:
        x = np.random.default_rng(1).standard_normal((rows, k)).astype(np.float32)
        out = np.empty((rows, n), np.float32)
        ways = {
            "now": lambda x=x, out=out: half_linear(x, next(weights), pool, out=out),
            "before": lambda x=x, out=out: linear.hot_product(x, every, next(weights), pool, out=out),
        }
        for name, work in ways.items():
            found = seconds_of(work)
            middle, best = statistics.median(found), found[0]
            flops, nbytes = 2 * rows * k * n, 2 * k * n
            print(
                f"{k:5d} x {n:5d} {rows:4d} rows {name:6s} {flops / middle / 1e9:7.1f} GFLOP/s ({flops / best / 1e9:.1f}),"
                f" {flops / middle / operations:4.0%} ({flops / best / operations:.0%}) of the roof;"
                f" {nbytes / middle / 1e9:5.1f} GB/s ({nbytes / best / 1e9:.1f}), {nbytes / middle / read_bytes:4.0%}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--isa", nargs="*", default=[name for name in kernels.isa_variants() if name != "portable"])
    arguments = parser.parse_args()
    for isa, threads in itertools.product(arguments.isa, arguments.threads):
        kernels.use_isa(isa)
        pool = kernels.ThreadPool(threads)
        operations, read_bytes = float_rate(pool), read_bandwidth(pool)
        print(f"{isa}, {threads} threads: {operations / 1e9:.1f} GFLOP/s, {read_bytes / 1e9:.1f} GB/s")
        for k, n in SHAPES:
            report(k, n, pool, operations, read_bytes)


if __name__ == "__main__":
    main()
