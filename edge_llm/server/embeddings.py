"""POST /v1/embeddings: texts as vectors."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.completions import Texts, token_lists
from edge_llm.server.host import ModelHost
from edge_llm.server.replies import json_reply
from edge_llm.server.schemas import Body, ignored_header
from edge_llm.server.stream import until_disconnect


class EmbeddingBody(Body):
    """The body of an embeddings request."""

    input: Texts
    model: str | None = Field(None, max_length=limits.MODEL_CHARACTERS)
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None

    labels: ClassVar[frozenset[str]] = frozenset(("user",))


async def embeddings(request: Request) -> Response:
    """The mean of the model's last hidden states for each text, of length 1."""
    host: ModelHost = request.app.state.host
    data = await request.body()
    body, prompts = await run_in_threadpool(_prepare, host, data)
    future = host.service.embed(prompts)
    vectors = await until_disconnect(request.receive, _result(future))
    if vectors is None:
        return Response(status_code=499)
    reply = EmbeddingReply(host.check_name(body.model), vectors, sum(map(len, prompts)), body.encoding_format)
    return await json_reply(reply.whole, ignored_header(body.ignored()))


@dataclass(frozen=True)
class EmbeddingReply:
    """One vector for each text: float32 [texts, hidden_size]."""

    model: str
    vectors: np.ndarray
    tokens: int
    encoding: str | None

    def whole(self) -> dict[str, Any]:
        """The reply; vectors that are not base64 are arrays still."""
        items = [
            {"object": "embedding", "index": index, "embedding": _base64(vector) if self.encoding == "base64" else vector}
            for index, vector in enumerate(self.vectors)
        ]
        usage = {"prompt_tokens": self.tokens, "total_tokens": self.tokens}
        return {"object": "list", "model": self.model, "data": items, "usage": usage}


async def _result(future: Any) -> np.ndarray:
    vectors: np.ndarray = await asyncio.wrap_future(future)
    return vectors


def _prepare(host: ModelHost, data: bytes) -> tuple[EmbeddingBody, list[list[int]]]:
    engine = host.engine
    body = EmbeddingBody.parse(data, engine.runner.context)
    host.check_name(body.model)
    size = engine.config.hidden_size
    if body.dimensions not in (None, size):
        raise UsageError(f"dimensions can only be {size} with this model, got `{body.dimensions}`", param="dimensions")
    if body.input is None:
        raise UsageError("input is missing; give a text or a list of texts", param="input")
    return body, token_lists(host, body.input, "input", limits.INPUTS)


def _base64(vector: np.ndarray) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
