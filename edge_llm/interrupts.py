"""Ctrl-C where it does no harm.

In the main thread Python raises `KeyboardInterrupt` between any two instructions: behind the one that takes a lock, a page or
the batcher, say, and before the one that would give it back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self


class HeldInterrupt:
    """Ctrl-C in here waits for the end, and is raised there; nothing changes in other threads and for other signals."""

    def __init__(self) -> None:
        self._handler: Callable[[int, FrameType | None], Any] | None = None  # that of before, while its signals wait
        self._came: tuple[int, FrameType | None] | None = None

    @property
    def pending(self) -> bool:
        """Whether one waits; what takes long ends early then."""
        return self._came is not None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # only there signals have handlers
            handler = signal.getsignal(signal.SIGINT)
            if callable(handler):
                signal.signal(signal.SIGINT, self._note)
                self._handler = handler
        return self

    def __exit__(self, *error: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            if self._came is not None:
                self._handler(*self._came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = number, frame
