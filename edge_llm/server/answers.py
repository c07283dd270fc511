"""The answers to one HTTP request: submitted all or none, merged into one stream, cancelled together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from edge_llm.engine.contract import Service
from edge_llm.engine.delta_stream import Answering
from edge_llm.engine.engine import collect
from edge_llm.engine.request import Answer, Delta, PromptProgress, Request
from edge_llm.errors import Unavailable
from edge_llm.server import limits
from edge_llm.server.host import ModelHost
from edge_llm.server.journal import Entry
from edge_llm.server.metrics import Stopwatch
from edge_llm.server.stream import Alarm


class Answers:
    """Answers to ``requests`` in the order in which their deltas come.

    Every answer is followed to its end, whoever looks, so that each is counted exactly once.
    """

    def __init__(
        self,
        host: ModelHost,
        requests: Sequence[Request],
        entry: Entry | None = None,
        silence: float = limits.KEEP_ALIVE_SECONDS,
    ) -> None:
        self.entry = entry or Entry("-", "-")
        """Is told how many tokens there are."""
        self.entry.prompt_tokens = sum(map(len, {request.prompt for request in requests}))
        self._answerings = _submit_all(host.service, requests)
        self._open = len(requests)
        self._waiting: dict[int, list[Delta | BaseException]] = {}
        """What came since the last look, by request."""
        self._trouble: BaseException | None = None
        """What the next look raises."""
        self._news = asyncio.Event()
        self._silence = Alarm(silence, self._news.set)
        for index, answering in enumerate(self._answerings):
            answering.follow(partial(self._take, index, Stopwatch(host.metrics)))

    @property
    def ended(self) -> bool:
        """Whether all have been looked at to their ends."""
        return not self._open

    @property
    def progress(self) -> PromptProgress:
        """How much of the first prompt is read."""
        return self._answerings[0].progress

    def cancel(self) -> None:
        """Stop all that have not ended."""
        self._silence.stop()
        for answering in self._answerings:
            answering.cancel()

    async def look(self) -> list[tuple[int, Delta]]:
        """(index of the request, what came for it since the last look, joined); nothing after a long silence.

        Raises, behind what came before it, the first error of any answer, and `Unavailable` for one that a shutdown
        cancelled.
        """
        if self._trouble is None:
            with self._silence:
                await self._news.wait()  # it is new only after a turn of the loop: others get theirs, however much is said
            self._news.clear()
        found: list[tuple[int, Delta]] = []
        while self._waiting and self._trouble is None:
            index = next(iter(self._waiting))
            deltas, self._trouble = _until_trouble(self._waiting.pop(index))
            found += [(index, _joined(deltas))] if deltas else []
            self._open -= bool(deltas and deltas[-1].finish)
        if self._trouble is not None and not found:
            raise self._trouble
        return found

    async def whole(self) -> list[Answer]:
        """All answers, complete, in the order of the requests."""
        pieces: list[list[Delta]] = [[] for _ in self._answerings]
        try:
            while not self.ended:
                for index, delta in await self.look():
                    pieces[index].append(delta)
        finally:
            self.cancel()
        return [collect(deltas) for deltas in pieces]

    def _take(self, index: int, watch: Stopwatch, item: Delta | BaseException) -> None:
        if isinstance(item, Delta):
            watch.see(item)
            self.entry.see(index, item)
        else:
            watch.fail()
        self._waiting.setdefault(index, []).append(item)
        self._news.set()


def _until_trouble(items: Sequence[Delta | BaseException]) -> tuple[list[Delta], BaseException | None]:
    """The deltas of ``items`` before an error or a shutdown, and that one."""
    deltas: list[Delta] = []
    for item in items:
        if not isinstance(item, Delta):
            return deltas, item
        if item.finish is not None and item.finish.reason == "cancelled":
            return deltas, Unavailable("the server is shutting down; the answer was cut short")
        deltas.append(item)
    return deltas, None


def _joined(deltas: Sequence[Delta]) -> Delta:
    """One delta for those that nobody had time to fetch apart."""
    if len(deltas) == 1:
        return deltas[0]
    tokens = tuple(token for delta in deltas for token in delta.tokens)
    logprobs = tuple(one for delta in deltas for one in delta.logprobs)
    prompt_logprobs = tuple(one for delta in deltas for one in delta.prompt_logprobs)
    return Delta("".join(delta.text for delta in deltas), tokens, deltas[-1].finish, logprobs, prompt_logprobs)


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
