"""Signals where they do no harm: Ctrl-C above all.

In the main thread Python calls the handler of a signal between any two instructions, and most raise: behind the one that takes
a lock, a page or the batcher, say, and before the one that would give it back.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums, which take six times as long, in every step
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

Handler = Callable[[int, FrameType | None], Any]
HELD = (signal.SIGINT, signal.SIGTERM, *([signal.SIGALRM] if hasattr(signal, "SIGALRM") else []))
"""Signals whose handlers people let raise: to stop, to end, for a time limit."""


class HeldInterrupt:
    """The handler of a signal that comes in here waits for the end; ``wake`` is called at once, in the main thread.

    Nothing changes in other threads, to which no handler comes, and for signals that have no handler in Python.
    """

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self._wake = wake
        self._handlers: dict[int, Handler] = {}  # those of before
        self._came: list[tuple[int, FrameType | None]] = []

    @property
    def pending(self) -> bool:
        """Whether one waits; what takes long ends early then."""
        return bool(self._came)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            try:
                for number in HELD:
                    handler = _signal.getsignal(number)
                    if callable(handler):
                        self._handlers[number] = handler
                        _signal.signal(number, self._note)
            except BaseException:  # a handler that is not held yet
                self._restore()
                raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self._restore()
        except BaseException:  # a handler that is held no more
            self._restore()
            raise
        for number, frame in self._came:
            self._handlers[number](number, frame)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            _signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))
        self._wake()
