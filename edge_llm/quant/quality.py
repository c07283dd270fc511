"""How near one model's predictions are to another's: perplexity, KL divergence and top-1 agreement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edge_llm.errors import NumericError

BLOCK_LOGITS = 2**23
"""Logits per forward call (some hundred MB of work space); it changes no number."""

_MOST_NATS = 600.0
"""Per token; of more, a perplexity is not told apart."""


@dataclass(frozen=True)
class Quality:
    """How near a quantized model's predictions are to those of its float model, over all predicted tokens."""

    perplexity: float
    float_perplexity: float
    mean_kl: float
    """Mean over tokens of KL(float || quantized), in nats."""
    top1_agreement: float
    """Share of tokens for which both find the same token most likely."""
    tokens: int
    """Tokens that were predicted."""

    def __str__(self) -> str:
        more = 100 * (self.perplexity / self.float_perplexity - 1)
        return (
            f"KL {self.mean_kl:.3g} over {self.tokens} tokens, top-1 {self.top1_agreement:.1%}, "
            f"perplexity {self.perplexity:.4g} ({more:+.2f} %)"
        )

    def to_fields(self) -> dict[str, float]:
        """As a manifest and ``--json`` hold it; six digits, which processors agree on."""
        return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in vars(self).items()}


@dataclass(frozen=True)
class Closeness:
    """How near a quantized encoder's vectors are to those of its float model."""

    worst_cosine: float
    median_cosine: float
    texts: int

    def __str__(self) -> str:
        return f"cosine with the float model's vectors {self.worst_cosine:.5f} at worst, {self.median_cosine:.5f} in the " + (
            f"median of {self.texts} texts"
        )

    def to_fields(self) -> dict[str, float]:
        """As a manifest and ``--json`` hold it; six digits, which processors agree on."""
        return {name: float(f"{value:.6g}") if isinstance(value, float) else value for name, value in vars(self).items()}


def closeness(ours: np.ndarray, theirs: np.ndarray) -> Closeness:
    """Of the vectors float [texts, size] of a quantized model and of the float one.

    Raises `NumericError` where one of them has no length.
    """
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    if not np.isfinite(lengths).all() or not lengths.all():
        raise NumericError("the vectors of the held-out text have no length; the source's weights are damaged")
    cosines = (ours.astype(np.float64) * theirs).sum(axis=1) / lengths
    return Closeness(float(cosines.min()), float(np.median(cosines)), len(ours))


class Tally:
    """What two models said of the same tokens, added up."""

    def __init__(self) -> None:
        self._nll = self._oracle_nll = self._divergence = 0.0
        self._same = self._count = 0

    def add(self, targets: np.ndarray, ours: np.ndarray, theirs: np.ndarray) -> None:
        """Log-probabilities float64 [n, vocab] of both behind which ``targets`` [n] came."""
        rows = np.arange(len(targets))
        self._nll -= float(ours[rows, targets].sum())
        self._oracle_nll -= float(theirs[rows, targets].sum())
        self._divergence += float((np.exp(theirs) * (theirs - ours)).sum())
        self._same += int((ours.argmax(1) == theirs.argmax(1)).sum())
        self._count += len(targets)

    def quality(self) -> Quality:
        """Of all that was added."""
        return Quality(
            perplexity=float(np.exp(min(_MOST_NATS, self._nll / self._count))),
            float_perplexity=float(np.exp(min(_MOST_NATS, self._oracle_nll / self._count))),
            mean_kl=self._divergence / self._count,
            top1_agreement=self._same / self._count,
            tokens=self._count,
        )


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Log-probabilities float64 [n, vocab] of ``logits`` [n, vocab]."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
