"""Memory of sequences: pages for new tokens, known pages of their beginning, and pages that are evicted for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from edge_llm.errors import OutOfMemory
from edge_llm.kv.pages import PAGE_TOKENS, PageAllocator
from edge_llm.kv.prefix import PrefixIndex, identities
from edge_llm.kv.sequence import KVPages, SequencePages
from edge_llm.kv.states import SequenceStates, StateIndex, StateSlots
from edge_llm.kv.windows import Windows

if TYPE_CHECKING:
    from edge_llm.kv.prefix_store import PrefixStore  # only servers keep pages, and bring OpenSSL for it

PAGE_STATES = FREE, USED, SHARED, CACHED = range(4)
"""Free; of one running sequence; of several; of none, and known by its text only."""

CHECKPOINT_TOKENS = 256
"""At least so many tokens of a prompt lie between two checkpoints of its state, and so many that these take no more memory
than the pages between them."""
_STEP_SLOTS = 2
"""States of a sequence that runs: before a step and behind it."""
READY_PAGES = 256
"""As many of the pages on disk get memory at the start; during an answer that would take as long as to read them."""


class KVMemory:
    """The pages ``kv`` of a device, shared between running sequences and the beginnings of earlier ones.

    ``identity`` stands for the model and its numbers: pages of other models are never taken for this one's.  ``disk``, where
    given, adds the host pages that it stores; it must have the same identity.  ``adapters`` are digests of those that
    sequences may have, numbered from 1; each has pages of its own.
    """

    def __init__(
        self, kv: KVPages, identity: bytes = b"", disk: PrefixStore | None = None, adapters: Sequence[bytes] = ()
    ) -> None:
        self.pages = PageAllocator(kv.count, kv.page_tokens)
        """Who holds which page."""
        self._kv = kv
        self._prefix = PrefixIndex(self.pages, identity, self.pages.pages)
        self._identities = identities(identity, adapters)
        self._disk = disk
        self._states = StateSlots(kv.slots) if kv.slots else None
        self._checkpoints = None if self._states is None else StateIndex(self._states)
        self._windows = Windows(kv, self.pages)
        if disk is not None:
            kv.touch(disk.count(most=READY_PAGES))

    def open(self, tokens: Sequence[int] = (), adapter: int = 0) -> SequencePages:
        """A sequence that begins with the longest known beginning of ``tokens``, but never with all of them.

        The last token must be computed, because its logits are needed.  ``tokens`` may be a list that grows as an answer
        does; the sequence follows it to its end.
        """
        sequence = SequencePages(self.pages, self._new_states(), adapter)
        try:
            self._adopt(sequence, tokens[:-1])
            sequence.text = tokens
            if self._disk is not None:
                self._restore(self._disk, sequence, tokens[:-1])
            return sequence
        except BaseException:
            sequence.close()
            raise

    def _new_states(self) -> SequenceStates | None:
        if self._states is None:
            return None
        token_bytes = max(1, self._kv.page_bytes // PAGE_TOKENS)
        apart = max(CHECKPOINT_TOKENS, self._kv.slot_bytes // token_bytes)
        return SequenceStates(self._states, self.pages.page_tokens, self.pages.pages_for(apart) * self.pages.page_tokens)

    def _adopt(self, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Begin ``sequence`` with what is known of ``tokens``; with states up to a checkpoint."""
        checkpoints, states, windows = self._checkpoints, sequence.states, self._windows

        def usable(keys: Sequence[bytes], pages: Sequence[int]) -> int:
            count = len(keys)
            while count:
                count = windows.usable(pages[:count])
                if checkpoints is None or states is None:
                    break
                found, slot = checkpoints.longest(keys[:count])
                if found == count:
                    states.adopt(count * self.pages.page_tokens, slot)
                    break
                states.drop(slot)
                count = found
            return count

        sequence.adopt(self._prefix.match(tokens, self._identities[sequence.adapter], usable))
        windows.adopted(sequence)

    def reserve(self, sequence: SequencePages, tokens: int) -> None:
        """Make room in ``sequence`` for ``tokens`` tokens in all; `OutOfMemory` if other sequences hold too much."""
        if self._states is not None and self._checkpoints is not None and sequence.states is not None:
            if not self._states.free:
                self._checkpoints.evict()
            sequence.states.reserve()
        self._forget(sequence)
        if tokens > sequence.capacity:
            self._prefix.evict(self.pages.pages_for(tokens) - len(sequence.table) - self.pages.free)
            held = len(sequence.table)
            sequence.reserve(tokens)
            self._windows.renew(sequence.table[held:])

    def remember(self, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Remember the full pages of ``sequence``, which holds ``tokens``."""
        held, identity = tokens[: sequence.length], self._identities[sequence.adapter]
        self._prefix.insert(held, sequence.table, identity, self._windows.better)
        if self._checkpoints is not None and sequence.states is not None:
            keys = self._prefix.keys(held, identity)
            for length, slot in sequence.states.checkpoints.items():
                self._checkpoints.insert(keys[length // self.pages.page_tokens - 1], slot)
            sequence.states.drop_checkpoints()
        if self._disk is not None:
            self._store(self._disk, sequence, held)

    def _forget(self, sequence: SequencePages) -> None:
        """Give back what no window of ``sequence`` reaches any more; the disk gets it before, as far as its text is known."""
        due = self._windows.due(sequence)
        if self._disk is not None and due and due.start * self.pages.page_tokens < len(sequence.text):
            self._store(self._disk, sequence, sequence.text[: due.stop * self.pages.page_tokens])
        self._windows.forget(sequence, due)

    def _store(self, disk: PrefixStore, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Write the full pages of ``tokens``, with which ``sequence`` begins, up to one that is neither stored nor whole."""
        missing = disk.missing(tokens, self._identities[sequence.adapter])
        places = sequence.host_pages(np.array([page.number for page in missing], np.int64))
        each = self.pages.page_tokens // PAGE_TOKENS
        count = next((at for at, host in enumerate(places) if not self._windows.is_whole(host // each)), len(missing))
        if count:
            disk.write(missing[:count], self._kv.read_pages(places[:count]))

    def has_room(self, tokens: int) -> bool:
        """Whether a new sequence of ``tokens`` tokens would fit now, next to those that run."""
        if self._states is not None and self._checkpoints is not None:
            needed = _STEP_SLOTS - self._states.free
            if self._checkpoints.evictable(needed) < needed:
                return False
        missing = self.pages.pages_for(tokens) - self.pages.free
        return missing <= 0 or self._prefix.evictable(missing) == missing

    def check_fits(self, tokens: int) -> None:
        """Raise `OutOfMemory` if a sequence of ``tokens`` tokens would not even fit alone."""
        capacity = self.pages.pages * self.pages.page_tokens
        if tokens > capacity:
            raise OutOfMemory(f"the KV cache holds `{capacity}` tokens and the request needs `{tokens}`; raise --kv-memory")

    @property
    def page_bytes(self) -> int:
        """Bytes of a page over all layers."""
        return self._kv.page_bytes * self.pages.page_tokens // PAGE_TOKENS

    def page_states(self) -> bytes:
        """One of `PAGE_STATES` for every page; any thread may ask, and see a page that is just changing hands."""
        known = np.frombuffer(self._prefix.known(), np.uint8)
        holders = np.array(self.pages.all_holders())
        sequences = np.minimum(holders - known, 2)
        return bytes(np.where(sequences > 0, sequences, np.where(holders > 0, CACHED, FREE)).astype(np.uint8))

    def state(self) -> Mapping[str, int]:
        """Numbers of pages: all, free, and known by their text; with a disk, also its counts."""
        state = {"kv_pages": self.pages.pages, "kv_pages_free": self.pages.free, "prefix_pages": len(self._prefix)}
        if self._states is not None and self._checkpoints is not None:
            state |= {"states": self._states.count, "states_free": self._states.free, "checkpoints": len(self._checkpoints)}
        if self._disk is not None:
            counts = self._disk.counts
            for name in ("read", "written", "damaged", "dropped", "failed", "pruned"):
                state[f"prefix_disk_pages_{name}"] = getattr(counts, name)
        return state

    def _restore(self, disk: PrefixStore, sequence: SequencePages, tokens: Sequence[int]) -> None:
        """Append the pages of ``tokens`` that follow in ``disk`` to ``sequence``, as far as there is room beside the others."""
        identity = self._identities[sequence.adapter]
        found = disk.find(tokens, sequence.length // PAGE_TOKENS, identity)
        room = self.pages.free + self._prefix.evictable(self.pages.pages_for(len(found) * PAGE_TOKENS))
        found = found[: room * self.pages.page_tokens // PAGE_TOKENS]
        if not found:
            return
        self.reserve(sequence, (found[-1].number + 1) * PAGE_TOKENS)
        for data in disk.read(found):
            start = sequence.length // PAGE_TOKENS
            self._kv.write_pages(sequence.host_pages(np.arange(start, start + len(data))), data)
            sequence.length += len(data) * PAGE_TOKENS
        sequence.truncate(sequence.length)
        whole = sequence.table[: sequence.length // self.pages.page_tokens]
        self._prefix.insert(tokens, whole, identity, self._windows.better)
