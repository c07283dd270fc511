"""The float runner: the same model in float32 NumPy on the source's own weights; the oracle of the INT8 runner."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_llm.errors import ContextOverflow
from edge_llm.models.reference import FloatCache, FloatModel
from edge_llm.runner.base import Cancel, Cancelled


class FloatSequence(FloatCache):
    """Float keys and values of one sequence, closed like every other sequence."""

    def close(self) -> None:
        """Forget everything."""
        self.truncate(0)


class FloatRunner:
    """Runs a `FloatModel`; a sequence is a `FloatSequence`."""

    chunk = 128
    """Tokens between two questions whether to stop."""

    def __init__(self, model: FloatModel, context: int) -> None:
        self.context = context
        self._model = model

    def open(self) -> FloatSequence:
        return FloatSequence(self._model.config)

    def forward(
        self, sequence: FloatSequence, tokens: Sequence[int], *, wanted: int = 1, cancel: Cancel | None = None
    ) -> np.ndarray:
        start = sequence.length
        if start + len(tokens) > self.context:
            raise ContextOverflow(start + len(tokens), self.context)
        logits: list[np.ndarray] = []
        for first in range(0, len(tokens), self.chunk):
            if cancel is not None and cancel():
                sequence.truncate(start)
                raise Cancelled
            piece = self._model.forward(list(tokens[first : first + self.chunk]), sequence)
            logits = [*logits, piece][-(wanted // self.chunk + 2) :]
        return np.concatenate(logits)[-wanted:]

    def decode(self, sequences: Sequence[FloatSequence], tokens: Sequence[int]) -> np.ndarray:
        return np.concatenate(
            [self.forward(sequence, [token]) for sequence, token in zip(sequences, tokens, strict=True)]
        )
