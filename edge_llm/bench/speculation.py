"""What prompt lookup is worth: decoding a text that copies from its prompt, and one that does not, with and without it.

Speed does not depend on what weights say, but on how many guesses are right; so a script says which token comes next, and
the model does all its work for real.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.bench.report import Column, Row, table_of
from edge_llm.config import GenerationParams
from edge_llm.decoding.draft import Drafter, no_draft, prompt_lookup
from edge_llm.decoding.sampler import Choice, greedy
from edge_llm.engine.batcher import Batcher, Limits
from edge_llm.engine.generation import Generation
from edge_llm.engine.request import Delta, Finish, Request, Timings
from edge_llm.runner.base import Runner
from edge_llm.text.tokenizer import Tokenizer

DOCUMENT = 400
"""Tokens of the document that is to be rewritten."""
CHANGED = 0.05
"""Share of its tokens that the rewriting changes."""
SEED = 7


@dataclass(frozen=True)
class Speculation:
    """Decode speed of one kind of text in tokens per second, the runs of both ways in turns."""

    text: str
    plain: tuple[float, ...]
    guessed: tuple[float, ...]
    accepted: float
    """Share of the guesses that were right."""

    @property
    def ratio(self) -> float:
        """Of the medians."""
        return float(np.median(self.guessed) / np.median(self.plain))


def measure(runner: Runner[Any], tokenizer: Tokenizer, repetitions: int) -> list[Speculation]:
    """Rewrite a document, and write something new, ``repetitions`` times with and without prompt lookup."""
    random = np.random.default_rng(SEED)
    document = random.integers(0, tokenizer.vocab_size, DOCUMENT)
    fresh = random.integers(0, tokenizer.vocab_size, DOCUMENT)
    rewritten = np.where(random.random(DOCUMENT) < CHANGED, fresh, document)
    return [
        _measure(runner, tokenizer, "rewritten", document, rewritten, repetitions),
        _measure(runner, tokenizer, "new", document, fresh, repetitions),
    ]


def _measure(
    runner: Runner[Any], tokenizer: Tokenizer, text: str, document: np.ndarray, answer: np.ndarray, repetitions: int
) -> Speculation:
    script = [*document.tolist(), *answer.tolist()]
    plain: list[Timings] = []
    guessed: list[Timings] = []
    for _ in range(repetitions):
        plain.append(_run(runner, tokenizer, script, no_draft))
        guessed.append(_run(runner, tokenizer, script, prompt_lookup()))
    drafted = sum(timings.drafted_tokens for timings in guessed)
    accepted = sum(timings.accepted_tokens for timings in guessed) / drafted if drafted else 0.0
    return Speculation(text, _speeds(plain), _speeds(guessed), accepted)


def _speeds(runs: Sequence[Timings]) -> tuple[float, ...]:
    return tuple(timings.predicted_per_second for timings in runs)


def _run(runner: Runner[Any], tokenizer: Tokenizer, script: Sequence[int], drafter: Drafter) -> Timings:
    """Timings of an answer that is the second half of ``script``."""
    request = Request(tuple(script[:DOCUMENT]), GenerationParams(max_tokens=DOCUMENT, ignore_eos=True))
    answer = iter(script[DOCUMENT:])

    def scripted(logits: np.ndarray) -> Choice:
        return greedy(logits)._replace(token=next(answer))  # so that the time of a choice counts

    generation = Generation(request, tokenizer, most_tokens=DOCUMENT, drafter=drafter, sampler=scripted)
    batcher = Batcher(runner, Limits())
    batcher.add(generation)
    finish: Finish | None = None
    while finish is None:
        for _, delta in batcher.step():
            assert isinstance(delta, Delta)
            finish = delta.finish
    return finish.timings


def rows(results: Sequence[Speculation]) -> list[dict[str, Any]]:
    """One row per kind of text."""
    return [
        {
            "text": result.text,
            "plain_ts": float(np.median(result.plain)),
            "lookup_ts": float(np.median(result.guessed)),
            "ratio": result.ratio,
            "accepted_share": result.accepted,
            "samples_plain_ts": list(result.plain),
            "samples_lookup_ts": list(result.guessed),
        }
        for result in results
    ]


def markdown(rows: Sequence[Row]) -> str:
    """The rows as a table."""
    return table_of(rows, COLUMNS)


COLUMNS = (
    Column("text", lambda row: row["text"], right=False),
    Column("t/s", lambda row: f"{row['plain_ts']:.1f}"),
    Column("with lookup", lambda row: f"{row['lookup_ts']:.1f}"),
    Column("ratio", lambda row: f"{row['ratio']:.2f}x"),
    Column("guesses right", lambda row: f"{row['accepted_share']:.0%}"),
)
