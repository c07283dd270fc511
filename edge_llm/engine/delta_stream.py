"""The answer to one request as a stream of deltas, filled by one thread and read in another or on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol

from edge_llm.engine.request import Delta, PromptProgress, Request


class Answering(Protocol):
    """One submitted request.  It is iterated once; the last delta has ``finish``, or the error of the request is raised."""

    def __iter__(self) -> Iterator[Delta]:
        """The deltas, waited for in this thread."""
        ...

    def __aiter__(self) -> AsyncIterator[Delta]:
        """The deltas, waited for on the running event loop without polling; a wait that is cancelled loses nothing."""
        ...

    def cancel(self) -> None:
        """Stop at once; the stream ends with the finish reason ``cancelled``.  No effect on a stream that has ended."""
        ...

    @property
    def prompt_done(self) -> tuple[int, int]:
        """Tokens of the prompt that are computed, cached ones included, and all of them; any thread may ask at any time."""
        ...


class DeltaStream:
    """An `Answering` that one thread fills: `put` deltas, the last one with ``finish``, or `fail`."""

    def __init__(self, request: Request, on_cancel: Callable[[DeltaStream], None]) -> None:
        self.request = request
        self.progress = PromptProgress(len(request.prompt))
        """That of the generation which fills it."""
        self._on_cancel = on_cancel
        self._items: deque[Delta | BaseException] = deque()
        self._changed = threading.Condition()
        self._wake: Callable[[], None] | None = None
        self._cancelled = False
        self._ended = False

    def put(self, delta: Delta) -> None:
        self._append(delta, ends=delta.finish is not None)

    def fail(self, error: BaseException) -> None:
        self._append(error, ends=True)

    @property
    def cancelled(self) -> bool:
        """Whether the caller wants no more of it."""
        return self._cancelled

    @property
    def prompt_done(self) -> tuple[int, int]:
        return self.progress.done, self.progress.total

    @property
    def ready(self) -> bool:
        """Whether `poll` has something."""
        return bool(self._items)

    def cancel(self) -> None:
        self._cancelled = True
        self._on_cancel(self)

    def __iter__(self) -> Iterator[Delta]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._items)
                delta = self._take()
            yield delta
            if delta.finish is not None:
                return

    def __aiter__(self) -> AsyncIterator[Delta]:
        return _AsyncDeltas(self)

    def attach(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` after every change, from the thread that makes it."""
        with self._changed:
            self._wake = wake
        wake()

    def poll(self) -> Delta | None:
        """The next delta if it is there; raises the error that ended the stream."""
        with self._changed:
            return self._take() if self._items else None

    def _append(self, item: Delta | BaseException, *, ends: bool) -> None:
        with self._changed:
            if self._ended:
                return
            self._ended = ends
            self._items.append(item)
            self._changed.notify_all()
            if self._wake is not None:
                self._wake()

    def _take(self) -> Delta:
        item = self._items.popleft()
        if isinstance(item, BaseException):
            raise item
        return item


class _AsyncDeltas:
    """A `DeltaStream` on the event loop that is running."""

    def __init__(self, stream: DeltaStream) -> None:
        self._stream = stream
        self._ended = False
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        stream.attach(self._wake)

    def __aiter__(self) -> _AsyncDeltas:
        return self

    async def __anext__(self) -> Delta:
        if self._ended:
            raise StopAsyncIteration
        while (delta := self._stream.poll()) is None:
            self._ready.clear()
            if (delta := self._stream.poll()) is not None:
                break
            await self._ready.wait()
        self._ended = delta.finish is not None
        return delta

    def _wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody listens
            self._loop.call_soon_threadsafe(self._ready.set)
