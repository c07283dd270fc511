"""Edits of logits before sampling: ``(tokens so far, logits float32 [V])``, in place.

One edit does all that a request asks for, and touches only the tokens that change.  It follows one text, which only grows,
and counts its tokens as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edge_llm.config import GenerationParams
from edge_llm.decoding.repeats import Repeats

Edit = Callable[[Sequence[int], np.ndarray], None]

MOST_PENALTY = 1e30
"""Leaves a token that is repeated possible where no other one is."""


class Seen:
    """The tokens of a growing text behind its first ``start``, each once, and how often each came."""

    def __init__(self, start: int) -> None:
        self.ids: np.ndarray = np.zeros(0, np.int64)
        """Ascending."""
        self.counts: np.ndarray = np.zeros(0, np.int64)
        self._read = start

    def follow(self, tokens: Sequence[int]) -> None:
        """Count what came since the last time: all there is, and later mostly one."""
        came = tokens[self._read :]
        self._read += len(came)
        if len(self.ids) == 0:
            self.ids, self.counts = np.unique(np.asarray(came, np.int64), return_counts=True)
            return
        for token in came:
            self._count(token)

    def _count(self, token: int) -> None:
        place = int(self.ids.searchsorted(token))
        if place == len(self.ids) or self.ids[place] != token:
            self.ids = np.concatenate([self.ids[:place], [token], self.ids[place:]])
            self.counts = np.concatenate([self.counts[:place], [0], self.counts[place:]])
        self.counts[place] += 1


def repetition_penalty(penalty: float) -> Edit:
    """Make every token seen so far less likely: positive logits are divided, negative ones multiplied (CTRL, §4.1)."""
    seen = Seen(0)

    def edit(tokens: Sequence[int], logits: np.ndarray) -> None:
        seen.follow(tokens)
        chosen = logits[seen.ids]
        logits[seen.ids] = np.where(chosen > 0, chosen / np.float32(penalty), chosen * np.float32(penalty))

    return edit


def forbid(ids: Sequence[int]) -> Edit:
    """Make ``ids`` impossible."""
    banned = np.asarray(sorted(ids), np.int64)

    def edit(tokens: Sequence[int], logits: np.ndarray) -> None:
        logits[banned] = -np.inf

    return edit


def answer_penalties(frequency: float, presence: float, prompt_tokens: int) -> Edit:
    """Make tokens that the answer (not the prompt) has less likely: logit - frequency * count - presence * (count > 0)."""
    seen = Seen(prompt_tokens)

    def edit(tokens: Sequence[int], logits: np.ndarray) -> None:
        seen.follow(tokens)
        logits[seen.ids] -= (frequency * seen.counts + presence).astype(np.float32)

    return edit


def dry_penalty(params: GenerationParams, prompt_tokens: int, token_bytes: Callable[[int], bytes]) -> Edit:
    """Make a token that would lengthen a repeat less likely: logit - multiplier * base ** (length of the repeat - allowed).

    A repeat is a run of tokens, at least the allowed ones, that the answer ends with and has had before; of several the longest
    counts.  This is DRY, "don't repeat yourself" (text-generation-webui, pull request 5677), but for the prompt, which is left
    out: to quote from it costs nothing.
    """
    breakers = [text.encode() for text in params.dry_sequence_breakers]

    def breaks(token: int) -> bool:
        written = token_bytes(token)
        return any(breaker in written for breaker in breakers)

    allowed = params.dry_allowed_length
    repeats = Repeats(allowed, prompt_tokens, breaks)

    def edit(tokens: Sequence[int], logits: np.ndarray) -> None:
        for token, length in repeats.follow(tokens).items():
            logits[token] -= np.float32(min(MOST_PENALTY, params.dry_multiplier * params.dry_base ** (length - allowed)))

    return edit


def add_bias(bias: Sequence[tuple[int, float]]) -> Edit:
    """Add to the logits of some tokens."""
    ids = np.array([token for token, _ in bias], np.int64)
    values = np.array([value for _, value in bias], np.float32)

    def edit(tokens: Sequence[int], logits: np.ndarray) -> None:
        np.add.at(logits, ids, values)

    return edit


def forbid_until(ids: Sequence[int], length: int) -> Edit:
    """Make ``ids`` impossible while there are fewer than ``length`` tokens."""
    banned = forbid(ids)

    def edit(tokens: Sequence[int], logits: np.ndarray) -> None:
        if len(tokens) < length:
            banned(tokens, logits)

    return edit


def only_tokens(allowed: frozenset[int]) -> Edit:
    """Makes every token impossible that is not ``allowed``."""
    kept = np.array(sorted(allowed), np.int64)

    def edit(tokens: Sequence[int], logits: np.ndarray) -> None:
        values = logits[kept]
        logits.fill(-np.inf)
        logits[kept] = values

    return edit


def make_edit(
    params: GenerationParams,
    eos_ids: frozenset[int],
    prompt_tokens: int = 0,
    token_bytes: Callable[[int], bytes] = lambda token: b"",
) -> Edit | None:
    """The edit that ``params`` ask for, if any; the first ``prompt_tokens`` tokens that it sees are the prompt."""
    edits = tuple(_edits(params, eos_ids, prompt_tokens, token_bytes))

    def edit_all(tokens: Sequence[int], logits: np.ndarray) -> None:
        for edit in edits:
            edit(tokens, logits)

    return edit_all if edits else None


def _edits(
    params: GenerationParams, eos_ids: frozenset[int], prompt_tokens: int, token_bytes: Callable[[int], bytes]
) -> list[Edit]:
    chosen: list[Edit] = []
    ends = sorted(eos_ids | params.stop_tokens)
    if params.repetition_penalty != 1.0:
        chosen.append(repetition_penalty(params.repetition_penalty))
    if params.frequency_penalty or params.presence_penalty:
        chosen.append(answer_penalties(params.frequency_penalty, params.presence_penalty, prompt_tokens))
    if params.dry_multiplier and params.grammar is None:  # which may want repeats
        chosen.append(dry_penalty(params, prompt_tokens, token_bytes))
    if params.logit_bias:
        chosen.append(add_bias(params.logit_bias))
    if params.ignore_eos and eos_ids:
        chosen.append(forbid(sorted(eos_ids)))
    if params.min_tokens and ends:
        chosen.append(forbid_until(ends, prompt_tokens + params.min_tokens))
    if params.allowed_tokens is not None:
        chosen.append(only_tokens(params.allowed_tokens))
    return chosen
