"""Which CPUs a model runs on: a list, a NUMA node, or the node of the Ascend card."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_llm.ascend.npu.pci import pci_cards
from edge_llm.errors import UsageError

MAX_CPU = 4095
_LIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")


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


def chosen_cpus(cpus: str | None, numa: str | None, allowed: Iterable[int], nodes: NumaNodes) -> frozenset[int] | None:
    """Those of ``cpus`` (such as ``0-3,8``), or of a node (a number, or ``card``), that are ``allowed``; None for no choice.

    Raises `UsageError` for both at once, an invalid list, an unknown node, and CPUs that the process may not use.
    """
    if cpus is not None and numa is not None:
        raise UsageError("give --cpus or --numa, not both", param="numa")
    if cpus is None and numa is None:
        return None
    chosen, allowed = parse_cpus(cpus) if cpus is not None else node_cpus(numa or "", nodes), set(allowed)
    if not chosen & allowed:
        raise UsageError(
            f"this process may not use CPU {_written(chosen)}; it may use {_written(allowed)}",
            param="cpus" if cpus is not None else "numa",
        )
    return frozenset(chosen & allowed)


def parse_cpus(text: str) -> set[int]:
    """The numbers that ``0-3,8`` names; raises `UsageError`."""
    if _LIST.fullmatch(text.strip()) is None:
        raise UsageError(f"`{text[:60]}` is an invalid list of CPUs; write one such as 0-3,8", param="cpus")
    chosen: set[int] = set()
    for item in text.strip().split(","):
        first, _, last = item.partition("-")
        low, high = int(first), int(last or first)
        if not low <= high <= MAX_CPU:
            raise UsageError(f"`{item}` is an invalid range of CPUs; they go from 0 to {MAX_CPU}", param="cpus")
        chosen.update(range(low, high + 1))
    return chosen


def node_cpus(node: str, nodes: NumaNodes) -> set[int]:
    """The CPUs of NUMA node ``node``; ``card`` means the node that the card is attached to.  Raises `UsageError`."""
    number = nodes.of_card if node == "card" else node
    if number is None:
        raise UsageError("no Ascend card on the PCI bus, so `card` names no node; give --numa a number", param="numa")
    if number not in nodes.cpus:
        raise UsageError(f"unknown NUMA node `{node}`; choose one of: {', '.join(sorted(nodes.cpus)) or 'none'}", param="numa")
    return parse_cpus(nodes.cpus[number])


def _written(cpus: set[int]) -> str:
    """The numbers as the kernel writes them: 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
