"""How often an answer is drawn: keys come first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SHARE = 0.4
"""Of the event loop's time, what may be busy while an answer streams: in the rest a key finds nothing before it."""
MOST_SECONDS = 0.3
"""How long an answer may stand still for that."""
TYPING_SECONDS = 1.8
"""How long it stands still between two steps while somebody types: drawing a step takes longer than a key may."""


class Pace:
    """Slows an answer down whose drawing takes long: it is drawn less often, in larger steps."""

    def __init__(
        self,
        typing: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        used: Callable[[], float] = time.thread_time,
    ) -> None:
        self._typing = typing
        self._clock = clock
        self._used = used
        self._begun = (clock(), used())

    def pause(self) -> float:
        """Seconds to wait before the next step; begins that step."""
        began, used = self._begun
        pause = max(0.0, min(MOST_SECONDS, (self._used() - used) / SHARE - (self._clock() - began)))
        if self._typing():
            pause = TYPING_SECONDS
        self._begun = (self._clock() + pause, self._used())
        return pause

    async def wait(self) -> None:
        """Wait until the next step may be drawn."""
        await asyncio.sleep(self.pause())
