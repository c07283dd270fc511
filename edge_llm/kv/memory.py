"""Memory of sequences: pages for new tokens, known pages of their beginning, and pages that are evicted for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from edge_llm.errors import OutOfMemory
from edge_llm.kv.pages import PAGE_TOKENS, pages_for
from edge_llm.kv.prefix import PrefixIndex
from edge_llm.kv.store import KVStore, SequencePages

if TYPE_CHECKING:
    from edge_llm.kv.prefix_store import PrefixStore  # only servers keep pages, and bring OpenSSL for it

READY_PAGES = 256
"""As many of the pages on disk get memory at the start; during an answer that would take as long as to read them."""


class KVMemory:
    """The pages of ``store``, shared between running sequences and the beginnings of earlier ones in ``prefix``.

    ``disk``, where given, adds the pages that it stores; it must have the same identity as ``prefix``.
    """

    def __init__(self, store: KVStore, prefix: PrefixIndex, disk: PrefixStore | None = None) -> None:
        self._store = store
        self._prefix = prefix
        self._disk = disk
        if disk is not None:
            store.touch(disk.count(most=READY_PAGES))

    def open(self, tokens: Sequence[int] = ()) -> SequencePages:
        """A sequence that begins with the longest known beginning of ``tokens``, but never with all of them.

        The last token must be computed, because its logits are needed.
        """
        sequence = self._store.open()
        try:
            sequence.adopt(self._prefix.match(tokens[:-1]))
            if self._disk is not None:
                self._restore(self._disk, sequence, tokens[:-1])
            return sequence
        except BaseException:
            sequence.close()
            raise

    def reserve(self, sequence: SequencePages, tokens: int) -> None:
        """Make room in ``sequence`` for ``tokens`` tokens in all; `OutOfMemory` if other sequences hold too many pages."""
        if tokens > sequence.capacity:
            self._prefix.evict(pages_for(tokens) - len(sequence.table) - self._store.pages.free)
            sequence.reserve(tokens)

    def keep(self, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Remember the full pages of ``sequence``, which holds ``tokens``."""
        held = tokens[: sequence.length]
        self._prefix.insert(held, sequence.table)
        if self._disk is not None:
            pages = self._disk.missing(held)
            if pages:
                self._disk.write(pages, self._store.read_pages(sequence.table[[page.number for page in pages]]))

    def has_room(self, tokens: int) -> bool:
        """Whether a new sequence of ``tokens`` tokens would fit now, next to those that run."""
        missing = pages_for(tokens) - self._store.pages.free
        return missing <= 0 or self._prefix.evictable(missing) == missing

    def check_fits(self, tokens: int) -> None:
        """Raise `OutOfMemory` if a sequence of ``tokens`` tokens would not even fit alone."""
        capacity = self._store.pages.pages * PAGE_TOKENS
        if tokens > capacity:
            raise OutOfMemory(f"the KV cache holds `{capacity}` tokens and the request needs `{tokens}`; raise --kv-memory")

    def state(self) -> Mapping[str, int]:
        """Numbers of pages: all, free, and known by their text; with a disk, also its counts."""
        pages = self._store.pages
        state = {"kv_pages": pages.pages, "kv_pages_free": pages.free, "prefix_pages": len(self._prefix)}
        if self._disk is not None:
            counts = self._disk.counts
            for name in ("read", "written", "damaged", "dropped", "failed", "pruned"):
                state[f"prefix_disk_pages_{name}"] = getattr(counts, name)
        return state

    def _restore(self, disk: PrefixStore, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Append the pages of ``tokens`` that follow in ``disk`` to ``sequence``, as far as there is room beside the others."""
        found = disk.find(tokens, len(sequence.table))
        found = found[: self._store.pages.free + self._prefix.evictable(len(found))]
        if not found:
            return
        self.reserve(sequence, (found[-1].number + 1) * PAGE_TOKENS)
        for data in disk.read(found):
            start = sequence.length // PAGE_TOKENS
            self._store.write_pages(sequence.table[start : start + len(data)], data)
            sequence.length += len(data) * PAGE_TOKENS
        sequence.truncate(sequence.length)
        self._prefix.insert(tokens, sequence.table)
