"""Perplexity, KL divergence and top-1 agreement of the INT8 path against the float path on a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from edge_llm.errors import UsageError
from edge_llm.progress import CountProgress
from edge_llm.quant.quality import BLOCK_LOGITS, Quality, Tally, log_softmax
from edge_llm.runner.base import Runner

FIRST_TOKENS = 32
"""Tokens of a window's first call, which tells the size of the vocabulary: as many as share a 4-bit scale in `quant.kv`."""


def compare(
    runner: Runner[Any],
    oracle: Runner[Any],
    tokens: Sequence[int],
    window: int,
    bos: int | None = None,
    progress: CountProgress | None = None,
) -> Quality:
    """Predict every token of ``tokens`` from those before it in its window of ``window`` tokens, with both runners.

    Windows do not overlap; each begins with ``bos`` if the model has one, and else its first token is not predicted.
    """
    check_enough(tokens, window, bos)
    windows = list(windows_of(tokens, window, bos))
    tally = Tally()
    for done, ids in enumerate(windows):
        for targets, ours, theirs in _predictions(runner, oracle, ids):
            tally.add(targets, ours, theirs)
        if progress is not None:
            progress(done + 1, len(windows))
    return tally.quality()


def check_enough(tokens: Sequence[int], window: int, bos: int | None) -> None:
    """Raise `UsageError` where `compare` has nothing to predict."""
    if next(windows_of(tokens, window, bos), None) is None:
        raise UsageError(f"the text has `{len(tokens)}` tokens, too few to predict anything; give a longer one")


def windows_of(tokens: Sequence[int], window: int, bos: int | None) -> Iterator[list[int]]:
    """``tokens`` in windows of ``window`` ids that do not overlap, ``bos`` first in each; a single token is left out."""
    head = [] if bos is None else [bos]
    step = window - len(head)
    for start in range(0, len(tokens), step):
        ids = head + list(tokens[start : start + step])
        if len(ids) > 1:
            yield ids


def _predictions(
    runner: Runner[Any], oracle: Runner[Any], ids: list[int]
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Blocks of (targets [n], log-probabilities float64 [n, vocab] of the runner and of the oracle)."""
    ours, theirs = runner.open(), oracle.open()
    try:
        start, block_length = 0, FIRST_TOKENS
        while start < len(ids) - 1:
            block = ids[start : min(start + block_length, len(ids) - 1)]
            targets = np.asarray(ids[start + 1 : start + 1 + len(block)])
            logits = runner.forward(ours, block, wanted=len(block))
            yield targets, log_softmax(logits), log_softmax(oracle.forward(theirs, block, wanted=len(block)))
            start += len(block)
            block_length = max(1, BLOCK_LOGITS // logits.shape[1])
    finally:
        ours.close()
        theirs.close()
