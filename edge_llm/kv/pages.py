"""Pages of 16 tokens: a bitmap says which are free, a count says how many sequences share each."""

from __future__ import annotations

from collections.abc import Sequence

from edge_llm.errors import OutOfMemory

PAGE_TOKENS = 16
"""Tokens per page on the host (design: the paged INT8 KV cache)."""


def pages_for(tokens: int) -> int:
    """Number of pages that hold ``tokens`` tokens."""
    return -(-tokens // PAGE_TOKENS)


class PageAllocator:
    """Hands out page numbers 0..pages-1.

    A page is free (bit set, count 0) or held (bit clear, count >= 1).  Sharing raises the count, releasing lowers it, and
    a page is free again at zero.  The lowest free pages are handed out first, so a run repeats exactly.
    """

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self._free_bits = (1 << pages) - 1
        self._holders = [0] * pages

    @property
    def free(self) -> int:
        """Number of free pages."""
        return self._free_bits.bit_count()

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` free pages, or raise `OutOfMemory` and take none."""
        if count > self.free:
            raise OutOfMemory(
                f"the KV cache has {self.free} free pages of {PAGE_TOKENS} tokens, `{count}` are needed; "
                "use a shorter prompt or a smaller --ctx"
            )
        taken = []
        for _ in range(count):
            lowest = self._free_bits & -self._free_bits
            self._free_bits ^= lowest
            page = lowest.bit_length() - 1
            self._holders[page] = 1
            taken.append(page)
        return taken

    def holders(self, page: int) -> int:
        """The number of holders of ``page``; 0 when it is free."""
        return self._holders[page]

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
                self._free_bits |= 1 << page
