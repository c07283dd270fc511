"""Server-sent events, and work that ends when the client goes away."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edge_llm.server import limits

Result = TypeVar("Result")
log = logging.getLogger("edge_llm.server")

KEEP_ALIVE = ": keep-alive\n\n"
"""A comment: clients that parse events pass over it, a named event would break some."""
DONE = "data: [DONE]\n\n"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


def event(data: dict[str, Any], name: str | None = None) -> str:
    """One event with JSON data."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return f"data: {text}\n\n" if name is None else f"event: {name}\ndata: {text}\n\n"


class EventStream(Response):
    """A response that sends events as they come; ``end`` is called when they end, or the client goes away or stops reading."""

    def __init__(self, events: AsyncIterator[str], end: Callable[[], None], headers: Mapping[str, str]) -> None:
        super().__init__()
        self._events = events
        self._end = end
        self._more_headers = [(name.encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_disconnect(receive, self._send_all(send))
        except TimeoutError:
            log.warning("a client stopped reading its stream; the answer was cancelled")
        finally:
            self._end()

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS + self._more_headers})
        async for text in self._events:
            async with asyncio.timeout(limits.READER_SECONDS):
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
            await asyncio.sleep(0)  # a stream with much to say lets others, and the news that its client left, through
        await send({"type": "http.response.body", "body": b"", "more_body": False})


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
