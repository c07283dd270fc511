"""Ascend cards as Linux shows them: on the PCI bus in /sys before any driver is there, then as device files in /dev."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

HUAWEI = "0x19e5"
"""PCI vendor number of Ascend cards, and of other things that Huawei makes."""
ACCELERATOR = "0x12"
"""How the class of a processing accelerator begins."""
BOARD_NODES = ("svm0", "ascend_manager", "user_config")
"""Device files that only boards have [web]: svm0 with a 310B, the others with a 310P as on an Atlas 200I Pro."""
CARD_NODE = "hisi_hdc"
"""What a card and its host talk through [vllm]: no card works without."""
MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class PciCard:
    """One card; a 300I Duo is one card with two devices."""

    address: str
    device: str
    """Number of the model, such as 0xd500; empty if it cannot be read."""
    node: int | None
    """NUMA node that it is attached to; None where the machine has but one, or does not say."""


def pci_cards(system: Path) -> list[PciCard]:
    """Every Ascend card below ``system`` (/sys), by address."""
    devices = system / "bus/pci/devices"
    return [_card(devices / name) for name in names_in(devices) if _is_card(devices / name)]


def card_nodes(devices: Path) -> list[str]:
    """Device files of cards in ``devices`` (/dev): davinci0, davinci1, ..."""
    found = [name for name in names_in(devices) if re.fullmatch("davinci[0-9]{1,4}", name)]
    return sorted(found, key=lambda name: int(name.removeprefix("davinci")))


def is_own_host(root: Path) -> bool:
    """Whether the chip of the machine below ``root`` runs the host as well ("RC"), as on boards: it is on no bus.

    Memory is the host's there, so that the driver's count of what is free is wrong, and copies have to be waited for [vllm].
    A card in a container that shows no bus has the device files of cards, and none of boards.
    """
    devices = names_in(root / "dev")
    if not card_nodes(root / "dev") or pci_cards(root / "sys"):
        return False
    return not set(BOARD_NODES).isdisjoint(devices) or CARD_NODE not in devices


def _is_card(device: Path) -> bool:
    return small_text(device / "vendor") == HUAWEI and small_text(device / "class").startswith(ACCELERATOR)


def _card(device: Path) -> PciCard:
    node = small_text(device / "numa_node")
    return PciCard(device.name, small_text(device / "device"), int(node) if node.isdecimal() and len(node) <= 5 else None)


def small_text(file: Path) -> str:
    """The beginning of a file without white space around it; empty if it cannot be read."""
    try:
        if not file.is_file():
            return ""  # a pipe may never end
        with file.open("rb") as opened:
            return opened.read(MOST_BYTES).decode(errors="replace").strip()
    except (OSError, ValueError):
        return ""


def names_in(folder: Path) -> list[str]:
    """What a folder holds, sorted; nothing if it cannot be read."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except (OSError, ValueError):
        return []
