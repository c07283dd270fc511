"""Where the data of NumPy's arrays lies while much of it comes and goes: in memory that is handed on from array to array.

A large array's memory is fresh from the system, which clears every page, and goes back to it; where arrays of some megabytes
live for one expression each, as in import, that is a sixth of the time. Under `recycled` the memory waits for the next array
of about its size instead. What waits and what is in use together never exceed the most that was in use at once, so no peak
grows.

Each thread chooses for itself; `share` hands the choice of one thread on to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from edge_llm.kernels import _native


@contextmanager
def recycled() -> Iterator[None]:
    """New arrays of the calling thread, and of threads that share its memory, lie in memory that is handed on."""
    before, memory = _native.thread_memory(), _native.recycled_memory()
    _native.use_memory(memory)
    try:
        yield
    finally:
        _native.use_memory(before)
        _native.stop_recycling(memory)


def share() -> Callable[[], None]:
    """A call for another thread: its new arrays then lie where those of the calling thread lie now."""
    return partial(_native.use_memory, _native.thread_memory())
