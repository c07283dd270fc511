"""llama.cpp's other endpoints: POST /rerank, GET /slots and /models."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pydantic
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge_llm.engine.ranking import RankingPrompts
from edge_llm.engine.ranking_texts import ranking_prompts
from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.host import ModelHost
from edge_llm.server.journal import Entry
from edge_llm.server.lending import check_served, lend, pool_of, prepared
from edge_llm.server.models import model_entry
from edge_llm.server.schemas import NamesModel, ignored_header
from edge_llm.server.stream import until_disconnect


class DocumentBody(pydantic.BaseModel):
    """A document as an object, as Cohere and Jina have it."""

    text: str


class RerankBody(NamesModel):
    """The body of a request that orders documents by a query; `texts` is the name in text-embeddings-inference."""

    query: str
    documents: list[str | DocumentBody] | None = Field(None, min_length=1, max_length=limits.INPUTS - 1)
    texts: list[str] | None = Field(None, min_length=1, max_length=limits.INPUTS - 1)
    top_n: int | None = Field(None, ge=1)
    return_text: bool | None = None
    return_documents: bool | None = None
    raw_scores: bool | None = None
    """A reranker's scores as it gives them, or all from 0 to 1; as its author has it, if it is not said."""
    instruction: str | None = None
    """What it is for, to models that are asked in words."""
    truncate: bool | None = None
    """Whether a document that is too long is cut; it is, if it is not said."""

    @property
    def given(self) -> list[str]:
        """The documents."""
        found = self.documents if self.documents is not None else self.texts
        if found is None:
            raise UsageError("documents is missing; give a list of texts", param="documents")
        return [one if isinstance(one, str) else one.text for one in found]


async def rerank(request: Request) -> Response:
    """Documents by the score that a reranker gives each with the query, by the cosine of an embedding model's vectors, or by
    how sure any other model is that the document answers the query."""
    entry = Entry.of(request.scope)
    host, body, asked, headers = await prepared(request, RerankBody, _reranked)
    model = host.called(body.model)
    entry.model, entry.prompt_tokens = model, asked.tokens
    found = await until_disconnect(request.receive, _found(host, asked))
    if found is None:
        return Response(status_code=499)
    scores = asked.scores(found, raw=body.raw_scores)
    host.metrics.count("embedded_tokens_total", asked.tokens)
    workshop = pool_of(request).workshop
    return await workshop.reply(request, lambda: _ranking(body, model, scores, entry.prompt_tokens), headers)


def _reranked(host: ModelHost, body: RerankBody) -> tuple[ModelHost, RerankBody, RankingPrompts, dict[str, str]]:
    truncate = body.truncate is not False
    for text in (body.query, *(() if truncate else body.given)):
        host.check_length(text)
    asked = ranking_prompts(host.engine, body.query, body.given, instruction=body.instruction, truncate=truncate)
    return host, body, asked, ignored_header(body.ignored())


async def _found(host: ModelHost, asked: RankingPrompts) -> np.ndarray:
    found: np.ndarray = await asyncio.wrap_future(host.service.rank(asked))
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
