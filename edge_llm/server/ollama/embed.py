"""POST /api/embed and, for older clients, /api/embeddings: texts as vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from edge_llm.errors import ContextOverflow, UsageError
from edge_llm.server import limits
from edge_llm.server.embeddings import vectors_of
from edge_llm.server.host import ModelHost
from edge_llm.server.journal import Entry
from edge_llm.server.lending import pool_of, read_body
from edge_llm.server.ollama.lent import lent
from edge_llm.server.ollama.options import Asked
from edge_llm.server.ollama.shapes import Clock
from edge_llm.server.schemas import ignored_header


class EmbedBody(Asked):
    """Texts."""

    input: str | list[str] | None = None
    truncate: bool | None = None
    """Whether the end of a text may be left out that does not fit; it may, if it is not said."""
    dimensions: int | None = Field(None, ge=0)
    """The first numbers of each vector, made as long as 1 again; 0 is all."""

    @property
    def texts(self) -> list[str]:
        """The texts; an empty one alone is none."""
        return [self.input] if isinstance(self.input, str) and self.input else list(self.input or [])


class EmbeddingsBody(Asked):
    """One text."""

    prompt: str | None = None

    truncate: bool | None = None
    dimensions: None = None

    @property
    def texts(self) -> list[str]:
        return [self.prompt] if self.prompt else []


async def embed(request: Request) -> Response:
    """A vector of length 1 for each text."""
    body = await read_body(request, EmbedBody.parse)
    found = await _vectors(request, body)
    if found is None:
        return Response(status_code=499)

    def answer() -> dict[str, Any]:
        counts = found.clock.durations() | {"prompt_eval_count": found.tokens}
        return {"model": found.model, "embeddings": _rows(found.vectors, body.dimensions), **counts}

    return await pool_of(request).workshop.reply(request, answer, found.headers)


async def embeddings(request: Request) -> Response:
    """The vector of one text."""
    body = await read_body(request, EmbeddingsBody.parse)
    found = await _vectors(request, body)
    if found is None:
        return Response(status_code=499)
    row = next(_rows(found.vectors, None), [])
    return await pool_of(request).workshop.reply(request, lambda: {"embedding": row}, found.headers)


@dataclass(frozen=True)
class _Found:
    """The vectors of a request."""

    model: str
    vectors: np.ndarray
    """float32 [texts, hidden size]"""
    tokens: int
    clock: Clock
    headers: dict[str, str]


async def _vectors(request: Request, body: EmbedBody | EmbeddingsBody) -> _Found | None:
    """The vectors of the texts of ``body``; None when the client went away."""
    host, model, clock = await lent(request, body)
    prompts, headers = await pool_of(request).workshop.work(request, partial(_prepare, host, body))
    entry, tokens = Entry.of(request.scope), sum(map(len, prompts))
    entry.model, entry.prompt_tokens = model, tokens
    vectors = await vectors_of(request, host, prompts) if prompts else np.zeros((0, 0), np.float32)
    return None if vectors is None else _Found(model, vectors, tokens, clock, headers)


def _prepare(host: ModelHost, body: EmbedBody | EmbeddingsBody) -> tuple[list[list[int]], dict[str, str]]:
    """The tokens of each text, and the answer's headers."""
    texts = body.texts
    left_out: list[str] = []
    if len(texts) > limits.INPUTS:
        raise UsageError(f"input takes at most {limits.INPUTS} texts, got `{len(texts)}`", param="input")
    prompts = []
    for text in texts:
        try:
            prompts.append(host.engine.text_tokens(text))
        except ContextOverflow:
            if body.truncate is False:
                raise
            prompts.append(host.engine.text_tokens(text, truncate=True))
            left_out = ["input.end"]
    return prompts, ignored_header([*body.ignored(), *left_out])


def _rows(vectors: np.ndarray, dimensions: int | None) -> Iterator[list[float]]:
    """Each of ``vectors``, or its first ``dimensions`` numbers made as long as 1."""
    for vector in vectors:
        if dimensions and dimensions < len(vector):
            short = vector[:dimensions]
            vector = short / max(float(np.linalg.norm(short)), 1e-12)
        row: list[float] = vector.tolist()
        yield row
