"""What this machine has for running models: cores, instruction sets, memory, disk, and an Ascend card if there is one.

Nothing heavy is imported: an installed torch_npu without its CANN libraries breaks `import torch`, so the card is
looked for by its device files and the packages by their metadata alone.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import kernels
from edge_llm.engine.cores import usable_cores
from edge_llm.errors import StorageError
from edge_llm.paths import models_folder


@dataclass(frozen=True)
class Finding:
    """One fact: true is good, false wants something done, None is neither."""

    name: str
    value: str
    good: bool | None = None
    advice: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {key: value for key, value in asdict(self).items() if key != "name"}


def examine() -> list[Finding]:
    """Everything that is worth knowing, in the order a person would ask."""
    return [*_software(), *_processor(), *_memory_and_disk(), *_ascend()]


def _software() -> Iterator[Finding]:
    yield Finding("system", f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}")
    yield Finding("python", sys.version.split()[0], good=sys.version_info >= (3, 11))


def _processor() -> Iterator[Finding]:
    yield Finding("processor", f"{cpu_name()} ({platform.machine()})")
    yield Finding("threads", f"{usable_cores()} used by default, {len(os.sched_getaffinity(0))} allowed", good=True)
    fast = kernels.isa() != "portable"
    advice = "" if fast else "x86-64 with AVX2 and FMA is much faster; this processor runs the portable kernels"
    yield Finding("kernels", f"{kernels.isa()} (of {', '.join(kernels.isa_variants())})", good=fast, advice=advice)


def cpu_name() -> str:
    """The processor as it calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Hardware"))]
    return names[0] if names else "unknown"


def _memory_and_disk() -> Iterator[Finding]:
    import psutil

    memory = psutil.virtual_memory()
    yield Finding("memory", f"{memory.available / 2**30:.1f} GiB free of {memory.total / 2**30:.1f} GiB")
    try:
        folder = models_folder()
    except StorageError as error:
        yield Finding("models", str(error), good=False)
        return
    place = next(path for path in (folder, *folder.parents) if path.exists())
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK, effective_ids=True):
        advice = "change its permissions, or set EDGE_LLM_HOME to another folder"
        yield Finding("models", f"`{place}` may not be read and written by this user", good=False, advice=advice)
        return
    yield Finding("models", f"{folder}, {shutil.disk_usage(place).free / 2**30:.1f} GiB free")


def _ascend() -> Iterator[Finding]:
    cards = sorted(Path("/dev").glob("davinci[0-9]*"))
    if not cards:
        yield Finding("ascend card", "none (no /dev/davinci*): models run on the CPU")
        return
    yield Finding("ascend card", ", ".join(card.name for card in cards), good=True)
    for package in ("torch", "torch_npu"):
        found = _installed(package)
        advice = "" if found else "install torch and torch_npu of the same version, 2.10 to 2.13"
        yield Finding(package, found or "not installed", good=bool(found), advice=advice)
    toolkit = os.environ.get("ASCEND_TOOLKIT_HOME") or os.environ.get("ASCEND_HOME_PATH")
    advice = "" if toolkit else "install the CANN toolkit and run `source set_env.sh` of it"
    yield Finding("CANN", toolkit or "not set up", good=bool(toolkit), advice=advice)


def _installed(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and only asked for here

    try:
        return version(package)
    except PackageNotFoundError:
        return ""
