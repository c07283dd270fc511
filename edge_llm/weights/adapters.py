"""Adapters beside a model's weights: what each row of a step adds to the products of linears, by the number of its adapter.

    y = W x + up (down x)        down [rank, K] and up [N, rank] are a row's own, in float16; the strength is in them

A model's rows, some with one adapter, some with another and some with none, go through each linear together (S-LoRA: Sheng et
al., 2023, arXiv 2311.03285; Punica: Chen et al., 2023, arXiv 2310.18547).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from edge_llm.kernels import LowRank
from edge_llm.operations.layer import Layer


class UpPart(NamedTuple):
    """What some ranks give to some output channels."""

    first_rank: int
    first_channel: int
    up: np.ndarray
    """float16 [ranks, channels]."""


class LinearAdapter(NamedTuple):
    """What one adapter does to one linear of K input channels."""

    down: np.ndarray
    """float16 [K, all ranks]."""
    parts: list[UpPart]

    @property
    def nbytes(self) -> int:
        return self.down.nbytes + sum(part.up.nbytes for part in self.parts)


LayerAdapter = Mapping[str, LinearAdapter]
"""By the names of a layer's linears; those that are not named stay as they are."""


@dataclass(frozen=True)
class Adapters:
    """Adapters of one model, numbered from 1."""

    layers: Sequence[Mapping[str, LowRank]]
    """Of every layer the linears that any of them changes, as the kernels take them."""
    digests: Sequence[bytes]
    """Of each adapter: all that keys and values depend on beside the model."""


def together(layers: Sequence[Layer], adapters: Sequence[Sequence[LayerAdapter]], digests: Sequence[bytes]) -> Adapters:
    """``adapters``, each with an entry for all of ``layers``, as one."""
    return Adapters([_of_layer(layer, [one[at] for one in adapters]) for at, layer in enumerate(layers)], digests)


def _of_layer(layer: Layer, adapters: Sequence[LayerAdapter]) -> dict[str, LowRank]:
    changed = [linear for linear in layer.linears if any(linear.name in one for one in adapters)]
    return {one.name: LowRank(one.columns, one.rows, [each.get(one.name) for each in adapters]) for one in changed}


@dataclass(frozen=True)
class Scratch:
    """Memory that programs of one model share, because they run one after the other."""

    _arrays: dict[tuple[str, int, int], np.ndarray] = field(default_factory=dict)

    def array(self, use: str, rows: int, width: int) -> np.ndarray:
        """float32 [rows, width] that holds anything, the same for equal sizes and uses."""
        if (use, rows, width) not in self._arrays:
            self._arrays[use, rows, width] = np.zeros((rows, width), np.float32)
        return self._arrays[use, rows, width]
