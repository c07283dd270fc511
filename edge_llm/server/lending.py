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
_LENT = "edge_llm.lent"
"""Where a request's scope has what is lent to it."""
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


class _Lent:
    """What is lent to one request."""

    def __init__(self) -> None:
        self.name: str | None = None
        """The own name of the model that was asked for last, lent or on its way."""
        self._leases: list[Lease] = []
        self._ended = False

    @classmethod
    def to(cls, scope: Scope) -> _Lent:
        """What is lent to the request of ``scope``."""
        lent: _Lent = scope.setdefault(_LENT, cls())
        return lent

    def keep(self, lease: Lease) -> None:
        """Keep ``lease`` until the request ends; of one that has ended it goes back at once."""
        self.name = lease.host.names[0]
        self._leases.append(lease)
        if self._ended:
            self.end()

    def end(self) -> None:
        """The request uses no model any more."""
        self._ended = True
        while self._leases:
            self._leases.pop().release()


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

    lent, pool = _Lent.to(request.scope), pool_of(request)
    lent.name = pool.find(name)

    async def take() -> ModelHost:
        try:
            lease = await pool.acquire(name, keep_alive)
        except BaseException:
            lent.name = None
            raise
        lent.keep(lease)
        return lease.host

    if pool.at_hand(name) or request.method != "POST":
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
    """The request of ``scope`` has ended: it uses no model any more, and none that is still on its way to it."""
    _Lent.to(scope).end()


def lent_name(scope: Scope) -> str | None:
    """The own name of the model that answers the request of ``scope``, or is loaded for it; None where none does."""
    return _Lent.to(scope).name
