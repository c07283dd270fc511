"""The arrays of a model that lies on an emulated card as a whole: all in the card's memory, launched in one go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from edge_llm.ascend.devices.card_memory import CardArray, CardMemory
from edge_llm.devices.base import Buffers, Room, Rows
from edge_llm.devices.cores import on_core
from edge_llm.devices.kv_pages import MakeArray, PagedKV
from edge_llm.kv.pages import PAGE_TOKENS
from edge_llm.operations.attention import Attention
from edge_llm.operations.layer import Layer

HEAD_ROWS = 32
"""Rows whose logits are computed at once: a card has no room for the logits of a whole prompt."""


class CardArrays:
    """Arrays in ``memory``.  What is launched runs on ``core``, and pages hold ``page_tokens`` tokens, as the chip likes.

    Subgraphs work with the values of card arrays; the host sees copies alone.
    """

    head_rows = HEAD_ROWS

    def __init__(self, memory: CardMemory, core: int, page_tokens: int) -> None:
        self.launches = 0
        """What was sent to the card so far, each in one go."""
        self._memory = memory
        self._core = core
        self._page_tokens = page_tokens
        self._rows: dict[int, list[CardArray]] = {}

    def buffers(self, rows: int, widths: Mapping[str, int]) -> Buffers:
        with self._memory.all_or_nothing():
            return {name: self._memory.allocate((rows, width), np.float32).values for name, width in widths.items()}

    def pages(self, layers: Sequence[Layer], room: Room) -> PagedKV:
        return CardKV([layer.attention for layer in layers], room.tokens, self._page_tokens, self._memory)

    @contextmanager
    def workspace(self) -> Iterator[MakeArray]:
        made: list[CardArray] = []

        def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
            made.append(self._memory.allocate(shape, dtype))
            return made[-1].values

        try:
            yield empty
        finally:
            for array in made:
                self._memory.free(array)

    def rows(self, slot: int, rows: Rows) -> Rows:
        for array in self._rows.pop(slot, ()):
            self._memory.free(array)
        host = (rows.tokens, rows.sequence, rows.position, rows.slots, self._kernel_pages(rows.page_table))
        with self._memory.all_or_nothing():
            self._rows[slot] = [self._memory.upload(array) for array in host]
        tokens, sequence, position, slots, table = (array.values for array in self._rows[slot])
        return replace(rows, tokens=tokens, sequence=sequence, position=position, slots=slots, page_table=table)

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return self._memory.taken(array)

    @contextmanager
    def launch(self) -> Iterator[None]:
        self.launches += 1
        with on_core(self._core):
            yield

    def _kernel_pages(self, table: np.ndarray) -> np.ndarray:
        """``table`` by the pages of 16 tokens that the kernels know: each of the card's pages is a run of them."""
        each = self._page_tokens // PAGE_TOKENS
        return (table[:, :, None] * each + np.arange(each, dtype=np.int32)).reshape(len(table), -1)


class CardKV(PagedKV):
    """Keys and values in card memory; pages go in and out by counted copies."""

    def __init__(self, attentions: Sequence[Attention], tokens: int, page_tokens: int, memory: CardMemory) -> None:
        super().__init__(attentions, tokens, page_tokens, lambda shape, dtype: memory.allocate(shape, dtype).values)
        self._memory = memory

    def read_pages(self, pages: np.ndarray) -> np.ndarray:
        return self._memory.taken(super().read_pages(pages))

    def write_pages(self, pages: np.ndarray, data: np.ndarray) -> None:
        super().write_pages(pages, self._memory.given(data))
