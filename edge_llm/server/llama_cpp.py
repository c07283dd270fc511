"""llama.cpp's other endpoints: POST /rerank, GET /slots and /models."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.host import ModelHost
from edge_llm.server.journal import Entry
from edge_llm.server.lending import check_served, lend, pool_of, prepared
from edge_llm.server.models import model_entry
from edge_llm.server.prompt_shapes import prompts_of
from edge_llm.server.schemas import NamesModel, ignored_header
from edge_llm.server.stream import until_disconnect


class RerankBody(NamesModel):
    """The body of a request that orders documents by a query; `texts` is the name in text-embeddings-inference."""

    query: str
    documents: list[str] | None = Field(None, min_length=1, max_length=limits.INPUTS - 1)
    texts: list[str] | None = Field(None, min_length=1, max_length=limits.INPUTS - 1)
    top_n: int | None = Field(None, ge=1)
    return_text: bool | None = None
    return_documents: bool | None = None

    @property
    def given(self) -> list[str]:
        """The documents."""
        found = self.documents if self.documents is not None else self.texts
        if found is None:
            raise UsageError("documents is missing; give a list of texts", param="documents")
        return found


async def rerank(request: Request) -> Response:
    """Documents by how near their embeddings are to the query's: the cosine, 1 for the same text."""
    entry = Entry.of(request.scope)
    host, body, prompts, headers = await prepared(request, RerankBody, _reranked)
    model = host.called(body.model)
    entry.model, entry.prompt_tokens = model, sum(map(len, prompts))
    vectors = await until_disconnect(request.receive, _vectors(host, prompts))
    if vectors is None:
        return Response(status_code=499)
    scores = (vectors[1:] @ vectors[0]).tolist()
    host.metrics.count("embedded_tokens_total", sum(map(len, prompts)))
    workshop = pool_of(request).workshop
    return await workshop.reply(request, lambda: _ranking(body, model, scores, entry.prompt_tokens), headers)


def _reranked(host: ModelHost, body: RerankBody) -> tuple[ModelHost, RerankBody, list[list[int]], dict[str, str]]:
    engine = host.engine

    def tokens(name: str, text: str) -> list[int]:
        known = engine.reading is not None and engine.reading.prompt(name) is not None
        return engine.text_tokens(text, name if known else None)

    prompts = prompts_of(host, [body.query], "query", 1, lambda text, _: tokens("query", text))
    prompts += prompts_of(host, body.given, "documents", limits.INPUTS, lambda text, _: tokens("document", text))
    return host, body, prompts, ignored_header(body.ignored())


async def _vectors(host: ModelHost, prompts: list[list[int]]) -> np.ndarray:
    found: np.ndarray = await asyncio.wrap_future(host.service.embed(prompts))
    return found


def _ranking(body: RerankBody, model: str, scores: list[float], tokens: int | None) -> Any:
    best = sorted(range(len(scores)), key=lambda index: -scores[index])[: body.top_n]
    shows = body.return_documents or body.return_text
    if body.documents is None:
        return [
            {"index": at, "score": scores[at], **({"text": body.given[at]} if shows else {})} for at in best
        ]
    results = [
        {"index": at, "relevance_score": scores[at], **({"document": {"text": body.given[at]}} if shows else {})} for at in best
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"model": model, "object": "list", "usage": usage, "results": results}


async def llama_models(request: Request) -> JSONResponse:
    """GET /models, without /v1: each model once, with its other names; `models` is for clients of Ollama's list."""
    pool = pool_of(request)
    entries, short = [], []
    for one in pool.models():
        name, *aliases = one.names
        named, tags = aliases[0] if aliases else name, list(pool.tags)
        entries.append(model_entry(pool, one, named) | {"aliases": aliases, "tags": tags})
        short.append({"name": named, "model": named, "tags": tags, "type": "model", "capabilities": ["completion"]})
    return JSONResponse({"object": "list", "data": entries, "models": short})


async def slots(request: Request) -> JSONResponse:
    """One entry for each answer that may be under way; the first ones of each model are those that are.

    A server of every model has those of the models that are loaded, or of the one that `?model=` names; it loads none for that.
    """
    check_served(request, "slots")
    pool, named = pool_of(request), request.query_params.get("model")
    if pool.one is not None:
        return JSONResponse(_slots_of(await lend(request, named), 0))
    own = None if named is None else pool.find(named)
    found: list[dict[str, Any]] = []
    for one in pool.models():
        if one.state == "loaded" and one.host is not None and own in (None, one.names[0]):
            found += [slot | {"model": one.names[0]} for slot in _slots_of(one.host, len(found))]
    return JSONResponse(found)


def _slots_of(host: ModelHost, first: int) -> list[dict[str, Any]]:
    """Those of the model of ``host``, numbered from ``first``."""
    running, context = host.service.running, host.engine.runner.context
    return [
        {
            "id": first + index,
            "n_ctx": context,
            "speculative": False,
            "is_processing": index < running,
            "next_token": [{"has_next_token": index < running, "n_remain": -1, "n_decoded": 0}],
        }
        for index in range(host.engine.batcher.most_running)
    ]


async def slot_action(request: Request) -> Response:
    """Refuse to save, restore or erase a slot: prompts are kept by what they begin with, on disk too (`--prefix-cache`)."""
    raise UsageError(
        "slots cannot be saved, restored or erased here: any prompt goes on from what an earlier one began with, also after "
        "a restart (--prefix-cache)",
        param="action",
    )
