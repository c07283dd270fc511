"""The APIs that this server speaks: what clients of each expect of an error and of a stream, whichever route gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route
from starlette.types import Scope

from edge_llm.files import shown
from edge_llm.server.journal import Entry
from edge_llm.server.problems import Problem, problem_of
from edge_llm.server.stream import DONE, NDJSON, SSE, Medium, event, line


@dataclass(frozen=True)
class Face:
    """One API."""

    below: tuple[str, ...]
    """What the paths of its routes begin with."""
    error: Callable[[Problem], dict[str, Any]]
    """The JSON of an error."""
    medium: Medium = SSE
    """How a stream is written."""
    takes_untyped: bool = False
    """Programs of this API leave out that their bodies are JSON, or say what `curl -d` says; see `guards`."""

    def failed(self, problem: Problem) -> str:
        """What ends a stream that had not begun to answer."""
        content = self.error(problem)
        if self.medium is NDJSON:
            return line(content)
        return event(content, "error") if "type" in content else event(content) + DONE


OPENAI = Face(("/v1/",), Problem.openai)
LLAMA_CPP = Face(("/",), Problem.llama_cpp)
ANTHROPIC = Face(("/v1/messages", "/messages"), Problem.anthropic)
OLLAMA = Face(("/api/",), Problem.ollama, NDJSON, takes_untyped=True)
_FACES = (ANTHROPIC, OLLAMA, OPENAI, LLAMA_CPP)


def face_of(scope: Scope) -> Face:
    """The API that the client of ``scope`` speaks, by its path; llama.cpp's, too, where a path is nobody's."""
    path = scope["path"]
    return next(face for face in _FACES if path.startswith(face.below))


def error_response(scope: Scope, error: BaseException) -> JSONResponse:
    """The answer to the request of ``scope``, which failed with ``error``."""
    problem = problem_of(error)
    Entry.of(scope).fail(error, problem.message)
    return JSONResponse(face_of(scope).error(problem), problem.status, dict(problem.headers))


async def on_unknown_route(request: Request, error: Exception) -> JSONResponse:
    """Starlette's exception handler for a path that no route has."""
    path = request.url.path
    below = "/api" if face_of(request.scope) is OLLAMA else "/v1"
    routes = next((mount.routes for mount in request.app.routes if isinstance(mount, Mount) and mount.path == below), [])
    names = sorted(route.path.removeprefix("/") for route in routes if isinstance(route, Route) and not route.param_convertors)
    asked = f"`{request.method} {shown(path, 200)}`"
    there = f"below {below}/ there are: {', '.join(names)}"
    return error_response(request.scope, HTTPException(404, f"there is no {asked} here; {there}"))


async def on_error(request: Request, error: Exception) -> JSONResponse:
    """Starlette's exception handler for everything else."""
    if isinstance(error, HTTPException) and error.status_code == 405:
        error = _wrong_method(request, error.headers or {})
    return error_response(request.scope, error)


def _wrong_method(request: Request, headers: Mapping[str, str]) -> HTTPException:
    """The error for a route that does not take the request's method, but those that ``headers`` allow."""
    allowed = {name.strip() for name in headers.get("Allow", "").split(",")} - {"HEAD"}  # which goes where GET goes
    asked = f"`{request.method} {shown(request.url.path, 200)}`"
    return HTTPException(405, f"there is no {asked} here; use {' or '.join(sorted(allowed))}", headers)
