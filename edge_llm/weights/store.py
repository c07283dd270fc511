"""Blocks by name in a pool of slots: they are asked for at any time, some because a step needs them, some on a guess.

Who needs a block waits for it, so its read goes before those of guesses.  A guess that turns out wrong is dropped: what no
reader took on yet is never read.  A store knows neither files nor arrays, and never lets go of a block by itself: who
owns it says which one leaves.  In a `Ring` that is the one whose turn is the longest ago, in a `BlockCache` a policy says it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Hashable, Sequence
from threading import RLock
from typing import Any, Generic, TypeVar

from edge_llm.weights.pools import Slot, SlotPool, Transfer

KeyT = TypeVar("KeyT", bound=Hashable)
BufferT = TypeVar("BufferT")
WaitedT = TypeVar("WaitedT")
OpenedT = TypeVar("OpenedT")


class BlockStore(Generic[KeyT, OpenedT]):
    """As many blocks as ``pool`` has places for, each in a slot from when it is asked for until `release`.

    ``start(key, buffer, urgent)`` begins to bring a block and returns at once; ``open(key, buffer, waited)`` checks what came
    and gives what the block is used as.  Neither may hold the owner of the store, whose memory would then wait for a garbage
    collection.  `request` and `wait` have one caller at a time each; any thread may call `use` meanwhile.
    """

    def __init__(
        self,
        pool: SlotPool,
        start: Callable[[KeyT, BufferT, bool], Transfer[WaitedT]] | None = None,
        open: Callable[[KeyT, BufferT, WaitedT], OpenedT] | None = None,
    ) -> None:
        """Without ``start`` and ``open``, blocks come by `keep` alone."""
        self._pool = pool
        self._taken: OrderedDict[KeyT, Slot] = OrderedDict()  # what was asked for last is the last
        self._start: Callable[[KeyT, Any, bool], Transfer[Any]] = start or _unread
        self._open: Callable[[KeyT, Any, Any], Any] = open or _as_it_came
        self._lock = RLock()  # of slots: `request` and `wait` may be called at the same time
        self.guesses = 0
        """Blocks that were guessed, and nobody has asked for since."""
        self.vain_bytes = 0
        """Bytes of guesses that were read and dropped."""

    def __contains__(self, key: KeyT) -> bool:
        """Whether ``key`` is here or on its way, needed or guessed."""
        return key in self._taken

    @property
    def held(self) -> list[KeyT]:
        """All that is here or on its way, what was asked for last at the end."""
        return list(self._taken)

    def has_place(self, key: KeyT) -> bool:
        """Whether ``key``, which is not here, could be asked for with nobody leaving."""
        return self._pool.has_place(key)

    def make_place(self, key: KeyT) -> bool:
        """What nobody has asked for the longest leaves until ``key`` has a place or is here; whether it has one now."""
        with self._lock:
            while key not in self._taken and not self._pool.has_place(key) and self._taken:
                self.release(next(iter(self._taken)))
            return key in self._taken or self._pool.has_place(key)

    def is_guess(self, key: KeyT) -> bool:
        """Whether ``key`` was guessed, and nobody has asked for it since."""
        slot = self._taken.get(key)
        return slot is not None and slot.is_guess

    def request(self, key: KeyT, *, urgent: bool = True) -> None:
        """Bring ``key``, for somebody will wait for it; returns at once.

        What is ``urgent`` overtakes what is not, also if that was asked for before.  Raises LookupError when it is neither here
        nor on its way and has no place.
        """
        with self._lock:
            slot = self._taken.get(key)
            if slot is None:
                self._begin(key, urgent)
                return
            self._taken.move_to_end(key)
            if slot.is_guess:
                self._end_guess(slot)
                if slot.transfer is not None:
                    slot.transfer.hurry()

    def request_evicting(self, key: KeyT, *, urgent: bool = True) -> None:
        """`request`, for which what nobody has asked for the longest leaves if need be; any thread may do it meanwhile."""
        with self._lock:
            self.make_place(key)
            self.request(key, urgent=urgent)

    def guess(self, key: KeyT) -> bool:
        """Bring ``key`` behind all that is needed; false, with nothing done, if it is here or has no place."""
        with self._lock:
            if key in self._taken or not self._pool.has_place(key):
                return False
            self._begin(key, urgent=False).is_guess = True
            self.guesses += 1
            return True

    def drop_guesses(self, wanted: Container[KeyT] = ()) -> int:
        """Let go of all guesses but the ``wanted``; how many these were."""
        with self._lock:
            wrong = [key for key, slot in self._taken.items() if slot.is_guess and key not in wanted]
            for key in wrong:
                slot = self._taken[key]
                if slot.transfer is not None:
                    slot.is_dropped = True
                    slot.transfer.drop()
                self.release(key)
        return len(wrong)

    def wait(self, key: KeyT) -> OpenedT:
        """Wait until ``key``, which was requested, is here: what it is used as, valid until `release`.

        Raises what its read or `open` raises, and its slot is free then; KeyError when nobody has asked for it.
        """
        slot = self._taken[key]
        if slot.transfer is not None:
            try:
                slot.opened = self._open(key, slot.buffer, slot.transfer.wait())
            except BaseException:
                self.release(key)
                raise
            slot.transfer = None
        opened: OpenedT = slot.opened
        return opened

    def use(self, key: KeyT) -> OpenedT:
        """What `wait` gave for ``key``, valid until `release`; KeyError when it is not here."""
        slot = self._taken[key]
        if slot.transfer is not None:
            raise KeyError(key)
        opened: OpenedT = slot.opened
        return opened

    def keep(self, key: KeyT, opened: OpenedT) -> None:
        """``key``, which has a place and was not asked for, came with memory of its own, and is used as ``opened``."""
        with self._lock:
            self._taken[key] = slot = self._slot_for(key)
            slot.opened = opened

    def release(self, key: KeyT) -> None:
        """``key`` leaves its slot, wherever its read is; nothing happens when it is not here."""
        with self._lock:
            slot = self._taken.pop(key, None)
            if slot is not None:
                self._end_guess(slot)
                slot.opened = None
                if slot.buffer is None:
                    self._settle(slot)  # its memory goes with it
                self._pool.give(key, slot)

    def close(self) -> None:
        """Give all memory back; nothing can be asked for any more."""
        with self._lock:
            self._release_all()
            for slot in self._pool.slots:
                self._settle(slot)
            self._pool.close()

    def place(self, key: KeyT) -> int:
        """The number of the slot that ``key`` is in, or on its way to."""
        return self._taken[key].place

    def buffer(self, place: int) -> Any:
        """The buffer of slot ``place``."""
        return self._pool.slots[place].buffer

    def lend(self, writers: Sequence[Transfer[Any]]) -> None:
        """Empty every slot for somebody who fills them himself; ``writers[i]`` is settled when nobody writes to slot i."""
        with self._lock:
            self._release_all()
            for slot, writer in zip(self._pool.slots, writers, strict=True):
                slot.transfer = writer

    def put(self, place: int, key: KeyT, transfer: Transfer[Any]) -> None:
        """Slot ``place``, which was lent, has ``key`` or will have it when ``transfer`` has ended."""
        with self._lock:
            self._taken[key] = slot = self._pool.claim(key, place)
            slot.transfer = transfer

    def _release_all(self) -> None:
        for key in self.held:
            self.release(key)

    def _end_guess(self, slot: Slot) -> None:
        if slot.is_guess:
            self.guesses -= 1
            slot.is_guess = False

    def _begin(self, key: KeyT, urgent: bool) -> Slot:
        slot = self._slot_for(key)
        try:
            self._settle(slot)
            slot.transfer = self._start(key, slot.buffer, urgent)
        except BaseException:
            self._pool.give(key, slot)
            raise
        self._taken[key] = slot
        return slot

    def _slot_for(self, key: KeyT) -> Slot:
        slot = self._pool.take(key)
        if slot is None:
            raise LookupError(f"no slot is free for `{key}`")
        return slot

    def _settle(self, slot: Slot) -> None:
        """Nobody writes to ``slot`` any more."""
        if slot.transfer is not None:
            there = slot.transfer.settle()
            self.vain_bytes += there if slot.is_dropped else 0
            slot.transfer, slot.is_dropped = None, False


def _unread(key: Hashable, buffer: Any, urgent: bool) -> Transfer[Any]:
    raise LookupError(f"`{key}` was not kept, and nothing brings it")


def _as_it_came(key: Hashable, buffer: Any, waited: Any) -> Any:
    return waited
