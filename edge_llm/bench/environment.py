"""Everything about this run that a number depends on, so that it can be made again; and who else uses the machine."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import edge_llm
from edge_llm import kernels
from edge_llm.bench.measure import SEED
from edge_llm.opening.processor import Processor
from edge_llm.resources import usable_cores

BUSY_CORES = 0.25
"""Cores in use by others from which a measurement is doubtful."""
BUSY_LOAD = 0.5
"""Load average per core from which it is doubtful."""
_MIN_SAMPLE = 0.2
"""Seconds: the system counts CPU time in steps of 10 ms, so less than this says nothing."""
_FREQUENCY = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_CPU_AFFINITY", "OMP_WAIT_POLICY")


def environment() -> dict[str, Any]:
    """What is true of the whole run; facts that the system does not tell are null."""
    commit, dirty = commit_and_dirty()
    memory = psutil.virtual_memory()
    return {
        "edge_llm": edge_llm.__version__,
        "commit": commit,
        "dirty": dirty,
        "argv": shlex.join(["edge-llm", *sys.argv[1:]]),
        "time": utc_now(),
        "seed": SEED,
        "cpu": Processor().name,
        "machine": platform.machine(),
        "isa": kernels.isa(),
        "isa_variants": kernels.isa_variants(),
        "cores_logical": os.cpu_count(),
        "cores_physical": psutil.cpu_count(logical=False),
        "cores_usable": usable_cores(),
        "affinity": sorted(os.sched_getaffinity(0)),
        "cgroup_quota": _line(_QUOTA),
        "governor": _line(_FREQUENCY),
        "mhz": _megahertz(),
        "memory_bytes": memory.total,
        "memory_available_bytes": memory.available,
        "swap_used_bytes": psutil.swap_memory().used,
        "os": f"{platform.system()} {platform.release()}",
        "libc": " ".join(platform.libc_ver()),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "thread_variables": {name: os.environ[name] for name in _THREAD_VARIABLES if name in os.environ},
        "load_average_start": list(os.getloadavg()),
    }


def commit_and_dirty() -> tuple[str | None, bool | None]:
    """Commit of the checkout that this program runs from and whether files differ from it; None outside of a checkout."""
    root = Path(edge_llm.__file__).parents[1]
    if not (root / ".git").exists():
        return None, None
    commit, status = _git(root, "rev-parse", "--short=12", "HEAD"), _git(root, "status", "--porcelain")
    return commit, None if status is None else bool(status)


def utc_now() -> str:
    """Date and time as ISO 8601, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@dataclass(frozen=True)
class CoreUsage:
    """Cores in use over a span of time."""

    others: float
    """By processes that are none of ours."""
    steal: float
    """Taken by the hypervisor."""


class CoreMeter:
    """Watches the machine from its creation on.  ``processes``: the ids of our own workers."""

    def __init__(self, processes: Sequence[int] = ()) -> None:
        self._processes = [psutil.Process(), *(psutil.Process(process) for process in processes)]
        self._started = self._now()

    def read(self) -> CoreUsage | None:
        """Cores in use since the start; None if that is too short a time to tell."""
        spans = [end - start for start, end in zip(self._started, self._now(), strict=True)]
        seconds, busy, steal, ours = spans
        if seconds < _MIN_SAMPLE:
            return None
        return CoreUsage(others=max(0.0, busy - ours) / seconds, steal=steal / seconds)

    def _now(self) -> tuple[float, float, float, float]:
        """Time, CPU seconds of all, stolen, and of our own processes."""
        cpu = psutil.cpu_times()
        busy = cpu.user + cpu.nice + cpu.system + cpu.irq + cpu.softirq
        return time.perf_counter(), busy, cpu.steal, sum(_cpu_seconds(process) for process in self._processes)


def load_warning(load: Sequence[float]) -> str | None:
    """A sentence if the one-minute ``load`` average is too high to measure well."""
    cores = os.cpu_count() or 1
    if load[0] / cores <= BUSY_LOAD:
        return None
    return f"the machine is busy: load average {load[0]:.1f} on {cores} cores; numbers will be low and scattered"


def core_warning(usage: CoreUsage | None, what: str) -> str | None:
    """A sentence if others used the machine during ``what``."""
    if usage is None or usage.others + usage.steal <= BUSY_CORES:
        return None
    return f"{what}: others used {usage.others + usage.steal:.1f} cores meanwhile; measure again on a quiet machine"


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _git(root: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(root), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _line(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _megahertz() -> float | None:
    try:
        frequency = psutil.cpu_freq()
    except (OSError, NotImplementedError):
        return None
    return None if frequency is None else float(frequency.current)
