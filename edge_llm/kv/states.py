"""States of a fixed shape: one slot for each that somebody may go back to.

A step reads the state before its rows in one slot and writes that behind them into another, so the state before a step is
there until the next one begins, at no cost.  Where a step can have more slots, it leaves checkpoints in them: behind every
row of a draft, so that what is rejected is taken back; at ends of pages, where another text may go on.  No slot that somebody
holds is written again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from edge_llm.errors import OutOfMemory
from edge_llm.kv.pages import PageAllocator
from edge_llm.operations.keeps import NOTHING_YET, Span

MOST_DRAFT = 16
"""Rows of a step that may be a draft: more wanted rows are a prompt whose tokens are all asked for."""
LEAST_SLOTS = 4
"""`NOTHING_YET`, the two of a step, and one to go on from."""


STATE_BYTES = 512 << 20
"""Memory of all states at most where nobody says how much; `FEWEST` are there in any case."""
FEWEST = 9
"""Of two answers, and some checkpoints."""
_FOR_ANSWER = 3
"""Before a step, behind it, and a checkpoint."""


def slots_for(state_bytes: int, parallel: int, most: int = STATE_BYTES) -> int:
    """States that are held of a model that keeps ``state_bytes`` of a sequence, for ``parallel`` answers at a time.

    Where ``most`` bytes hold fewer, fewer answers run at a time.
    """
    return max(FEWEST, min(1 + _FOR_ANSWER * parallel, most // state_bytes)) if state_bytes else 0


class StateSlots:
    """Hands out the slots of ``count`` states over all layers; a slot without holders is free."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._slots = PageAllocator(count, 1)
        self._slots.allocate(1)  # `NOTHING_YET`, held for good

    @property
    def free(self) -> int:
        """Number of free slots."""
        return self._slots.free

    @property
    def plenty(self) -> bool:
        """Whether so many are free that one may be for a checkpoint."""
        return self.free > self.count // 4

    def take(self) -> int:
        """A free slot; raises `OutOfMemory` where there is none."""
        if not self.free:
            raise OutOfMemory(
                f"all `{self.count}` states of running sequences are in use; wait for an answer, or use a smaller --parallel"
            )
        return self._slots.allocate(1)[0]

    def share(self, slot: int) -> int:
        """One more holder for ``slot``."""
        self._slots.share([slot])
        return slot

    def release(self, slots: Iterable[int]) -> None:
        """One holder less for each of ``slots``."""
        self._slots.release(list(slots))

    def alone(self, slot: int) -> bool:
        """Whether ``slot`` has one holder."""
        return self._slots.holders(slot) == 1


class SequenceStates:
    """The states of one sequence: where it is, where it can go back to, and its checkpoints.

    page_tokens: the ends of its pages are multiples of this.  every: tokens from one checkpoint of a prompt to the next.
    """

    def __init__(self, slots: StateSlots, page_tokens: int, every: int) -> None:
        self._slots = slots
        self._page_tokens, self._every = page_tokens, every
        self._trail = [(0, slots.share(NOTHING_YET))]  # (length, slot), ascending: the last is where it is
        self._coming: list[tuple[int, int]] = []  # the trail of a step that runs
        self._spare: list[int] = []
        self.checkpoints: dict[int, int] = {}
        """Slots at ends of pages, by the tokens before them, that nobody remembers yet."""

    def adopt(self, length: int, slot: int) -> None:
        """Begin at ``length`` with the state in ``slot``, of which it is a holder already."""
        self._release(self._trail)
        self._trail = [(length, slot)]

    def drop(self, slot: int) -> None:
        """Give one hold of ``slot`` back, which was not adopted."""
        self._slots.release([slot])

    def reserve(self) -> None:
        """Have a slot for the coming step; raises `OutOfMemory`.  It cannot go back behind where it is then."""
        self._forget_step()
        self._release(self._trail[:-1])
        self._trail = self._trail[-1:]
        if not self._spare:
            if not self._slots.free:
                self.drop_checkpoints()
            self._spare.append(self._slots.take())

    def begin(self, count: int, wanted: int) -> list[Span]:
        """The spans of the coming step's ``count`` rows, of which the last ``wanted`` are asked for; `reserve` came before."""
        self._forget_step()
        (start, reads), end = self._trail[-1], self._trail[-1][0] + count
        spans: list[Span] = []
        for stop in (*self._stops(start, end, wanted), end):
            writes = self._spare[-1] if stop == end else self._free_slot()
            if writes is None:
                continue
            first = spans[-1].end if spans else 0
            spans.append(Span(first, stop - start, reads, writes))
            self._coming.append((stop, writes))
            reads = writes
        self._spare.pop()
        return spans

    def advance(self) -> None:
        """The step has ended."""
        self._trail, self._coming = self._trail + self._coming, []
        start = self._trail[0][0]
        for length, slot in self._trail[1:]:
            if length % self._page_tokens == 0:
                self._keep(length, slot, in_prompt=length - start >= self._page_tokens)

    def back(self, length: int) -> int:
        """Go back to ``length`` tokens or, where there is no state of that, to fewer: how many."""
        self._forget_step()
        for stale in [one for one in self.checkpoints if one > length]:
            self._slots.release([self.checkpoints.pop(stale)])
        while len(self._trail) > 1 and self._trail[-1][0] > length:
            self._release([self._trail.pop()])
        if self._trail[0][0] > length:
            near = max(self.checkpoints, default=0)
            self.adopt(near, self._slots.share(self.checkpoints.get(near, NOTHING_YET)))
        return self._trail[-1][0]

    def drop_checkpoints(self) -> None:
        """Give the slots of checkpoints back."""
        self._slots.release(self.checkpoints.values())
        self.checkpoints = {}

    def close(self) -> None:
        """Give all slots back; it is empty afterwards."""
        self.drop_checkpoints()
        self._forget_step()
        self._slots.release(self._spare)
        self._spare = []
        self.adopt(0, self._slots.share(NOTHING_YET))

    def _stops(self, start: int, end: int, wanted: int) -> list[int]:
        """Where checkpoints may lie inside (start, end): those that matter most come from the end."""
        if 1 < wanted <= MOST_DRAFT:
            return list(range(max(start + 1, end - wanted + 1), end))
        last = end // self._page_tokens * self._page_tokens
        regular = range(start // self._every * self._every + self._every, end, self._every)
        return sorted({stop for stop in (*regular, last) if start < stop < end})

    def _free_slot(self) -> int | None:
        return self._slots.take() if self._slots.plenty else None

    def _keep(self, length: int, slot: int, in_prompt: bool) -> None:
        """A checkpoint at ``length``; of an answer, which comes row by row, the last one alone."""
        if not in_prompt:
            for older in [one for one in self.checkpoints if length - one == self._page_tokens and one % self._every]:
                self._slots.release([self.checkpoints.pop(older)])
        if length not in self.checkpoints and self._slots.plenty:
            self.checkpoints[length] = self._slots.share(slot)

    def _forget_step(self) -> None:
        """A step that began has not ended."""
        if self._coming:
            self._spare.append(self._coming.pop()[1])
            self._release(self._coming)
            self._coming = []

    def _release(self, trail: Iterable[tuple[int, int]]) -> None:
        self._slots.release(slot for _, slot in trail)


class StateIndex:
    """Checkpoints of texts by the keys of their last page (`kv.prefix`); it holds each, least recently used first."""

    def __init__(self, slots: StateSlots) -> None:
        self._slots = slots
        self._known: OrderedDict[bytes, int] = OrderedDict()

    def __len__(self) -> int:
        """Checkpoints known."""
        return len(self._known)

    def longest(self, keys: Sequence[bytes]) -> tuple[int, int]:
        """How many of a text's pages, whose ``keys`` these are, the longest known checkpoint has behind it, and its slot.

        The caller is a holder of it from now on; without any it is `NOTHING_YET`.
        """
        for count in range(len(keys), 0, -1):
            if (slot := self._known.get(keys[count - 1])) is not None:
                self._known.move_to_end(keys[count - 1])
                return count, self._slots.share(slot)
        return 0, self._slots.share(NOTHING_YET)

    def insert(self, key: bytes, slot: int) -> None:
        """Remember the checkpoint in ``slot``."""
        if key not in self._known:
            self._known[key] = self._slots.share(slot)
        self._known.move_to_end(key)

    def evict(self) -> bool:
        """Forget the checkpoint that was not used for longest and that nobody else holds; false if there is none."""
        key = next((key for key, slot in self._known.items() if self._slots.alone(slot)), None)
        if key is None:
            return False
        self._slots.release([self._known.pop(key)])
        return True

    def evictable(self, most: int) -> int:
        """Slots that `evict` could free; counts no further than ``most``."""
        found = 0
        for slot in self._known.values():
            found += self._slots.alone(slot)
            if found >= most:
                break
        return found
