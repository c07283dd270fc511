"""The machine as a plan sees it: CPUs and their cores, NUMA nodes, memory, and what `--device auto` stands for."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from pathlib import Path

from edge_llm.opening.auto_device import NONE, AutoDevice, find_device
from edge_llm.opening.cpus import NumaNodes, numa_nodes
from edge_llm.resources import cpu_quota, threads_for, total_memory, usable_cpus

SYSTEM = Path("/sys")


@dataclass(frozen=True)
class Machine:
    """What a machine has for models."""

    cpus: Mapping[int, str]
    """CPUs that the process may use; hyper-threads of one core name the same core."""
    quota: int | None
    """Whole CPUs that the process may keep busy; None: no limit."""
    memory: int
    """Bytes of main memory."""
    nodes: NumaNodes
    auto: AutoDevice = NONE
    """What `--device auto` stands for."""

    @property
    def threads(self) -> int:
        """Threads that a model gets where nothing else is asked for: one for each core."""
        return threads_for(self.cpus, self.quota)

    def narrowed(self, cpus: Set[int] | None) -> Machine:
        """The same for a process that is bound to ``cpus``; None: to those that it may use."""
        if cpus is None:
            return self
        return replace(self, cpus={cpu: core for cpu, core in self.cpus.items() if cpu in cpus})


def this_machine() -> Machine:
    """The machine that this process runs on, as it is now."""
    return Machine(usable_cpus(), cpu_quota(), total_memory(), numa_nodes(SYSTEM), _found_device())


@functools.cache
def _found_device() -> AutoDevice:
    """A card neither comes nor goes while a process runs."""
    return find_device()
