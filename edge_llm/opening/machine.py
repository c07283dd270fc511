"""The machine as a plan sees it: CPUs and their cores, NUMA nodes, memory, and what `--device auto` stands for."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_llm.ascend.npu.pci import pci_cards
from edge_llm.control_groups import cpu_quota
from edge_llm.opening.auto_device import NONE, AutoDevice, find_device
from edge_llm.resources import threads_for, total_memory, usable_cpus

SYSTEM = Path("/sys")


@dataclass(frozen=True)
class NumaNodes:
    """The NUMA nodes of a machine."""

    cpus: Mapping[str, str]
    """By the number of a node: its CPUs, as Linux lists them."""
    of_card: str | None = None
    """The node that the first Ascend card is attached to; None without a card."""


def numa_nodes(system: Path) -> NumaNodes:
    """The nodes of the machine whose facts lie below ``system`` (/sys)."""
    files = sorted((system / "devices/system/node").glob("node[0-9]*/cpulist"))
    cards = pci_cards(system)
    node = str(cards[0].node or 0) if cards else None  # a machine of one node names none
    return NumaNodes({file.parent.name.removeprefix("node"): file.read_text() for file in files}, node)


@dataclass(frozen=True)
class Machine:
    """What a machine has for models."""

    cpus: Mapping[int, str]
    """CPUs that the process may use; hyper-threads of one core name the same core."""
    quota: int | None
    """Whole CPUs that the process may keep busy; None: no limit."""
    memory: int
    """Bytes of main memory that the process may have."""
    nodes: NumaNodes
    auto: AutoDevice = NONE
    """What `--device auto` stands for."""

    @property
    def threads(self) -> int:
        """Threads that a model gets where nothing else is asked for: one for each core."""
        return threads_for(self.cpus, self.quota)


def this_machine() -> Machine:
    """The machine that this process runs on, as it is now."""
    return Machine(usable_cpus(), cpu_quota(), total_memory(), numa_nodes(SYSTEM), _found_device())


@functools.cache
def _found_device() -> AutoDevice:
    """A card neither comes nor goes while a process runs."""
    return find_device()
