"""One way from a request's body to its reply, whole or as a stream of events; each endpoint says what is in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

from starlette.requests import Request as HTTPRequest
from starlette.responses import JSONResponse, Response

from edge_llm.engine.request import Answer, Delta, PromptProgress, Request
from edge_llm.server import limits
from edge_llm.server.answers import Answers
from edge_llm.server.faces import face_of
from edge_llm.server.host import ModelHost
from edge_llm.server.journal import Entry
from edge_llm.server.lending import Naming, kept, lend, pool_of, prepared, read_body
from edge_llm.server.problems import Problem, problem_of
from edge_llm.server.schemas import ignored_header
from edge_llm.server.stream import SSE, EventStream, Medium, until_disconnect


class Events(Protocol):
    """The events of one streamed reply, in the order that clients expect."""

    def opening(self) -> Iterator[str]:
        """What comes before any answer."""

    def grow(self, index: int, delta: Delta) -> Iterator[str]:
        """What ``delta`` adds to answer ``index``; its end, too, if it is the last."""

    def closing(self) -> Iterator[str]:
        """What comes when all answers have ended."""

    def failed(self, problem: Problem) -> Iterator[str]:
        """What ends the stream instead."""


@runtime_checkable
class ReadingEvents(Events, Protocol):
    """Events that tell how much of a prompt is read, or was there."""

    @property
    def looks_often(self) -> bool:
        """Whether a client asked to be told while the prompt is read."""

    def reading(self, progress: PromptProgress) -> Iterator[str]:
        """What is new of the first prompt, which is read so far."""


class Reply(Protocol):
    """What an endpoint makes of the answers to its requests."""

    @property
    def requests(self) -> Sequence[Request]:
        """One for each answer."""

    def whole(self, answers: Sequence[Answer]) -> Any:
        """The reply that is not streamed, as JSON."""

    def events(self) -> Events:
        """The reply that is streamed."""


class Asking(Naming, Protocol):
    """The body of a request that is answered by a `Reply`."""

    @property
    def stream(self) -> bool | None: ...

    def ignored(self, template: str = "") -> list[str]: ...

    def reply(self, host: ModelHost, model: str) -> Reply:
        """The reply in the name of ``model``, its requests ready.  Raises `UsageError`."""


Body = TypeVar("Body", bound=Asking)


async def answered(request: HTTPRequest, kind: type[Body], placed: Callable[[Body], Body] = lambda body: body) -> Response:
    """Answer ``request``, whose body is a ``kind`` and is ``placed`` among what the server keeps."""
    body = await read_body(request, kind.parse)
    if body.stream and not pool_of(request).at_hand(body.model):
        return await _late_stream(request, partial(_begin, request, body, placed))
    return await _sent(request, await _begin(request, body, placed))


async def respond(
    request: HTTPRequest, host: ModelHost, reply: Reply, headers: Mapping[str, str], *, streamed: bool
) -> Response:
    """``reply``, whose requests ``host`` answers, whole or as a stream."""
    return await _sent(request, _submitted(request, host, reply, headers, streamed=streamed))


async def _sent(request: HTTPRequest, begun: _Begun) -> Response:
    if begun.events is not None:
        return _stream(request, begun)
    return await _whole_reply(request, begun.answers, begun.reply.whole, begun.headers)


@dataclass(frozen=True)
class _Begun:
    """A reply whose answers are on their way."""

    reply: Reply
    events: Events | None
    """Of a stream."""
    answers: Answers
    headers: Mapping[str, str]


async def _begin(request: HTTPRequest, body: Body, placed: Callable[[Body], Body]) -> _Begun:
    """Submit what ``body`` asks for to the model that it names, which is lent to ``request``."""
    entry = Entry.of(request.scope)
    host = await lend(request, body.model, kept(body))
    reply, entry.model, headers = await pool_of(request).workshop.work(request, lambda: _prepare(host, placed(body)))
    return _submitted(request, host, reply, headers, streamed=bool(body.stream))


def _submitted(
    request: HTTPRequest, host: ModelHost, reply: Reply, headers: Mapping[str, str], *, streamed: bool
) -> _Begun:
    events = reply.events() if streamed else None
    often = isinstance(events, ReadingEvents) and events.looks_often
    silence = limits.PROGRESS_SECONDS if often else limits.KEEP_ALIVE_SECONDS
    return _Begun(reply, events, Answers(host, reply.requests, Entry.of(request.scope), silence), headers)


def _prepare(host: ModelHost, body: Asking) -> tuple[Reply, str, dict[str, str]]:
    """The reply, what the client calls the model, and the reply's headers."""
    model = host.called(body.model)
    return body.reply(host, model), model, ignored_header(body.ignored(host.engine.template.source))


def _stream(request: HTTPRequest, begun: _Begun) -> EventStream:
    medium = face_of(request.scope).medium
    assert begun.events is not None
    groups = event_groups(begun.events, begun.answers, medium)
    return EventStream(groups, begun.answers.cancel, begun.headers, medium)


async def _late_stream(request: HTTPRequest, begin: Callable[[], Coroutine[Any, Any, _Begun]]) -> Response:
    """A stream whose model has to be loaded first: where that takes long it begins before, and is kept alive."""
    beginning = asyncio.create_task(begin())
    try:
        done, _ = await asyncio.wait({beginning}, timeout=limits.KEEP_ALIVE_SECONDS)
    except asyncio.CancelledError:
        beginning.cancel()
        raise
    if done:
        return _stream(request, beginning.result())

    def end() -> None:
        if not beginning.cancel() and not beginning.cancelled() and beginning.exception() is None:
            beginning.result().answers.cancel()

    medium = face_of(request.scope).medium
    return EventStream(_late_groups(request, beginning, medium), end, {}, medium)


async def _late_groups(request: HTTPRequest, beginning: asyncio.Task[_Begun], medium: Medium) -> AsyncIterator[str]:
    """The events of the reply that is ``beginning``, behind what keeps the stream alive until then."""
    while not beginning.done():
        yield medium.keep_alive
        await asyncio.wait({beginning}, timeout=limits.KEEP_ALIVE_SECONDS)
    try:
        begun = beginning.result()
    except Exception as error:
        yield face_of(request.scope).failed(problem_of(error))
        Entry.of(request.scope).fail(error, str(error))
        return
    assert begun.events is not None
    async for text in event_groups(begun.events, begun.answers, medium):
        yield text


async def _whole_reply(
    request: HTTPRequest, answers: Answers, make: Callable[[list[Answer]], Any], headers: Mapping[str, str]
) -> Response:
    """What ``make`` makes of all ``answers``, as JSON; they are cancelled when the client goes away."""
    found = await until_disconnect(request.receive, answers.whole())
    if found is None:
        return Response(status_code=499)
    return await pool_of(request).workshop.reply(request, lambda: make(found), headers)


async def counted(request: HTTPRequest, kind: type[Body], count: Callable[[ModelHost, Body], int]) -> JSONResponse:
    """How many tokens the prompt of a ``kind`` of body has, as ``count`` counts them, in OpenAI's words."""

    def found(host: ModelHost, body: Body) -> tuple[int, dict[str, str]]:
        return count(host, body), ignored_header(body.ignored(host.engine.template.source))

    tokens, headers = await prepared(request, kind, found)
    return JSONResponse({"object": "response.input_tokens", "input_tokens": tokens}, headers=headers)


async def event_groups(events: Events, answers: Answers, medium: Medium = SSE) -> AsyncIterator[str]:
    """All events of a reply; those that are there at a time are one text, which is written at once."""
    if opening := "".join(events.opening()):
        yield opening
    reading = events.reading if isinstance(events, ReadingEvents) else None
    group: list[str] = []
    try:
        while not answers.ended:
            found = await answers.look()
            group += () if reading is None else reading(answers.progress)
            group += [] if found or group else [medium.keep_alive]
            for index, delta in found:
                group += events.grow(index, delta)
            group += events.closing() if answers.ended else ()
            if text := "".join(group):
                yield text
            group = []
    except Exception as error:
        problem = problem_of(error)
        answers.entry.fail(error, problem.message)
        yield "".join([*group, *events.failed(problem)])
