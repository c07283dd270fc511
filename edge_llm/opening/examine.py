"""What this machine has for running models: cores, instruction sets, memory, disk, and an Ascend card if there is one."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator

from edge_llm.ascend.npu.finding import Finding
from edge_llm.ascend.npu.findings import ascend_findings
from edge_llm.ascend.npu.machine import AscendMachine
from edge_llm.devices.host import HostDevice
from edge_llm.errors import StorageError
from edge_llm.opening.auto_device import AutoDevice, choose_device
from edge_llm.opening.machine import Machine, this_machine
from edge_llm.opening.processor import Processor, processor_findings
from edge_llm.paths import models_folder


def examine() -> list[Finding]:
    """Everything that is worth knowing, in the order a person would ask."""
    machine = AscendMachine()
    card = ascend_findings(machine)
    host = [*_software(), *processor_findings(Processor()), *_threads(this_machine()), *_memory_and_disk()]
    return [*host, *card, *_device(choose_device(machine, card))]


def _software() -> Iterator[Finding]:
    yield Finding("system", f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}")
    yield Finding("python", sys.version.split()[0], good=True)


def _threads(machine: Machine) -> Iterator[Finding]:
    yield Finding("threads", f"{machine.threads} used by default, {len(machine.cpus)} allowed", good=True)


def _device(auto: AutoDevice) -> Iterator[Finding]:
    """What a model gets that nobody says anything of."""
    yield Finding("device", f"{auto.device} ({auto.reason})")
    yield Finding("placement", _placement(auto.device))


def _placement(device: str) -> str:
    if device == HostDevice.name:
        return f"{HostDevice.placement.name} ({HostDevice.placement_reason})"
    return "the first that the chip lists and the model's shape allows; `edge-llm plan MODEL` says which and why"


def _memory_and_disk() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    yield Finding("memory", f"{memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f} GiB")
    try:
        folder = models_folder()
    except StorageError as error:
        yield Finding("models", str(error), good=False, advice="set EDGE_LLM_HOME to a folder that this user may write")
        return
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        advice = "change its permissions, or set EDGE_LLM_HOME to another folder"
        yield Finding("models", f"`{place}` may not be read and written by this user", good=False, advice=advice)
        return
    yield Finding("models", f"{folder}, {shutil.disk_usage(place).free / 2**30:.1f} GiB free")
