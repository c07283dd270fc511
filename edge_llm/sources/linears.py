"""The linears of a model with the names that their modules have in a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator

from edge_llm.models.layer import Decoder
from edge_llm.operations.linear import Linear


def linears_of(decoder: Decoder) -> Iterator[tuple[str, Linear]]:
    """Every linear with what its sources' names begin with."""
    for layer in decoder.layers:
        for linear in layer.linears:
            yield layer.prefix, linear
    yield "", decoder.output
