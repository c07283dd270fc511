"""The models of one server: which there are, how each is, and the lease under which a request uses one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from edge_llm.errors import ModelNotFound
from edge_llm.files import shown
from edge_llm.server.host import ModelHost
from edge_llm.server.journal import no_journal
from edge_llm.server.metrics import Metrics
from edge_llm.server.work import Workshop

KeepAlive = float | None
"""Seconds that a model stays loaded after its last lease; infinity: for ever, None: as the server was started."""
State = Literal["unloaded", "loading", "loaded", "failed"]


@dataclass(frozen=True)
class ModelStatus:
    """How one model of the pool is now."""

    names: tuple[str, ...]
    """Its own name first, then its aliases."""
    state: State
    nbytes: int | None = None
    """Memory that it takes when it is loaded; None where that is not known yet."""
    progress: tuple[str, int, int] = ("start", 0, 0)
    """(stage, done, total) of loading."""
    until: float | None = None
    """When it is unloaded if nobody asks again, in seconds since 1970; None: no such time."""
    host: ModelHost | None = None
    """What loads it, or answers with it; use it under a lease."""
    parent: str = ""
    """Of an adapter, the name of its model."""


class Lease:
    """The right to use ``host``: it stays loaded until `release`."""

    def __init__(self, host: ModelHost, on_release: Callable[[], None]) -> None:
        self.host = host
        self._on_release: Callable[[], None] | None = on_release

    def release(self) -> None:
        """The host is no longer used.  Calling it again changes nothing."""
        if (on_release := self._on_release) is not None:
            self._on_release = None
            on_release()


class ModelPool:
    """The models of a server, and what they share: the workshop, the journal, the count of refusals.

    All methods are for the event loop's thread, except `close`.
    """

    def __init__(self, host: ModelHost, *, strict: bool = False, journal: Callable[[str], None] = no_journal) -> None:
        """The pool of the one model of ``host`` and its adapters; ``strict``: other names than theirs are refused."""
        self._share(journal, host.metrics, host)
        self._host = host
        self._strict = strict

    def _share(self, journal: Callable[[str], None], metrics: Metrics, one: ModelHost | None = None) -> None:
        self.one = one
        """The model of a server of one."""
        self.journal = journal
        """Takes a line for each request."""
        self.metrics = metrics
        """Counts what was refused."""
        self.workshop = Workshop()
        self.without: frozenset[str] = frozenset()
        """Routes that are left out: page, slots, metrics."""
        self.tags: tuple[str, ...] = ()
        """Words about the models, for clients that list them."""
        self.verbose = False
        """Whether each chat completion shows the prompt that the model read."""
        self.created = int(time.time())
        """When the server began, in seconds since 1970."""

    @property
    def context(self) -> int | None:
        """The longest context of a loaded model in tokens, None while none is loaded: it bounds what a body may have."""
        return self._host.context

    @property
    def unanswered(self) -> int:
        """Requests that run or wait, of all models."""
        return self._host.unanswered

    def models(self) -> Sequence[ModelStatus]:
        """Every model that can be asked for, loaded or not."""
        host = self._host
        state: State = "loaded" if host.ready else "loading" if host.failure is None else "failed"
        size = host.engine.facts.weights_bytes if host.ready else None
        model = ModelStatus(host.names, state, size, host.progress, host=host)
        parent = host.names[0]
        beside = [ModelStatus(one.names, state, size, host.progress, host=one, parent=parent) for one in host.beside]
        return [model, *beside]

    def find(self, name: str | None) -> str:
        """The own name of the model that answers requests for ``name``; None: for no name.  Raises `ModelNotFound`."""
        return self._of(name).names[0]

    def _of(self, name: str | None) -> ModelHost:
        """The host that answers requests for ``name``.  Raises `ModelNotFound`."""
        adapter = next((one for one in self._host.beside if name in one.names), None)
        if adapter is None and name and self._strict and name not in self._host.names:
            raise self.unknown(name)
        return adapter or self._host

    def unknown(self, name: str) -> ModelNotFound:
        """The error for a ``name`` that no model here has."""
        listed = f"GET /v1/models lists: {', '.join(name for one in self.models() for name in one.names)}"
        return ModelNotFound(f"no model `{shown(name)}` here; {listed}", model=name)

    def counted(self) -> Sequence[tuple[str, Metrics, ModelHost | None]]:
        """(label of its lines, what was counted since the server began, its host if it is loaded) of every model asked for."""
        host = self._host
        if not host.beside:
            return [("", host.metrics, host if host.ready else None)]
        found = [(f'model="{host.names[0]}"', host.metrics, host if host.ready else None)]
        return found + [(f'model="{one.names[0]}"', one.metrics, None) for one in host.beside]

    def at_hand(self, name: str | None) -> bool:
        """Whether `acquire` gives the model called ``name``, or its error, without waiting.  Raises `ModelNotFound`."""
        self.find(name)
        return True

    async def acquire(self, name: str | None, keep_alive: KeepAlive = None) -> Lease:
        """A lease of the model that answers requests for ``name``, which is loaded if need be; see `find`.

        ``keep_alive`` counts from the end of the lease.  Raises `ModelNotFound`, `Unavailable` while it cannot be had.
        """
        host = self._of(name)
        host.engine  # noqa: B018 - raises while it loads
        return Lease(host, lambda: None)

    @contextlib.asynccontextmanager
    async def lease(self, name: str | None, keep_alive: KeepAlive = None) -> AsyncIterator[ModelHost]:
        """`acquire`, until the end of the block."""
        lease = await self.acquire(name, keep_alive)
        try:
            yield lease.host
        finally:
            lease.release()

    async def unload(self, name: str) -> bool:
        """Unload the model called ``name`` when its leases have ended; whether it was loaded and may be unloaded.

        The model of a server of one stays.  Raises `ModelNotFound`.
        """
        self.find(name)
        return False

    def close(self, *, drain_seconds: float) -> None:
        """End all services, and loading."""
        self._host.close(drain_seconds=drain_seconds)
