"""Log-probabilities of tokens, from the model's own logits: before penalties, biases, temperature and filters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from edge_llm.errors import NumericError
from edge_llm.kernels import ThreadPool, sampling


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
    rank: int = 0
    """1 for the most likely token, and so on; 0 where nobody asked."""
    is_first: bool = False
    """Nothing stands before it, so it is neither likely nor unlikely."""


def token_logprobs(
    logits: np.ndarray,
    token: int,
    top: int | None,
    piece: Callable[[int], bytes] = lambda token: b"",
    pool: ThreadPool | None = None,
    best: float | None = None,
    *,
    also: Sequence[int] = (),
    ranked: bool = False,
) -> tuple[TokenLogprobs, ...]:
    """One `TokenLogprobs` of ``token`` with ``top`` alternatives from logits float32 [V]; nothing when ``top`` is None.

    ``piece`` tells what a token adds to the text.  The threads of ``pool`` share the sum over a large vocabulary.  ``best`` is
    the greatest logit, where it is known.  The tokens ``also``, and the token itself, stand in place of the most likely ones
    where any are named.  With ``ranked`` the token's rank is told, too.
    """
    if top is None:
        return ()
    best = sampling.best(logits) if best is None else best
    if not math.isfinite(best):
        raise NumericError(f"the logits hold `{best}`, of which there are no log-probabilities")
    total = sampling.log_sum(logits, best, pool)

    def logprob(index: int) -> float:
        return float(logits[index]) - best - total

    likely: list[int] = [*dict.fromkeys((token, *also))] if also else sampling.likeliest(logits, top).tolist()
    alternatives = tuple((index, logprob(index)) for index in likely)
    rank = int(np.count_nonzero(logits > logits[token])) + 1 if ranked else 0
    pieces = tuple(piece(index) for index in likely)
    return (TokenLogprobs(token, logprob(token), alternatives, piece(token), pieces, rank),)
