"""The model that a request of Ollama's names, lent for as long as it says: `qwen3:latest` is our `qwen3`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection

from starlette.requests import Request

from edge_llm.errors import EdgeLLMError
from edge_llm.opening.made_from import imported_from
from edge_llm.server.host import ModelHost
from edge_llm.server.lending import lend, pool_of
from edge_llm.server.ollama.options import Asked
from edge_llm.server.ollama.shapes import Clock
from edge_llm.sources.place import named_place

LATEST = ":latest"
"""The tag of a model that has none."""


def tagged(name: str) -> str:
    """What Ollama's clients call our model ``name``."""
    return name if ":" in name.rpartition("/")[2] else name + LATEST


def untagged(name: str) -> str:
    """``name`` without the tag that says nothing."""
    return name.removesuffix(LATEST)


async def own_name(request: Request, name: str | None) -> str | None:
    """The name of ours that ``name`` means: without `:latest`, with `-` for `:`, or by the short name it was imported by.

    Else ``name`` without `:latest`.
    """
    if name is None:
        return None
    pool = pool_of(request)
    known = {one for model in pool.models() for one in model.names}
    plain = untagged(name)
    found = next((one for one in (name, plain, plain.replace(":", "-")) if one in known), None)
    return await pool.workshop.work(request, lambda: _by_source(plain, known)) if found is None else found


def _by_source(name: str, known: Collection[str]) -> str:
    """The one of the ``known`` models that was imported from what ``name`` names on a hub; else ``name``."""
    with contextlib.suppress(EdgeLLMError):
        place = named_place(name)
        if place is not None and place.folder is None:
            return next((one for one in imported_from(place, may_be_older=True) if one in known), name)
    return name


async def lent(request: Request, body: Asked) -> tuple[ModelHost, str, Clock]:
    """The model that ``body`` names, what its client calls it, and the time that it took to load.

    Raises `ModelNotFound` or `Unavailable`.
    """
    clock, pool = Clock(), pool_of(request)
    name = await own_name(request, body.model)
    is_loaded = any(one.state == "loaded" and name in one.names for one in pool.models())
    host = await lend(request, name, body.stays)
    loading = 0 if is_loaded else time.perf_counter_ns() - clock.began
    return host, host.called(body.model), Clock(loading, clock.began)
