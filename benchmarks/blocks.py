"""Products of weights in the blocks of GGUF files, beside those of INT8 weights of the same shape.

    python benchmarks/blocks.py                      every kind, one and two threads; about two minutes
    python benchmarks/blocks.py --threads 2 --isa avx2 --kinds q4_0,q4_k

Every call finds its weight in memory: copies take turns.  One row is told in GB/s of the weight's bytes, to be held against the
roof of memory; more rows in 10^9 multiply-adds a second, to be held against INT8.  Medians; compare figures of one run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from edge_llm import kernels
from edge_llm.kernels import layout
from edge_llm.kernels.blocks import KINDS, BlockKind, BlockLinear, block_linear, lay_out
from edge_llm.kernels.linear import Int8Linear, linear
from edge_llm.kernels.roofs import read_bandwidth

K, N = 2048, 8192
ROWS = (1, 2, 4, 8, 32, 512)
MEMORY = 128 << 20
"""Bytes of all copies of a weight: more than caches hold."""
SECONDS = 0.25
LEAST = 7
Products = Iterator[Callable[[np.ndarray, np.ndarray], None]]
"""Products of rows with copies of a weight, without end, each into an array."""
_HALVES = {"q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "mxfp4": ()}
"""Where a block of a file has float16 numbers; 0 where nothing is said."""


def median_of(work: Callable[[], object]) -> float:
    """Seconds of one of several calls."""
    work()
    found: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(found) < LEAST or time.perf_counter() < end:
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def file_rows(kind: BlockKind) -> np.ndarray:
    """Bytes of a random weight in a file, whose scales are those of usual weights."""
    random = np.random.default_rng(0)
    raw = random.integers(0, 256, (N * (K // kind.columns), kind.nbytes), np.uint8)
    for at in _HALVES.get(kind.name, (0,)):
        raw[:, at : at + 2] = (0.01 * random.standard_normal(len(raw))).astype("<f2").view(np.uint8).reshape(-1, 2)
    if kind.name == "mxfp4":
        raw[:, 0] = random.integers(110, 130, len(raw))
    return raw.reshape(-1)


def copies_of(array: np.ndarray) -> list[np.ndarray]:
    return [array.copy() for _ in range(max(1, MEMORY // array.nbytes))]


def int8_products(pool: kernels.ThreadPool) -> tuple[int, Products]:
    """Bytes of an INT8 weight, and products with copies of it without end."""
    weight = np.random.default_rng(0).integers(-127, 128, (N, K)).astype(np.int8)
    tiles, sums = layout.pack_tiles(weight), weight.sum(1, dtype=np.int32)
    none = np.zeros(0, np.int32), np.zeros((0, N), np.float16)
    made = [Int8Linear(one, N, K, None, np.ones(N, np.float32), sums, *none, None) for one in copies_of(tiles)]
    return tiles.nbytes, (partial(_int8, one, pool) for one in itertools.cycle(made))


def block_products(kind: BlockKind, pool: kernels.ThreadPool) -> tuple[int, Products]:
    """The same of a weight in blocks."""
    panels = lay_out(file_rows(kind), kind, N, K, pool)
    made = [BlockLinear([(one, kind, N)], K) for one in copies_of(panels)]
    return panels.nbytes, (partial(_blocks, one, pool) for one in itertools.cycle(made))


def _int8(weight: Int8Linear, pool: kernels.ThreadPool, x: np.ndarray, out: np.ndarray) -> None:
    linear(x, weight, pool, out=out)


def _blocks(weight: BlockLinear, pool: kernels.ThreadPool, x: np.ndarray, out: np.ndarray) -> None:
    block_linear(x, weight, pool, out=out)


def _next_product(products: Products, x: np.ndarray, out: np.ndarray) -> None:
    next(products)(x, out)


def told(name: str, nbytes: int, products: Products) -> str:
    """A line of the table."""
    cells = [f"{name:8}{8 * nbytes / (N * K):6.2f}"]
    for rows in ROWS:
        x = np.random.default_rng(1).standard_normal((rows, K)).astype(np.float32)
        out = np.empty((rows, N), np.float32)
        seconds = median_of(partial(_next_product, products, x, out))
        cells.append(f"{nbytes / seconds / 1e9:8.1f}" if rows == 1 else f"{rows * K * N / seconds / 1e9:8.0f}")
    return "".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, action="append")
    parser.add_argument("--isa", action="append", choices=kernels.isa_variants())
    parser.add_argument("--kinds", default=",".join(KINDS))
    asked = parser.parse_args()
    for isa, threads in itertools.product(asked.isa or [kernels.isa()], asked.threads or [1, 2]):
        kernels.use_isa(isa)
        pool = kernels.ThreadPool(threads)
        print(f"\n{isa}, {threads} threads, {K} x {N}; a read of memory: {read_bandwidth(pool) / 1e9:.1f} GB/s")
        print(f"{'kind':8}{'bits':>6}{'GB/s, 1':>8}" + "".join(f"{f'{rows} rows':>8}" for rows in ROWS[1:]))
        print(told("int8", *int8_products(pool)))
        for name in asked.kinds.split(","):
            print(told(name, *block_products(KINDS[name], pool)))


if __name__ == "__main__":
    main()
