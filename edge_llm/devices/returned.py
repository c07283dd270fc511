"""Arrays of the host whose memory can be given back in parts; it reads as zeros then, and comes again when written."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Iterable
from typing import Any

import numpy as np


class ReturnedArray:
    """An array of zeros that takes memory where it is written."""

    def __init__(self, shape: tuple[int, ...], dtype: Any) -> None:
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        self._memory = mmap.mmap(-1, max(1, nbytes), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):  # a huge page would come and go as a whole
            self._memory.madvise(mmap.MADV_NOHUGEPAGE)
        self._row_bytes = nbytes // max(1, shape[0])
        self.values = np.frombuffer(self._memory, dtype, math.prod(shape)).reshape(shape)
        """The array."""

    def give_back(self, runs: Iterable[tuple[int, int]]) -> None:
        """Give the memory of the rows [first, end) of all ``runs`` back, as far as whole pages of the system lie in them."""
        for first, end in runs:
            start = -(-first * self._row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            stop = end * self._row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
            if start < stop:
                self._memory.madvise(mmap.MADV_DONTNEED, start, stop - start)


def runs_of(numbers: np.ndarray) -> list[tuple[int, int]]:
    """The ascending ``numbers`` as runs [first, end)."""
    ends = np.flatnonzero(np.diff(numbers) != 1)
    firsts = numbers[np.concatenate([[0], ends + 1])] if len(numbers) else numbers
    lasts = numbers[np.concatenate([ends, [len(numbers) - 1]])] if len(numbers) else numbers
    return [(int(first), int(last) + 1) for first, last in zip(firsts, lasts, strict=True)]
