"""Calibration on all cores: many small products side by side, each on one thread.

NumPy's BLAS spreads every product over all cores and spins at its end; on a machine that does anything else as well
that costs more than it gains, many times over.  Here the sequences and the linears of a layer are the parallel units,
and the BLAS is told to stay on the thread that calls it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

from edge_llm.kernels import memory


def core_count() -> int:
    """Cores that this process may use, at most 16."""
    return min(16, len(os.sched_getaffinity(0)))


@contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """As many threads as this process has cores (at most 16), whose arrays lie where the caller's do; a BLAS adds none."""
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(core_count(), initializer=memory.share()) as pool:
        yield pool
