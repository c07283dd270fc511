"""Calibration on all cores: many small products side by side, each on one thread.

NumPy's BLAS spreads every product over all cores and spins at its end; on a machine that does anything else as well
that costs more than it gains, many times over.  Here the sequences and the linears of a layer are the parallel units,
and the BLAS is told to stay on the thread that calls it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

_SETTERS = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_",
            "openblas_{}_num_threads")  # fmt: skip


@contextmanager
def workers() -> Iterator[ThreadPoolExecutor]:
    """As many threads as this process has cores (at most 16), with a BLAS that adds none."""
    with _single_threaded_blas(), ThreadPoolExecutor(min(16, len(os.sched_getaffinity(0)))) as pool:
        yield pool


@contextmanager
def _single_threaded_blas() -> Iterator[None]:
    found = _openblas()
    if found is None:  # another BLAS: slower on a busy machine, otherwise the same
        yield
        return
    get, set_ = found
    before = get()
    set_(1)
    try:
        yield
    finally:
        set_(before)


def _openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """OpenBLAS's own functions to get and set its number of threads, if NumPy has loaded one."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None
    for path in sorted({line.split(maxsplit=5)[-1] for line in maps.splitlines() if "openblas" in line}):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        for name in _SETTERS:
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None
