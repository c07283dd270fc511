"""The answer to one request as a stream of deltas, filled by one thread and read in another or on an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Protocol
from weakref import WeakKeyDictionary, ref

from edge_llm.engine.request import Delta, Finish, PromptProgress, Request
from edge_llm.interrupts import HeldInterrupt


class Answering(Protocol):
    """One submitted request.  It is iterated once; the last delta has ``finish``, or the error of the request is raised."""

    def __iter__(self) -> Iterator[Delta]:
        """The deltas, waited for in this thread."""
        ...

    def __aiter__(self) -> AsyncIterator[Delta]:
        """The deltas, waited for on the running event loop without polling; a wait that is cancelled loses nothing."""
        ...

    def follow(self, take: Callable[[Delta | BaseException], None]) -> None:
        """Call ``take`` on the running event loop with every delta, or the error of the request, instead of iterating.

        ``take`` never raises.
        """
        ...

    def cancel(self) -> None:
        """Stop at once; the stream ends with the finish reason ``cancelled``.  No effect on a stream that has ended."""
        ...

    @property
    def progress(self) -> PromptProgress:
        """How much of the prompt is computed; any thread may look at any time."""
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
        self._lock = threading.RLock()  # a condition's `with` is Python: an interrupt may come inside it
        self._changed = threading.Condition(self._lock)
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
        finish: Finish | None = None
        while finish is None:
            with HeldInterrupt(self._notify) as interrupt, self._lock:
                self._changed.wait_for(lambda: interrupt.pending or self._items)
                delta = None if interrupt.pending else self._take()
            if delta is not None:  # else a handler came that raises nothing
                finish = delta.finish
                yield delta

    def __aiter__(self) -> AsyncIterator[Delta]:
        return _AsyncDeltas(self)

    def follow(self, take: Callable[[Delta | BaseException], None]) -> None:
        def take_all() -> None:
            while self._items:
                take(self._items.popleft())

        calls = calls_on(asyncio.get_running_loop())
        self.attach(lambda: calls.soon(take_all))

    def attach(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` after every change, from the thread that makes it."""
        with self._lock:
            self._wake = wake
        wake()

    def poll(self) -> Delta | None:
        """The next delta if it is there; raises the error that ended the stream."""
        with self._lock:
            return self._take() if self._items else None

    def _append(self, item: Delta | BaseException, *, ends: bool) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = ends
            self._items.append(item)
            self._notify()
            if self._wake is not None:
                self._wake()

    def _notify(self) -> None:
        with self._lock:
            self._changed.notify_all()

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
        calls = calls_on(asyncio.get_running_loop())
        stream.attach(lambda: calls.soon(self._ready.set))

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


class LoopCalls:
    """Calls on one event loop that other threads ask for: those of a moment, such as a step's for all streams, wake it once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = ref(loop)  # which `_calls` knows as long as it is there
        self._lock = threading.Lock()
        self._calls: dict[Callable[[], None], None] = {}
        self._woken = False

    def soon(self, call: Callable[[], None]) -> None:
        """Have ``call``, which never raises, called on the loop; once, if it is asked for again before."""
        loop = self._loop()
        if loop is None or loop.is_closed():
            return  # nobody listens
        with self._lock, contextlib.suppress(RuntimeError):  # it was closed just now
            self._calls[call] = None
            if not self._woken:
                loop.call_soon_threadsafe(self._run)
                self._woken = True  # last: a thread that is interrupted wakes the loop once too often, never too rarely

    def _run(self) -> None:
        with self._lock:
            calls, self._calls = self._calls, {}
            self._woken = False
        for call in calls:
            call()


_calls: WeakKeyDictionary[asyncio.AbstractEventLoop, LoopCalls] = WeakKeyDictionary()


def calls_on(loop: asyncio.AbstractEventLoop) -> LoopCalls:
    """The calls on ``loop``, which is the running one."""
    if loop not in _calls:
        _calls[loop] = LoopCalls(loop)
    return _calls[loop]
