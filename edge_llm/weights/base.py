"""What the runner may ask of weights, wherever they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from edge_llm.quant.linear import LinearWeights

LayerWeights = Mapping[str, "LinearWeights | np.ndarray"]


class Weights(Protocol):
    """The weights of one model."""

    embedding: LinearWeights
    head: LayerWeights
    """final_norm and output."""

    def layer(self, index: int) -> LayerWeights:
        """Weights of one decoder layer by the names that subgraphs use."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the weights hold."""
        ...
