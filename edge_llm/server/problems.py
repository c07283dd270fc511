"""Errors become what a client is told here and nowhere else: a status, and JSON in the shape of each API."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.exceptions import HTTPException

from edge_llm.errors import (
    ContextOverflow,
    DeviceLost,
    EdgeLLMError,
    ModelNotFound,
    OutOfMemory,
    Overloaded,
    ResponseNotFound,
    Unavailable,
    UsageError,
)
from edge_llm.server import limits

log = logging.getLogger("edge_llm.server")

_STATUS: tuple[tuple[type[EdgeLLMError], int, str], ...] = (
    (UsageError, 400, "invalid_request_error"),
    (OutOfMemory, 400, "invalid_request_error"),
    (ModelNotFound, 404, "not_found_error"),
    (ResponseNotFound, 404, "not_found_error"),
    (Overloaded, 429, "rate_limit_error"),
    (Unavailable, 503, "unavailable_error"),
    (DeviceLost, 503, "unavailable_error"),
    (EdgeLLMError, 500, "server_error"),
)
_HTTP_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 500: "server_error"}
_HTTP_CODES = {401: "invalid_api_key"}
_ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """An error as a client sees it."""

    status: int
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def openai(self) -> dict[str, Any]:
        """OpenAI's error object."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error | dict(self.more)}

    def anthropic(self) -> dict[str, Any]:
        """Anthropic's error object."""
        kind = _ANTHROPIC_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": self.message}}

    def llama_cpp(self) -> dict[str, Any]:
        """llama.cpp's error object: OpenAI's, with a type and words of its own for a prompt that does not fit."""
        if "n_ctx" not in self.more:
            return self.openai()
        tokens, context = self.more["n_prompt_tokens"], self.more["n_ctx"]
        message = f"the request ({tokens} tokens) exceeds the available context size ({context} tokens): {self.message}"
        return replace(self, kind="exceed_context_size_error", message=message).openai()

    def ollama(self) -> dict[str, Any]:
        """Ollama's error object."""
        return {"error": self.message}


def problem_of(error: BaseException) -> Problem:
    """What to tell a client about ``error``; what we did not expect stays in the log."""
    if isinstance(error, HTTPException):
        return _http_problem(error)
    if not isinstance(error, EdgeLLMError):
        log.error("internal error", exc_info=error)
        return Problem(500, "server_error", "internal error; the server's log says more", code="internal_error")
    status, kind = next((status, kind) for known, status, kind in _STATUS if isinstance(error, known))
    if status == 500:
        log.error("%s: %s", error.code, error)
    headers = {"Retry-After": str(limits.RETRY_AFTER_SECONDS)} if status in (429, 503) else {}
    more: dict[str, Any] = {}
    if isinstance(error, ContextOverflow):
        more = {"n_prompt_tokens": error.prompt_tokens, "n_ctx": error.context}
    return Problem(status, kind, str(error), getattr(error, "param", None), error.code, more, headers)


def _http_problem(error: HTTPException) -> Problem:
    kind = _HTTP_TYPES.get(error.status_code, "invalid_request_error")
    code = _HTTP_CODES.get(error.status_code)
    return Problem(error.status_code, kind, error.detail, code=code, headers=error.headers or {})
