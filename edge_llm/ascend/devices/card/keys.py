"""Keys and values in a card's memory, in blocks of 128 tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_llm.ascend.devices.card.key_forms import KeyForm, LayerKeys, put_rows
from edge_llm.ascend.npu.calls import Calls
from edge_llm.ascend.npu.runtime import Runtime, run
from edge_llm.kv.pages import PAGE_TOKENS, pages_for
from edge_llm.operations.attention import Attention

if TYPE_CHECKING:
    from torch import Tensor


class CardKeys:
    """The keys and values of all layers for at least ``tokens`` tokens.

    One block more than sequences may have takes what rows write that only fill up a static length.  What goes out as host pages
    is what lies here, in ``form``, so it comes back without an error.
    """

    def __init__(
        self, attentions: Sequence[Attention], tokens: int, form: KeyForm, runtime: Runtime, calls: Calls
    ) -> None:
        import torch

        law = calls.law
        self.slots = self.slot_bytes = self.window = 0  # no card has a layer that keeps a fixed shape, or forgets
        self.page_tokens = law.page_tokens
        self.count = pages_for(tokens, law.page_tokens)
        self.page_bytes = sum(2 * PAGE_TOKENS * one.kv_size * form.dtype.itemsize for one in attentions)
        self.spare_slot = self.count * law.page_tokens
        """Where rows write that only fill up."""
        self._torch = torch
        self._form = form
        self._runtime = runtime
        self._calls = calls
        self.layers = run(runtime, lambda: [self._new_layer(*each) for each in enumerate(attentions)])

    @property
    def nbytes(self) -> int:
        return sum(int(cache.nbytes) for cache in self._caches())

    def give_back(self, pages: np.ndarray) -> None:
        """Nothing to do: a card keeps whole pages."""

    def read_pages(self, pages: np.ndarray) -> np.ndarray:
        blocks, places = self._places(pages)
        read = [self._blocks(cache, blocks)[places] for cache in self._caches()]
        return np.concatenate([part.reshape(len(pages), -1).view(np.uint8) for part in read], axis=1)

    def write_pages(self, pages: np.ndarray, data: np.ndarray) -> None:
        blocks, places = self._places(pages)
        end = 0
        for cache in self._caches():
            held = self._blocks(cache, blocks)
            start, end = end, end + held[0, 0].nbytes
            held[places] = np.ascontiguousarray(data[:, start:end]).view(held.dtype).reshape(-1, *held.shape[2:])
            self._write(cache, blocks, held)

    def largest(self) -> list[np.ndarray]:
        """The largest key and value of every channel: float32 [2, KV * D] of each layer."""
        caches = [self._by_channels(self._blocks(cache, np.arange(self.count))) for cache in self._caches()]
        return [np.stack(pair) for pair in zip(caches[::2], caches[1::2], strict=True)]

    def _by_channels(self, pages: np.ndarray) -> np.ndarray:
        tokens = (0, 1, 3) if self._form.in_fractals else (0, 1, 2)
        return np.abs(pages.astype(np.float32)).max(axis=tokens).reshape(-1)

    def touch(self, pages: int) -> None:
        """A card's memory is taken when it is allocated."""

    def _new_layer(self, index: int, attention: Attention) -> LayerKeys:
        keys, values = (self._form.cache(attention, self.count + 1) for _ in range(2))
        return LayerKeys(index, keys, values)

    def _caches(self) -> list[Tensor]:
        return [cache for layer in self.layers for cache in (layer.keys, layer.values)]

    def _places(self, pages: np.ndarray) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """The blocks that have host pages ``pages``, and for each page (which of these blocks, which page in there)."""
        each = self.page_tokens // PAGE_TOKENS
        blocks, which = np.unique(np.asarray(pages) // each, return_inverse=True)
        return blocks, (which.reshape(-1), np.asarray(pages) % each)

    def _blocks(self, cache: Tensor, blocks: np.ndarray) -> np.ndarray:
        """``blocks`` of a cache by their host pages: [blocks, pages, ...]."""
        chosen = self._torch.from_numpy(blocks.astype(np.int32))
        host = self._runtime.pinned((len(blocks), *cache.shape[1:]), self._form.dtype)

        def work() -> None:
            rows = self._calls.to_nd(cache) if self._form.in_fractals else cache
            self._runtime.copy_out(host, rows.index_select(0, chosen.to(self._runtime.device)))

        run(self._runtime, work)
        return self._by_pages(host.numpy())

    def _write(self, cache: Tensor, blocks: np.ndarray, held: np.ndarray) -> None:
        """Put ``blocks``, which `_blocks` gave, back."""
        by_index = self._calls.copies_by_index
        numbers = self._torch.from_numpy(blocks.astype(np.int64))
        host = self._runtime.pinned((len(blocks), *cache.shape[1:]), self._form.dtype)
        host.numpy()[...] = self._by_blocks(held, host.numpy().shape)

        def work() -> None:
            fractals = self._form.in_fractals
            rows = self._calls.to_nd(cache) if fractals else cache
            card = self._torch.empty_like(host, device=self._runtime.device)
            self._runtime.copy_in(card, host)
            put_rows(rows, numbers.to(self._runtime.device) if by_index else blocks, card)
            if fractals:
                cache.copy_(self._calls.to_nz(rows))

        run(self._runtime, work)

    def _by_pages(self, blocks: np.ndarray) -> np.ndarray:
        if not self._form.in_fractals:
            return blocks.reshape(len(blocks), -1, PAGE_TOKENS, *blocks.shape[2:])
        groups, tokens, fractal = blocks.shape[1:]
        split = blocks.reshape(len(blocks), groups, tokens // PAGE_TOKENS, PAGE_TOKENS, fractal)
        return np.ascontiguousarray(split.transpose(0, 2, 1, 3, 4))

    def _by_blocks(self, pages: np.ndarray, shape: Any) -> np.ndarray:
        if not self._form.in_fractals:
            return pages.reshape(shape)
        return pages.transpose(0, 2, 1, 3, 4).reshape(shape)
