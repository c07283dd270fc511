"""DELETE /api/delete and POST /api/copy; and what Ollama's servers store that this one does not."""

from __future__ import annotations

from functools import partial
from typing import NoReturn

from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from edge_llm.convert.removal import copy, refuse_builtin, remove
from edge_llm.errors import ModelNotFound, UsageError
from edge_llm.files import is_folder, shown
from edge_llm.paths import bundle_path
from edge_llm.server import limits
from edge_llm.server.lending import pool_of, read_body
from edge_llm.server.ollama.lent import own_name, untagged
from edge_llm.server.ollama.options import ShowBody
from edge_llm.server.schemas import Body


class CopyBody(Body):
    """A model, and the name that it gets beside its own."""

    source: str = Field(min_length=1, max_length=limits.MODEL_CHARACTERS)
    destination: str = Field(min_length=1, max_length=limits.MODEL_CHARACTERS)


async def delete(request: Request) -> Response:
    """Remove a model from this machine, when the requests that use it have ended."""
    body = await read_body(request, ShowBody.parse)
    pool = pool_of(request)
    name = await own_name(request, body.named) or ""
    refuse_builtin(name, "model")
    if pool.one is not None and any(name in one.names for one in (pool.one, *pool.one.beside)):
        raise UsageError(f"`{shown(name)}` is what this server was started with; stop the server first", param="model")
    served = any(name in model.names for model in pool.models())
    if served:
        await pool.unload(name)
    await pool.workshop.work(request, partial(_remove, name))
    return Response(status_code=200)


def _remove(name: str) -> None:
    folder = bundle_path(name)
    if not is_folder(folder):
        raise ModelNotFound(f"no model `{shown(name)}`; GET /api/tags lists those that are here", model=name)
    remove(folder)


async def copy_model(request: Request) -> Response:
    """Give a model a second name; both are models of their own from then on."""
    body = await read_body(request, CopyBody.parse)
    pool = pool_of(request)
    source = await own_name(request, body.source) or ""
    destination = untagged(body.destination).replace(":", "-")
    await pool.workshop.work(request, partial(copy, source, destination))
    return Response(status_code=200)


async def create(request: Request) -> NoReturn:
    """Models are not made here by Modelfiles."""
    raise HTTPException(501, "models are not created here; POST /api/pull brings one, `edge-llm import` makes one of a folder")


async def push(request: Request) -> NoReturn:
    """Nothing is published from here."""
    raise HTTPException(501, "models are not pushed from here; publish the folder that you imported from")


async def blob(request: Request) -> NoReturn:
    """Files are not sent here piece by piece."""
    status = 404 if request.method == "HEAD" else 501
    raise HTTPException(status, "files of models are not taken here; `edge-llm import` reads a folder or a GGUF file")
