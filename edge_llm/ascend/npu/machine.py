"""What an Ascend card needs on this machine: driver, rights, CANN, kernels, NNAL, torch, torch_npu; each gap with its remedy.

Nothing heavy is imported: an installed torch_npu without its CANN libraries breaks `import torch` [run], so packages are
looked up by their files, and torch_npu is imported in a process of its own, and only where a card is.

Nothing here was seen on silicon by us.  Sources, as tags in the comments: [doc] Huawei's installation guides; [src] torch's
and torch_npu's sources; [whl] torch_npu's wheel; [run] tried on a machine without a card; [vllm] vllm-ascend's files;
[web] a third party's page or script.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edge_llm.ascend.npu.chips import CHIPS
from edge_llm.ascend.npu.finding import Finding
from edge_llm.ascend.npu.packages import AUTOLOAD, Imported, Package, find_package, import_torch_npu, package_findings
from edge_llm.ascend.npu.pci import PciCard, card_nodes, names_in, pci_cards, small_text

PCI_CHIPS = {"0xd100": "310", "0xd500": "310P", "0xd801": "910", "0xd802": "910B", "0xd803": "910_93"}
"""Chip by PCI device number [web: a log collector for these cards]; the 310B of a board is on no bus."""
INSTALLED = "/usr/local/Ascend"  # [doc] where the installers of root put driver, CANN and NNAL
INSTALL_INFO = "/etc/ascend_install.info"  # [web] names another place of the driver
CARD_CONTROLS = ("davinci_manager", "devmm_svm", "hisi_hdc")  # [vllm] devices that its containers are given beside the cards
BOARD_CONTROLS = ("davinci_manager", "svm0")  # [web] Huawei's device plugin: a board has svm0 and no devmm_svm
GROUP = "HwHiAiUser"  # [doc] the group that may use the card, unless another was named at installation
HAL_FOLDERS = ("driver/lib64/driver", "driver/lib64/common", "driver/lib64")  # [web]
KERNELS = "built-in/op_impl/ai_core/tbe/kernel"  # [doc] below opp: a folder per chip, such as ascend310p
NO_KERNELS = {"ops_oam"}  # [web] all that lies in a chip's folder where the toolkit came without kernels
OLDEST_CANN = (9, 1)  # [src] CANN of torch_npu 2.10.0.post4, 2.11 and 2.12; for 2.13 nobody says
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z._+-]{0,39}")
_SOURCE = "`source set_env.sh` of the toolkit"
_CONTAINER = "in a container pass the host's"


@dataclass(frozen=True)
class AscendMachine:
    """Where to look.  By itself it is this machine; a test builds another one in a folder."""

    root: Path = Path("/")
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    search: tuple[str, ...] = field(default_factory=lambda: tuple(sys.path))
    """Folders with Python packages."""
    may_use: Callable[[Path], bool] = lambda device: os.access(device, os.R_OK | os.W_OK, effective_ids=True)
    import_torch_npu: Callable[[Mapping[str, str]], Imported] = import_torch_npu

    def at(self, path: str) -> Path:
        """The file that ``path`` names on that machine."""
        return self.root / path.lstrip("/") if path.startswith("/") else Path(path)

    def folder(self, *variables: str) -> str:
        """The first of these environment variables that is set, or nothing."""
        return next(filter(None, map(self.environment.get, variables)), "")

    def on_path(self, variable: str, name: str) -> str:
        """The file called ``name`` in the first folder of a list such as PATH that has it, or nothing."""
        folders = filter(None, self.environment.get(variable, "").split(":"))
        return next((file for folder in folders if self.has(file := f"{folder}/{name}")), "")

    def has(self, path: str) -> bool:
        """Whether there is such a file or folder."""
        try:
            return self.at(path).exists()
        except (OSError, ValueError):
            return False  # in a folder that is closed, or no path at all

    def value(self, file: str, key: str) -> str:
        """What follows ``key=`` in a file; empty if nothing does."""
        found = re.search(rf"^[ \t]*{key}[ \t]*=(.*)$", small_text(self.at(file)), re.MULTILINE)
        return found[1].strip() if found else ""

    def version(self, file: str, key: str) -> str:
        """The version that a file gives as ``key``; empty if it gives none."""
        found = self.value(file, key)
        return found if _VERSION.fullmatch(found) else ""

    @property
    def nodes(self) -> list[str]:
        """Device files of cards: davinci0, davinci1, ..."""
        return card_nodes(self.at("/dev"))

    @property
    def toolkit(self) -> str:
        """CANN's folder, as its `set_env.sh` has told it."""
        return self.folder("ASCEND_TOOLKIT_HOME", "ASCEND_HOME_PATH")


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
        _chip(cards),
        *_numa(machine, cards),
        _driver(machine, nodes),
        _npu_smi(machine),
        *(_rights(machine, nodes) if nodes else ()),
        _cann(machine),
        *_kernels(machine, cards),
        _nnal(machine),
        *package_findings(torch, torch_npu),
        *_autoload(machine, torch_npu),
    ]


def _card(cards: list[PciCard], nodes: list[str]) -> Finding:
    addresses = ", ".join(card.address for card in cards)
    if nodes:
        return Finding("ascend card", ", ".join(nodes) + (f" (PCI {addresses})" if addresses else ""), good=True)
    advice = f"install the card's driver and firmware and reboot; {_CONTAINER} devices: `--device /dev/davinci0`"
    return Finding("ascend card", f"PCI {addresses}, but there is no /dev/davinci*", good=False, advice=advice)


def _chips(cards: list[PciCard]) -> list[str]:
    return sorted({PCI_CHIPS[card.device] for card in cards if card.device in PCI_CHIPS})


def _chip(cards: list[PciCard]) -> Finding:
    chips = _chips(cards)
    if any(chip.lower() in CHIPS for chip in chips):
        return Finding("ascend chip", ", ".join(chips), good=True)
    if chips:
        advice = f"edge-llm knows {', '.join(CHIPS)}; models run on the CPU"
        return Finding("ascend chip", f"{', '.join(chips)}: not supported", good=False, advice=advice)
    seen = ", ".join(card.device or "without a number" for card in cards)
    value = f"unknown (PCI device {seen})" if cards else "unknown (no card on the PCI bus: a board, or a closed container)"
    return Finding("ascend chip", value, advice="`npu-smi info` names it")


def _numa(machine: AscendMachine, cards: list[PciCard]) -> Iterator[Finding]:
    if not cards:
        return
    value = ", ".join(f"{card.address} on {'no node' if card.node is None else f'node {card.node}'}" for card in cards)
    nodes = [name for name in names_in(machine.at("/sys/devices/system/node")) if re.fullmatch("node[0-9]+", name)]
    yield Finding("ascend numa", value, advice="`--numa card` keeps threads near it" if len(nodes) > 1 else "")


def _driver(machine: AscendMachine, nodes: list[str]) -> Finding:
    home = _driver_home(machine)
    file = f"{home}/driver/version.info"
    version = machine.version(file, "Version")  # [web] scripts that read it
    if not version and not nodes:
        advice = "install the card's driver and firmware as root, and reboot"
        return Finding("ascend driver", "not installed", good=False, advice=advice)
    library = "libascend_hal.so"  # [web] vllm-ascend 1440 and 2698: it is what a container most often lacks
    has_library = any(machine.has(f"{home}/{folder}/{library}") for folder in HAL_FOLDERS)
    has_library |= machine.has(f"/usr/lib64/{library}") or bool(machine.on_path("LD_LIBRARY_PATH", library))
    gaps = [f"no version in {file}"] * (not version) + [f"{library} not found"] * (not has_library)
    if not gaps:
        return Finding("ascend driver", version, good=True)
    advice = f"{_CONTAINER} folder: `-v {home}/driver:{home}/driver`; elsewhere install the driver again if no card is found"
    return Finding("ascend driver", f"{version or 'loaded'} ({', '.join(gaps)})", advice=advice)


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


def _rights(machine: AscendMachine, nodes: list[str]) -> Iterator[Finding]:
    board = machine.has("/dev/svm0") and not machine.has("/dev/devmm_svm")
    wanted = [f"/dev/{name}" for name in (*nodes, *(BOARD_CONTROLS if board else CARD_CONTROLS))]
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


def _cann(machine: AscendMachine) -> Finding:
    home = machine.toolkit
    script = _script(machine, home)
    if not home:
        value, advice = ("installed, but not set up", f"`source {script}`") if script else ("not installed", _install(machine))
        return Finding("CANN", value, good=False, advice=advice)
    if not machine.has(home):
        advice = f"`source {script}`" if script else _install(machine)
        return Finding("CANN", f"`{home}` is not there, or closed to this user", good=False, advice=advice)
    version = _cann_version(machine)
    value = f"{version or 'of unknown version'} in {home}"
    if not _has_libraries(machine):
        advice = f"`source {script}`" if script else _SOURCE
        return Finding("CANN", f"{value}, but LD_LIBRARY_PATH has no libascendcl.so", good=False, advice=advice)
    numbers = re.match(r"([0-9]{1,6})\.([0-9]{1,6})", version)
    if numbers is None or tuple(map(int, numbers.groups())) < OLDEST_CANN:
        advice = f"torch_npu 2.10 to 2.13 go with CANN {_dotted(OLDEST_CANN)} or newer; take that where an operator fails"
        return Finding("CANN", value, advice=advice)
    return Finding("CANN", value, good=True)


def _script(machine: AscendMachine, home: str) -> str:
    """The `set_env.sh` of an installed toolkit, or nothing."""
    places = [home, f"{home}/.."] if home else []
    for base in (INSTALLED, f"{machine.environment.get('HOME', '')}/Ascend"):  # [doc] of root, of another user
        places += [f"{base}/cann", f"{base}/ascend-toolkit"]  # [doc] since CANN 8.5, and before
    return next((os.path.normpath(file) for place in places if machine.has(file := f"{place}/set_env.sh")), "")


def _install(machine: AscendMachine) -> str:
    return f"install the CANN toolkit {_dotted(OLDEST_CANN)} or newer and the kernels of this chip, then {_SOURCE}"


def _cann_version(machine: AscendMachine) -> str:
    """[doc] `version` in ARCH-linux/ascend_toolkit_install.info."""
    folders = [name for name in names_in(machine.at(machine.toolkit)) if name.endswith("-linux")]
    found = (machine.version(f"{machine.toolkit}/{folder}/ascend_toolkit_install.info", "version") for folder in folders)
    return next(filter(None, found), "")


def _has_libraries(machine: AscendMachine) -> bool:
    return bool(machine.on_path("LD_LIBRARY_PATH", "libascendcl.so"))  # [whl] what torch_npu is linked to


def _kernels(machine: AscendMachine, cards: list[PciCard]) -> Iterator[Finding]:
    """Another chip's kernels are a frequent mistake [web: vllm-ascend 5599]."""
    if not machine.toolkit or not machine.has(machine.toolkit):
        return
    folder = f"{machine.folder('ASCEND_OPP_PATH') or f'{machine.toolkit}/opp'}/{KERNELS}"
    there = [name for name in names_in(machine.at(folder)) if re.fullmatch("ascend[0-9a-z_]{1,20}", name)]
    there = [name for name in there if set(names_in(machine.at(f"{folder}/{name}"))) - NO_KERNELS]
    chips = _chips(cards)
    value = f"for {', '.join(there)}" if there else f"none in {folder}"
    missing = [chip for chip in chips if f"ascend{chip.lower()}" not in there]
    if not missing and there:
        yield Finding("CANN kernels", value, good=True if chips else None)
        return
    name = missing[0].lower() if missing else "CHIP"
    advice = f"install Ascend-cann-{name}-ops (before CANN 8.5: Ascend-cann-kernels-{name}) of the toolkit's version"  # [doc]
    yield Finding("CANN kernels", value, good=False, advice=advice)


def _nnal(machine: AscendMachine) -> Finding:
    """libatb.so: without it the first call of an ATB operator, such as attention on a 310P, raises OSError [whl][run]."""
    found = machine.on_path("LD_LIBRARY_PATH", "libatb.so")
    if found:
        return Finding("NNAL", found, good=True)
    home = machine.folder("ATB_HOME_PATH")
    script = f"{INSTALLED}/nnal/atb/set_env.sh"  # [doc]
    if (home and machine.has(f"{home}/lib/libatb.so")) or machine.has(script):
        advice = f"`source {script if machine.has(script) else 'set_env.sh'}` of NNAL, after that of the toolkit"
        return Finding("NNAL", "installed, but LD_LIBRARY_PATH has no libatb.so", good=False, advice=advice)
    advice = f"install Ascend-cann-nnal of the toolkit's version and `source {script}`"
    return Finding("NNAL", "not installed: attention on the card needs it", good=False, advice=advice)


def _autoload(machine: AscendMachine, torch_npu: Package | None) -> Iterator[Finding]:
    """torch imports torch_npu by itself unless told not to [src], and that fails without CANN [run]."""
    if torch_npu is None or _has_libraries(machine) or machine.environment.get(AUTOLOAD, "1") != "1":
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
    "cannot open shared object": _SOURCE,  # [run] libhccl, libascendcl, libge_runner, ...
    "ERR00007": "install the CPU build of torch",  # [whl] another accelerator is active
}


def _remedy(error: str) -> str:
    fitting = (advice for text, advice in _REMEDIES.items() if text in error)
    return next(fitting, "mend what is marked above; then install torch_npu again")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
