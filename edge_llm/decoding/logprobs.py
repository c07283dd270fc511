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
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    best = tuple((int(i), float(values[i])) for i in _largest(values, top))
    pieces = tuple(piece(i) for i, _ in best)
    return (TokenLogprobs(token, float(values[token]), best, piece(token), pieces),)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Where the ``count`` largest of ``values`` are, largest first, of equals the first first."""
    count = min(count, len(values))
    if count == 0:
        return np.empty(0, np.intp)
    least = np.partition(values, -count)[-count]
    found = np.flatnonzero(values >= least)
    return found[np.argsort(-values[found], kind="stable")][:count]
