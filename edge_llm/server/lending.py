"""How routes begin: the body is read, the model that it names is lent until the request ends, and work is done with both."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol, Self, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from edge_llm.files import shown
from edge_llm.server.host import ModelHost
from edge_llm.server.keep_alive import keep_alive_seconds
from edge_llm.server.pool import KeepAlive, Lease, ModelPool
from edge_llm.server.stream import until_disconnect

MODEL_HEADER = "x-edge-llm-model"
"""The answer's header with the own name of the model that answered."""
_LEASES = "edge_llm.leases"
"""Where a request's scope has its leases."""
Result = TypeVar("Result")


class Naming(Protocol):
    """A body that names a model."""

    @property
    def model(self) -> str | None: ...

    @property
    def keep_alive(self) -> str | float | None: ...

    @classmethod
    def parse(cls, data: bytes, context: int | None = None) -> Self: ...


Named = TypeVar("Named", bound=Naming)


def pool_of(request: Request) -> ModelPool:
    """The models of the server that got ``request``."""
    pool: ModelPool = request.app.state.pool
    return pool


def check_served(request: Request, route: str) -> None:
    """Refuse ``request`` (501) if ``route`` was left out when the server began."""
    if route in pool_of(request).without:
        raise HTTPException(501, f"this server was started without {route} (--without {route})")


async def prepared(request: Request, kind: type[Named], work: Callable[[ModelHost, Named], Result]) -> Result:
    """What ``work`` makes, beside the event loop, of the model that the request's body names, and of the body, a ``kind``."""
    body = await read_body(request, kind.parse)
    host = await lend(request, body.model, kept(body))
    return await pool_of(request).workshop.work(request, partial(work, host, body))


async def read_body(request: Request, parse: Callable[[bytes, int | None], Result]) -> Result:
    """What ``parse`` makes of the request's body; see `Workshop.prepare`."""
    pool = pool_of(request)
    return await pool.workshop.prepare(request, pool.context, lambda data: parse(data, pool.context))


async def lend(request: Request, name: str | None, keep_alive: KeepAlive = None) -> ModelHost:
    """The model that answers requests for ``name``, loaded, until ``request`` ends.  Raises what `ModelPool.acquire` raises."""

    async def take() -> ModelHost:
        lease = await pool_of(request).acquire(name, keep_alive)
        request.scope.setdefault(_LEASES, []).append(lease)
        return lease.host

    if pool_of(request).at_hand(name) or request.method != "POST":
        return await take()
    host = await until_disconnect(request.receive, take())
    if host is None:
        raise ClientDisconnect
    return host


def kept(body: Naming) -> KeepAlive:
    """How long the model is to stay loaded behind the request of ``body``; None where it does not say.  Raises `UsageError`."""
    return None if body.keep_alive is None else keep_alive_seconds(body.keep_alive)


def header_text(name: str) -> str:
    """``name`` as a header can have it."""
    return shown(name).encode("ascii", "backslashreplace").decode()


def give_back(scope: Scope) -> None:
    """The request of ``scope`` has ended: it uses no model any more."""
    leases: list[Lease] = scope.get(_LEASES, [])
    for lease in leases:
        lease.release()


def lent_name(scope: Scope) -> str | None:
    """The own name of the model that was lent to the request of ``scope``, if one was."""
    leases: list[Lease] = scope.get(_LEASES, [])
    return leases[-1].host.names[0] if leases else None
