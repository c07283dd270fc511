"""The pair torch and torch_npu: found by their files without an import, and imported in a process of its own.

Sources as in `edge_llm.ascend.npu.machine`.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from edge_llm.ascend.npu.finding import Finding
from edge_llm.ascend.npu.pci import small_text

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Environment variable: torch imports torch_npu by itself where it is unset or 1 [src]."""
OLDEST, NEWEST = (2, 10), (2, 14)  # [src] releases for CANN 9.1; [vllm] 2.10 is what its 310P image has; [whl] 2.14's schemas
RELEASES = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
PROBE_SECONDS = 90.0  # [run] the import takes 4 s on an idle x86-64 machine; boards are slower
LONGEST_LINE = 300
_PAIR = f"install torch (its CPU build) and torch_npu of the same version, {RELEASES}"
CPU_WHEELS = "--index-url https://download.pytorch.org/whl/cpu"
_MARK = "cards that torch_npu sees:"
_SCRIPT = (
    "import torch, torch_npu; count = torch.npu.device_count(); "
    f"print({_MARK!r}, count, torch.npu.get_device_name(0) if count else '', flush=True)"
)
"""[whl] Counting and naming cards takes no memory of them."""


@dataclass(frozen=True)
class Package:
    """An installed package: its version, and the accelerator that it was built for if it says so."""

    version: str
    built_for: str = ""

    @property
    def release(self) -> tuple[int, int] | None:
        """Major and minor number; None if the version cannot be read."""
        numbers = re.match(r"([0-9]{1,6})\.([0-9]{1,6})", self.version)
        return (int(numbers[1]), int(numbers[2])) if numbers else None


def find_package(name: str, search: tuple[str, ...]) -> Package | None:
    """The package called ``name`` in one of the folders of ``search``, without importing it."""
    from importlib.metadata import distributions  # slow to import, and only asked for here

    for found in distributions(name=name, path=list(search)):
        try:
            version = found.metadata["Version"]
        except (OSError, ValueError, KeyError, TypeError):
            version = None  # a broken or missing METADATA
        return Package(_line(version or ""), _built_for(Path(str(found.locate_file(f"{name}/version.py")))))
    return None


def _built_for(file: Path) -> str:
    """[run] torch/version.py has `cuda: Optional[str] = '12.8'`, None in the CPU build; so hip, rocm and xpu."""
    found = re.search(r"^(cuda|hip|rocm|xpu)\b[^=\n]*=[ \t]*['\"]", small_text(file), re.MULTILINE)
    return found[1] if found else ""


def package_findings(torch: Package | None, torch_npu: Package | None) -> Iterator[Finding]:
    """Whether both are there, of one release that is known to work, and torch is built for the CPU."""
    yield _torch(torch)
    yield _torch_npu(torch_npu, torch)


def _torch(torch: Package | None) -> Finding:
    if torch is None:
        return Finding("torch", "not installed", good=False, advice=_PAIR)
    if torch.release is None:
        return Finding("torch", "installed, but its version cannot be read", good=False, advice=_PAIR)
    local = re.search(r"\+(cu|rocm|xpu)", torch.version)
    if torch.built_for or local:
        value = f"{torch.version}, built for {torch.built_for or 'another accelerator'}"
        plain = torch.version.partition("+")[0]
        return Finding("torch", value, good=False, advice=f"`pip install torch=={plain} {CPU_WHEELS}`")  # [whl] ERR00007
    return Finding("torch", torch.version, good=True)


def _torch_npu(torch_npu: Package | None, torch: Package | None) -> Finding:
    if torch_npu is None:
        return Finding("torch_npu", "not installed", good=False, advice=_PAIR)
    release = torch_npu.release
    if release is None:
        return Finding("torch_npu", "installed, but its version cannot be read", good=False, advice=_PAIR)
    if release < OLDEST:
        return Finding("torch_npu", f"{torch_npu.version}: too old", good=False, advice=_PAIR)
    if torch is not None and torch.release not in (None, release):  # [whl] torch_npu 2.13.0 asks for torch==2.13.0.*
        advice = f"`pip install 'torch=={release[0]}.{release[1]}.*' {CPU_WHEELS}`, or the torch_npu of torch's release"
        return Finding("torch_npu", f"{torch_npu.version} does not fit torch {torch.version}", good=False, advice=advice)
    if release > NEWEST:
        return Finding("torch_npu", f"{torch_npu.version}: newer than what was tried", advice=f"if it fails, {_PAIR}")
    return Finding("torch_npu", torch_npu.version, good=True)


@dataclass(frozen=True)
class Imported:
    """What came of `import torch_npu` in a process of its own: the cards it sees, or the error's last line."""

    works: bool
    line: str = ""
    cards: int = 0
    chip: str = ""


def import_torch_npu(environment: Mapping[str, str], seconds: float = PROBE_SECONDS) -> Imported:
    """Import torch and torch_npu elsewhere: an import that breaks, crashes or hangs is no harm there."""
    try:
        with tempfile.TemporaryFile() as output:
            code = _run({**environment, AUTOLOAD: "0"}, output, seconds)
            return imported(code, _end_of(output), seconds)
    except (OSError, ValueError) as error:
        return Imported(False, _line(str(error)) or "cannot start a process")


def _run(environment: Mapping[str, str], output: IO[bytes], seconds: float) -> int | None:
    """The script's exit code; None if it took too long."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _SCRIPT],  # -P: a torch.py that lies here is not meant
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(environment),
        start_new_session=True,
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its session is its own: what it started ends too
            with suppress(subprocess.TimeoutExpired):
                process.wait(1.0)  # in a driver that hangs, it ends when the driver lets it


def _end_of(output: IO[bytes], most: int = 1 << 14) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - most))
    return output.read(most).decode(errors="replace")


def imported(code: int | None, text: str, seconds: float) -> Imported:
    """What the script's exit code (None: it took too long) and the end of its output mean."""
    if code is None:
        return Imported(False, f"no answer within {seconds:.0f} s")
    lines = [line for line in map(_line, text.splitlines()) if line]
    if code == 0:
        told = next((line.removeprefix(_MARK).split(None, 1) for line in reversed(lines) if line.startswith(_MARK)), [])
        count = int(told[0]) if told and re.fullmatch("[0-9]{1,4}", told[0]) else 0
        return Imported(True, cards=count, chip=told[1] if len(told) > 1 else "")
    errors = [line for line in lines if re.match(r"[A-Za-z_.]*(Error|Exception)\b", line)]
    return Imported(False, next(reversed(errors or lines), f"the process ended with {code}"))


def _line(text: str) -> str:
    """``text`` as one line that is harmless to show."""
    return "".join(char if char.isprintable() else " " for char in text[:LONGEST_LINE]).strip()
