"""Which CPUs this process runs on: a list, a NUMA node, or the node of the Ascend card.

Threads inherit the choice, and Linux takes memory from the node whose CPU touches it first; so the CPUs are chosen before
anything is loaded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from edge_llm.ascend.npu.pci import pci_cards
from edge_llm.errors import UsageError

SYSTEM = Path("/sys")
MAX_CPU = 4095
_LIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")


def bind(cpus: str | None, numa: str | None, system: Path = SYSTEM) -> None:
    """Run this process on ``cpus`` (such as ``0-3,8``) or on the CPUs of a node (a number, or ``card``); None changes nothing.

    Raises `UsageError` for both at once, an invalid list, an unknown node, and CPUs that the process may not use.
    """
    if cpus is not None and numa is not None:
        raise UsageError("give --cpus or --numa, not both", param="numa")
    if cpus is None and numa is None:
        return
    chosen = parse_cpus(cpus) if cpus is not None else node_cpus(numa or "", system)
    allowed = os.sched_getaffinity(0)
    if not chosen & allowed:
        raise UsageError(
            f"this process may not use CPU {_written(chosen)}; it may use {_written(allowed)}",
            param="cpus" if cpus is not None else "numa",
        )
    os.sched_setaffinity(0, chosen & allowed)


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


def node_cpus(node: str, system: Path = SYSTEM) -> set[int]:
    """The CPUs of NUMA node ``node``; ``card`` means the node that the card is attached to.  Raises `UsageError`."""
    number = _card_node(system) if node == "card" else node
    file = system / f"devices/system/node/node{number}/cpulist"
    if re.fullmatch("[0-9]{1,5}", number) is None or not file.is_file():
        nodes = sorted(path.name.removeprefix("node") for path in (system / "devices/system/node").glob("node[0-9]*"))
        raise UsageError(f"unknown NUMA node `{node}`; choose one of: {', '.join(nodes) or 'none'}", param="numa")
    return parse_cpus(file.read_text())


def _card_node(system: Path) -> str:
    cards = pci_cards(system)
    if not cards:
        raise UsageError("no Ascend card on the PCI bus, so `card` names no node; give --numa a number", param="numa")
    return str(cards[0].node or 0)  # a machine of one node names none


def _written(cpus: set[int]) -> str:
    """The numbers as the kernel writes them: 0-3,8."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
