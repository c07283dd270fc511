"""POST /v1/embeddings: texts as vectors."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from edge_llm.engine.embedding import shortened
from edge_llm.engine.engine import Engine
from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.fields import EMBEDDINGS, Rule
from edge_llm.server.host import ModelHost
from edge_llm.server.journal import Entry
from edge_llm.server.lending import pool_of, prepared
from edge_llm.server.prompt_shapes import prompts_of
from edge_llm.server.schemas import NamesModel, ignored_header
from edge_llm.server.stream import until_disconnect


class EmbeddingBody(NamesModel):
    """The body of an embeddings request."""

    input: Any
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    prompt_name: str | None = None
    """One of the model's prompts, such as `query`, to stand before every text."""
    truncate: bool | None = None
    """Whether a text that is too long is cut; it is refused, if it is not said."""

    rules: ClassVar[Sequence[Rule]] = EMBEDDINGS


async def embeddings(request: Request) -> Response:
    """A vector of length 1 for each text, as the model was trained to make it: else the mean of its last hidden states."""
    entry = Entry.of(request.scope)
    host, body, prompts, headers = await prepared(request, EmbeddingBody, _prepare)
    model, tokens = host.called(body.model), sum(map(len, prompts))
    entry.model, entry.prompt_tokens = model, tokens
    vectors = await vectors_of(request, host, prompts)
    if vectors is None:
        return Response(status_code=499)
    host.metrics.count("embedded_tokens_total", tokens)
    head = {"object": "list", "model": model, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    return await pool_of(request).workshop.reply(
        request, lambda: {**head, "data": _items(shortened(vectors, body.dimensions), body.encoding_format)}, headers
    )


def _items(vectors: np.ndarray, encoding: str | None) -> Iterator[dict[str, Any]]:
    for index, vector in enumerate(vectors):
        yield {"object": "embedding", "index": index, "embedding": _encoded(vector, encoding)}


async def vectors_of(request: Request, host: ModelHost, prompts: Sequence[Sequence[int]]) -> np.ndarray | None:
    """The vector of each of ``prompts``: float32 [prompts, hidden size]; None when the client of ``request`` went away."""
    return await until_disconnect(request.receive, _result(host.service.embed(prompts)))


async def _result(future: Any) -> np.ndarray:
    vectors: np.ndarray = await asyncio.wrap_future(future)
    return vectors


def _prepare(host: ModelHost, body: EmbeddingBody) -> tuple[ModelHost, EmbeddingBody, list[list[int]], dict[str, str]]:
    engine = host.engine
    size = engine.vector_size
    if engine.reading is None and body.dimensions not in (None, size):
        raise UsageError(f"dimensions can only be {size} with this model, got `{body.dimensions}`", param="dimensions")
    shortened(np.zeros((1, size), np.float32), body.dimensions)  # refused before anything is computed
    if body.input is None:
        raise UsageError("input is missing; give a text or a list of texts", param="input")
    prompts = prompts_of(host, body.input, "input", limits.INPUTS, partial(_tokens, engine, body), cuts=bool(body.truncate))
    return host, body, prompts, ignored_header(body.ignored())


def _tokens(engine: Engine, body: EmbeddingBody, text: str, begins: bool) -> list[int]:
    if begins:
        return engine.text_tokens(text, body.prompt_name, truncate=bool(body.truncate))
    return engine.tokenizer.encode(text, most=engine.runner.context)


def _encoded(vector: np.ndarray, encoding: str | None) -> str | list[float]:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    values: list[float] = vector.tolist()
    return values
