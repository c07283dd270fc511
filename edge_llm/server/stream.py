"""Streams of server-sent events or of lines of JSON, and work that ends when the client goes away."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge_llm.server import limits
from edge_llm.server.journal import Entry

Result = TypeVar("Result")
log = logging.getLogger("edge_llm.server")

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
DONE = "data: [DONE]\n\n"
_HEADERS = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


@dataclass(frozen=True)
class Medium:
    """How a stream is written."""

    content_type: str
    keep_alive: str
    """What is sent when there is nothing to say."""


SSE = Medium("text/event-stream; charset=utf-8", ": keep-alive\n\n")
"""Keeps alive by a comment: clients that parse events pass over it, a named event would break some."""
NDJSON = Medium("application/x-ndjson", " ")
"""Keeps alive by a space, which may stand before any JSON: an empty line would break clients that parse each."""


def line(data: dict[str, Any]) -> str:
    """``data`` as a line of JSON."""
    return f"{_JSON.encode(data)}\n"


def event(data: dict[str, Any], name: str | None = None) -> str:
    """One event with JSON data."""
    text = _JSON.encode(data)
    return f"data: {text}\n\n" if name is None else f"event: {name}\ndata: {text}\n\n"


class TextEvent:
    """An event of which only one text changes from piece to piece: the last one of ``data``, which is empty there.

    The rest is written as JSON once, not for every token.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self._before, _, self._behind = event(data).rpartition('""')

    def with_text(self, text: str) -> str:
        """The event that has ``text``."""
        return f"{self._before}{_JSON.encode(text)}{self._behind}"


class Alarm:
    """Rings when a wait (a ``with`` block) on the running event loop takes ``seconds``.

    A stream has thousands of waits, all short: its one timer looks when the present one began, and is not set for each.
    """

    def __init__(self, seconds: float, ring: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._ring = ring
        self._since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.rang = False

    def __enter__(self) -> None:
        self._since = self._loop.time()
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._look)

    def __exit__(self, *_: object) -> None:
        self._since = None

    def stop(self) -> None:
        """Never ring again."""
        self._since = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._since is None:
            return
        left = self._since + self._seconds - self._loop.time()
        if left > 0:
            self._timer = self._loop.call_later(left, self._look)
        else:
            self.rang = True
            self._ring()


class EventStream(Response):
    """A response that sends events as they come, those that come together in one piece.

    ``end`` is called when they end, or the client goes away or stops reading.
    """

    def __init__(
        self, events: AsyncIterator[str], end: Callable[[], None], headers: Mapping[str, str], medium: Medium = SSE
    ) -> None:
        super().__init__()
        self._events = events
        self._end = end
        given = {"content-type": medium.content_type, **headers}
        self._all_headers = _HEADERS + [(name.encode(), value.encode()) for name, value in given.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if await until_disconnect(receive, self._send_all(send)) is None:
                Entry.of(scope).trouble = "the client left"
        except TimeoutError:
            log.warning("a client stopped reading its stream; the answer was cancelled")
        finally:
            self._end()

    async def _send_all(self, send: Send) -> bool:
        await send({"type": "http.response.start", "status": 200, "headers": self._all_headers})
        task = asyncio.current_task()
        assert task is not None
        reader = Alarm(limits.READER_SECONDS, task.cancel)
        try:
            async for text in self._events:
                with reader:
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        except asyncio.CancelledError:
            if reader.rang:
                raise TimeoutError from None
            raise
        finally:
            reader.stop()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return True


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of ``work``, or None: it is cancelled when the client goes away.  The body must have been read."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, watching):
            task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
