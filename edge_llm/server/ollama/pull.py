"""POST /api/pull: a published model is downloaded and imported here, by a process of its own, while its client listens."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from threading import Thread
from typing import Annotated, Any

from pydantic import BeforeValidator
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge_llm.convert.apart import ImportProcess, fetch
from edge_llm.errors import ModelNotFound, Overloaded
from edge_llm.files import shown
from edge_llm.models.known import names_like, refuse_family
from edge_llm.opening.made_from import imported_from
from edge_llm.paths import model_folders
from edge_llm.progress import DOWNLOAD, Step
from edge_llm.server import limits
from edge_llm.server.journal import Entry
from edge_llm.server.lending import pool_of, read_body
from edge_llm.server.ollama.lent import untagged
from edge_llm.server.ollama.options import ShowBody
from edge_llm.server.problems import problem_of
from edge_llm.server.schemas import ignored_header
from edge_llm.server.stream import NDJSON, EventStream, line, until_disconnect
from edge_llm.sources.place import Place, did_you_mean, named_place

SUCCESS = {"status": "success"}
"""The last line; clients look for it."""


class PullBody(ShowBody):
    """A model of a hub by its short name, id or page; no folder of this machine."""

    stream: Annotated[bool, BeforeValidator(lambda given: True if given is None else given)] = True


async def pull(request: Request) -> Response:
    """Bring a model here; a model that is here already is no work."""
    body = await read_body(request, PullBody.parse)
    entry, headers = Entry.of(request.scope), ignored_header(body.ignored())
    entry.model = body.named
    place = await pool_of(request).workshop.work(request, lambda: _missing(body.named))
    pulling = None if place is None else Pulling.begin(request, place)
    if body.stream:
        lines = _lines(pulling, entry)
        return EventStream(lines, pulling.cancel if pulling else _nothing, headers, NDJSON)
    if pulling is not None:
        try:
            if await until_disconnect(request.receive, pulling.end()) is None:
                return Response(status_code=499)
        finally:
            pulling.cancel()
    return JSONResponse(SUCCESS, headers=headers)


def _nothing() -> None:
    pass


def _missing(name: str) -> Place | None:
    """Where the model called ``name`` can be had; None if it is here.  Raises `ModelNotFound` or `UsageError`."""
    plain = untagged(name)
    if plain in dict(model_folders()):
        return None
    place = named_place(plain)
    if place is None or place.folder is not None:
        if (refusal := refuse_family(plain)) is not None:
            raise refusal
        near = did_you_mean(names) if (names := names_like(plain)) else "give a hub id such as `Qwen/Qwen3-0.6B`"
        raise ModelNotFound(f"no model `{shown(name)}` can be pulled; {near}", model=name)
    return None if imported_from(place) else place


class Pulling:
    """One import that is followed from the event loop."""

    def __init__(self, place: Place, work: ImportProcess, on_end: Callable[[], None]) -> None:
        self.place = place
        self._work = work
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[Step | BaseException | None] = asyncio.Queue()
        self._over = False
        Thread(target=self._follow, name="pull", daemon=True).start()

    @classmethod
    def begin(cls, request: Request, place: Place) -> Pulling:
        """The import of ``place``; raises `Overloaded` where as many as may are under way."""
        state = request.app.state
        under_way = getattr(state, "pulls", 0)
        if under_way >= limits.PULLS:
            raise Overloaded(f"`{under_way}` models are being pulled already; ask again later")
        state.pulls = under_way + 1

        def ended() -> None:
            state.pulls -= 1

        return cls(place, fetch(str(place)), ended)

    async def steps(self) -> AsyncIterator[Step]:
        """How far it is, as it goes.  Raises `EdgeLLMError`."""
        while not self._over:
            news = await self._news.get()
            if isinstance(news, Step):
                yield news
                continue
            self._over = True
            if news is not None:
                raise news

    async def end(self) -> bool:
        """Wait until the model is here.  Raises `EdgeLLMError`."""
        async for _ in self.steps():
            pass
        return True

    def cancel(self) -> None:
        """Stop it, if it is under way: what has come stays for the next try."""
        if not self._over:
            self._work.cancel()

    def _follow(self) -> None:
        """In a thread of its own."""
        trouble: BaseException | None = None
        try:
            for step in self._work:
                self._tell(step)
        except BaseException as error:
            trouble = error
        self._tell(trouble)

    def _tell(self, news: Step | BaseException | None) -> None:
        def put() -> None:
            self._news.put_nowait(news)
            if not isinstance(news, Step):
                self._on_end()

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(put)


async def _lines(pulling: Pulling | None, entry: Entry) -> AsyncIterator[str]:
    """The lines of a pull that is streamed; an error is the last one."""
    yield line({"status": "pulling manifest"})
    if pulling is not None:
        try:
            async for step in pulling.steps():
                yield line(_progress(step, str(pulling.place)))
        except Exception as error:
            problem = problem_of(error)
            entry.fail(error, problem.message)
            yield line(problem.ollama())
            return
    yield line(SUCCESS)


def _progress(step: Step, name: str) -> dict[str, Any]:
    """A line about ``step``; clients draw a bar for what has a digest, in bytes."""
    if step.stage == DOWNLOAD:
        return {"status": f"pulling {name}", "digest": name, "total": step.total, "completed": step.done}
    return {"status": f"importing: {step}"}
