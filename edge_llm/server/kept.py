"""GET and DELETE /v1/responses/{id}, and its input items: what is kept of a response."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.server.stored import ResponseStore

_MOST_LISTED = 100


async def kept_response(request: Request) -> JSONResponse:
    """The response as it was answered, or the word that it is forgotten now."""
    kept, name = _kept(request), request.path_params["id"]
    if request.method != "DELETE":
        return JSONResponse(kept.get(name).response)
    kept.delete(name)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


async def input_items(request: Request) -> JSONResponse:
    """What was asked, and all that came before it, the last first unless `order` is `asc`."""
    kept, asked = _kept(request), request.query_params
    stored = kept.get(request.path_params["id"])
    items = [*kept.before(stored.previous), *stored.items]
    if asked.get("order", "desc") == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if "after" in asked:
        if asked["after"] not in ids:
            raise UsageError(f"after: no item `{shown(asked['after'], 80)}` is there", param="after")
        items = items[ids.index(asked["after"]) + 1 :]
    most = _limit(asked.get("limit", "20"))
    return JSONResponse(_list(items[:most], more=len(items) > most))


def _list(items: list[dict[str, Any]], *, more: bool) -> dict[str, Any]:
    ends = {"first_id": items[0]["id"] if items else None, "last_id": items[-1]["id"] if items else None}
    return {"object": "list", "data": items, **ends, "has_more": more}


def _limit(given: str) -> int:
    if not (given.isascii() and given.isdecimal() and len(given) < 4 and 1 <= int(given) <= _MOST_LISTED):
        raise UsageError(f"limit must be between 1 and {_MOST_LISTED}, got `{shown(given, 20)}`", param="limit")
    return int(given)


def _kept(request: Request) -> ResponseStore:
    kept: ResponseStore = request.app.state.responses
    return kept
