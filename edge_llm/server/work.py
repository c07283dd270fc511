"""The work of requests that is done beside the event loop: reading bodies, rendering and tokenizing prompts, writing JSON.

A few threads do it, and one of its own for long bodies, so that a short request does not wait for a long one.  The memory
of all bodies is bounded.  No call keeps the interpreter for long, so other threads get their turn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from itertools import islice
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Scope

from edge_llm.errors import Overloaded
from edge_llm.server import limits
from edge_llm.server.stream import until_disconnect

Result = TypeVar("Result")
_JSON = "application/json"
_HELD = "edge_llm.held"
"""Where a request's scope has the bytes that it holds."""
_PIECE = 4096
"""Values of a list that are written in one go."""
_ITEMS = 8
"""Items of an iterator that are made and written in one go."""
_CHUNK = 64 << 10
"""Characters of JSON that are sent in one go."""
_DEPTH = 5
"""Levels of containers that are looked into for long lists."""


class Crew:
    """Threads that do one piece of work after the other, begun when they are first needed.

    They are daemons: the end of the process waits for no work whose answer nobody gets.
    """

    def __init__(self, name: str, size: int) -> None:
        self._name = name
        self._size = size
        self._begun = 0
        self._open = 0
        self._lock = Lock()
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def do(self, work: Callable[[], Result]) -> Future[Result]:
        """The future of what ``work`` returns; if it is cancelled first, ``work`` never runs."""
        future: Future[Result] = Future()
        with self._lock:
            self._open += 1
            if self._begun < min(self._size, self._open):
                Thread(target=self._work, name=f"{self._name}-{self._begun}", daemon=True).start()
                self._begun += 1
        self._jobs.put((future, work))
        return future

    def _work(self) -> None:
        while True:
            future, work = self._jobs.get()
            if future.set_running_or_notify_cancel():
                _settle(future, work)
            with self._lock:
                self._open -= 1
            del future, work  # what they hold is not kept until the next job


def _settle(future: Future[Result], work: Callable[[], Result]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # the thread outlives any request
        future.set_exception(error)


class Workshop:
    """The crews of one server, and the ledger of the bodies that requests hold from their first byte to their end."""

    def __init__(self) -> None:
        self._short = Crew("short-request", limits.SHORT_WORKERS)
        self._long = Crew("long-request", 1)
        self._replies = Crew("reply", limits.SHORT_WORKERS)
        self.held = 0
        """Bytes of all long bodies."""

    async def prepare(self, request: Request, context: int | None, work: Callable[[bytes], Result]) -> Result:
        """What ``work`` makes of the request's body.  Raises `Overloaded` while bodies hold too much.

        ``context`` is the model's in tokens, None while it loads: bodies may hold more where a prompt may be longer.
        """
        most = limits.held_bytes(context)
        body = bytearray()
        try:
            async for piece in request.stream():
                body += piece
                self._hold(request.scope, len(body) - limits.SHORT_BYTES, most)
            return await self.work(request, lambda: work(bytes(body)))
        finally:
            body.clear()  # a cancelled job may still lie in the queue

    async def work(self, request: Request, work: Callable[[], Result]) -> Result:
        """What ``work`` makes, beside the event loop; that of a request with a long body waits for others of its kind."""
        crew = self._long if _HELD in request.scope else self._short
        return await _unless_left(request, crew.do(work))

    async def reply(self, request: Request, make: Callable[[], Any], headers: Mapping[str, str] | None = None) -> Response:
        """The JSON of what ``make`` gives, made and written beside the event loop; a long one goes out as it is written."""
        chunks = _chunks(make)
        first, second = await _unless_left(request, self._replies.do(lambda: (next(chunks), next(chunks, None))))
        if second is None:
            return Response(first, media_type=_JSON, headers=headers)
        return StreamingResponse(self._all_chunks([first, second], chunks), media_type=_JSON, headers=headers)

    def let_go(self, scope: Scope) -> None:
        """The request of ``scope`` has ended."""
        self.held -= scope.pop(_HELD, 0)

    def _hold(self, scope: Scope, count: int, most: int) -> None:
        more = max(0, count - scope.get(_HELD, 0))
        if not more:
            return
        if self.held + more > most:
            raise Overloaded(f"long requests hold `{self.held}` bytes already; ask again later")
        self.held += more
        scope[_HELD] = scope.get(_HELD, 0) + more

    async def _all_chunks(self, known: list[bytes], rest: Iterator[bytes]) -> AsyncIterator[bytes]:
        for chunk in known:
            yield chunk
        while (found := await asyncio.wrap_future(self._replies.do(lambda: next(rest, None)))) is not None:
            yield found


async def _unless_left(request: Request, future: Future[Result]) -> Result:
    """The result of ``future``; it is cancelled, and `ClientDisconnect` raised, when the client goes away before."""

    async def result() -> tuple[Result]:
        return (await asyncio.wrap_future(future),)

    found = await until_disconnect(request.receive, result())
    if found is None:
        raise ClientDisconnect
    return found[0]


def _chunks(make: Callable[[], Any]) -> Iterator[bytes]:
    """What ``make`` gives as JSON, in pieces for a socket."""
    pieces: list[str] = []
    size = 0
    for piece in json_pieces(make()):
        pieces.append(piece)
        size += len(piece)
        if size > _CHUNK:
            yield "".join(pieces).encode()
            pieces, size = [], 0
    yield "".join(pieces).encode()


def json_pieces(value: Any, depth: int = 0) -> Iterator[str]:
    """``value`` as JSON, in pieces that are written quickly: a long list never at once, an iterator is written as a list.

    An iterator's items are made when they are written, so that all of them are never there together.
    """
    if isinstance(value, dict) and depth < _DEPTH:
        lead = "{"
        for key, item in value.items():
            yield f"{lead}{_json(key)}:"
            yield from json_pieces(item, depth + 1)
            lead = ","
        yield "}" if value else "{}"
    elif isinstance(value, Iterator):
        yield from _list_pieces(value, _ITEMS)
    elif isinstance(value, list) and value and isinstance(value[0], dict | list) and depth < _DEPTH:
        for index, item in enumerate(value):
            yield "," if index else "["
            yield from json_pieces(item, depth + 1)
        yield "]"
    elif isinstance(value, list) and len(value) > _PIECE:
        yield from _list_pieces(iter(value), _PIECE)
    else:
        yield _json(value)


def _list_pieces(items: Iterator[Any], length: int) -> Iterator[str]:
    lead = "["
    while piece := list(islice(items, length)):
        yield lead + _json(piece)[1:-1]
        lead = ","
    yield "]" if lead == "," else "[]"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
