"""Pages of tokens: which are free, and how many sequences share each of the others."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from edge_llm.errors import OutOfMemory

if TYPE_CHECKING:
    from edge_llm.operations.attention import Attention

PAGE_TOKENS = 16
"""Tokens per page on the host (design: the paged INT8 KV cache), and of the pages that are kept on disk."""


def pages_for(tokens: int, page_tokens: int = PAGE_TOKENS) -> int:
    """Number of pages that hold ``tokens`` tokens."""
    return -(-tokens // page_tokens)


def page_bytes(attentions: Sequence[Attention]) -> int:
    """Bytes of one host page over all layers, keys and values: 8.25 bits a value at head size 64."""
    # per token and head: int8 values and one float16 scale
    return sum(2 * PAGE_TOKENS * one.kv_heads * (one.head_dim + 2) for one in attentions)


def kv_bytes(attentions: Sequence[Attention], tokens: int, page_tokens: int = PAGE_TOKENS) -> int:
    """Bytes of the keys and values of ``tokens`` tokens in INT8, in pages of ``page_tokens``."""
    return pages_for(tokens, page_tokens) * page_tokens // PAGE_TOKENS * page_bytes(attentions)


class PageAllocator:
    """Hands out page numbers 0..pages-1, of pages of ``page_tokens`` tokens.

    A page is free (count 0) or held (count >= 1).  Sharing raises the count, releasing lowers it, and a page is free again
    at zero.  The lowest free pages are handed out first, so a run repeats exactly.
    """

    def __init__(self, pages: int, page_tokens: int = PAGE_TOKENS) -> None:
        self.pages = pages
        self.page_tokens = page_tokens
        self._fresh = 0  # the lowest page that was never held; all above it are free, too
        self._returned: list[int] = []  # a heap of the free pages below it
        self._holders = array("l", bytes(8 * pages))  # copied in one go by those who watch

    @property
    def free(self) -> int:
        """Number of free pages."""
        return self.pages - self._fresh + len(self._returned)

    def pages_for(self, tokens: int) -> int:
        """Number of pages that hold ``tokens`` tokens."""
        return pages_for(tokens, self.page_tokens)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free pages, or raise `OutOfMemory` and take none."""
        if count > self.free:
            raise OutOfMemory(
                f"the KV cache has {self.free} free pages of {self.page_tokens} tokens, `{count}` are needed; "
                "use a shorter prompt or a smaller --ctx"
            )
        taken = []
        for _ in range(count):
            page = heappop(self._returned) if self._returned else self._fresh
            self._fresh = max(self._fresh, page + 1)
            self._holders[page] = 1
            taken.append(page)
        return taken

    def holders(self, page: int) -> int:
        """The number of holders of ``page``; 0 when it is free."""
        return self._holders[page]

    def all_holders(self) -> array[int]:
        """The number of holders of every page at one moment; any thread may ask."""
        return self._holders[:]

    def share(self, pages: Sequence[int]) -> None:
        """Add one holder to each of ``pages``, which must be held already."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is free and cannot be shared"
            self._holders[page] += 1

    def release(self, pages: Sequence[int]) -> None:
        """Take one holder from each of ``pages``; a page without holders is free again."""
        for page in pages:
            assert self._holders[page] > 0, f"page {page} is released twice"
            self._holders[page] -= 1
            if self._holders[page] == 0:
                heappush(self._returned, page)
