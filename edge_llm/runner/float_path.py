"""The float runner: the same model in float32 NumPy on the source's own weights; the oracle of the INT8 runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.errors import ContextOverflow
from edge_llm.models.reference import FloatCache, FloatModel
from edge_llm.runner.base import Cancel, Cancelled, Segment


class FloatSequence(FloatCache):
    """Float keys and values of one sequence, closed like every other sequence."""

    def close(self) -> None:
        """Forget everything."""
        self.truncate(0)


class FloatMemory:
    """Remembers nothing and never runs out: the oracle computes every request from its beginning."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config

    def open(self, tokens: Sequence[int] = ()) -> FloatSequence:
        return FloatSequence(self._config)

    def reserve(self, sequence: FloatSequence, tokens: int) -> None:
        return

    def keep(self, sequence: FloatSequence, tokens: Sequence[int]) -> None:
        return

    def has_room(self, tokens: int) -> bool:
        return True

    def check_fits(self, tokens: int) -> None:
        return

    def state(self) -> Mapping[str, int]:
        return {}


class FloatRunner:
    """Runs a `FloatModel`; a sequence is a `FloatSequence`."""

    chunk = 128
    """Tokens between two questions whether to stop."""

    def __init__(self, model: FloatModel, context: int) -> None:
        self.context = context
        self.memory = FloatMemory(model.config)
        self._model = model

    def open(self) -> FloatSequence:
        return self.memory.open()

    def run(self, segments: Sequence[Segment[FloatSequence]], *, cancel: Cancel | None = None) -> list[np.ndarray]:
        starts = [segment.sequence.length for segment in segments]
        try:
            return [self._logits(segment, cancel) for segment in segments]
        except BaseException:
            for segment, start in zip(segments, starts, strict=True):
                segment.sequence.truncate(start)
            raise

    def forward(
        self, sequence: FloatSequence, tokens: Sequence[int], *, wanted: int = 1, cancel: Cancel | None = None
    ) -> np.ndarray:
        return self.run([Segment(sequence, tokens, wanted)], cancel=cancel)[0]

    def embed(self, tokens: Sequence[int], *, cancel: Cancel | None = None) -> np.ndarray:
        if len(tokens) > self.context:
            raise ContextOverflow(len(tokens), self.context)
        if cancel is not None and cancel():
            raise Cancelled
        mean: np.ndarray = self._model.states(tokens, self.open()).mean(axis=0)
        return mean

    def _logits(self, segment: Segment[FloatSequence], cancel: Cancel | None) -> np.ndarray:
        """Append the segment's tokens chunk by chunk; the logits of the last ``wanted`` of them."""
        sequence, tokens = segment.sequence, list(segment.tokens)
        end = sequence.length + len(tokens)
        if end > self.context:
            raise ContextOverflow(end, self.context)
        wanted = [np.empty((0, self._model.config.vocab_size), np.float32)]
        for first in range(0, len(tokens), self.chunk):
            if cancel is not None and cancel():
                raise Cancelled
            piece = tokens[first : first + self.chunk]
            unwanted = len(tokens) - segment.wanted - first
            if unwanted < len(piece):
                wanted.append(self._model.forward(piece, sequence)[max(0, unwanted) :])
            else:
                self._model.states(piece, sequence)
        return np.concatenate(wanted)
