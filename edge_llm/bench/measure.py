"""Prompt processing (pp) and token generation (tg) speed, as llama-bench defines them: no tokenizer, no sampling.

Whoever is measured is a `Contestant`.  Several of them take turns, A B A B, because a machine drifts by more than the
differences that one wants to see: the ratio of two neighbours in time is worth more than two good averages.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

import numpy as np

from edge_llm.bench.memory import peak_rss_bytes
from edge_llm.runner.base import Runner
from edge_llm.weights.base import FlashCounts

SEED = 0
"""Of the random tokens."""
WARM_PROMPT, WARM_GENERATE = 512, 4
"""Tokens of a warm-up run, at most: enough to build and touch everything that the timed runs use."""
WARM_SECONDS = 0.02
"""Least time of warm-up runs: the first run of 0.2 ms behind a single one took half as long again as the others."""
SETTLE = 0.05
"""Seconds between two contestants: workers of some thread pools spin a while after their work."""


@dataclass(frozen=True)
class Test:
    """What is run: ``prompt`` tokens at once, then ``generate`` tokens one by one, after ``depth`` tokens of context."""

    __test__ = False  # no test of pytest

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

    @property
    def warm_up(self) -> Test:
        return Test(min(self.prompt, WARM_PROMPT), min(self.generate, WARM_GENERATE), self.depth)


class Contestant(Protocol):
    """Runs tests.  Between two calls it does nothing at all."""

    def begin(self, depth: int) -> None:
        """Have ``depth`` tokens of context; not timed."""
        ...

    def run(self, test: Test) -> float:
        """Seconds of the prompt and the generated tokens of ``test``; the context is ``test.depth`` long again afterwards."""
        ...

    def peak_rss_bytes(self) -> int:
        """Most memory that its process had resident."""
        ...


@dataclass(frozen=True)
class Measurement:
    """Seconds of every repetition of a test by one contestant."""

    test: Test
    seconds: tuple[float, ...]
    peak_rss_bytes: int = 0

    @property
    def speeds(self) -> np.ndarray:
        """Tokens per second of every repetition: float64 [repetitions]."""
        return (self.test.prompt + self.test.generate) / np.array(self.seconds)

    @property
    def spread(self) -> float:
        """Standard deviation of the speed over its mean."""
        return deviation(self.speeds) / float(self.speeds.mean())

    def as_row(self) -> dict[str, Any]:
        """The measurement under llama-bench's keys, and ours."""
        nanoseconds = 1e9 * np.array(self.seconds)
        return {
            "n_prompt": self.test.prompt,
            "n_gen": self.test.generate,
            "n_depth": self.test.depth,
            "test": self.test.label,
            "avg_ns": int(nanoseconds.mean()),
            "stddev_ns": int(deviation(nanoseconds)),
            "avg_ts": float(self.speeds.mean()),
            "stddev_ts": deviation(self.speeds),
            "median_ts": float(np.median(self.speeds)),
            "spread": self.spread,
            "samples_ns": [int(value) for value in nanoseconds],
            "samples_ts": [float(value) for value in self.speeds],
            "peak_rss_bytes": self.peak_rss_bytes,
        }


@dataclass(frozen=True)
class Ratio:
    """How much faster one contestant was than another."""

    median: float
    """Of their median speeds."""
    low: float
    """Least and greatest of the pairs of runs that were neighbours in time."""
    high: float

    @classmethod
    def of(cls, ours: Measurement, theirs: Measurement) -> Ratio:
        pairs = ours.speeds / theirs.speeds
        return cls(float(np.median(ours.speeds) / np.median(theirs.speeds)), float(pairs.min()), float(pairs.max()))


def measure(contestants: Sequence[Contestant], test: Test, repetitions: int, *, warm_up: bool = True) -> list[Measurement]:
    """Every contestant ``repetitions`` times, in turns; one `Measurement` each, in their order."""
    for contestant in contestants:
        contestant.begin(test.depth)
        if warm_up:
            warm(contestant, test)
    seconds: list[list[float]] = [[] for _ in contestants]
    for _ in range(repetitions):
        for contestant, taken in zip(contestants, seconds, strict=True):
            if len(contestants) > 1:
                time.sleep(SETTLE)
            taken.append(contestant.run(test))
    return [
        Measurement(test, tuple(taken), contestant.peak_rss_bytes())
        for contestant, taken in zip(contestants, seconds, strict=True)
    ]


def warm(contestant: Contestant, test: Test) -> None:
    """Run a short form of ``test`` until `WARM_SECONDS` are over, once at least; ``contestant`` has the depth of ``test``."""
    taken = contestant.run(test.warm_up)
    while taken < WARM_SECONDS:
        taken += contestant.run(test.warm_up)


class OwnRunner:
    """Our runner in this process, as a contestant.  ``vocab`` bounds the random tokens."""

    def __init__(self, runner: Runner[Any], vocab: int) -> None:
        self._runner = runner
        self._tokens = Random(SEED).choices(range(vocab), k=runner.context)  # NumPy's generators take 3 MB to import
        self._sequence = runner.open()

    @property
    def experts(self) -> FlashCounts | None:
        """What became of experts that come from flash; None where none do."""
        return self._runner.look().experts

    def begin(self, depth: int) -> None:
        if self._sequence.length > depth:
            self._sequence.truncate(depth)
        if self._sequence.length < depth:
            self._runner.forward(self._sequence, self._tokens[self._sequence.length : depth])

    def run(self, test: Test) -> float:
        prompt_end = test.depth + test.prompt
        prompt, generated = self._tokens[test.depth : prompt_end], self._tokens[prompt_end : test.tokens]
        started = time.perf_counter()
        if prompt:
            self._runner.forward(self._sequence, prompt)
        for token in generated:
            self._runner.forward(self._sequence, [token])
        seconds = time.perf_counter() - started
        self._sequence.truncate(test.depth)
        return seconds

    def peak_rss_bytes(self) -> int:
        return peak_rss_bytes()


def deviation(values: np.ndarray) -> float:
    """Standard deviation of a sample; 0 for a single value."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0
