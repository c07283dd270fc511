"""The most memory that a process ever had resident, and how to start that count anew."""

from __future__ import annotations

import resource
from pathlib import Path

_PROC = Path("/proc")


def peak_rss_bytes(process: int | str = "self") -> int:
    """Most memory of a process since it began, or since `forget_peak`: ``VmHWM`` of Linux."""
    try:
        lines = (_PROC / str(process) / "status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if process == "self" else 0


def forget_peak() -> None:
    """Count this process's peak from what it holds now; nothing happens where the system does not offer it."""
    try:
        (_PROC / "self" / "clear_refs").write_text("5")
    except OSError:
        return
