"""Memory of our own in huge pages: weights pass by for every token, and each small page of them is an address to look up."""

from __future__ import annotations

import contextlib
import mmap

import numpy as np

HUGE_PAGE_BYTES = 2 << 20


def huge_memory(nbytes: int) -> np.ndarray:
    """Zeros, uint8 [nbytes], from the start of a huge page on; what is behind the last whole one takes small pages.

    The system has the memory back as soon as nobody uses it.  Raises MemoryError where there is not so much.
    """
    if nbytes == 0:
        return np.empty(0, np.uint8)
    try:
        memory = mmap.mmap(-1, nbytes + HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:  # it is no file that fails here
        raise MemoryError(f"{nbytes} bytes for weights") from error
    arena = np.frombuffer(memory, np.uint8)
    start, whole = -arena.ctypes.data % HUGE_PAGE_BYTES, nbytes // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES
    if whole:
        with contextlib.suppress(OSError):  # a system without huge pages
            memory.madvise(mmap.MADV_HUGEPAGE, start, whole)
    return arena[start : start + nbytes]
