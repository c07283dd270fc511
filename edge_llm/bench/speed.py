"""Prompt processing (pp) and token generation (tg) speed, as llama-bench defines them: no tokenizer, no sampling."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.runner.base import Runner


@dataclass(frozen=True)
class Test:
    """What is run: ``prompt`` tokens at once, then ``generate`` tokens one by one, after ``depth`` tokens of context."""

    prompt: int
    generate: int
    depth: int = 0

    @property
    def label(self) -> str:
        parts = [f"pp{self.prompt}"] if self.prompt else []
        parts += [f"tg{self.generate}"] if self.generate else []
        return "+".join(parts) + (f" @ d{self.depth}" if self.depth else "")

    @property
    def tokens(self) -> int:
        return self.depth + self.prompt + self.generate


@dataclass(frozen=True)
class Measurement:
    """Seconds of every repetition of a test."""

    test: Test
    seconds: tuple[float, ...]
    peak_rss_bytes: int

    @property
    def speeds(self) -> np.ndarray:
        """Tokens per second of every repetition: float64 [repetitions]."""
        return (self.test.prompt + self.test.generate) / np.array(self.seconds)

    def as_row(self) -> dict[str, Any]:
        """The measurement under llama-bench's keys."""
        nanoseconds = 1e9 * np.array(self.seconds)
        return {
            "n_prompt": self.test.prompt,
            "n_gen": self.test.generate,
            "n_depth": self.test.depth,
            "avg_ns": int(nanoseconds.mean()),
            "stddev_ns": int(_deviation(nanoseconds)),
            "avg_ts": float(self.speeds.mean()),
            "stddev_ts": float(_deviation(self.speeds)),
            "median_ts": float(np.median(self.speeds)),
            "samples_ns": [int(value) for value in nanoseconds],
            "samples_ts": [float(value) for value in self.speeds],
            "peak_rss_bytes": self.peak_rss_bytes,
        }


def measure(runner: Runner[Any], vocab: int, tests: Sequence[Test], repetitions: int) -> Iterator[Measurement]:
    """Run each test once to warm up, then ``repetitions`` times on random tokens (fixed seed), and yield as it goes."""
    for test in tests:
        tokens = np.random.default_rng(0).integers(0, vocab, test.tokens)
        _run(runner, tokens[: min(test.tokens, 64)], Test(min(test.prompt, 32), min(test.generate, 2)))
        seconds = tuple(_run(runner, tokens, test) for _ in range(repetitions))
        yield Measurement(test, seconds, peak_rss_bytes())


def peak_rss_bytes() -> int:
    """Most memory that this process ever had resident."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _run(runner: Runner[Any], tokens: np.ndarray, test: Test) -> float:
    """Seconds for the prompt and the generated tokens; the depth is filled before the clock starts."""
    sequence = runner.open()
    try:
        ids = tokens.tolist()
        if test.depth:
            runner.forward(sequence, ids[: test.depth])
        started = time.perf_counter()
        if test.prompt:
            runner.forward(sequence, ids[test.depth : test.depth + test.prompt])
        for token in ids[test.depth + test.prompt : test.tokens]:
            runner.forward(sequence, [token])
        return time.perf_counter() - started
    finally:
        sequence.close()


def _deviation(values: np.ndarray) -> float:
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0
