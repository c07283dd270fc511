"""The answers to one HTTP request: submitted all or none, merged into one stream, cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request as HTTPRequest
from starlette.responses import Response

from edge_llm.engine.delta_stream import Answering
from edge_llm.engine.engine import collect
from edge_llm.engine.request import Answer, Delta, Request
from edge_llm.engine.service import Service
from edge_llm.errors import Unavailable
from edge_llm.server.host import ModelHost
from edge_llm.server.metrics import Metrics, Stopwatch
from edge_llm.server.stream import until_disconnect


class Answers:
    """Answers to ``requests`` in the order in which their deltas come.

    Every answer is followed to its end, whoever listens, so that each is counted exactly once.
    """

    def __init__(self, host: ModelHost, requests: Sequence[Request]) -> None:
        self._answerings = _submit_all(host.service, requests)
        self._open = len(requests)
        self._waiting: dict[int, Delta | Exception] = {}
        """What came since the last look, one per request: deltas that nobody had time to fetch are joined."""
        self._arrived = asyncio.Event()
        self._followers = [
            asyncio.create_task(self._follow(index, answering, host.metrics))
            for index, answering in enumerate(self._answerings)
        ]

    def cancel(self) -> None:
        """Stop all that have not ended."""
        for answering in self._answerings:
            answering.cancel()

    async def deltas(self, silence: float) -> AsyncIterator[tuple[int, Delta] | None]:
        """(index of the request, delta) of all answers, or None when nothing came for ``silence`` seconds.

        Raises the first error of any answer, and `Unavailable` for an answer that was cancelled by a shutdown.
        """
        while self._open:
            try:
                async with asyncio.timeout(silence):
                    await self._arrived.wait()
            except TimeoutError:
                yield None
            self._arrived.clear()
            found, self._waiting = self._waiting, {}
            for index, item in found.items():
                if isinstance(item, Exception):
                    raise item
                if item.finish is not None:
                    self._open -= 1
                    if item.finish.reason == "cancelled":
                        raise Unavailable("the server is shutting down; the answer was cut short")
                yield index, item

    async def whole(self) -> list[Answer]:
        """All answers, complete, in the order of the requests."""
        pieces: list[list[Delta]] = [[] for _ in self._answerings]
        try:
            async for found in self.deltas(silence=3600.0):
                if found is not None:
                    pieces[found[0]].append(found[1])
        finally:
            self.cancel()
        return [collect(deltas) for deltas in pieces]

    async def _follow(self, index: int, answering: Answering, metrics: Metrics) -> None:
        watch = Stopwatch(metrics)
        try:
            async for delta in answering:
                watch.see(delta)
                self._arrive(index, delta)
        except Exception as error:
            watch.fail()
            self._arrive(index, error)

    def _arrive(self, index: int, item: Delta | Exception) -> None:
        before = self._waiting.get(index)
        if isinstance(before, Delta) and isinstance(item, Delta):
            item = _joined(before, item)
        self._waiting[index] = item
        self._arrived.set()


async def whole_reply(
    request: HTTPRequest, answers: Answers, make: Callable[[list[Answer]], dict[str, Any]], headers: Mapping[str, str]
) -> Response:
    """What ``make`` makes of all ``answers``, as JSON; they are cancelled when the client goes away."""
    found = await until_disconnect(request.receive, answers.whole())
    if found is None:
        return Response(status_code=499)
    host: ModelHost = request.app.state.host
    return await host.workshop.reply(request, lambda: make(found), headers)


def _joined(first: Delta, second: Delta) -> Delta:
    return Delta(first.text + second.text, first.tokens + second.tokens, second.finish, first.logprobs + second.logprobs)


def _submit_all(service: Service, requests: Sequence[Request]) -> list[Answering]:
    submitted: list[Answering] = []
    try:
        for request in requests:
            submitted.append(service.submit(request))
    except BaseException:
        for answering in submitted:
            answering.cancel()
        raise
    return submitted
