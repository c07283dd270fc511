"""From the start of a process to the first token of a short prompt, weights in the page cache: what a script waits for.

Run as a module it is that process: it opens a bundle, says so, answers with the most likely token, and waits.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernels
from edge_llm.bench.worker import Worker, serve

PROMPT = 32
"""Tokens of the prompt."""
CONTEXT = 512


@dataclass(frozen=True)
class FirstToken:
    """Seconds since the process was started, of each repetition, and its greatest memory."""

    load: tuple[float, ...]
    """Until the model was ready."""
    token: tuple[float, ...]
    peak_rss_bytes: int

    def as_dict(self) -> dict[str, Any]:
        load, token = sorted(self.load), sorted(self.token)
        return {
            "ready_ms": 1e3 * load[len(load) // 2],
            "ttft_ms": 1e3 * token[len(token) // 2],
            "samples_ttft_ms": [1e3 * seconds for seconds in self.token],
            "ttft_peak_rss_bytes": self.peak_rss_bytes,
        }


def own_worker(bundle: Path, threads: int) -> Worker:
    """This module as a process."""
    setting = {"bundle": str(bundle), "threads": threads, "isa": kernels.isa()}
    return Worker("edge_llm.bench.first_token", setting, "edge-llm")


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


class _OwnModel:
    """What the process holds."""

    def __init__(self, bundle: str, threads: int, isa: str) -> None:
        from edge_llm.config import RuntimeConfig
        from edge_llm.engine.load import load_runner
        from edge_llm.formats.bundle import open_bundle

        kernels.use_isa(isa)
        with open_bundle(Path(bundle)) as opened:
            self._vocab = opened.config.vocab_size
            self._runner, _ = load_runner(opened, RuntimeConfig(threads=threads), min(CONTEXT, opened.config.context))

    def first_token(self) -> int:
        logits = self._runner.forward(self._runner.open(), [token % self._vocab for token in range(PROMPT)])
        return int(logits[-1].argmax())


if __name__ == "__main__":
    serve(_OwnModel, sys.argv[1])
