"""A small model that guesses ahead for a larger one of the same tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edge_llm.decoding.draft import Drafter
from edge_llm.decoding.sampler import greedy
from edge_llm.runner.base import Runner


def model_drafter(runner: Runner[Any]) -> Drafter:
    """Guesses by greedy decoding on ``runner``.

    The runner's own memory of prefixes is all the state there is: a call computes what is new since the last one, from the
    last full page on.
    """

    def draft(tokens: Sequence[int], most: int) -> list[int]:
        if most < 1 or len(tokens) + most > runner.context:
            return []
        known = list(tokens)
        sequence = runner.memory.open(known)
        try:
            while len(known) < len(tokens) + most:
                known.append(greedy(runner.forward(sequence, known[sequence.length :])[-1]).token)
            runner.memory.remember(sequence, known)
        finally:
            sequence.close()
        return known[len(tokens) :]

    return draft
