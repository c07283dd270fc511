"""Which pages hold which beginning of a text: a hash chain over tokens finds full pages, a hit compares the tokens.

A page's key is SHA-256 over the key of the page before it and its own tokens; the first page follows ``identity``,
which identifies the model, with an adapter or without, and its numeric scheme.  So a key names a whole beginning, and no key
is shared by two models.
The index is a holder of every page it knows; it evicts the least recently used first, and a page's followers before the
page itself.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from edge_llm.kv.pages import PAGE_TOKENS, PageAllocator

Key = bytes
Usable = Callable[[Sequence[Key], Sequence[int]], int]
"""How many of a text's known pages, from the first on, can be used: by their keys and numbers."""


def page_keys(
    identity: bytes, tokens: Sequence[int], page_tokens: int = PAGE_TOKENS
) -> Iterator[tuple[Key, tuple[int, ...]]]:
    """The key and the tokens of every full page of ``tokens``, in order."""
    if len(tokens) < page_tokens:
        return
    import hashlib  # loads OpenSSL, 3 MB, which a short prompt does not need

    key = hashlib.sha256(identity).digest()
    text = np.asarray(tokens, "<i8").tobytes()
    for first in range(0, len(tokens) - page_tokens + 1, page_tokens):
        key = hashlib.sha256(key + text[8 * first : 8 * (first + page_tokens)]).digest()
        yield key, tuple(tokens[first : first + page_tokens])


def identities(model: bytes, adapters: Sequence[bytes]) -> tuple[bytes, ...]:
    """What `page_keys` follow: for the ``model`` alone, and for it with each of the adapters that have these digests."""
    return model, *(model + b" adapter " + digest for digest in adapters)


class _Entry(NamedTuple):
    page: int
    tokens: tuple[int, ...]


class PrefixIndex:
    """Pages of finished and running sequences by the text they hold, at most ``most_pages`` of them.

    Keys follow ``identity`` where a call names no other.
    """

    def __init__(self, pages: PageAllocator, identity: bytes, most_pages: int) -> None:
        self._pages = pages
        self._identity = identity
        self._most_pages = most_pages
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()  # least recently used first
        self._known = bytearray(pages.pages)  # 1 for each page of an entry

    def __len__(self) -> int:
        """Pages known."""
        return len(self._entries)

    def known(self) -> bytes:
        """1 for every page that is known by its text, else 0, at one moment; any thread may ask."""
        return bytes(self._known)

    def match(self, tokens: Sequence[int], identity: bytes | None = None, usable: Usable | None = None) -> list[int]:
        """The pages that hold the longest known beginning of ``tokens``; the caller is a holder of each from now on.

        ``usable`` says of how many of them use can be made; None: of all.
        """
        found: list[Key] = []
        for key, page_tokens in self._keys(tokens, identity):
            entry = self._entries.get(key)
            if entry is None or entry.tokens != page_tokens:
                break
            found.append(key)
        if usable is not None:
            found = found[: usable(found, [self._entries[key].page for key in found])]
        self._touch(found)
        taken = [self._entries[key].page for key in found]
        self._pages.share(taken)
        return taken

    def insert(
        self,
        tokens: Sequence[int],
        table: Sequence[int] | np.ndarray,
        identity: bytes | None = None,
        better: Callable[[int, int], bool] | None = None,
    ) -> None:
        """Remember the full pages of ``table`` (which hold ``tokens``) that are not known yet.

        ``better`` says whether a page is to take the place of another that is known for the same text.
        """
        chain: list[Key] = []
        for (key, page_tokens), page in zip(self._keys(tokens, identity), table, strict=False):
            if better is not None and key in self._entries and better(int(page), self._entries[key].page):
                self._forget(key)
            if key not in self._entries:
                if len(chain) >= self._most_pages:
                    break
                self._pages.share([page])
                self._entries[key] = _Entry(int(page), page_tokens)
                self._known[page] = 1
            chain.append(key)
        self._touch(chain)
        self.evict(len(self._entries) - self._most_pages, only_free=False)

    def evict(self, count: int, *, only_free: bool = True) -> int:
        """Forget ``count`` pages, least recently used first, by default only those without other holders; returns how many."""
        if count <= 0:
            return 0
        chosen = list(islice(self._free() if only_free else self._entries, count))
        for key in chosen:
            self._forget(key)
        return len(chosen)

    def _forget(self, key: Key) -> None:
        page = self._entries.pop(key).page
        self._known[page] = 0
        self._pages.release([page])

    def evictable(self, most: int | None = None) -> int:
        """Pages that `evict` could free; counts no further than ``most``."""
        return sum(1 for _ in islice(self._free(), most))

    def keys(self, tokens: Sequence[int], identity: bytes | None = None) -> list[Key]:
        """The keys of the full pages of ``tokens``."""
        return [key for key, _ in self._keys(tokens, identity)]

    def _keys(self, tokens: Sequence[int], identity: bytes | None) -> Iterator[tuple[Key, tuple[int, ...]]]:
        return page_keys(identity or self._identity, tokens, self._pages.page_tokens)

    def _free(self) -> Iterator[Key]:
        """The pages without another holder, least recently used first."""
        return (key for key, entry in self._entries.items() if self._pages.holders(entry.page) == 1)

    def _touch(self, chain: Sequence[Key]) -> None:
        """Mark the pages of a chain as used now, the last page as used first."""
        for key in reversed(chain):
            self._entries.move_to_end(key)
