"""Cores of this machine that stand for a chip, and those that are left to the CPU's lane."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property

from edge_llm.devices.base import Buffers, Rows, RunSubgraph
from edge_llm.devices.kv_pages import LayerPages
from edge_llm.schemes.base import BlockWeights


def split_cores(threads: int) -> tuple[list[int], list[int]]:
    """Cores for the CPU's lane and for the chip: of ``threads`` half each, the odd one to the chip; of one, the same."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    cores = [allowed[index % len(allowed)] for index in range(threads)]
    half = len(cores) // 2
    return cores[:half] or cores, cores[half:]


class SplitCores:
    """A device of ``_threads`` threads whose second lane runs on this machine's cores, too; they are split when asked for."""

    _threads: int

    @cached_property
    def _split(self) -> tuple[list[int], list[int]]:
        return split_cores(self._threads)

    @property
    def cpu_cores(self) -> list[int]:
        """Cores of the CPU's lane."""
        return self._split[0]

    @property
    def npu_cores(self) -> list[int]:
        """Cores of the other lane: of what stands for the chip."""
        return self._split[1]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """The calling thread, which is a pool's first worker, on ``core`` alone; on any core if the system cannot bind threads."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    with suppress(OSError):
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setaffinity(0, before)


def bound(on_cpu: RunSubgraph, core: int) -> RunSubgraph:
    """``on_cpu`` with the thread that calls it on ``core``."""

    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        with on_core(core):
            on_cpu(weights, buffers, rows, pages)

    return run
