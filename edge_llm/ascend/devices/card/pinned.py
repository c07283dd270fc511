"""Pinned memory of the host that weights lie in on their way to a card, or for good.

torch_npu pins powers of two alone, and a matrix is rarely one: arrays lie behind each other in blocks, across their bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_llm.ascend.npu.runtime import Runtime
from edge_llm.errors import OutOfMemory
from edge_llm.resources import free_memory

if TYPE_CHECKING:
    from torch import Tensor

LEAST_BLOCK = 64 << 10
LARGEST_BLOCK = 4 << 20
"""The card's link takes as long for its bytes as for twenty copies to begin."""
ALIGNMENT = 64
"""Of an array, so that its pieces have whole elements."""
RESERVE = 256 << 20
"""Bytes of main memory that pinning leaves to the system: where that has none, torch_npu ends the process [run]."""


def block_bytes(before: int) -> int:
    """Of the block behind ``before`` bytes of blocks: a power of two that wastes at most a quarter."""
    return int(min(LARGEST_BLOCK, max(LEAST_BLOCK, 1 << (before // 4).bit_length() >> 1)))


def pinned_bytes(nbytes: int) -> int:
    """Bytes of the blocks that arrays of ``nbytes``, each filled up to `ALIGNMENT`, lie in."""
    held = 0
    while held < nbytes and (block := block_bytes(held)) < LARGEST_BLOCK:
        held += block
    return held if held >= nbytes else held - (held - nbytes) // LARGEST_BLOCK * LARGEST_BLOCK


@dataclass(frozen=True)
class Staged:
    """An array in pinned memory."""

    pieces: tuple[Tensor, ...]
    """uint8, one behind the other."""
    shape: tuple[int, ...]
    dtype: Any
    """Of torch."""

    def copy_to(self, runtime: Runtime, card: Tensor) -> None:
        """Copy it to ``card``, which has its shape and type; inside of work."""
        flat, first = card.view(-1), 0
        for piece in self.pieces:
            part = piece.view(self.dtype)
            runtime.copy_in(flat[first : first + len(part)], part)
            first += len(part)


class Pinned:
    """Pinned memory of ``runtime`` that grows with what is put into it."""

    def __init__(self, runtime: Runtime) -> None:
        import torch

        self._runtime = runtime
        self._torch = torch
        self._blocks: list[Tensor] = []
        self._block = self._at = 0  # where the next array begins

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return sum(map(len, self._blocks))

    def restart(self) -> None:
        """From now on arrays lie where those before did; no copy of these is on its way any more."""
        self._block = self._at = 0

    def put(self, array: np.ndarray) -> Staged:
        """A copy of ``array``, valid until `restart`.  Raises `OutOfMemory` where main memory has no room for it."""
        dtype = self._torch.from_numpy(np.empty(0, array.dtype)).dtype
        values = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return Staged(tuple(self._copied(values)), tuple(array.shape), dtype)

    def _copied(self, values: np.ndarray) -> Iterator[Tensor]:
        done = 0
        while done < len(values):
            block = self._current_block()
            count = min(len(values) - done, len(block) - self._at)
            piece = block[self._at : self._at + count]
            piece.numpy()[...] = values[done : done + count]
            done += count
            self._at += -(-count // ALIGNMENT) * ALIGNMENT
            yield piece

    def _current_block(self) -> Tensor:
        if self._blocks and self._at >= len(self._blocks[self._block]):
            self._block, self._at = self._block + 1, 0
        if self._block == len(self._blocks):
            self._blocks.append(self._new_block())
        return self._blocks[self._block]

    def _new_block(self) -> Tensor:
        wanted, free = block_bytes(self.nbytes), free_memory()
        if wanted + RESERVE > free:
            raise OutOfMemory(
                f"layers on their way to the card need {wanted >> 10} KiB of main memory, of which {free >> 20} MiB are free "
                f"and {RESERVE >> 20} MiB stay so; a smaller --memory leaves more layers on flash"
            )
        return self._runtime.pinned((wanted,), self._torch.uint8)
