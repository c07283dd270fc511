"""How fast this machine's memory can be read: measured once in a process, in a thread, while no answer is under way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from edge_llm.kernels import ThreadPool
from edge_llm.kernels.roofs import read_bandwidth
from edge_llm.resources import free_memory

MOST_BYTES, LEAST_BYTES = 512 << 20, 128 << 20
"""What is read: as `bench --roof` does, or an eighth of the free memory; less than the least would measure caches."""

log = logging.getLogger("edge_llm.engine.memory_roof")
_known: dict[int, float] = {}  # by threads
_measuring = threading.Lock()


def memory_rate(threads: int, begun: Callable[[], int], *, idle: bool) -> float | None:
    """Bytes a second that ``threads`` threads read of main memory; None before that is known.

    It begins to be measured when it is asked for first and the machine is ``idle``; ``begun`` counts the answers that were
    begun so far: one that begins meanwhile spoils what was measured.
    """
    if (known := _known.get(threads)) is not None:
        return known
    if idle and free_memory() >= 8 * LEAST_BYTES and _measuring.acquire(blocking=False):
        threading.Thread(target=_measure, args=(threads, begun), name="memory-roof", daemon=True).start()
    return None


def _measure(threads: int, begun: Callable[[], int]) -> None:
    try:
        before = begun()
        found = read_bandwidth(ThreadPool(threads), min(MOST_BYTES, free_memory() // 8))
        if begun() == before:
            _known[threads] = found
    except MemoryError as failure:
        log.debug("the rate of the memory is not known: %r", failure)
    finally:
        _measuring.release()
