"""One way from the body of `chat` or `generate` to its reply; a request that asks nothing loads its model, or unloads it."""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge_llm.server.host import ModelHost
from edge_llm.server.journal import Entry
from edge_llm.server.lending import pool_of, read_body
from edge_llm.server.ollama.bodies import Generating
from edge_llm.server.ollama.chat import ChatBody, ChatReply
from edge_llm.server.ollama.generate import GenerateBody, GenerateReply
from edge_llm.server.ollama.lent import lent, own_name
from edge_llm.server.ollama.shapes import Clock, now
from edge_llm.server.replies import respond
from edge_llm.server.schemas import ignored_header

Question = TypeVar("Question", ChatBody, GenerateBody)


async def chat(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of lines."""
    return await _answer(request, ChatBody)


async def generate(request: Request) -> Response:
    """Answer a prompt, whole or as a stream of lines."""
    return await _answer(request, GenerateBody)


async def _answer(request: Request, kind: type[Question]) -> Response:
    body = await read_body(request, kind.parse)
    if not body.begins and body.stays == 0:
        pool = pool_of(request)
        own = pool.find(await own_name(request, body.model))
        await pool.unload(own)
        return JSONResponse(_nothing(body, body.model or own, "unload"))
    host, model, clock = await lent(request, body)
    entry = Entry.of(request.scope)
    entry.model = model
    if not body.begins:
        return JSONResponse(_nothing(body, model, "load") | clock.durations())
    reply, headers = await pool_of(request).workshop.work(request, partial(_prepare, host, body, model, clock))
    return await respond(request, host, reply, headers, streamed=body.is_streamed)


def _prepare(
    host: ModelHost, body: ChatBody | GenerateBody, model: str, clock: Clock
) -> tuple[ChatReply | GenerateReply, dict[str, str]]:
    reply, engine = body.reply(host, model, clock), host.engine
    beyond = ["options.num_ctx"] if (body.chosen.num_ctx or 0) > engine.runner.context else []
    return reply, ignored_header([*body.ignored(engine.template.source), *beyond, *reply.left_out])


def _nothing(body: Generating, model: str, reason: str) -> dict[str, Any]:
    """The answer to a request that asks nothing."""
    return {"model": model, "created_at": now(), **body.nothing(), "done": True, "done_reason": reason}
