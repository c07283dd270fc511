"""Models of an OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edge_llm.config import GenerationParams
from edge_llm.errors import EdgeLLMError, ModelNotFound, Unavailable, UsageError
from edge_llm.files import shown
from edge_llm.progress import StageProgress
from edge_llm.providers.base import Ask, Ended, Facts, Fetch, ModelRow, Piece, Provider, Reply, Wanted
from edge_llm.providers.batches import Bell, in_batches, readable
from edge_llm.providers.chunks import ChunkReader, json_object, model_rows
from edge_llm.providers.endpoint import MOST_BODY, Endpoint
from edge_llm.providers.events import EventParser
from edge_llm.providers.settings import another_of_a_server, changed, over
from edge_llm.talk.pieces import CallBegun, Said, Thought
from edge_llm.talk.wish import EFFORT, SWITCHES, wish_of

if TYPE_CHECKING:
    import ssl

    import httpx

    from edge_llm.engine.inside import Inside

LIST_SECONDS = 30.0
"""Most that is waited for a list of models."""
LOAD_SECONDS = 600.0
"""Most that is waited for a server that loads the model."""
LOOK_SECONDS = 0.3
"""How often it is asked whether it has."""
MOST_MODELS = 2000
MOST_ANSWER = 16 << 20
"""Characters of an answer."""
_DONE = "[DONE]"
_SENT = (
    "max_tokens", "temperature", "top_p", "seed", "stop", "frequency_penalty", "presence_penalty",
    "top_k", "min_p", "repetition_penalty", "dry_multiplier", "dry_sequence_breakers", "min_tokens", "ignore_eos", "loop_guard",
    "think_tokens",
)  # fmt: skip
"""Fields of `GenerationParams` that servers have; the later ones not all of them."""
_OTHER_NAMES = {"think_tokens": "thinking_token_budget"}
"""Under which name, where that is not the same."""


class RemoteCatalogue:
    """The models of the server at ``url``, which may be given without scheme and `/v1`."""

    can_fetch = False

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._endpoint = Endpoint(url, api_key)

    def rows(self) -> Sequence[ModelRow]:
        import httpx

        with _readable_failures(self._endpoint), httpx.Client(**_client_options(self._endpoint, LIST_SECONDS)) as client:
            with client.stream("GET", f"{self._endpoint.base}/models") as response:
                body = _bounded(response.iter_raw())
            if response.status_code != 200:
                raise self._endpoint.refusal(response, body)
            return list(model_rows(json_object(body.decode("utf-8", "replace"))))[:MOST_MODELS]

    def check(self, model: str) -> None:
        self._row_of(model)

    def open(self, wanted: Wanted, progress: StageProgress) -> Provider:
        row, end = self._row_of(wanted.model), time.monotonic() + LOAD_SECONDS
        asking = self._begin_load(row.name) if row.is_unloaded else None
        while time.monotonic() < end and (row.is_loading or (asking is not None and not asking.done())):
            progress("the server loads it", row.done, row.total)
            wait([asking or Future()], LOOK_SECONDS)
            row = self._row_of(row.name)
        if asking is not None and asking.done():
            asking.result()
            row = self._row_of(row.name)
        return RemoteProvider(self._endpoint, row)

    def _row_of(self, model: str | None) -> ModelRow:
        """The row of ``model``; None is the first one that is loaded, else the first."""
        rows = self.rows()
        found = (row for row in rows if model in (None, row.name))
        row = min(found, key=lambda row: row.is_unloaded, default=None)
        if row is None:
            names = ", ".join(f"`{shown(row.name, 60)}`" for row in rows[:5]) or "no model"
            asked = "has no model" if model is None else f"has no model `{shown(model, 60)}`"
            raise ModelNotFound(f"the server at {self._endpoint.base} {asked}; it has {names}")
        return row

    def _begin_load(self, model: str) -> Future[None]:
        """Ask the server to load ``model``, which may take as long as it likes, on a thread that nobody waits for."""
        asking: Future[None] = Future()

        def ask() -> None:
            try:
                self._load(model)
                asking.set_result(None)
            except Exception as error:
                asking.set_exception(error)

        threading.Thread(target=ask, name="remote-load", daemon=True).start()
        return asking

    def _load(self, model: str) -> None:
        """Returns when the server has loaded ``model``, or loads it behind; of one that cannot be asked the first request does.

        Raises why the server does not.
        """
        import httpx

        address = f"{self._endpoint.base.removesuffix('/v1')}/models/load"
        with _readable_failures(self._endpoint), httpx.Client(**_client_options(self._endpoint, LOAD_SECONDS)) as client:
            with client.stream("POST", address, json={"model": model}) as response:
                body = _bounded(response.iter_raw())
            if response.status_code not in (200, 404, 405, 501):
                raise self._endpoint.refusal(response, body)

    def fetch(self, source: str) -> Fetch:
        raise UsageError("this chat is with a server, which has its own models; `edge-llm chat` alone downloads others")


class RemoteProvider:
    """The model ``row`` of the server at ``endpoint``."""

    def __init__(self, endpoint: Endpoint, row: ModelRow) -> None:
        self._endpoint = endpoint
        self._row = row
        self._options = _client_options(endpoint, None)
        self._replies: weakref.WeakSet[RemoteReply] = weakref.WeakSet()
        self._closed = False

    @property
    def facts(self) -> Facts:
        notes = ["The API key goes to this server without encryption, for anybody on the way to read."]
        return Facts(
            self._row.name,
            self._row.context,
            f"server: {self._endpoint.base}",
            self._row.sampling,
            can_switch_thinking=True,
            host=urlsplit(self._endpoint.base).netloc,
            notes=tuple(notes if self._endpoint.tells_the_key else []),
        )

    def ask(self, ask: Ask) -> Reply:
        reply = RemoteReply(self._endpoint, self._options, self._row, ask, closed=self._closed)
        self._replies.add(reply)
        return reply

    def count(self, ask: Ask) -> int | None:
        return None

    def count_text(self, text: str) -> int | None:
        return None

    def look(self) -> Inside | None:
        return None

    def close(self) -> None:
        self._closed = True
        for reply in [*self._replies]:
            reply.cancel_from_outside()


class RemoteReply:
    """An answer of a server: a task reads what it sends, and the iteration takes what has come."""

    def __init__(self, endpoint: Endpoint, options: dict[str, Any], row: ModelRow, ask: Ask, *, closed: bool) -> None:
        self._endpoint = endpoint
        self._options = options
        self._model, self._recommended = row.name, row.sampling
        self._ask = ask
        self._closed = closed
        self._loop = asyncio.get_running_loop()
        self._bell = Bell()
        self._reader = ChunkReader()
        self._asked_at = time.perf_counter()
        self._first_at: float | None = None
        self._last_at = 0.0
        self._length = 0
        self._pieces: list[Piece] = []
        """What has come and was not taken yet."""
        self._failure: Exception | None = None
        self._cancelled = False
        self._reading: asyncio.Task[None] | None = None

    async def __aiter__(self) -> AsyncIterator[Sequence[Piece]]:
        try:
            if not self._cancelled:
                self._reading = asyncio.create_task(self._read_all())
            async for pieces in in_batches(self._bell, self._ready, self._take):
                yield pieces
        finally:
            if self._reading is not None:
                self._reading.cancel()

    def cancel(self) -> None:
        self._cancelled = True
        if self._reading is not None:
            self._reading.cancel()
        self._bell.ring()

    def cancel_from_outside(self) -> None:
        """`cancel`, from another thread than the event loop's."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self.cancel)

    @property
    def tokens(self) -> int:
        return self._reader.count

    @property
    def prompt_progress(self) -> tuple[int, int] | None:
        return None

    # -- the iteration's side

    def _ready(self) -> bool:
        return bool(self._pieces or self._failure or self._cancelled)

    def _take(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        ended = bool(pieces) and isinstance(pieces[-1], Ended)
        if self._cancelled and not ended:
            return _joined([*pieces, *self._reader.finish(), self._end("cancelled")])
        if not pieces and self._failure is not None:
            raise self._failure
        return _joined(pieces)

    def _end(self, reason: str) -> Ended:
        first = self._first_at
        waited = None if first is None else first - self._asked_at
        return Ended(reason, self._reader.figures(waited, 0.0 if first is None else self._last_at - first))

    # -- the task's side

    async def _read_all(self) -> None:
        try:
            with _readable_failures(self._endpoint):
                await self._request()
        except EdgeLLMError as error:
            self._failure = type(error)(self._endpoint.without_key(str(error)))
        except Exception as error:
            self._failure = readable(error)
        self._bell.ring()

    async def _request(self) -> None:
        import httpx

        if self._closed:
            raise Unavailable(f"the model `{shown(self._model)}` was closed; open it again")
        body = request_body(self._model, self._ask, self._recommended)
        address = f"{self._endpoint.base}/chat/completions"
        async with httpx.AsyncClient(**self._options) as client, client.stream("POST", address, json=body) as response:
            if response.status_code != 200:
                raise self._endpoint.refusal(response, await _bounded_async(response))
            if "text/event-stream" in response.headers.get("content-type", "").lower():
                await self._follow(response)
            else:  # a server that knows no streams, or none that answers chats
                self._arrive(self._reader.read((await _bounded_async(response)).decode("utf-8", "replace")))
                self._reader.reason = self._reader.reason or ("stop" if self._pieces else None)
        if self._reader.reason is None:
            raise Unavailable(f"the server at {self._endpoint.base} closed the connection in mid-answer; ask again")
        self._arrive([*self._reader.finish(), self._end(self._reader.reason)])

    async def _follow(self, response: httpx.Response) -> None:
        """Read events up to the last one."""
        parser = EventParser()
        async for data in response.aiter_raw():
            for event in parser.push(data):
                if event.strip() == _DONE:
                    self._reader.reason = self._reader.reason or "stop"
                    return
                self._arrive(self._reader.read(event))

    def _arrive(self, pieces: list[Piece]) -> None:
        if not pieces:
            return
        if not isinstance(pieces[-1], Ended):
            self._last_at = time.perf_counter()
            self._first_at = self._first_at or self._last_at
        self._length += sum(len(piece.text) for piece in pieces if not isinstance(piece, Ended | CallBegun))
        self._pieces += pieces
        if self._length > MOST_ANSWER:
            raise EdgeLLMError(f"the server's answer has more than {MOST_ANSWER >> 20} million characters and was cut off")
        self._bell.ring()


def request_body(model: str, ask: Ask, recommended: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The body of POST /v1/chat/completions; ``recommended`` holds where ``ask`` says nothing.

    Raises `UsageError` for settings that make no sense there.
    """
    changed(GenerationParams(), ask.sampling)
    for name in ask.sampling:
        if name not in _SENT:
            raise UsageError(f"`{name}` cannot be asked of a server; leave it out", param=name)
    named = over(recommended, ask.sampling)
    asked = another_of_a_server(named) if ask.again else named
    sampling = {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items()}
    body: dict[str, Any] = {
        "model": model,
        "messages": [dict(message) for message in ask.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **{_OTHER_NAMES.get(name, name): value for name, value in sampling.items() if value is not None},
    }
    if (wish := wish_of(ask.thinking, "thinking")) is not None:
        body["chat_template_kwargs"] = dict.fromkeys(SWITCHES, wish.on)
        body |= {EFFORT: wish.effort} if wish.effort is not None else {}
    body |= {"tools": [dict(tool) for tool in ask.tools]} if ask.tools else {}
    return body | ({"continue_final_message": True, "add_generation_prompt": False} if ask.continues else {})


@contextlib.contextmanager
def _readable_failures(endpoint: Endpoint) -> Iterator[None]:
    """What httpx raises, in words and without the key."""
    import httpx

    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError, UnicodeError) as error:
        raise endpoint.failure(error) from None


def _client_options(endpoint: Endpoint, read_seconds: float | None) -> dict[str, Any]:
    """For a client of httpx; takes a moment the first time."""
    return endpoint.options(read_seconds) | {"verify": _certificates()}


@functools.cache
def _certificates() -> ssl.SSLContext:
    import httpx

    return httpx.create_ssl_context()


def _bounded(chunks: Iterable[bytes]) -> bytes:
    """The beginning of a body, which may be without end."""
    body = bytearray()
    for chunk in chunks:
        body += chunk
        if len(body) > MOST_BODY:
            raise EdgeLLMError(f"the server's reply has more than {MOST_BODY >> 20} MiB; is it an OpenAI-compatible API?")
    return bytes(body)


async def _bounded_async(response: httpx.Response) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > MOST_BODY:
            raise EdgeLLMError(f"the server's reply has more than {MOST_BODY >> 20} MiB; is it an OpenAI-compatible API?")
    return bytes(body)


def _joined(pieces: list[Piece]) -> list[Piece]:
    """``pieces`` with neighbours of one kind put together."""
    found: list[Piece] = []
    for kind, neighbours in itertools.groupby(pieces, key=type):
        group = list(neighbours)
        texts = [piece.text for piece in group if isinstance(piece, Said | Thought)]
        found += [kind("".join(texts))] if kind in (Said, Thought) else group
    return found
