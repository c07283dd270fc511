"""What this process may take of the machine: cores and memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Mapping
from pathlib import Path

from edge_llm.control_groups import cpu_quota, memory_limit, memory_room

_TOPOLOGY = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def usable_cores() -> int:
    """Cores that this process may use: its affinity, bounded by the quota of its control groups; hyper-threads count once."""
    return threads_for(usable_cpus(), cpu_quota())


def threads_for(cpus: Mapping[int, str], quota: int | None) -> int:
    """Threads that have a core each of ``cpus``, which name theirs, and not more than ``quota``."""
    cores = len(set(cpus.values()))
    return max(1, min(cores, quota or cores))


def usable_cpus() -> dict[int, str]:
    """The CPUs that this process may use; hyper-threads of one core name the same core."""
    return {cpu: _core(cpu) for cpu in sorted(os.sched_getaffinity(0))}


def _core(cpu: int) -> str:
    """What the hyper-threads of one core have in common."""
    try:
        return Path(_TOPOLOGY.format(cpu)).read_text().strip()
    except OSError:  # some containers hide it
        return str(cpu)


def total_memory() -> int:
    """Bytes of main memory that this process may have: what the machine has, bounded by the limits of its control groups."""
    return min(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), memory_limit())


def free_memory() -> int:
    """Bytes of main memory that this process may still take: what the machine has free, bounded by its control groups."""
    import psutil  # slow to import

    return min(psutil.virtual_memory().available, memory_room())


def give_memory_back() -> None:
    """To the system, what nobody holds any more: the C library keeps large freed blocks, each for the threads that had it."""
    gc.collect()  # parts of an engine know each other
    with contextlib.suppress(OSError, AttributeError):  # another library than glibc
        ctypes.CDLL(None).malloc_trim(0)
