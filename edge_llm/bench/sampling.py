"""What choosing tokens costs: decoding through the whole engine, greedy and by every filter, beside the runner alone.

The runner only computes logits, as in the tg rows of the other table.  The engine also chooses a token from each row of
logits, turns it into text and counts it.  What that adds is small beside what a shared machine's speed changes between two
runs, so it is measured inside of one: the time of an answer less that of the steps of its runner.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from edge_llm.bench.measure import OwnRunner, Test
from edge_llm.bench.report import Column, Row, table_of
from edge_llm.config import GenerationParams
from edge_llm.decoding.draft import no_draft
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Request
from edge_llm.progress import CountProgress, ignore
from edge_llm.runner.base import Cancel, Runner, Segment

RUNNER = "runner alone"
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 1.0},
    "top-p 0.9": {"temperature": 0.6, "top_p": 0.9},
    "top-k 20, top-p 0.8": {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
    "min-p 0.05": {"temperature": 1.0, "min_p": 0.05},
    "top-p 0.9, penalties, bias": {
        "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.2,
        "logit_bias": ((1, -1.0), (2, 1.0)),
    },
    "min-p 0.05, DRY": {"temperature": 0.7, "min_p": 0.05, "dry_multiplier": 0.8},
    "greedy, 5 log-probabilities": {"logprobs": 5},
    "top-p 0.9, 5 log-probabilities": {"temperature": 0.6, "top_p": 0.9, "logprobs": 5},
    "+t0.8": {"temperature": 0.8},
    "+t0.8+p0.95": {"temperature": 0.8, "top_p": 0.95},
    "+t0.8+p0.95+logprobs": {"temperature": 0.8, "top_p": 0.95, "logprobs": 5},
}  # fmt: skip
"""Settings of sampling by their name in the table."""
SEED = 11


@dataclass(frozen=True)
class Choosing:
    """One way to choose tokens: seconds of the answer of every repetition, and how many of them its runner's steps took."""

    way: str
    generate: int
    """Steps in that time."""
    seconds: tuple[float, ...]
    """From the logits of the prompt to the last token: one choice more than steps.  The runner alone makes none."""
    step_seconds: tuple[float, ...]

    @property
    def step_share(self) -> float:
        """Of the answer's time: its median over the repetitions."""
        return float(np.median(np.divide(self.step_seconds, self.seconds)))

    @property
    def added_ms(self) -> float:
        """What a choice took with all that belongs to it; 0 for the runner alone, whose time is that of its steps."""
        return 1e3 * float(np.median(np.subtract(self.seconds, self.step_seconds))) / (self.generate + 1)


class _Timed:
    """``runner``, and the seconds of each of its steps."""

    def __init__(self, runner: Runner[Any]) -> None:
        self._runner = runner
        self.steps: list[float] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, segments: Sequence[Segment[Any]], *, cancel: Cancel | None = None) -> list[np.ndarray]:
        started = time.perf_counter()
        rows = self._runner.run(segments, cancel=cancel)
        self.steps.append(time.perf_counter() - started)
        return rows


def measure(engine: Engine, prompt: int, generate: int, repetitions: int, progress: CountProgress = ignore) -> list[Choosing]:
    """The runner alone, then each of `WAYS`: ``generate`` tokens after ``prompt`` tokens, in turns, after a warm-up.

    ``progress`` is told of the turns, between them.
    """
    bare = OwnRunner(engine.runner, engine.tokenizer.vocab_size)
    timed = _Timed(engine.runner)
    whole = Engine(
        engine.name, engine.config, engine.tokenizer, engine.template, engine.defaults, cast("Runner[Any]", timed),
        engine.load_ms, make_drafter=lambda: no_draft,
    )  # fmt: skip
    test = Test(0, generate, prompt)
    tokens = np.random.default_rng(SEED).integers(0, engine.tokenizer.vocab_size, prompt).tolist()

    def run(way: str) -> tuple[float, float]:
        if way == RUNNER:
            bare.begin(prompt)
            seconds = bare.run(test)
            return seconds, seconds
        timed.steps.clear()
        params = GenerationParams(seed=SEED, max_tokens=generate + 1, ignore_eos=True, **WAYS[way])
        answer = whole.answer(Request(tuple(tokens), params))
        return 1e-3 * answer.finish.timings.predicted_ms, sum(timed.steps[-generate:])  # those before are the prompt's

    ways = (RUNNER, *WAYS)
    run(RUNNER)
    run("greedy")
    turns = []
    for turn in range(repetitions):
        progress(turn, repetitions)
        turns.append([run(way) for way in ways])
    of_ways = zip(ways, zip(*turns, strict=True), strict=True)
    return [Choosing(way, generate, *zip(*runs, strict=True)) for way, runs in of_ways]


def rows(results: Sequence[Choosing], prompt: int, generate: int) -> list[dict[str, Any]]:
    """One row per way; the runner comes first, and each is compared with it and with the steps of its own runs."""
    token_ms = [1e3 * float(np.median(result.seconds)) / generate for result in results]
    return [
        {
            "test": f"tg{generate} @ d{prompt}",
            "sampling": result.way,
            "n_depth": prompt,
            "n_gen": generate,
            "tokens_per_second": 1e3 / ms,
            "added_ms": result.added_ms,
            "step_share": result.step_share,
            "ratio": token_ms[0] / ms,
            "samples_ts": [generate / seconds for seconds in result.seconds],
        }
        for result, ms in zip(results, token_ms, strict=True)
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    return table_of(rows, COLUMNS)


COLUMNS = (
    Column("test", lambda row: row["test"], right=False),
    Column("sampling", lambda row: row["sampling"], right=False),
    Column("t/s", lambda row: f"{row['tokens_per_second']:.1f}"),
    Column("ms added to a token", lambda row: f"{row['added_ms']:.2f}"),
    Column("steps' share of the time", lambda row: f"{row['step_share']:.1%}"),
    Column("of the runner's speed", lambda row: f"{row['ratio']:.0%}"),
)
