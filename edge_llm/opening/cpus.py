"""Which CPUs a model runs on: a list, a NUMA node, or the node of the Ascend card."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from edge_llm.errors import UsageError
from edge_llm.opening.machine import Machine, NumaNodes

MAX_CPU = 4095
_LIST = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")


def on_chosen_cpus(machine: Machine, cpus: str | None, numa: str | None) -> Machine:
    """``machine`` with those of its CPUs that `chosen_cpus` gives; itself for no choice.  Raises `UsageError`."""
    chosen = chosen_cpus(cpus, numa, machine.cpus, machine.nodes)
    if chosen is None:
        return machine
    return replace(machine, cpus={cpu: core for cpu, core in machine.cpus.items() if cpu in chosen})


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
