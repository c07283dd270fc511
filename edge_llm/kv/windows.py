"""Pages of which layers with a window have forgotten their part: no window reaches it, and it takes memory in others only.

Page numbers are the same in all layers.  A page that runs out of every window gives its memory back in the layers that have
one, unless somebody else holds it: what is known of a text stays whole where the text ended.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edge_llm.kv.pages import PAGE_TOKENS, PageAllocator, kv_bytes
from edge_llm.kv.sequence import KVPages, SequencePages
from edge_llm.operations.attention import Attention

SPARE_TOKENS = 256
"""Tokens before a window that are kept as well: a text that differs from another in so many at its end can go on from it."""
_AT_ONCE = 4
"""Pages that are given back together, at least."""
_AROUND = 128
"""Pages on either side that are named again: a page of the system may hold parts of so many."""


def text_bytes(attentions: Sequence[Attention], tokens: int) -> int:
    """Bytes of keys and values of one text of ``tokens`` tokens between two steps, where layers with a window forget."""
    reach = max((one.scores.window for one in attentions), default=0) + SPARE_TOKENS + _AT_ONCE * PAGE_TOKENS
    return sum(kv_bytes([one], min(tokens, reach) if one.scores.window else tokens) for one in attentions)


class Windows:
    """Which of the pages ``kv`` are whole in all layers."""

    def __init__(self, kv: KVPages, pages: PageAllocator) -> None:
        self.window = kv.window
        """Tokens that are read before and with the last; 0: no layer forgets, and nothing is to be done."""
        self._kv = kv
        self._pages = pages
        self._parts = np.zeros(pages.pages if kv.window else 0, bool)  # those that are not whole

    def due(self, sequence: SequencePages) -> range:
        """The places of pages that ``sequence`` will not read again, wherever it is cut behind its next step."""
        last = max(0, sequence.length - self.window + 1 - SPARE_TOKENS) // self._pages.page_tokens if self.window else 0
        return range(sequence.forgotten, last if last - sequence.forgotten >= _AT_ONCE else sequence.forgotten)

    def forget(self, sequence: SequencePages, due: range) -> None:
        """Give back the pages of ``sequence`` at the places that are ``due``."""
        if not due:
            return
        run = sequence.table[due.start : due.stop]
        if alone := [page for page in run.tolist() if self._pages.holders(page) == 1]:
            self._parts[alone] = True
            first = max(0, min(alone) - _AROUND)
            parts = first + np.flatnonzero(self._parts[first : max(alone) + _AROUND])
            each = self._pages.page_tokens // PAGE_TOKENS
            self._kv.give_back((parts[:, None] * each + np.arange(each)).ravel())
        self._set_forgotten(sequence, due.stop)

    def renew(self, pages: np.ndarray) -> None:
        """``pages`` were taken anew, and will be written in all layers."""
        if self.window:
            self._parts[pages] = False

    def adopted(self, sequence: SequencePages) -> None:
        """``sequence`` begins with known pages."""
        if self.window:
            parts = np.flatnonzero(self._parts[sequence.table])
            self._set_forgotten(sequence, int(parts[-1]) + 1 if len(parts) else 0)

    def usable(self, pages: Sequence[int]) -> int:
        """How many of a text's ``pages``, from the first on, a sequence may begin with: the last of them are whole."""
        if not self.window:
            return len(pages)
        size, whole_from = self._pages.page_tokens, 0
        best = 0
        for count, page in enumerate(pages, 1):
            if self._parts[page]:
                whole_from = count
            if whole_from <= max(0, count * size - self.window + 1) // size:
                best = count
        return best

    def is_whole(self, page: int) -> bool:
        """Whether ``page`` is there in all layers."""
        return not (self.window and self._parts[page])

    def better(self, page: int, known: int) -> bool:
        """Whether ``page`` is whole and ``known``, which holds the same tokens, is not."""
        return bool(self.window and self._parts[known] and not self._parts[page])

    def _set_forgotten(self, sequence: SequencePages, pages: int) -> None:
        sequence.forgotten = pages
        sequence.least = pages * self._pages.page_tokens + self.window - 1 if pages else 0
