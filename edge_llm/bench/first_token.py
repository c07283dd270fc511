"""From the start of a process to the first token of a short prompt, weights in the page cache or not: what scripts wait for."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_llm import kernels
from edge_llm.bench.worker import Worker

CONTEXT = 512
"""Tokens that the runner has room for."""


@dataclass(frozen=True)
class FirstToken:
    """Seconds since the process was started, of each repetition, and its greatest memory."""

    load: tuple[float, ...]
    """Until the model was ready."""
    token: tuple[float, ...]
    peak_rss_bytes: int
    cold: tuple[float, ...] = ()
    """Until the token when no weights were in the page cache; empty if that was not measured."""

    def as_dict(self) -> dict[str, Any]:
        load, token = sorted(self.load), sorted(self.token)
        return {
            "ready_ms": 1e3 * load[len(load) // 2],
            "ttft_ms": 1e3 * token[len(token) // 2],
            "samples_ttft_ms": [1e3 * seconds for seconds in self.token],
            "ttft_cold_ms": 1e3 * sorted(self.cold)[len(self.cold) // 2] if self.cold else None,
            "ttft_peak_rss_bytes": self.peak_rss_bytes,
        }


def own_worker(bundle: Path, threads: int) -> Worker:
    """The process that opens ``bundle`` and answers."""
    setting = {"bundle": str(bundle), "threads": threads, "isa": kernels.isa(), "context": CONTEXT}
    return Worker("edge_llm.bench.own_start", setting, "edge-llm")


def cold_worker(bundle: Path, threads: int) -> Worker:
    """The same, after the system has forgotten what it knew of the files of ``bundle``; the programs stay in its cache."""
    for path in bundle.iterdir():
        if path.is_file():
            forget(path)
    return own_worker(bundle, threads)


def forget(path: Path) -> None:
    """Leave nothing of the file at ``path`` in the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # what is not written yet would stay
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def measure_first_token(starters: Sequence[Callable[[], Worker]], repetitions: int) -> list[FirstToken]:
    """Start each worker ``repetitions`` times in turns, after one round that is not counted."""
    rounds = [[_once(starter) for starter in starters] for _ in range(repetitions + 1)][1:]
    return [
        FirstToken(tuple(load for load, _, _ in column), tuple(token for _, token, _ in column), max(r for _, _, r in column))
        for column in zip(*rounds, strict=True)
    ]


def _once(starter: Callable[[], Worker]) -> tuple[float, float, int]:
    started = time.perf_counter()
    with starter() as worker:
        worker.send("first_token")
        worker.receive()
        load = time.perf_counter() - started
        worker.receive()
        return load, time.perf_counter() - started, worker.peak_rss_bytes()
