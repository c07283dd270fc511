"""Logit processors: ``(tokens so far, logits float32 [V]) -> logits float32 [V]``, applied in order before sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edge_llm.config import GenerationParams

Processor = Callable[[Sequence[int], np.ndarray], np.ndarray]


def repetition_penalty(penalty: float) -> Processor:
    """Make every token seen so far less likely: positive logits are divided, negative ones multiplied (CTRL, §4.1)."""

    def apply(tokens: Sequence[int], logits: np.ndarray) -> np.ndarray:
        seen = np.unique(np.asarray(tokens, np.int64))
        chosen = logits[seen]
        logits = logits.copy()
        logits[seen] = np.where(chosen > 0, chosen / np.float32(penalty), chosen * np.float32(penalty))
        return logits

    return apply


def forbid(ids: Sequence[int]) -> Processor:
    """Make ``ids`` impossible."""
    banned = np.asarray(sorted(ids), np.int64)

    def apply(tokens: Sequence[int], logits: np.ndarray) -> np.ndarray:
        logits = logits.copy()
        logits[banned] = -np.inf
        return logits

    return apply


def make_processors(params: GenerationParams, eos_ids: frozenset[int]) -> tuple[Processor, ...]:
    """The processors that ``params`` asks for."""
    chosen: list[Processor] = []
    if params.repetition_penalty != 1.0:
        chosen.append(repetition_penalty(params.repetition_penalty))
    if params.ignore_eos and eos_ids:
        chosen.append(forbid(sorted(eos_ids)))
    return tuple(chosen)
