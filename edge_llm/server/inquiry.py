"""What a server of this user is asked from another process: how it is, which models it has loaded, and to unload one."""

from __future__ import annotations

import http.client
import json
import math
import select
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from edge_llm.errors import Unavailable
from edge_llm.files import shown
from edge_llm.server.running import LATE, Running, nameable

ASK_SECONDS = 1.0
"""How long a server has to say how it is."""
MOST_BYTES = 8 << 20
"""Of an answer."""
_Failures = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class HeldModel:
    """A model that a server of many has in memory, or is about to."""

    name: str
    state: str
    """``loaded``, or ``loading`` with how much of it is done."""
    nbytes: int | None
    """Memory that it takes."""
    until: float | None
    """When it is unloaded if nobody asks for it, in seconds since 1970; None: no such time."""


def state_of(server: Running) -> str:
    """``ready``, ``loading 40%``, ``error``, or ``no answer``."""
    try:
        with _answer(server, "GET", "/health") as reply:
            found = _json(reply)
        if found["status"] == "loading":
            return f"loading {found['progress']['fraction']:.0%}"
        return "ready" if found["status"] == "ok" else "error"
    except _Failures:
        return "no answer"


def held_models(server: Running) -> list[HeldModel]:
    """The models of a server of many that are loaded, or being loaded; none where it does not say."""
    if not server.serves_every_model:
        return []
    try:
        with _answer(server, "GET", "/v1/models") as reply:
            return [one for one in map(_held, _json(reply)["data"]) if one is not None]
    except _Failures:
        return []


def unload(server: Running, name: str, first_seconds: float, on_wait: Callable[[], None], most_seconds: float) -> bool:
    """Have ``server`` unload the model ``name`` when its answers have ended; whether it has within ``most_seconds``.

    ``on_wait`` is called where that takes longer than ``first_seconds``.  The server goes on with it, whoever waits.  Raises
    `Unavailable` where it does not understand.
    """
    try:
        with _sent(server, "POST", "/v1/models/unload", {"model": name}) as connection:
            if not _readable(connection, first_seconds):
                on_wait()
                if not _readable(connection, most_seconds):
                    return False
            reply = connection.getresponse()
            found = _json(reply)
            if reply.status != 200:
                raise Unavailable(f"{nameable(server)} does not unload `{shown(name)}`: {shown(found['error']['message'])}")
            return True
    except _Failures:
        raise Unavailable(f"{nameable(server)} gives no answer") from None


def _readable(connection: http.client.HTTPConnection, seconds: float) -> bool:
    return bool(select.select([connection.sock], [], [], seconds)[0])


@contextmanager
def _sent(
    server: Running, method: str, path: str, body: dict[str, Any] | None = None
) -> Iterator[http.client.HTTPConnection]:
    """The connection that a request went out by."""
    connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=ASK_SECONDS)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {server.key}"} if server.key else {})
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        yield connection
    finally:
        connection.close()


@contextmanager
def _answer(server: Running, method: str, path: str) -> Iterator[http.client.HTTPResponse]:
    with _sent(server, method, path) as connection:
        yield connection.getresponse()


def _json(reply: http.client.HTTPResponse) -> Any:
    return json.loads(reply.read(MOST_BYTES))


def _held(entry: dict[str, Any]) -> HeldModel | None:
    """The model of an ``entry`` of /v1/models; None for one that is not in memory."""
    name, status = str(entry["id"]), entry["status"]
    if status["value"] not in ("loaded", "loading"):
        return None
    nbytes, until = status.get("memory_bytes"), status.get("until")
    state = str(status["value"])
    if state == "loading":
        done, total = (float(status["progress"][key]) for key in ("done", "total"))
        share = done / total if total > 0 and math.isfinite(done / total) else 0.0
        state = f"loading {share:.0%}"
    stays = until is None or not 0 <= float(until) < LATE
    return HeldModel(name, state, nbytes if type(nbytes) is int else None, None if stays else float(until))
