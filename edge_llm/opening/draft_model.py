"""A small model that guesses ahead for a larger one of the same tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edge_llm.decoding.draft import Drafter, no_draft, prompt_lookup
from edge_llm.decoding.sampler import greedy
from edge_llm.opening.plan import Plan
from edge_llm.runner.base import Runner


def make_drafter(plan: Plan, runner: Runner[Any] | None) -> Callable[[], Drafter]:
    """What guesses ahead for answers of the model of ``plan``: the draft model that ``runner`` runs, if it has one.

    One drafter serves one answer.
    """
    if runner is None or plan.draft is None:
        return prompt_lookup if plan.options.draft == "lookup" else lambda: no_draft
    vocab_size = min(plan.draft.bundle.config.vocab_size, plan.bundle.config.vocab_size)
    return lambda: model_drafter(runner, vocab_size)


def model_drafter(runner: Runner[Any], vocab_size: int) -> Drafter:
    """Guesses by greedy decoding on ``runner`` among the first ``vocab_size`` tokens, which both models have.

    One of them may have more rows in its matrices, which the tokenizer has no tokens for.  The runner's own memory of
    prefixes is all the state there is: a call computes what is new since the last one, from the last full page on.
    """

    def draft(tokens: Sequence[int], most: int) -> list[int]:
        if most < 1 or len(tokens) + most > runner.context:
            return []
        known = list(tokens)
        sequence = runner.memory.open(known)
        try:
            if any(token >= vocab_size for token in known[sequence.length :]):
                return []
            while len(known) < len(tokens) + most:
                known.append(greedy(runner.forward(sequence, known[sequence.length :])[-1, :vocab_size]).token)
            runner.memory.remember(sequence, known)
        finally:
            sequence.close()
        return known[len(tokens) :]

    return draft
