"""The memory of blocks: pools of slots of one size, or of as many bytes as each block has, and one budget for all pools."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

WaitedT_co = TypeVar("WaitedT_co", covariant=True)


class Transfer(Protocol[WaitedT_co]):
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
class Slot:
    """The memory of a block: its buffer, what may still write to it, and what it holds."""

    buffer: Any
    """None for a block that comes with memory of its own."""
    place: int = 0
    """Its number among the slots of a pool."""
    transfer: Transfer[Any] | None = None
    """None when nobody writes to the buffer."""
    opened: Any = None
    is_guess: bool = False
    is_dropped: bool = False
    """Whether it was a guess that nobody wanted; its bytes are counted when they have settled."""


class SlotPool(Protocol):
    """Slots, each of which has a block or is free."""

    @property
    def slots(self) -> Sequence[Slot]:
        """Those that stay when their blocks leave, by their places."""
        ...

    def has_place(self, key: Any) -> bool:
        """Whether there is room for the block ``key``."""
        ...

    def take(self, key: Any) -> Slot | None:
        """A slot for ``key``, one that nobody writes to where there is one; None without a place."""
        ...

    def claim(self, key: Any, place: int) -> Slot:
        """Slot ``place``, which is free, for ``key``."""
        ...

    def give(self, key: Any, slot: Slot) -> None:
        """The block ``key`` has left ``slot``."""
        ...

    def close(self) -> None:
        """Nothing has a place from now on; all slots were given back."""
        ...


class BufferPool:
    """Slots of one size, as many as there are ``buffers``."""

    def __init__(self, buffers: Iterable[Any]) -> None:
        self.slots: tuple[Slot, ...] = tuple(Slot(buffer, place) for place, buffer in enumerate(buffers))
        self._free = list(self.slots)

    def has_place(self, key: Any) -> bool:
        return bool(self._free)

    def take(self, key: Any) -> Slot | None:
        for place, slot in enumerate(self._free):
            if slot.transfer is None:
                return self._free.pop(place)
        return self._free.pop(0) if self._free else None  # the one that was given back first

    def claim(self, key: Any, place: int) -> Slot:
        slot = self.slots[place]
        self._free.remove(slot)
        return slot

    def give(self, key: Any, slot: Slot) -> None:
        self._free.append(slot)

    def close(self) -> None:
        self.slots, self._free = (), []


class BytePool:
    """``nbytes`` bytes for blocks with memory of their own, of which block ``key`` has ``size(key)``."""

    slots: tuple[Slot, ...] = ()

    def __init__(self, nbytes: int, size: Callable[[Any], int]) -> None:
        self.held = 0
        """Bytes of the blocks that are here."""
        self._nbytes = nbytes
        self._size = size

    def has_place(self, key: Any) -> bool:
        return self.held + self._size(key) <= self._nbytes

    def take(self, key: Any) -> Slot | None:
        if not self.has_place(key):
            return None
        self.held += self._size(key)
        return Slot(None)

    def claim(self, key: Any, place: int) -> Slot:
        raise LookupError(f"`{key}` has no slot that stays")

    def give(self, key: Any, slot: Slot) -> None:
        self.held -= self._size(key)

    def close(self) -> None:
        self._nbytes = 0


class Budget:
    """``nbytes`` of memory for all weights of a model, of which each kind of block has a share by name."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.shares: dict[str, int] = {}
        """Bytes that are taken, by the kind of block."""

    def take(self, kind: str, nbytes: int) -> None:
        """``kind`` has so many bytes from now on.  Raises MemoryError when there are not so many left."""
        left = self.nbytes - sum(self.shares.values()) + self.shares.get(kind, 0)
        if nbytes > left:
            raise MemoryError(f"`{kind}` wants {nbytes} bytes, and {left} of the {self.nbytes} for weights are left")
        self.shares[kind] = nbytes

    def give_back(self, kind: str) -> None:
        """``kind`` has no share any more; nothing happens when it had none."""
        self.shares.pop(kind, None)

    def buffer_pool(self, kind: str, count: int, nbytes: int, make: Callable[[int, int], Iterable[Any]]) -> BufferPool:
        """Slots for ``count`` blocks of a ``kind``, each of ``nbytes`` bytes at most, in what ``make(count, nbytes)`` gives."""
        self.take(kind, count * nbytes)
        return BufferPool(make(count, nbytes))

    def byte_pool(self, kind: str, nbytes: int, size: Callable[[Any], int]) -> BytePool:
        """``nbytes`` bytes for blocks of a ``kind`` that bring memory of their own: ``size(key)`` bytes each."""
        self.take(kind, nbytes)
        return BytePool(nbytes, size)
