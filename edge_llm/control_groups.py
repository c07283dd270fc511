"""What the control groups of Linux let this process take: those of a container or of a systemd unit, in versions 1 and 2.

The limits of all groups above hold too.  A file that is missing, or not as it should be, limits nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

UNLIMITED = sys.maxsize
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Limit, what is taken, and which line of `memory.stat` counts files that the system gives up first; by version."""


def memory_limit(root: Path = Path("/")) -> int:
    """Bytes that the groups of this process may hold; `UNLIMITED` for no limit.  ``root``: where the system's files lie."""
    return min((limit for _, limit in _memory_limits(root)), default=UNLIMITED)


def memory_room(root: Path = Path("/")) -> int:
    """Bytes that this process may still take below the limits of its groups; `UNLIMITED` for no limit."""
    return min((_room(folder, limit) for folder, limit in _memory_limits(root)), default=UNLIMITED)


def cpu_quota(root: Path = Path("/")) -> int | None:
    """Whole CPUs that the groups let this process keep busy, at least 1; None: no limit."""
    quotas = [quota // period for folder in _groups(root, "cpu") for quota, period in _quotas(folder) if period > 0]
    return max(1, min(quotas)) if quotas else None


def _groups(root: Path, controller: str) -> list[Path]:
    """Folders of the groups of this process that may limit what ``controller`` counts, of both versions."""
    mounted = root / "sys/fs/cgroup"
    found = {mounted, mounted / controller}  # in a container its own group lies there
    with contextlib.suppress(OSError, UnicodeDecodeError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, path = [*line.split(":", 2), "", ""][:3]
            top = mounted if not controllers else mounted / controller
            parts = path.strip("/").split("/")
            if ".." not in parts and (not controllers or controller in controllers.split(",")):
                found.update(top.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1))
    return sorted(found)


def _memory_limits(root: Path) -> Iterator[tuple[Path, int]]:
    for folder in _groups(root, "memory"):
        for name, _, _ in _MEMORY_FILES:
            limit = _number(folder / name)
            if limit is not None:
                yield folder, limit


def _room(folder: Path, limit: int) -> int:
    """Bytes below ``limit`` in ``folder``; what is held of files is not counted."""
    for _, taken, files in _MEMORY_FILES:
        held = _number(folder / taken)
        if held is not None:
            return max(0, limit - held + _statistic(folder / "memory.stat", files))
    return UNLIMITED


def _statistic(path: Path, name: str) -> int:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def _quotas(folder: Path) -> Iterator[tuple[int, int]]:
    """Microseconds of processor time, and the microseconds in which they may be used."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (folder / "cpu.max").read_text().split()
        if quota != "max":
            yield int(quota), int(period)
    before, period_before = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    if before is not None and period_before is not None:
        yield before, period_before


def _number(path: Path) -> int | None:
    """The number that ``path`` has, such as a limit; None for `max`, for -1 and where there is none."""
    with contextlib.suppress(OSError, ValueError):
        number = int(path.read_text())
        return number if number >= 0 else None
    return None
