"""Weights that lie on a card alone: the host reads single input channels of them from flash, when an activation overflows.

An overflow wants the weights of a few input channels (llm.npu, arXiv 2407.05858, §3.3: these rows are fetched on demand).
What was wanted once is kept in a small store, least recently used out first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from edge_llm.formats.bundle import Bundle
from edge_llm.kernels.types import TILE_CHANNELS, TILE_DEPTH, Residual
from edge_llm.schemes.int8_weight import Int8Weight, by_blocks, expand_blocks, is_codes
from edge_llm.weights.pools import Budget
from edge_llm.weights.store import BlockStore


class ColdBlock(NamedTuple):
    """Four input channels of a matrix."""

    tensor: str
    number: int


class ColdChannels:
    """Input channels of the matrices of ``bundle``, at most ``nbytes`` bytes of ``budget`` in memory.  One caller at a time."""

    def __init__(self, bundle: Bundle, budget: Budget, nbytes: int) -> None:
        self._bundle = bundle
        self._pool = budget.byte_pool("cold channels", nbytes, partial(_size, bundle))
        self._store: BlockStore[ColdBlock, np.ndarray] = BlockStore(self._pool)
        self.read = 0
        """Matrices that were read so far, each because of channels that were not in memory."""

    def tiles(self, name: str, blocks: np.ndarray) -> np.ndarray:
        """The tiles int8 [P, B, 16, 4] of ``blocks`` (integers [B], ascending) of four input channels of tensor ``name``.

        The tensor has tiles, or the codes that they are expanded from.

        Raises `StorageError` or `CorruptBundle`.
        """
        panels = self._bundle.tensors[name].shape[0]
        found = np.empty((panels, len(blocks), TILE_CHANNELS, TILE_DEPTH), np.int8)
        keys = [ColdBlock(name, block) for block in blocks.tolist()]
        for place, key in enumerate(keys):
            if key in self._store:
                self._store.request(key)  # it stays before others
                found[:, place] = self._store.use(key)
        missing = [place for place, key in enumerate(keys) if key not in self._store]
        if missing:
            self._fetch(keys, missing, found)
        return found

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return self._pool.held

    def _fetch(self, keys: Sequence[ColdBlock], places: Sequence[int], found: np.ndarray) -> None:
        """Fill the ``places`` of ``found`` from flash.  All of the tensor is read, because its checksum is of all."""
        self.read += 1
        name, wanted = keys[0].tensor, np.array([keys[place].number for place in places], np.int64)
        for first, panels in self._bundle.read_panels(name):
            found[first : first + len(panels), places] = self._picked(name, panels, wanted)
        for place in places:
            if self._store.make_place(keys[place]):
                self._store.keep(keys[place], found[:, place].copy())

    def _picked(self, name: str, panels: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """The ``blocks`` of some panels of tensor ``name``."""
        if not is_codes(panels):
            return np.asarray(panels[:, blocks])
        return expand_blocks(panels, self._bundle.columns(name.rpartition(".")[0]), blocks)


def _size(bundle: Bundle, key: ColdBlock) -> int:
    return bundle.tensors[key.tensor].shape[0] * TILE_CHANNELS * TILE_DEPTH


@dataclass(frozen=True)
class ColdWeight(Int8Weight):
    """An INT8 weight without its tiles, int8 [P, 0, 16, 4]: what an overflow needs of them comes from ``channels``."""

    names: tuple[str, ...] = ()
    """The bundle's tensors of tiles or codes, in the order of their rows."""
    channels: ColdChannels | None = None

    def overflow(self, residual: Residual) -> tuple[np.ndarray, Residual]:
        assert self.channels is not None
        blocks, found = by_blocks(residual)
        return np.concatenate([self.channels.tiles(name, blocks) for name in self.names]), found
