"""How often an answer is drawn: keys come first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

SHARE = 0.4
"""Of the event loop's time, what may be busy while an answer streams: in the rest a key finds nothing before it."""
MOST_SECONDS = 0.3
"""How long an answer may stand still for that."""
TYPING_SECONDS = 1.8
"""How long it stands still, at most, while somebody types: drawing a step takes longer than a key may."""
LOOK_SECONDS = 0.1
"""How often it looks whether somebody still types."""


class Pace:
    """Slows an answer down whose drawing takes long: it is drawn less often, in larger steps."""

    def __init__(
        self,
        typing: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._typing = typing
        self._clock = clock
        self._used = used
        self._sleep = sleep
        self._begun = (clock(), used())

    async def wait(self) -> None:
        """Wait until the next step may be drawn; that step begins then."""
        (began, used_before), now, used = self._begun, self._clock(), self._used()
        await self._sleep(max(0.0, min(MOST_SECONDS, (used - used_before) / SHARE - (now - began))))
        while self._typing() and self._clock() < now + TYPING_SECONDS:
            await self._sleep(LOOK_SECONDS)
        self._begun = (self._clock(), used)
