"""What stands behind the pooling of an embedding model or a reranker, in float32: the same bits on every processor."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from edge_llm.models.reading import TANH, Dense, Reading
from edge_llm.operations.arithmetic import ACTIVATIONS, SAME_BITS, layer_norm, tanh


class Head:
    """The steps of a reading, and their ``tensors`` by name."""

    def __init__(self, reading: Reading, tensors: Mapping[str, np.ndarray]) -> None:
        self._steps = reading.head
        self._tensors = tensors

    def __call__(self, pooled: np.ndarray) -> np.ndarray:
        """What becomes of ``pooled`` float32 [hidden]: float32 [size]."""
        for step in self._steps:
            pooled = self._through(step, pooled)
        return pooled

    def _through(self, step: Dense, x: np.ndarray) -> np.ndarray:
        y = SAME_BITS.product(x[None], self._tensors[step.weight.name])[0]
        y = y if step.bias is None else y + self._tensors[step.bias.name]
        if step.activation == TANH:
            y = tanh(y, SAME_BITS)
        elif step.activation:
            y = ACTIVATIONS[step.activation][0](y, SAME_BITS)
        if step.norm is None:
            return np.asarray(y, np.float32)
        bias = None if step.norm_bias is None else self._tensors[step.norm_bias.name]
        return np.asarray(layer_norm(y, self._tensors[step.norm.name], bias, step.eps), np.float32)
