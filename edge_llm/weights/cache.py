"""A cache of blocks under a policy: a step names the experts of a layer that it needs, and those in memory come first.

The rest is read meanwhile.  What a step still needs never leaves before it was used, and guesses for the next layer wait
behind its reads.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from edge_llm.weights.policies import Key, Slots, Taken, Uses, uses_of
from edge_llm.weights.store import BlockStore

OpenedT = TypeVar("OpenedT")


@dataclass(frozen=True)
class Guesses:
    """What came of guesses."""

    fetched: int = 0
    """Experts whose reads began on a guess."""
    right: int = 0
    """Of these, how many the next step of their layer wanted."""
    vain_bytes: int = 0
    """Bytes that were read of the others."""


LEAST_RIGHT = 0.3
"""Of the guesses that are read, a smaller share keeps the disk from what is needed for longer than it saves."""
_DECAY = 0.95
"""What the guesses of a step count beside those of the next one."""
_TRY_AGAIN = 32
"""A layer whose guesses are not worth it guesses once in so many steps, to see whether they are now."""


class _GuessAccuracy:
    """Whether guesses for a layer are worth their reads, by how many of the last ones were right."""

    def __init__(self) -> None:
        self._read = self._right = 0.0  # older ones count less
        self._asked = 0

    def learn(self, right: int, wrong: int) -> None:
        """So many guesses were right, and so many wrong."""
        self._read = _DECAY * self._read + right + wrong
        self._right = _DECAY * self._right + right

    def is_enough(self) -> bool:
        """Whether to guess now."""
        self._asked += 1
        return self._right + 1 >= LEAST_RIGHT * (self._read + 1) or self._asked % _TRY_AGAIN == 0


class BlockCache(Generic[OpenedT]):
    """Experts in ``store``, of which ``slots`` says who stays and who leaves for whom.

    ``ahead`` slots of the store are beyond the quotas of all layers: guesses have them, and reads that begin before the one
    who leaves for them was used.  One caller at a time.
    """

    def __init__(self, store: BlockStore[Key, OpenedT], slots: Slots, ahead: int) -> None:
        if ahead < 1:
            raise ValueError("a cache needs a slot ahead, for reads that begin before somebody leaves")
        self._store = store
        self._slots = slots
        self._ahead = ahead
        self._under_way: int | None = None  # the layer of a step that has not ended
        self._accuracy: dict[int, _GuessAccuracy] = defaultdict(_GuessAccuracy)  # by the layer
        self._fetched = self._right = 0
        self.uses = Uses()
        """What steps used, and what of it was not in memory by what the policy keeps; some of that was guessed."""

    @property
    def guesses(self) -> Guesses:
        return Guesses(self._fetched, self._right, self._store.vain_bytes)

    def take(self, layer: int, experts: Sequence[int], *, ascending: bool = False) -> Iterator[list[tuple[int, OpenedT]]]:
        """The ``experts`` of ``layer`` that a step needs, some at a time, each list valid until the next is taken.

        What is in memory comes first; with ``ascending`` all come in the order of their numbers, as far as slots allow.
        Raises what the reads raise.  The next step goes on without what was not read.
        """
        self._end_last_step()
        self._under_way = layer
        taken = self._slots.take(layer, experts)
        self.uses += uses_of(taken)
        step = _Step(self._store, layer, taken)
        self._right += step.right
        self._accuracy[layer].learn(step.right, step.wrong)
        yield from step.run(ascending)
        self._under_way = None

    def guess(self, layer: int, experts: Sequence[int], most: int) -> None:
        """The next step of ``layer`` may need ``experts``, the first ones rather than the last.

        Those that are not here, at ``most`` so many, are read when nothing else is, and only while enough guesses are right.
        """
        held = self._slots.held(layer)
        missing = [expert for expert in experts if expert not in held]
        if not missing or not self._accuracy[layer].is_enough():
            return
        for expert in missing:
            if self._store.guesses < min(most, self._ahead):
                self._fetched += self._store.guess(Key(layer, expert))

    def _end_last_step(self) -> None:
        """After a step that did not end: what `slots` does not know to be here leaves."""
        if self._under_way is not None:
            held = self._slots.held(self._under_way)
            for key in self._store.held:
                if key.layer == self._under_way and key.expert not in held:
                    self._store.release(key)
        self._under_way = None


class _Step(Generic[OpenedT]):
    """One step of ``layer``: the experts that are ``taken``, from ``store``."""

    def __init__(self, store: BlockStore[Key, OpenedT], layer: int, taken: Sequence[Taken]) -> None:
        self._store = store
        self._unused = {Key(layer, one.expert) for one in taken}
        self.right = sum(store.is_guess(key) for key in self._unused)
        """Guesses that were right."""
        self.wrong = store.drop_guesses(self._unused)
        keys = [(Key(layer, one.expert), None if one.leaves is None else Key(layer, one.leaves)) for one in taken]
        self._there = [key for key, _ in keys if key in store and not store.is_guess(key)]
        self._reads = [(key, leaves) for key, leaves in keys if key not in self._there]
        self._ahead = deque(self._reads)  # those that have not begun
        self._after: set[Key] = set()  # what leaves once it was used

    def run(self, ascending: bool) -> Iterator[list[tuple[int, OpenedT]]]:
        self._begin_reads()
        there = deque(self._there)
        for key, _ in self._reads:
            keys = []
            while there and (not ascending or there[0] < key):
                keys.append(there.popleft())
            yield from self._use(keys)
            while key not in self._store:  # it waits for the slot of one that was to come later
                yield from self._use([there.popleft()])
            yield from self._use([key])
        yield from self._use(list(there))

    def _use(self, keys: Sequence[Key]) -> Iterator[list[tuple[int, OpenedT]]]:
        if not keys:
            return
        yield [(key.expert, self._store.wait(key)) for key in keys]
        for key in keys:
            self._unused.discard(key)
            if key in self._after:
                self._store.release(key)
        self._begin_reads()

    def _begin_reads(self) -> None:
        """Begin as many reads, in order, as there are slots for."""
        while self._ahead:
            key, leaves = self._ahead[0]
            is_used = leaves is not None and leaves not in self._unused
            if is_used and leaves is not None:
                self._store.release(leaves)
            if key not in self._store and not self._store.has_place(key):
                return
            self._store.request(key)
            self._ahead.popleft()
            if leaves is not None and not is_used:
                self._after.add(leaves)
