"""A few buffers that blocks take turns in: while one block is used, the next ones are on their way.

A ring knows neither files nor arrays.  Whoever makes it says what the buffers are, how a block is started into one and how it
is opened once it is there: tensors of a layer, rows of a table, or a layer in the memory of a card.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, Generic, Protocol, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
BufferT = TypeVar("BufferT")
WaitedT = TypeVar("WaitedT")
WaitedT_co = TypeVar("WaitedT_co", covariant=True)
OpenedT = TypeVar("OpenedT")


class Pending(Protocol[WaitedT_co]):
    """A block on its way into a buffer."""

    def wait(self) -> WaitedT_co:
        """Wait until the block is there; raises what went wrong."""
        ...

    def settle(self) -> object:
        """Wait until nobody writes to the buffer any more, whatever came of it; also after `wait`."""
        ...


@dataclass(eq=False)
class _Slot(Generic[KeyT]):
    """A buffer, the block that it is for (None when it is empty), and what may still write to it."""

    buffer: Any
    key: KeyT | None = None
    pending: Pending[Any] | None = None
    turn: int = 0
    """When the block was requested; 0 when the buffer is empty."""


class Ring(Generic[KeyT, OpenedT]):
    """As many blocks as there are ``buffers``: those that were requested last.

    ``start(key, buffer, urgent)`` begins to bring a block and returns at once; ``open(key, buffer, waited)`` checks what came
    and gives what the block is used as.  Neither may hold the owner of the ring, whose memory would then wait for a garbage
    collection.  `request` and `wait` have one caller at a time each; any thread may call `use` meanwhile.
    """

    def __init__(
        self,
        buffers: Iterable[BufferT],
        start: Callable[[KeyT, BufferT, bool], Pending[WaitedT]],
        open: Callable[[KeyT, BufferT, WaitedT], OpenedT],
    ) -> None:
        self._slots: tuple[_Slot[KeyT], ...] = tuple(_Slot(buffer) for buffer in buffers)
        self._start: Callable[[KeyT, Any, bool], Pending[Any]] = start
        self._open: Callable[[KeyT, Any, Any], OpenedT] = open
        self._opened: dict[KeyT, OpenedT] = {}
        self._turns = itertools.count(1)
        self._lock = Lock()  # of requests: `wait` makes them too

    def __len__(self) -> int:
        return len(self._slots)

    def request(self, key: KeyT, *, urgent: bool = False) -> None:
        """Start to bring ``key`` into the buffer that was requested the longest ago, unless it is here or on its way."""
        self._request(key, urgent=urgent)

    def wait(self, key: KeyT) -> None:
        """Wait until ``key`` is here and opened; a block that was not requested is requested now.

        Raises what `start`, its reading or `open` raise.  The buffer is then empty, so that the next request tries again.
        """
        slot = self._slot_of(key) or self._request(key)
        if slot.pending is None:
            return
        try:
            self._opened[key] = self._open(key, slot.buffer, slot.pending.wait())
        except BaseException:
            self._empty(slot)
            raise
        slot.pending = None

    def use(self, key: KeyT) -> OpenedT:
        """What was opened, valid until its buffer is requested for another block; `KeyError` when it is not here."""
        return self._opened[key]

    def places(self, keys: Iterable[KeyT]) -> tuple[int, ...]:
        """Which buffers ``keys``, which were requested last, are in or on their way to."""
        by_key = {slot.key: place for place, slot in enumerate(self._slots)}
        return tuple(by_key[key] for key in keys)

    def buffer(self, place: int) -> Any:
        """The buffer number ``place``."""
        return self._slots[place].buffer

    def lend(self, writers: Sequence[Pending[Any]]) -> None:
        """Empty every buffer for somebody who fills them himself; ``writers[i]`` is settled when nobody writes to buffer i."""
        with self._lock:
            for slot, writer in zip(self._slots, writers, strict=True):
                self._empty(slot)
                slot.pending = writer

    def put(self, place: int, key: KeyT, pending: Pending[Any]) -> None:
        """Buffer ``place``, which was lent, has ``key`` or will have it when ``pending`` has ended."""
        with self._lock:
            slot = self._slots[place]
            slot.key, slot.pending, slot.turn = key, pending, next(self._turns)

    def release(self) -> None:
        """Give all buffers back; nothing can be requested any more."""
        with self._lock:
            for slot in self._slots:
                self._empty(slot)
                if slot.pending is not None:
                    slot.pending.settle()
            self._slots = ()

    def _request(self, key: KeyT, *, urgent: bool = False) -> _Slot[KeyT]:
        with self._lock:
            slot = self._slot_of(key) or self._refilled(key, urgent)
            slot.turn = next(self._turns)
            return slot

    def _slot_of(self, key: KeyT) -> _Slot[KeyT] | None:
        return next((slot for slot in self._slots if slot.key == key), None)

    def _refilled(self, key: KeyT, urgent: bool) -> _Slot[KeyT]:
        slot = min(self._slots, key=lambda slot: slot.turn)
        self._empty(slot)
        if slot.pending is not None:  # it failed, or nobody waited for it
            slot.pending.settle()
        slot.pending = self._start(key, slot.buffer, urgent)
        slot.key = key
        return slot

    def _empty(self, slot: _Slot[KeyT]) -> None:
        if slot.key is not None:
            self._opened.pop(slot.key, None)
        slot.key, slot.turn = None, 0


def in_turn(ring: Ring[KeyT, OpenedT], keys: Sequence[KeyT]) -> Iterator[OpenedT]:
    """What each of ``keys`` is used as, valid until the next is taken; as many as there are other buffers are on their way."""
    for key in keys[: len(ring)]:
        ring.request(key, urgent=True)
    for place, key in enumerate(keys):
        ring.wait(key)
        yield ring.use(key)
        for later in keys[place + len(ring) : place + len(ring) + 1]:
            ring.request(later, urgent=True)
