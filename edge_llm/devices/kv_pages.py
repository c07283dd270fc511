"""Where the state of sequences lies: paged INT8 keys and values of every layer in host memory or in a card's, and slots."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edge_llm.devices.returned import ReturnedArray, runs_of
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes, pages_for
from edge_llm.operations.attention import Attention
from edge_llm.operations.keeps import Fixed

MakeArray = Callable[[tuple[int, ...], Any], np.ndarray]
"""(shape, type) -> a new array."""


@dataclass(frozen=True)
class LayerPages:
    """What one layer keeps.  k, v: int8 [pages, kv_heads, 16, head_dim]; scales: float16 [pages, kv_heads, 16].

    Without an attention there are no such pages.
    """

    k: np.ndarray
    k_scale: np.ndarray
    v: np.ndarray
    v_scale: np.ndarray
    fixed: Mapping[str, np.ndarray] = field(default_factory=dict)
    """States of a fixed shape by name: float32 [slots, *shape]; slot 0 is zeros for good."""

    @property
    def nbytes(self) -> int:
        """Bytes of the pages."""
        return self.k.nbytes + self.k_scale.nbytes + self.v.nbytes + self.v_scale.nbytes


class PagedKV:
    """The keys and values of all layers for at least ``tokens`` tokens, in arrays of zeros that ``zeros`` makes.

    A page of the device holds ``page_tokens`` tokens, a multiple of the 16 of a host page: it is a run of host pages, so what
    goes out and comes in as host pages is the same for all devices.  On the host a page takes memory when it is first written.

    attentions: one for each layer, None where it has none.  fixed: what each layer keeps in a fixed shape, in ``slots``.
    """

    def __init__(
        self,
        attentions: Sequence[Attention | None],
        tokens: int,
        page_tokens: int = PAGE_TOKENS,
        zeros: MakeArray = np.zeros,
        fixed: Sequence[Sequence[Fixed]] = (),
        slots: int = 0,
    ) -> None:
        self.page_tokens = page_tokens
        self.count = pages_for(tokens, page_tokens)
        self.page_bytes = page_bytes([one for one in attentions if one is not None])
        """Of a host page."""
        windows = [one.scores.window for one in attentions if one is not None]
        self.window = max(windows, default=0) if zeros is np.zeros else 0
        """What is read of the layers with a window reaches back so far: `give_back` is of use; 0: it is not."""
        self._returned: list[ReturnedArray] = []
        self.slots = slots
        self.slot_bytes = sum(one.nbytes for layer in fixed for one in layer)
        host_pages = self.count * page_tokens // PAGE_TOKENS
        if host_pages * self.page_bytes > sys.maxsize:
            raise MemoryError(f"no address space holds keys and values of {tokens} tokens")
        fixed = fixed or [()] * len(attentions)
        self.layers = tuple(
            _layer_pages(
                one, host_pages, {each.name: zeros((slots, *each.shape), np.float32) for each in kept}, self._maker(one, zeros)
            )
            for one, kept in zip(attentions, fixed, strict=True)
        )
        self._parts = tuple(_parts(self.layers))

    def _maker(self, attention: Attention | None, zeros: MakeArray) -> MakeArray:
        """What makes the arrays of a layer: of one with a window in the host's memory, what can give memory back."""
        if attention is None or not attention.scores.window or zeros is not np.zeros:
            return zeros

        def make(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
            self._returned.append(ReturnedArray(shape, dtype))
            return self._returned[-1].values

        return make

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

    def give_back(self, pages: np.ndarray) -> None:
        """Give the memory of the host pages ``pages``, ascending, back in the layers with a window: it reads as zeros."""
        runs = runs_of(pages)
        for array in self._returned:
            array.give_back(runs)

    def touch(self, pages: int) -> None:
        """Make the first ``pages`` host pages, which must be free, take their memory now."""
        for part, _ in self._parts:
            part[:pages] = 0


def _layer_pages(
    attention: Attention | None, count: int, fixed: Mapping[str, np.ndarray], zeros: MakeArray
) -> LayerPages:
    values = (0, 0, 0, 0) if attention is None else (count, attention.kv_heads, PAGE_TOKENS, attention.head_dim)
    return LayerPages(
        k=zeros(values, np.int8),
        k_scale=zeros(values[:3], np.float16),
        v=zeros(values, np.int8),
        v_scale=zeros(values[:3], np.float16),
        fixed=fixed,
    )


def _parts(layers: Sequence[LayerPages]) -> Iterator[tuple[np.ndarray, slice]]:
    """Every array as bytes, uint8 [pages, n], and the place of these n bytes among a page's bytes of all layers."""
    end = 0
    for layer in (one for one in layers if len(one.k)):
        for array in (layer.k, layer.k_scale, layer.v, layer.v_scale):
            part = array.reshape(len(array), -1).view(np.uint8)
            start, end = end, end + part.shape[1]
            yield part, slice(start, end)
