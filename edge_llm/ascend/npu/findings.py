"""What an Ascend card needs on this machine: driver, rights, CANN, kernels, NNAL, torch, torch_npu; each gap with its remedy.

Nothing heavy is imported: an installed torch_npu without its CANN libraries breaks `import torch` [run], so packages are
looked up by their files, and torch_npu is imported in a process of its own, and only where a card is.  Sources as in
`edge_llm.ascend.npu.machine`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from edge_llm.ascend.npu.chips import CHIPS
from edge_llm.ascend.npu.finding import Finding
from edge_llm.ascend.npu.machine import INSTALLED, AscendMachine
from edge_llm.ascend.npu.packages import AUTOLOAD, Package, find_package, package_findings
from edge_llm.ascend.npu.pci import BOARD_NODES, PciCard, names_in, pci_cards
from edge_llm.ascend.npu.settings import compiler_finding, setting_findings
from edge_llm.ascend.npu.toolkit import SOURCE, cann_finding, has_libraries, kernel_findings, nnal_finding
from edge_llm.ascend.npu.versions import dotted, older

PCI_CHIPS = {"0xd100": "310", "0xd500": "310P", "0xd801": "910", "0xd802": "910B", "0xd803": "910_93"}
"""Chip by PCI device number [web: a log collector for these cards]; the 310B of a board is on no bus."""
INSTALL_INFO = "/etc/ascend_install.info"  # [web] names another place of the driver
CARD_CONTROLS = ("davinci_manager", "devmm_svm", "hisi_hdc")  # [vllm] devices that its containers are given beside the cards
BOARD_CONTROLS = ("davinci_manager",)  # [web] Huawei's device plugin: a board has svm0 and no devmm_svm
CONTAINER_FILES = ("/usr/local/dcmi", INSTALL_INFO)  # [vllm] without them npu-smi and the search for a 310P fail in a container
BOARD_FILES = (
    "/etc/sys_version.conf", "/etc/hdcBasic.cfg", "/etc/slog.conf", "/etc/ld.so.conf.d/mind_so.conf", "/var/dmp_daemon",
    "/var/slogd", "/usr/lib64/libmmpa.so", "/usr/lib64/libstackcore.so", "/usr/lib64/libcrypto.so.1.1",
)  # fmt: skip
"""[vllm] What a board's container is given instead."""
GROUP = "HwHiAiUser"  # [doc] the group that may use the card, unless another was named at installation
HAL_FOLDERS = ("driver/lib64/driver", "driver/lib64/common", "driver/lib64")  # [web]
OLDEST_DRIVER = (25, 5, 1)  # [vllm] older ones run out of streams while graphs are captured: "Alloc sq cq fail"
_CONTAINER = "in a container pass the host's"


def ascend_findings(machine: AscendMachine) -> list[Finding]:
    """All that a card's owner wants to know; a single line where there is no card."""
    found = file_findings(machine)
    tried = machine.nodes and all(find_package(name, machine.search) for name in ("torch", "torch_npu"))
    return [*found, *_import(machine)] if tried else found


def file_findings(machine: AscendMachine) -> list[Finding]:
    """The same without an import of torch_npu, which takes seconds."""
    cards, nodes = pci_cards(machine.at("/sys")), machine.nodes
    torch, torch_npu = find_package("torch", machine.search), find_package("torch_npu", machine.search)
    if not cards and not nodes:
        none = Finding("ascend card", "none (no /dev/davinci*): models run on the CPU")
        return [none, *_autoload(machine, torch_npu)]
    return [
        _card(cards, nodes),
        _chip(machine, cards),
        *_board(machine),
        *_numa(machine, cards),
        _driver(machine, nodes),
        _npu_smi(machine),
        *_container(machine),
        *(_rights(machine, nodes) if nodes else ()),
        cann_finding(machine),
        *kernel_findings(machine, _chips(cards)),
        compiler_finding(machine.search, needed=_needs_fractals(cards)),
        nnal_finding(machine, _needs_fractals(cards)),
        *setting_findings(machine.environment),
        *package_findings(torch, torch_npu),
        *_autoload(machine, torch_npu),
    ]


def _card(cards: list[PciCard], nodes: list[str]) -> Finding:
    addresses = ", ".join(card.address for card in cards)
    if nodes:
        return Finding("ascend card", ", ".join(nodes) + (f" (PCI {addresses})" if addresses else ""), good=True)
    advice = f"install the card's driver and firmware and reboot; {_CONTAINER} devices: `--device /dev/davinci0`"
    return Finding("ascend card", f"PCI {addresses}, but there is no /dev/davinci*", good=False, advice=advice)


def _needs_fractals(cards: list[PciCard]) -> bool:
    """Whether weights and keys lie in fractals on a chip that may be here: all but the 910B."""
    known = [CHIPS[chip.lower()] for chip in _chips(cards) if chip.lower() in CHIPS]
    return not known or any(law.weights_are_nz for law in known)


def _chips(cards: list[PciCard]) -> list[str]:
    return sorted({PCI_CHIPS[card.device] for card in cards if card.device in PCI_CHIPS})


def _chip(machine: AscendMachine, cards: list[PciCard]) -> Finding:
    chips = _chips(cards)
    if any(chip.lower() in CHIPS for chip in chips):
        return Finding("ascend chip", ", ".join(chips), good=True)
    if chips:
        advice = f"edge-llm knows {', '.join(CHIPS)}; models run on the CPU"
        return Finding("ascend chip", f"{', '.join(chips)}: not supported", good=False, advice=advice)
    seen = ", ".join(card.device or "without a number" for card in cards)
    where = "of a board, on no bus" if machine.board else "no card on the PCI bus, and no board: a closed container"
    value = f"unknown ({f'PCI device {seen}' if cards else where})"
    return Finding("ascend chip", value, advice="`npu-smi info` names it")


def _board(machine: AscendMachine) -> Iterator[Finding]:
    if machine.board:
        yield Finding("ascend board", "its chip is its own host: they share memory, and copies are waited for")


def _numa(machine: AscendMachine, cards: list[PciCard]) -> Iterator[Finding]:
    if not cards:
        return
    value = ", ".join(f"{card.address} on {'no node' if card.node is None else f'node {card.node}'}" for card in cards)
    nodes = [name for name in names_in(machine.at("/sys/devices/system/node")) if re.fullmatch("node[0-9]+", name)]
    yield Finding("ascend numa", value, advice="`--numa card` keeps threads near it" if len(nodes) > 1 else "")


def _driver(machine: AscendMachine, nodes: list[str]) -> Finding:
    home = _driver_home(machine)
    file, version = f"{home}/driver/version.info", driver_version(machine)
    if not version and not nodes:
        advice = "install the card's driver and firmware as root, and reboot"
        return Finding("ascend driver", "not installed", good=False, advice=advice)
    library = "libascend_hal.so"  # [web] vllm-ascend 1440 and 2698: it is what a container most often lacks
    has_library = any(machine.has(f"{home}/{folder}/{library}") for folder in HAL_FOLDERS)
    has_library |= machine.has(f"/usr/lib64/{library}") or bool(machine.on_path("LD_LIBRARY_PATH", library))
    gaps = [f"no version in {file}"] * (not version) + [f"{library} not found"] * (not has_library)
    if not gaps:
        return _judged(machine, version)
    advice = f"{_CONTAINER} folder: `-v {home}/driver:{home}/driver`; elsewhere install the driver again if no card is found"
    return Finding("ascend driver", f"{version or 'loaded'} ({', '.join(gaps)})", advice=advice)


def driver_version(machine: AscendMachine) -> str:
    """Of the driver, which is that of the HDK that it came with; empty if it does not say."""
    return machine.version(f"{_driver_home(machine)}/driver/version.info", "Version")  # [web] scripts that read it


def _judged(machine: AscendMachine, version: str) -> Finding:
    """A driver by its version; a 310B captures no graphs, so that an old one does no harm there."""
    if not older(version, OLDEST_DRIVER) or (machine.board and machine.has("/dev/svm0")):
        return Finding("ascend driver", version, good=True)
    newest = dotted(OLDEST_DRIVER)
    advice = f"install Ascend HDK {newest} or newer (driver and firmware) and reboot, or use `--placement split`"
    value = f"{version}: older than {newest}, captured graphs may run out of streams"
    return Finding("ascend driver", value, good=False, advice=advice, dispensable=True)


def _driver_home(machine: AscendMachine) -> str:
    told = machine.value(INSTALL_INFO, "Driver_Install_Path_Param")
    return told.rstrip("/") if re.fullmatch(r"/[\w./-]{1,200}", told) else INSTALLED


def _npu_smi(machine: AscendMachine) -> Finding:
    found = machine.on_path("PATH", "npu-smi")
    if found:
        return Finding("npu-smi", found, good=True)
    folders = ("/usr/local/sbin", "/usr/local/bin")  # [web] where drivers put it
    there = next((folder for folder in folders if machine.has(f"{folder}/npu-smi")), "")
    advice = f"`export PATH=$PATH:{there}`" if there else f"it comes with the driver; {_CONTAINER} /usr/local/bin/npu-smi"
    return Finding("npu-smi", "not on PATH", advice=advice)


def _container(machine: AscendMachine) -> Iterator[Finding]:
    """What a container is to be given beside devices and driver."""
    if not machine.in_container:
        return
    missing = [file for file in (BOARD_FILES if machine.board else CONTAINER_FILES) if not machine.has(file)]
    if missing:
        advice = f"start it with `{' '.join(f'-v {file}:{file}' for file in missing)}`"
        value = f"without {', '.join(missing)}: npu-smi, or the card, may not be found"
        yield Finding("ascend container", value, advice=advice)
    else:
        yield Finding("ascend container", "has the host's files", good=True)


def _rights(machine: AscendMachine, nodes: list[str]) -> Iterator[Finding]:
    of_board = [name for name in BOARD_NODES if machine.has(f"/dev/{name}")]
    controls = (*BOARD_CONTROLS, *of_board) if machine.board else CARD_CONTROLS
    wanted = [f"/dev/{name}" for name in (*nodes, *controls)]
    missing = [device for device in wanted if not machine.has(device)]
    closed = [device for device in wanted if device not in missing and not machine.may_use(machine.at(device))]
    if missing:
        advice = f"start the driver (reboot); {_CONTAINER} devices: `{' '.join(f'--device {device}' for device in missing)}`"
        yield Finding("ascend devices", f"missing: {', '.join(missing)}", good=False, advice=advice)
    if closed:
        advice = f"`sudo usermod -a -G {GROUP} $USER` (or the group that owns them), then log in again"
        yield Finding("ascend rights", f"this user may not read and write {', '.join(closed)}", good=False, advice=advice)
    if not missing and not closed:
        yield Finding("ascend rights", f"this user may use {', '.join(wanted)}", good=True)


def _autoload(machine: AscendMachine, torch_npu: Package | None) -> Iterator[Finding]:
    """torch imports torch_npu by itself unless told not to [src], and that fails without CANN [run]."""
    if torch_npu is None or has_libraries(machine) or machine.environment.get(AUTOLOAD, "1") != "1":
        return
    advice = f"`export {AUTOLOAD}=0`, or uninstall torch_npu, or set CANN up"
    yield Finding("torch autoload", "torch_npu without CANN breaks `import torch`", good=False, advice=advice)


def _import(machine: AscendMachine) -> Iterator[Finding]:
    done = machine.import_torch_npu(machine.environment)
    name = "import torch_npu"
    if not done.works:
        yield Finding(name, done.line, good=False, advice=_remedy(done.line))
    elif done.cards:
        yield Finding(name, f"works: {done.cards} x {done.chip or 'unknown chip'}", good=True)
    else:
        advice = "mend what is marked above; `unset ASCEND_RT_VISIBLE_DEVICES` if it hides the cards"  # [vllm]
        yield Finding(name, "works, but torch sees no card", good=False, advice=advice)


_REMEDIES = {
    "libascend_hal": "install the driver; in a container mount /usr/local/Ascend/driver",  # [web] vllm-ascend 1440, 2698
    "cannot open shared object": SOURCE,  # [run] libhccl, libascendcl, libge_runner, ...
    "ERR00007": "install the CPU build of torch",  # [whl] another accelerator is active
}


def _remedy(error: str) -> str:
    fitting = (advice for text, advice in _REMEDIES.items() if text in error)
    return next(fitting, "mend what is marked above; then install torch_npu again")
