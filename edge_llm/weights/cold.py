"""Weights that lie on a card alone: the host reads single input channels of them from flash, when an activation overflows.

An overflow wants the weights of a few input channels (llm.npu, arXiv 2407.05858, §3.3: these rows are fetched on demand).
What was wanted once is kept in a small cache, least recently used out first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edge_llm.formats.bundle import Bundle
from edge_llm.kernels.types import TILE_CHANNELS, TILE_DEPTH, Residual
from edge_llm.schemes.int8_weight import Int8Weight, by_blocks, expand_blocks, is_codes


class ColdChannels:
    """Input channels of the matrices of ``bundle``, at most ``nbytes`` bytes of them in memory.  One caller at a time."""

    def __init__(self, bundle: Bundle, nbytes: int) -> None:
        self._bundle = bundle
        self._room = nbytes
        self._cache: OrderedDict[tuple[str, int], np.ndarray] = OrderedDict()
        self.held = 0
        """Bytes in memory."""
        self.read = 0
        """Matrices that were read so far, each because of channels that were not in memory."""

    def tiles(self, name: str, blocks: np.ndarray) -> np.ndarray:
        """The tiles int8 [P, B, 16, 4] of ``blocks`` (integers [B], ascending) of four input channels of tensor ``name``.

        The tensor has tiles, or the codes that they are expanded from.

        Raises `StorageError` or `CorruptBundle`.
        """
        panels = self._bundle.tensors[name].shape[0]
        found = np.empty((panels, len(blocks), TILE_CHANNELS, TILE_DEPTH), np.int8)
        missing = [place for place, block in enumerate(blocks.tolist()) if not self._look_up(name, block, found[:, place])]
        if missing:
            self._fetch(name, blocks, missing, found)
        return found

    def _look_up(self, name: str, block: int, out: np.ndarray) -> bool:
        cached = self._cache.get((name, block))
        if cached is None:
            return False
        self._cache.move_to_end((name, block))
        out[...] = cached
        return True

    def _fetch(self, name: str, blocks: np.ndarray, places: Sequence[int], found: np.ndarray) -> None:
        """Fill the ``places`` of ``found`` from flash.  All of the tensor is read, because its checksum is of all."""
        self.read += 1
        wanted = blocks[places]
        for first, panels in self._bundle.read_panels(name):
            found[first : first + len(panels), places] = self._picked(name, panels, wanted)
        for place, block in zip(places, wanted.tolist(), strict=True):
            self._insert((name, block), found[:, place].copy())

    def _picked(self, name: str, panels: np.ndarray, blocks: np.ndarray) -> np.ndarray:
        """The ``blocks`` of some panels of tensor ``name``."""
        if not is_codes(panels):
            return np.asarray(panels[:, blocks])
        return expand_blocks(panels, self._bundle.columns(name.rpartition(".")[0]), blocks)

    def _insert(self, key: tuple[str, int], tiles: np.ndarray) -> None:
        self._cache[key] = tiles
        self.held += tiles.nbytes
        while self.held > self._room:
            _, oldest = self._cache.popitem(last=False)
            self.held -= oldest.nbytes


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
