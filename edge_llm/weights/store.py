"""Blocks by name in a few slots of one size: they are asked for at any time, some because a step needs them, some on a guess.

Who needs a block waits for it, so its read goes before those of guesses.  A guess that turns out wrong is dropped: what no
reader took on yet is never read.  A store knows neither files nor arrays, and never lets go of a block by itself: who
owns it says which one leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
BufferT = TypeVar("BufferT")
WaitedT = TypeVar("WaitedT")
WaitedT_co = TypeVar("WaitedT_co", covariant=True)
OpenedT = TypeVar("OpenedT")


class Bringing(Protocol[WaitedT_co]):
    """A block on its way into a buffer."""

    def wait(self) -> WaitedT_co:
        """Wait until the block is there; raises what went wrong."""
        ...

    def hurry(self) -> None:
        """Somebody waits for it: it goes before what is not urgent."""
        ...

    def drop(self) -> None:
        """Nobody wants it any more: bring no more of it than what was begun."""
        ...

    def settle(self) -> int:
        """Wait until nobody writes to the buffer any more, whatever came of it, also after `wait`; the bytes that are there."""
        ...


@dataclass(eq=False)
class _Slot:
    """A buffer, what may still write to it, and what it holds."""

    buffer: Any
    bringing: Bringing[Any] | None = None
    """None when nobody writes to the buffer."""
    opened: Any = None
    is_guess: bool = False
    is_dropped: bool = False
    """Whether it was a guess that nobody wanted; its bytes are counted when they have settled."""


class BlockStore(Generic[KeyT, OpenedT]):
    """As many blocks as there are ``buffers``, each in a slot from when it is asked for until `release`.

    ``start(key, buffer, urgent)`` begins to bring a block and returns at once; ``open(key, buffer, waited)`` checks what came
    and gives what the block is used as.  Neither may hold the owner of the store.  One caller at a time.
    """

    def __init__(
        self,
        buffers: Iterable[BufferT],
        start: Callable[[KeyT, BufferT, bool], Bringing[WaitedT]],
        open: Callable[[KeyT, BufferT, WaitedT], OpenedT],
    ) -> None:
        self._free: list[_Slot] = [_Slot(buffer) for buffer in buffers]
        self._taken: dict[KeyT, _Slot] = {}
        self._start: Callable[[KeyT, Any, bool], Bringing[Any]] = start
        self._open: Callable[[KeyT, Any, Any], OpenedT] = open
        self.guesses = 0
        """Blocks that were guessed, and nobody has asked for since."""
        self.vain_bytes = 0
        """Bytes of guesses that were read and dropped."""

    @property
    def free(self) -> int:
        """Slots without a block."""
        return len(self._free)

    def __contains__(self, key: KeyT) -> bool:
        """Whether ``key`` is here or on its way, needed or guessed."""
        return key in self._taken

    def is_guess(self, key: KeyT) -> bool:
        """Whether ``key`` was guessed, and nobody has asked for it since."""
        slot = self._taken.get(key)
        return slot is not None and slot.is_guess

    def request(self, key: KeyT) -> None:
        """Bring ``key``, for somebody will wait for it; returns at once.

        Raises LookupError when it is neither here nor on its way and no slot is free.
        """
        slot = self._taken.get(key)
        if slot is None:
            self._begin(key, urgent=True)
        elif slot.is_guess:
            self._end_guess(slot)
            if slot.bringing is not None:
                slot.bringing.hurry()

    def guess(self, key: KeyT) -> bool:
        """Bring ``key`` behind all that is needed; false, with nothing done, if it is here or no slot is free."""
        if key in self._taken or not self._free:
            return False
        self._begin(key, urgent=False).is_guess = True
        self.guesses += 1
        return True

    def drop_guesses(self, wanted: Container[KeyT] = ()) -> int:
        """Let go of all guesses but the ``wanted``; how many these were."""
        wrong = [key for key, slot in self._taken.items() if slot.is_guess and key not in wanted]
        for key in wrong:
            slot = self._taken[key]
            slot.is_dropped = True
            if slot.bringing is not None:
                slot.bringing.drop()
            self.release(key)
        return len(wrong)

    def wait(self, key: KeyT) -> OpenedT:
        """Wait until ``key``, which was requested, is here: what it is used as, valid until `release`.

        Raises what its read or `open` raises, and the slot is free then; KeyError when nobody has asked for it.
        """
        slot = self._taken[key]
        if slot.opened is None:
            assert slot.bringing is not None, "a slot that is taken is read or open"
            try:
                slot.opened = self._open(key, slot.buffer, slot.bringing.wait())
            except BaseException:
                self.release(key)
                raise
            slot.bringing = None
        opened: OpenedT = slot.opened
        return opened

    def release(self, key: KeyT) -> None:
        """``key`` leaves its slot, wherever its read is; nothing happens when it is not here."""
        slot = self._taken.pop(key, None)
        if slot is not None:
            self._end_guess(slot)
            slot.opened = None
            self._free.append(slot)

    @property
    def held(self) -> list[KeyT]:
        """All that is here or on its way, in the order in which it was asked for."""
        return list(self._taken)

    def close(self) -> None:
        """Give all buffers back; nothing can be asked for any more."""
        for key in self.held:
            self.release(key)
        for slot in self._free:
            self._settle(slot)
        self._free = []

    def _end_guess(self, slot: _Slot) -> None:
        self.guesses -= slot.is_guess
        slot.is_guess = False

    def _begin(self, key: KeyT, *, urgent: bool) -> _Slot:
        if not self._free:
            raise LookupError(f"no slot is free for `{key}`")
        place = next((place for place, slot in enumerate(self._free) if slot.bringing is None), 0)
        slot = self._free[place]
        self._settle(slot)
        slot.bringing = self._start(key, slot.buffer, urgent)
        self._taken[key] = self._free.pop(place)
        return slot

    def _settle(self, slot: _Slot) -> None:
        """Nobody writes to ``slot`` any more."""
        if slot.bringing is not None:
            there = slot.bringing.settle()
            self.vain_bytes += there if slot.is_dropped else 0
        slot.bringing, slot.is_dropped = None, False
