"""Where keys and values lie: paged INT8 arrays of every layer, in host memory or in a card's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_llm.kv.pages import PAGE_TOKENS, page_bytes, pages_for
from edge_llm.operations.attention import Attention

MakeArray = Callable[[tuple[int, ...], Any], np.ndarray]
"""(shape, type) -> a new array."""


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


class PagedKV:
    """The keys and values of all layers for at least ``tokens`` tokens, in arrays of zeros that ``zeros`` makes.

    A page of the device holds ``page_tokens`` tokens, a multiple of the 16 of a host page: it is a run of host pages, so what
    goes out and comes in as host pages is the same for all devices.  On the host a page takes memory when it is first written.
    """

    def __init__(
        self, attentions: Sequence[Attention], tokens: int, page_tokens: int = PAGE_TOKENS, zeros: MakeArray = np.zeros
    ) -> None:
        self.page_tokens = page_tokens
        self.count = pages_for(tokens, page_tokens)
        self.page_bytes = page_bytes(attentions)
        """Of a host page."""
        host_pages = self.count * page_tokens // PAGE_TOKENS
        if host_pages * self.page_bytes > sys.maxsize:
            raise MemoryError(f"no address space holds keys and values of {tokens} tokens")
        self.layers = tuple(_layer_pages(one, host_pages, zeros) for one in attentions)
        self._parts = tuple(_parts(self.layers))

    @property
    def nbytes(self) -> int:
        return sum(layer.nbytes for layer in self.layers)

    def read_pages(self, pages: np.ndarray) -> np.ndarray:
        """A copy of the host pages ``pages`` (integers [n]) over all layers: uint8 [n, page_bytes]."""
        data = np.empty((len(pages), self.page_bytes), np.uint8)
        for part, columns in self._parts:
            data[:, columns] = part[pages]
        return data

    def write_pages(self, pages: np.ndarray, data: np.ndarray) -> None:
        """Write ``data``, which `read_pages` returned, into the host pages ``pages``."""
        for part, columns in self._parts:
            part[pages] = data[:, columns]

    def touch(self, pages: int) -> None:
        """Make the first ``pages`` host pages, which must be free, take their memory now."""
        for part, _ in self._parts:
            part[:pages] = 0


def _layer_pages(attention: Attention, count: int, zeros: MakeArray) -> LayerPages:
    values = (count, attention.kv_heads, PAGE_TOKENS, attention.head_dim)
    return LayerPages(
        k=zeros(values, np.int8),
        k_scale=zeros(values[:3], np.float16),
        v=zeros(values, np.int8),
        v_scale=zeros(values[:3], np.float16),
    )


def _parts(layers: Sequence[LayerPages]) -> Iterator[tuple[np.ndarray, slice]]:
    """Every array as bytes, uint8 [pages, n], and the place of these n bytes among a page's bytes of all layers."""
    end = 0
    for layer in layers:
        for array in (layer.k, layer.k_scale, layer.v, layer.v_scale):
            part = array.reshape(len(array), -1).view(np.uint8)
            start, end = end, end + part.shape[1]
            yield part, slice(start, end)
