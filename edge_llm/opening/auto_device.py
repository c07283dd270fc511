"""Which device `auto` stands for: an Ascend card if one is here and nothing that it needs is missing, else the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge_llm.ascend.npu.pci import card_nodes, pci_cards

if TYPE_CHECKING:
    from edge_llm.ascend.npu.finding import Finding
    from edge_llm.ascend.npu.machine import AscendMachine

CARD = "ascend"


@dataclass(frozen=True)
class AutoDevice:
    """What `auto` stands for, and why."""

    device: str
    reason: str
    remedy: str = ""
    """What to do for a card that is here and cannot be used; empty where there is none."""


NONE = AutoDevice("host", "no Ascend card")


def find_device(root: Path = Path("/")) -> AutoDevice:
    """What `auto` stands for on this machine, whose files lie below ``root``; looks no further where there is no card."""
    if not card_nodes(root / "dev") and not pci_cards(root / "sys"):
        return NONE
    from edge_llm.ascend.npu.findings import file_findings  # much that nearly no start needs
    from edge_llm.ascend.npu.machine import AscendMachine

    machine = AscendMachine(root)
    return choose_device(machine, file_findings(machine))


def choose_device(machine: AscendMachine, findings: Sequence[Finding]) -> AutoDevice:
    """What `auto` stands for on a ``machine`` of which these ``findings`` are known."""
    if not machine.nodes and not pci_cards(machine.at("/sys")):
        return NONE
    for finding in findings:
        if finding.good is False and not finding.dispensable:
            return AutoDevice("host", f"the Ascend card cannot be used: {finding.name}: {finding.value}", finding.advice)
    return AutoDevice(CARD, "an Ascend card is here")
