"""The INT8 keys and values of every layer, in pages, and the page list of one sequence.

A value costs 8 bits plus its share of one float16 scale per (token, kv head): 8.25 bits at head size 64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edge_llm.kv.pages import PAGE_TOKENS, PageAllocator, pages_for
from edge_llm.models.layer import Attention


@dataclass(frozen=True)
class LayerPages:
    """One layer's pages.  k, v: int8 [pages, kv_heads, 16, head_dim]; scales: float16 [pages, kv_heads, 16]."""

    k: np.ndarray
    k_scale: np.ndarray
    v: np.ndarray
    v_scale: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.k.nbytes + self.k_scale.nbytes + self.v.nbytes + self.v_scale.nbytes


def page_bytes(attentions: Sequence[Attention]) -> int:
    """Bytes of one page over all layers, keys and values."""
    # per token and head: int8 values and one float16 scale
    return sum(2 * PAGE_TOKENS * one.kv_heads * (one.head_dim + 2) for one in attentions)


class KVStore:
    """All pages of a model with these ``attentions``.  A page takes memory from when it is first written."""

    def __init__(self, attentions: Sequence[Attention], tokens: int) -> None:
        self.pages = PageAllocator(pages_for(tokens))
        self.page_bytes = page_bytes(attentions)
        self.layers = tuple(_layer_pages(one, self.pages.pages) for one in attentions)
        self._parts = tuple(_parts(self.layers))

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def open(self) -> SequencePages:
        """An empty sequence."""
        return SequencePages(self.pages)

    def read_pages(self, pages: np.ndarray) -> np.ndarray:
        """A copy of ``pages`` (integers [n]) over all layers: uint8 [n, page_bytes]."""
        data = np.empty((len(pages), self.page_bytes), np.uint8)
        for part, columns in self._parts:
            data[:, columns] = part[pages]
        return data

    def write_pages(self, pages: np.ndarray, data: np.ndarray) -> None:
        """Write ``data``, which `read_pages` returned, into ``pages``."""
        for part, columns in self._parts:
            part[pages] = data[:, columns]

    def touch(self, pages: int) -> None:
        """Make the first ``pages`` pages, which must be free, take their memory now."""
        for part, _ in self._parts:
            part[:pages] = 0


def _layer_pages(attention: Attention, count: int) -> LayerPages:
    values = (count, attention.kv_heads, PAGE_TOKENS, attention.head_dim)
    return LayerPages(
        k=np.zeros(values, np.int8),
        k_scale=np.zeros(values[:3], np.float16),
        v=np.zeros(values, np.int8),
        v_scale=np.zeros(values[:3], np.float16),
    )


def _parts(layers: Sequence[LayerPages]) -> Iterator[tuple[np.ndarray, slice]]:
    """Every array as bytes, uint8 [pages, n], and the place of these n bytes among a page's bytes of all layers."""
    end = 0
    for layer in layers:
        for array in (layer.k, layer.k_scale, layer.v, layer.v_scale):
            part = array.reshape(len(array), -1).view(np.uint8)
            start, end = end, end + part.shape[1]
            yield part, slice(start, end)


class SequencePages:
    """The pages of one sequence, in token order, and how many tokens they hold.

    Tokens [0, length) are written and valid; [length, capacity) is room that this sequence owns but has not written.
    """

    def __init__(self, allocator: PageAllocator) -> None:
        self._allocator = allocator
        self.table = np.empty(0, np.int32)
        self.length = 0

    @property
    def capacity(self) -> int:
        return len(self.table) * PAGE_TOKENS

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` tokens in all; raises `OutOfMemory` and changes nothing if there is no room."""
        missing = pages_for(tokens) - len(self.table)
        if missing > 0:
            taken = self._allocator.allocate(missing)
            self.table = np.concatenate([self.table, np.array(taken, np.int32)])

    def adopt(self, pages: Sequence[int]) -> None:
        """Begin this empty sequence with full ``pages``, which it holds already."""
        assert len(self.table) == 0
        self.table = np.array(pages, np.int32)
        self.length = len(pages) * PAGE_TOKENS

    def truncate(self, length: int) -> None:
        """Drop the tokens from ``length`` on, and release the pages that held only these."""
        assert 0 <= length <= self.length
        keep = pages_for(length)
        self._allocator.release(self.table[keep:].tolist())
        self.table = self.table[:keep]
        self.length = length

    def close(self) -> None:
        """Release every page; the sequence is empty afterwards."""
        self.length = 0
        self.truncate(0)
