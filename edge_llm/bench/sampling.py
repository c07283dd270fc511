"""What choosing tokens costs: decoding through the whole engine, greedy and by every filter, beside the runner alone.

The runner only computes logits, as in the tg rows of the other table.  The engine also chooses a token from each row of
logits, turns it into text and counts it; this table shows what that adds to a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.bench.measure import OwnRunner, Test
from edge_llm.bench.report import Column, Row, table_of
from edge_llm.config import GenerationParams
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Request

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
    """Decode speed of one way to choose tokens, in tokens per second of every repetition."""

    way: str
    speeds: tuple[float, ...]

    @property
    def token_ms(self) -> float:
        """Median milliseconds of a token."""
        return 1e3 / float(np.median(self.speeds))


def measure(engine: Engine, prompt: int, generate: int, repetitions: int) -> list[Choosing]:
    """The runner alone, then each of `WAYS`: ``generate`` tokens after ``prompt`` tokens, in turns, after a warm-up."""
    runner = OwnRunner(engine.runner, engine.tokenizer.vocab_size)
    test = Test(0, generate, prompt)
    tokens = np.random.default_rng(SEED).integers(0, engine.tokenizer.vocab_size, prompt).tolist()

    def run(way: str) -> float:
        if way == RUNNER:
            runner.begin(prompt)
            return generate / runner.run(test)
        params = GenerationParams(seed=SEED, max_tokens=generate + 1, ignore_eos=True, **WAYS[way])
        return engine.answer(Request(tuple(tokens), params)).finish.timings.predicted_per_second

    ways = (RUNNER, *WAYS)
    run(RUNNER)
    run("greedy")
    speeds = [[run(way) for way in ways] for _ in range(repetitions)]
    return [Choosing(way, values) for way, values in zip(ways, zip(*speeds, strict=True), strict=True)]


def rows(results: Sequence[Choosing], prompt: int, generate: int) -> list[dict[str, Any]]:
    """One row per way; what it adds is beside the runner, which comes first."""
    alone = results[0].token_ms
    return [
        {
            "test": f"tg{generate} @ d{prompt}",
            "sampling": result.way,
            "n_depth": prompt,
            "n_gen": generate,
            "tokens_per_second": 1e3 / result.token_ms,
            "added_ms": result.token_ms - alone,
            "ratio": alone / result.token_ms,
            "samples_ts": list(result.speeds),
        }
        for result in results
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    return table_of(rows, COLUMNS)


COLUMNS = (
    Column("test", lambda row: row["test"], right=False),
    Column("sampling", lambda row: row["sampling"], right=False),
    Column("t/s", lambda row: f"{row['tokens_per_second']:.1f}"),
    Column("ms added to a token", lambda row: f"{row['added_ms']:.2f}"),
    Column("of the runner's speed", lambda row: f"{row['ratio']:.0%}"),
)
