"""Logit processors: ``(tokens so far, logits float32 [V]) -> logits float32 [V]``, applied in order before sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edge_llm.config import GenerationParams

Processor = Callable[[Sequence[int], np.ndarray], np.ndarray]


def repetition_penalty(penalty: float) -> Processor:
    """Make every token seen so far less likely: positive logits are divided, negative ones multiplied (CTRL, §4.1)."""

    def apply(tokens: Sequence[int], logits: np.ndarray) -> np.ndarray:
        seen = np.asarray(tokens, np.int64)  # a token that comes twice is set twice, to the same
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


def answer_penalties(frequency: float, presence: float, prompt_tokens: int) -> Processor:
    """Make tokens that the answer (not the prompt) has less likely: logit - frequency * count - presence * (count > 0)."""

    def apply(tokens: Sequence[int], logits: np.ndarray) -> np.ndarray:
        seen, counts = np.unique(np.asarray(tokens[prompt_tokens:], np.int64), return_counts=True)
        logits = logits.copy()
        logits[seen] -= (frequency * counts + presence).astype(np.float32)
        return logits

    return apply


def add_bias(bias: Sequence[tuple[int, float]]) -> Processor:
    """Add to the logits of some tokens."""
    ids = np.array([token for token, _ in bias], np.int64)
    values = np.array([value for _, value in bias], np.float32)

    def apply(tokens: Sequence[int], logits: np.ndarray) -> np.ndarray:
        logits = logits.copy()
        np.add.at(logits, ids, values)
        return logits

    return apply


def forbid_until(ids: Sequence[int], length: int) -> Processor:
    """Make ``ids`` impossible while there are fewer than ``length`` tokens."""
    banned = forbid(ids)

    def apply(tokens: Sequence[int], logits: np.ndarray) -> np.ndarray:
        return banned(tokens, logits) if len(tokens) < length else logits

    return apply


def make_processors(params: GenerationParams, eos_ids: frozenset[int], prompt_tokens: int = 0) -> tuple[Processor, ...]:
    """The processors that ``params`` asks for; the first ``prompt_tokens`` tokens that they see are the prompt."""
    chosen: list[Processor] = []
    ends = sorted(eos_ids | params.stop_tokens)
    if params.repetition_penalty != 1.0:
        chosen.append(repetition_penalty(params.repetition_penalty))
    if params.frequency_penalty or params.presence_penalty:
        chosen.append(answer_penalties(params.frequency_penalty, params.presence_penalty, prompt_tokens))
    if params.logit_bias:
        chosen.append(add_bias(params.logit_bias))
    if params.ignore_eos and eos_ids:
        chosen.append(forbid(sorted(eos_ids)))
    if params.min_tokens and ends:
        chosen.append(forbid_until(ends, prompt_tokens + params.min_tokens))
    return tuple(chosen)
