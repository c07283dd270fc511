"""Log-probabilities of tokens, from the model's own logits: before penalties, biases, temperature and filters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TokenLogprobs:
    """How likely a token was, and the most likely tokens in its place."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    """(token, log-probability), most likely first."""
    piece: bytes = b""
    """What the token adds to the text where it stands, or a control token's name."""
    top_pieces: tuple[bytes, ...] = ()
    """The same for each token of ``top``."""


def token_logprobs(
    logits: np.ndarray, token: int, top: int | None, piece: Callable[[int], bytes] = lambda token: b""
) -> tuple[TokenLogprobs, ...]:
    """One `TokenLogprobs` of ``token`` with ``top`` alternatives from logits float32 [V]; nothing when ``top`` is None.

    ``piece`` tells what a token adds to the text.
    """
    if top is None:
        return ()
    best = float(logits.max())
    values = logits.astype(np.float64)
    values -= best
    np.exp(values, out=values)
    total = float(np.log(values.sum()))

    def logprob(index: int) -> float:
        return float(logits[index]) - best - total

    likely = most_likely(logits, top)
    alternatives = tuple((index, logprob(index)) for index in likely)
    return (TokenLogprobs(token, logprob(token), alternatives, piece(token), tuple(piece(index) for index in likely)),)


def most_likely(logits: np.ndarray, count: int) -> list[int]:
    """The ``count`` most likely tokens of logits float32 [V] in order, the lowest id first among equals."""
    if count == 0:
        return []
    near = np.flatnonzero(logits >= _bound(logits, count))
    if len(near) > count:  # ids beyond the last that are as likely as it go
        values = logits[near]
        least = np.partition(values, -count)[-count]
        equal = near[values == least]
        near = np.sort(np.concatenate([near[values > least], equal])[:count])
    order: list[int] = near[np.argsort(-logits[near], kind="stable")].tolist()
    return order


_BLOCK = 256
"""Logits whose greatest stands for them below."""


def _bound(logits: np.ndarray, count: int) -> float:
    """At most the ``count``-th greatest of ``logits``: of the maxima of blocks, where there are enough of them."""
    blocks = len(logits) // _BLOCK
    maxima = logits[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1) if count <= blocks else logits
    count = min(count, len(maxima))
    return float(np.partition(maxima, -count)[-count])
