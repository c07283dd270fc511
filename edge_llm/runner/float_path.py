"""The float runner: the same model in float32 NumPy on the source's own weights; the oracle of the INT8 runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.errors import ContextOverflow
from edge_llm.models.layer import Decoder
from edge_llm.models.reference import FloatCache
from edge_llm.progress import StageProgress, ignore
from edge_llm.runner.base import FLOAT_SITE, Cancel, Cancelled, Segment
from edge_llm.runner.inside import RunnerInside


class FloatSequence(FloatCache):
    """Float keys and values of one sequence, closed like every other sequence."""

    def close(self) -> None:
        """Forget everything."""
        self.truncate(0)


class FloatMemory:
    """Remembers nothing and never runs out: the oracle computes every request from its beginning."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def open(self, tokens: Sequence[int] = (), adapter: int = 0) -> FloatSequence:
        assert adapter == 0, "planned for the kernels"
        return FloatSequence(self._decoder)

    def reserve(self, sequence: FloatSequence, tokens: int) -> None:
        return

    def remember(self, sequence: FloatSequence, tokens: Sequence[int]) -> None:
        return

    def has_room(self, tokens: int) -> bool:
        return True

    def check_fits(self, tokens: int) -> None:
        return

    def state(self) -> Mapping[str, int]:
        return {}


class Model(Protocol):
    """What is run: `FloatModel`, or a twin of it of which parts are in INT8."""

    config: ModelConfig
    decoder: Decoder

    def forward(self, tokens: Sequence[int], cache: FloatCache) -> np.ndarray:
        """Logits float32 [T, vocab] of ``tokens`` that follow what ``cache`` holds."""
        ...

    def states(self, tokens: Sequence[int], cache: FloatCache) -> np.ndarray:
        """Normed last hidden states float32 [T, hidden] of the same."""
        ...


class FloatRunner:
    """Runs a model in NumPy; a sequence is a `FloatSequence`."""

    chunk = 128
    """Tokens between two questions whether to stop; of an encoder all."""

    clipped = 0
    pool = None
    site = FLOAT_SITE

    def __init__(self, model: Model, context: int) -> None:
        self.context = context
        if model.decoder.is_encoder:
            self.chunk = context
        self.memory = FloatMemory(model.decoder)
        self._model = model

    def prepare(self, progress: StageProgress = ignore) -> None:
        return

    def look(self) -> RunnerInside:
        return RunnerInside()

    def open(self) -> FloatSequence:
        return self.memory.open()

    def run(self, segments: Sequence[Segment[FloatSequence]], *, cancel: Cancel | None = None) -> list[np.ndarray]:
        starts = [segment.sequence.length for segment in segments]
        for segment in segments:
            segment.sequence.checkpoint()
        try:
            return [self._rows(segment, cancel) for segment in segments]
        except BaseException:
            for segment, start in zip(segments, starts, strict=True):
                segment.sequence.truncate(start)
            raise

    def forward(
        self, sequence: FloatSequence, tokens: Sequence[int], *, wanted: int = 1, cancel: Cancel | None = None
    ) -> np.ndarray:
        return self.run([Segment(sequence, tokens, wanted)], cancel=cancel)[0]

    def _rows(self, segment: Segment[FloatSequence], cancel: Cancel | None) -> np.ndarray:
        """Append the segment's tokens chunk by chunk; the logits, or the states, of the last ``wanted`` of them."""
        sequence, tokens, config = segment.sequence, list(segment.tokens), self._model.config
        sequence.second = segment.second
        end = sequence.length + len(tokens)
        if end > self.context:
            raise ContextOverflow(end, self.context)
        compute = self._model.states if segment.states else self._model.forward
        rows = [np.empty((0, config.hidden_size if segment.states else config.vocab_size), np.float32)]
        for first in range(0, len(tokens), self.chunk):
            if cancel is not None and cancel():
                raise Cancelled
            piece = tokens[first : first + self.chunk]
            unwanted = len(tokens) - segment.wanted - first
            if unwanted < len(piece):
                rows.append(compute(piece, sequence)[max(0, unwanted) :])
            else:
                self._model.states(piece, sequence)
        return np.concatenate(rows)
