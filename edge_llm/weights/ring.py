"""A few blocks that take turns in the memory of a store: while one block is used, the next ones are on their way.

Whoever makes a ring says what its pool is, how a block is started into a buffer and how it is opened once it is there:
tensors of a layer, rows of a table, or a layer in the memory of a card.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

from edge_llm.weights.pools import SlotPool, Transfer
from edge_llm.weights.store import BlockStore

KeyT = TypeVar("KeyT", bound=Hashable)
BufferT = TypeVar("BufferT")
WaitedT = TypeVar("WaitedT")
OpenedT = TypeVar("OpenedT")


class Ring(Generic[KeyT, OpenedT]):
    """The blocks that were requested last, as many as ``pool`` has places for; ``start`` and ``open`` are a `BlockStore`'s.

    `wait` has one caller at a time; any thread may call `request` and `use` meanwhile.
    """

    def __init__(
        self,
        pool: SlotPool,
        start: Callable[[KeyT, BufferT, bool], Transfer[WaitedT]],
        open: Callable[[KeyT, BufferT, WaitedT], OpenedT],
    ) -> None:
        self.store: BlockStore[KeyT, OpenedT] = BlockStore(pool, start, open)
        self._pool = pool

    def __len__(self) -> int:
        return len(self._pool.slots)

    def request(self, key: KeyT, *, urgent: bool = False) -> None:
        """Start to bring ``key`` in place of the block that was requested the longest ago, unless it is here or on its way."""
        self.store.request_evicting(key, urgent=urgent)

    def wait(self, key: KeyT) -> None:
        """Wait until ``key`` is here and opened; a block that was not requested is requested now.

        Raises what `start`, its reading or `open` raise.  Its slot is then free, so that the next request tries again.
        """
        if key not in self.store:
            self.request(key)
        self.store.wait(key)

    def use(self, key: KeyT) -> OpenedT:
        """What was opened, valid until its slot is requested for another block; `KeyError` when it is not here."""
        return self.store.use(key)

    def release(self) -> None:
        """Give all memory back; nothing can be requested any more."""
        self.store.close()


def in_turn(ring: Ring[KeyT, OpenedT], keys: Sequence[KeyT]) -> Iterator[OpenedT]:
    """What each of ``keys`` is used as, valid until the next is taken; as many as there are other slots are on their way."""
    for key in keys[: len(ring)]:
        ring.request(key, urgent=True)
    for place, key in enumerate(keys):
        ring.wait(key)
        yield ring.use(key)
        for later in keys[place + len(ring) : place + len(ring) + 1]:
            ring.request(later, urgent=True)
