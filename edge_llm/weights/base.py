"""What the runner may ask of weights, wherever they lie."""

from __future__ import annotations

from typing import Protocol

from edge_llm.quant.linear import BlockWeights, LinearWeights


class Weights(Protocol):
    """The weights of one model."""

    embedding: LinearWeights
    head: BlockWeights
    """The final norm and the output linear."""

    def layer(self, index: int) -> BlockWeights:
        """Weights of decoder layer ``index``."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the weights hold."""
        ...
