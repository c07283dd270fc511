"""The page list of one sequence, and what is asked of whoever holds the pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from edge_llm.kv.pages import PAGE_TOKENS, PageAllocator
from edge_llm.kv.states import SequenceStates
from edge_llm.operations.keeps import Span


class KVPages(Protocol):
    """The keys and values of a model on some device.

    A page of the device is a run of host pages of 16 tokens; only these go in and out.
    """

    page_tokens: int
    """Tokens of a page of the device."""
    count: int
    """Number of pages of the device."""
    page_bytes: int
    """Bytes of a host page over all layers."""
    slots: int
    """States of a fixed shape; 0: no layer keeps one."""
    slot_bytes: int
    """Bytes of a state over all layers."""

    window: int
    """Tokens before the last that layers with a window read, at most; 0: none of the layers forgets."""

    def give_back(self, pages: np.ndarray) -> None:
        """Give the memory of the host pages ``pages`` (integers [n], ascending) back in layers with a window."""
        ...

    def read_pages(self, pages: np.ndarray) -> np.ndarray:
        """A copy of the host pages ``pages`` (integers [n]): uint8 [n, page_bytes]."""
        ...

    def write_pages(self, pages: np.ndarray, data: np.ndarray) -> None:
        """Write ``data``, which `read_pages` returned, into the host pages ``pages``."""
        ...

    def touch(self, pages: int) -> None:
        """Make the first ``pages`` host pages, which must be free, take their memory now."""
        ...


class SequencePages:
    """The pages of one sequence, in token order, and how many tokens they hold.

    Tokens [0, length) are written and valid; [length, capacity) is room that this sequence owns but has not written.
    """

    def __init__(self, allocator: PageAllocator, states: SequenceStates | None = None, adapter: int = 0) -> None:
        self._allocator = allocator
        self.states = states
        """What is kept of it in a fixed shape, if anything is."""
        self.adapter = adapter
        """The number of the adapter that its keys and values depend on; 0: none."""
        self.page_tokens = allocator.page_tokens
        """Tokens of a page."""
        self.table = np.empty(0, np.int32)
        self.length = 0
        self.forgotten = 0
        """Pages from the first on of which layers with a window may have nothing any more."""
        self.text: Sequence[int] = ()
        """What it was opened for: it holds the first of these tokens, and guesses for the next behind them at most."""
        self.least = 0
        """The shortest length above 0 that it can be cut to, by `forgotten`."""

    @property
    def capacity(self) -> int:
        return len(self.table) * self.page_tokens

    def host_pages(self, wanted: np.ndarray) -> np.ndarray:
        """The host pages, int64 [n], that hold the tokens from 16 * i on for every i of ``wanted`` (integers [n])."""
        each = self.page_tokens // PAGE_TOKENS
        return self.table[wanted // each].astype(np.int64) * each + wanted % each

    def spans(self, count: int, wanted: int) -> list[Span]:
        """Where the states lie for a step of ``count`` tokens whose last ``wanted`` are asked for; empty without states."""
        return [] if self.states is None else self.states.begin(count, wanted)

    def advance(self, count: int) -> None:
        """``count`` more tokens are written and valid."""
        self.length += count
        if self.states is not None:
            self.states.advance()

    def reserve(self, tokens: int) -> None:
        """Make room for ``tokens`` tokens in all; raises `OutOfMemory` and changes nothing if there is no room."""
        missing = self._allocator.pages_for(tokens) - len(self.table)
        if missing > 0:
            taken = self._allocator.allocate(missing)
            self.table = np.concatenate([self.table, np.array(taken, np.int32)])

    def adopt(self, pages: Sequence[int]) -> None:
        """Begin this empty sequence with full ``pages``, which it holds already."""
        assert len(self.table) == 0
        self.table = np.array(pages, np.int32)
        self.length = len(pages) * self.page_tokens

    def truncate(self, length: int) -> None:
        """Drop the tokens from ``length`` on, and release the pages that held only these.

        Where a state cannot go back so little, more tokens are dropped: up to its last checkpoint, or all; so are they
        where layers with a window have nothing any more of what comes before ``length``.
        """
        assert 0 <= length <= self.length
        if self.states is not None:
            length = self.states.back(length)
        if length < self.least:
            self.forgotten = self.least = 0
            length = 0 if self.states is None else self.states.back(0)
        keep = self._allocator.pages_for(length)
        self._allocator.release(self.table[keep:].tolist())
        self.table = self.table[:keep]
        self.length = length

    def close(self) -> None:
        """Release every page and state; the sequence is empty afterwards."""
        if self.states is not None:
            self.states.close()
        self.length = 0
        self.truncate(0)
