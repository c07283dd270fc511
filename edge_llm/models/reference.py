"""The whole decoder in NumPy float32: the oracle for every faster path, and what calibration runs.

Naive on purpose and read top-down; the fast paths are compared with it, never the other way round.  The same
functions serve the importer a layer at a time (`layer_forward` with ``observe``) and ``--float`` (`FloatModel`).  The importer
has them multiply in a fixed order (`SAME_BITS`), so that a bundle does not depend on the processor that it was made on.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.errors import ContextOverflow, UsageError
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import (
    WeightSource,
    check_tensors,
    read_embedding,
    read_final_norm,
    read_layer,
    read_output,
)
from edge_llm.operations.arithmetic import soft_cap
from edge_llm.operations.base import HIDDEN, FloatRun, KVRounding, LayerWeights, Observe, unrounded
from edge_llm.operations.float_kv import FloatKV
from edge_llm.operations.layer import Layer
from edge_llm.operations.questions import AllTables


class FloatCache:
    """What `FloatModel` remembers of one sequence."""

    def __init__(self, decoder: Decoder) -> None:
        self.layers = [layer.float_past() for layer in decoder.layers]
        self.second = 0
        """Where the second text of a pair begins; 0: there is none."""
        self.length = 0
        """Tokens held."""
        self._checkpoint: tuple[int, list[dict[str, np.ndarray]]] = (0, [{} for _ in self.layers])

    def checkpoint(self) -> None:
        """Here `truncate` can go back to whatever layers keep; to other places only where none keeps a fixed shape."""
        self._checkpoint = self.length, [dict(layer.fixed) for layer in self.layers]

    def truncate(self, length: int) -> None:
        """Forget all tokens from ``length`` on; where a state cannot go back so little, to the checkpoint or to none."""
        if length < self.length and any(layer.fixed for layer in self.layers):
            length, fixed = self._checkpoint if self._checkpoint[0] <= length else (0, [{} for _ in self.layers])
            for layer, kept in zip(self.layers, fixed, strict=True):
                layer.fixed = dict(kept)
        self.length = min(self.length, length)
        for layer in self.layers:
            layer.truncate(length)


def layer_forward(
    x: np.ndarray,
    layer: Layer,
    weights: LayerWeights,
    tables: AllTables,
    past: FloatKV | None = None,
    observe: Observe | None = None,
    **how: Any,
) -> np.ndarray:
    """One decoder layer on x [T, hidden] -> [T, hidden].

    The tables cover at least past + T positions; ``how`` are further fields of `FloatRun`.
    """
    run = FloatRun(weights, tables, past, observe, **how)
    buffers = {HIDDEN: x}
    for operation in layer.operations:
        buffers[operation.writes] = operation.forward(buffers, run)
    return buffers[HIDDEN]


class FloatModel:
    """All weights in memory, every linear in float32; agrees with transformers to rounding."""

    def __init__(self, source: WeightSource, config: ModelConfig) -> None:
        self.config = config
        self.decoder = decoder = describe(config)
        check_tensors(source, decoder)
        self.embedding = read_embedding(source, decoder)
        self.layers = [read_layer(source, layer) for layer in decoder.layers]
        self.final_norm = read_final_norm(source, decoder)
        self.output = self.embedding if decoder.tied else read_output(source, decoder)
        self._roundings: Sequence[KVRounding] = [unrounded] * len(decoder.layers)
        self._tables = RopeTables(min(config.context, 4096))

    def with_kv_rounding(self, roundings: Sequence[KVRounding]) -> FloatModel:
        """The same model, whose layers read keys and values back as ``roundings`` say, one each."""
        other = copy(self)
        other._roundings = roundings
        return other

    def open_cache(self) -> FloatCache:
        """An empty cache for one sequence."""
        return FloatCache(self.decoder)

    def forward(
        self, tokens: Sequence[int] | np.ndarray, cache: FloatCache | None = None, *, last_only: bool = False
    ) -> np.ndarray:
        """Logits float32 [T, vocab] of ``tokens`` that follow what ``cache`` holds; ``last_only`` gives [1, vocab].

        Raises `ContextOverflow` past the model's context, `UsageError` for a token id outside the vocabulary.
        """
        states = self.states(tokens, cache if cache is not None else self.open_cache())
        logits: np.ndarray = (states[-1:] if last_only else states) @ self.output.T
        return soft_cap(logits, self.decoder.cap)

    def states(self, tokens: Sequence[int] | np.ndarray, cache: FloatCache) -> np.ndarray:
        """Normed last hidden states float32 [T, hidden] of ``tokens`` that follow what ``cache`` holds; see `forward`."""
        ids = np.asarray(tokens, np.int64)
        if ids.ndim != 1 or ids.size == 0:
            raise UsageError("forward needs at least one token", param="tokens")
        if ids.min() < 0 or ids.max() >= self.config.vocab_size:
            bad = int(ids[(ids < 0) | (ids >= self.config.vocab_size)][0])
            raise UsageError(f"token id `{bad}` is outside the vocabulary of {self.config.vocab_size} tokens", param="tokens")
        end = cache.length + ids.size
        if end > self.config.context:
            raise ContextOverflow(end, self.config.context)
        if end > self._tables.positions:
            self._tables = RopeTables(min(self.config.context, 2 * end))
        x = self.embedding[ids]
        for layer, weights, rounding, past in zip(self.decoder.layers, self.layers, self._roundings, cache.layers, strict=True):
            x = layer_forward(x, layer, weights, self._tables, past, rounding=rounding, second=cache.second)
        cache.length = end
        return self.decoder.norm.applied(x, self.final_norm)
