"""An answer that comes piece by piece, handed on in batches: the first pieces at once, then all that came meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from edge_llm.errors import EdgeLLMError
from edge_llm.providers.base import BATCHES_PER_SECOND, Ended, Piece
from edge_llm.talk.pieces import Said, Thought


class Bell:
    """Wakes a waiting coroutine of the running event loop from any thread; costs next to nothing while nobody waits."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._awaited = False

    def ring(self) -> None:
        """Something has changed."""
        if self._awaited:
            self._awaited = False
            with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody listens
                self._loop.call_soon_threadsafe(self._rung.set)

    async def wait_for(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready``, which every ring may have changed."""
        while True:
            self._rung.clear()
            self._awaited = True  # first: a change behind the question rings
            if ready():
                return
            await self._rung.wait()


async def in_batches(bell: Bell, ready: Callable[[], bool], take: Callable[[], list[Piece]]) -> AsyncIterator[list[Piece]]:
    """What ``take`` gives whenever it is ``ready``, a few times a second, up to the batch with `Ended`."""
    while True:
        await bell.wait_for(ready)
        pieces = take()
        if pieces:
            yield pieces
            if isinstance(pieces[-1], Ended):
                return
            await asyncio.sleep(1 / BATCHES_PER_SECOND)


def joined(thought: str, said: str) -> list[Piece]:
    """The pieces of a thought and of what is said behind it."""
    pieces: list[Piece] = [Thought(thought)] if thought else []
    return [*pieces, Said(said)] if said else pieces


def readable(error: BaseException) -> EdgeLLMError:
    """``error`` as one that a person can be told."""
    return error if isinstance(error, EdgeLLMError) else EdgeLLMError(f"internal error, {type(error).__name__}: {error}")
