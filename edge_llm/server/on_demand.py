"""Models that are loaded when they are asked for, and unloaded when nobody asks, or when another one needs the memory."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol

from edge_llm.engine.contract import Service
from edge_llm.engine.engine import Engine
from edge_llm.errors import EdgeLLMError, ModelNotFound, Overloaded, Unavailable
from edge_llm.files import shown
from edge_llm.opening.ledger import Claim, Ledger, Planned
from edge_llm.progress import StageProgress
from edge_llm.resources import give_memory_back
from edge_llm.server import limits
from edge_llm.server.host import ModelHost
from edge_llm.server.journal import no_journal
from edge_llm.server.metrics import Metrics
from edge_llm.server.pool import KeepAlive, Lease, ModelPool, ModelStatus, State
from edge_llm.server.work import Crew


class Shelf(Protocol):
    """The models that can be loaded; they may come and go.  `load` is called from other threads."""

    def names(self) -> Sequence[str]:
        """Their names."""

    def default(self) -> str:
        """The one for a request that names none."""

    def plan(self, name: str) -> Planned:
        """What ``name`` takes.  Raises what is wrong with the model."""

    def unknown(self, name: str) -> ModelNotFound:
        """The error for a ``name`` that no model has."""

    def load(self, name: str, progress: StageProgress) -> tuple[Engine, Service]:
        """Load it."""


class _Place:
    """A model that is loaded, or will be."""

    def __init__(self, host: ModelHost) -> None:
        self.name = host.names[0]
        self.host = host
        self.claim: Claim | None = None
        """The memory that it has; None while it waits for room."""
        self.users = 0
        """Leases, and requests that wait for one."""
        self.evictors = 0
        """Those who wait for its users to be done, so that it goes."""
        self.closing: asyncio.Task[None] | None = None
        """Unloads it."""
        self.keep_alive = math.inf
        self.last_used = time.monotonic()
        self.until: float | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.filling: asyncio.Task[None] | None = None

    @property
    def loaded(self) -> bool:
        return self.host.ready

    @property
    def filled(self) -> bool:
        """Whether its loading has come to an end, good or bad."""
        return self.filling is None or self.filling.done()

    @property
    def leaving(self) -> bool:
        """It goes when its users are done, and takes no new ones."""
        return self.evictors > 0 or self.closing is not None

    def stop_timer(self) -> None:
        self.until = None
        if self.timer is not None:
            self.timer.cancel()


class OnDemandPool(ModelPool):
    """The models of ``shelf``, within the memory of ``ledger``; each stays for ``keep_alive`` seconds after its last use."""

    def __init__(
        self, shelf: Shelf, ledger: Ledger, *, keep_alive: float = 300.0, journal: Callable[[str], None] = no_journal
    ) -> None:
        self._share(journal, Metrics())
        self._shelf = shelf
        self._ledger = ledger
        self._keep_alive = keep_alive
        self._places: dict[str, _Place] = {}
        self._counts: dict[str, Metrics] = {}
        self._door = asyncio.Lock()
        """Those who need room get it one after the other."""
        self._changed = asyncio.Event()
        """Set when anything has changed; the next one is a new event."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._loaders = Crew("load", limits.LOADERS)
        self._closing = False

    # -- what there is ------------------------------------------------------------------------------------------------

    @property
    def context(self) -> int | None:
        return max((place.host.context or 0 for place in self._places.values()), default=None)

    @property
    def unanswered(self) -> int:
        return sum(place.host.unanswered for place in self._places.values())

    def models(self) -> Sequence[ModelStatus]:
        return [self._status(name) for name in self._shelf.names()]

    def find(self, name: str | None) -> str:
        if not name:
            used = [place for place in self._places.values() if place.loaded and not place.leaving]
            return max(used, key=lambda place: place.last_used).name if used else self._shelf.default()
        if name not in self._places and name not in self._shelf.names():
            raise self.unknown(name)
        return name

    def unknown(self, name: str) -> ModelNotFound:
        return self._shelf.unknown(name)

    def counted(self) -> Sequence[tuple[str, Metrics, ModelHost | None]]:
        hosts = {name: place.host for name, place in self._places.items() if place.loaded}
        of_all: list[tuple[str, Metrics, ModelHost | None]] = [("", self.metrics, None)]
        return of_all + [(f'model="{name}"', metrics, hosts.get(name)) for name, metrics in sorted(self._counts.items())]

    def _status(self, name: str) -> ModelStatus:
        place = self._places.get(name)
        try:
            size = self._shelf.plan(name).memory.main
        except EdgeLLMError:
            return ModelStatus((name,), "failed")
        if place is None:
            return ModelStatus((name,), "unloaded", size)
        state: State = "loaded" if place.loaded else "loading"
        return ModelStatus((name,), state, size, place.host.progress, place.until, place.host)

    def _new_host(self, name: str) -> ModelHost:
        """A host of the model ``name``, which is not loaded."""
        host = ModelHost([name], self._counts.setdefault(name, Metrics()))
        host.verbose = self.verbose
        return host

    # -- leases -------------------------------------------------------------------------------------------------------

    def at_hand(self, name: str | None) -> bool:
        place = self._places.get(self.find(name))
        return place is not None and place.loaded and not place.leaving

    async def acquire(self, name: str | None, keep_alive: KeepAlive = None) -> Lease:
        own = self.find(name)
        plan = self._shelf.plan(own)
        if not self._ledger.ever_fits(plan):
            Ledger(self._ledger.main, self._ledger.card).claim(plan)  # raises, and says both sizes
        try:
            async with asyncio.timeout(limits.LOAD_SECONDS):
                place = await self._loaded(own, plan)
        except TimeoutError:
            raise Unavailable(self._late(own)) from None
        place.keep_alive = place.keep_alive if keep_alive is None else keep_alive
        place.last_used = time.monotonic()
        return Lease(place.host, lambda: self._release(place))

    async def _loaded(self, name: str, plan: Planned) -> _Place:
        """The place of ``name`` with its model loaded and one user more."""
        while not self._closing:
            place = self._places.get(name)
            if place is not None and place.leaving:
                await self._change()
                continue
            if place is None:
                place = self._places[name] = _Place(self._new_host(name))
                place.keep_alive = self._keep_alive
                place.filling = self._task(self._fill(place, plan))
            if place.users >= limits.LOAD_WAITERS and not place.loaded:
                raise Overloaded(f"`{place.users}` requests wait for `{shown(name)}` already; ask again later")
            place.users += 1
            place.stop_timer()
            try:
                if not place.loaded:
                    assert place.filling is not None
                    await asyncio.shield(place.filling)
                return place
            except BaseException:
                self._release(place)
                raise
        raise Unavailable("the server is shutting down")

    def _late(self, name: str) -> str:
        place = self._places.get(name)
        stage, done, total = place.host.progress if place is not None else ("start", 0, 0)
        if place is None or place.claim is None:
            return f"`{shown(name)}` waits for memory that other models use; ask again later"
        return f"`{shown(name)}` is still loading ({stage} {done / total if total else 0:.0%}); ask again later"

    def _release(self, place: _Place) -> None:
        place.users -= 1
        place.last_used = time.monotonic()
        if not place.users and not place.loaded and place.claim is None and place.filling is not None:
            self._vacate(place)  # nobody wants it any more, and it has no room yet
            place.filling.cancel()
        self._rest(place)
        self._tell()

    def _rest(self, place: _Place) -> None:
        """Begin the idle time of ``place`` if it is idle."""
        if place.loaded and not place.users and not place.leaving and place.keep_alive < math.inf:
            place.stop_timer()
            place.until = time.time() + place.keep_alive
            place.timer = asyncio.get_running_loop().call_later(place.keep_alive, self._expire, place)

    def _expire(self, place: _Place) -> None:
        if not place.users and not place.leaving:
            place.closing = self._task(self._close(place))

    async def _change(self) -> None:
        """Wait until anything has changed."""
        await self._changed.wait()

    def _tell(self) -> None:
        """Something has changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """``work`` goes on by itself; whoever waits for it learns what it raised, and nobody else."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    # -- loading ------------------------------------------------------------------------------------------------------

    async def _fill(self, place: _Place, plan: Planned) -> None:
        """Load the model of ``place``; a place whose model cannot be loaded goes."""
        try:
            async with self._door:
                place.claim = await self._room(plan)
            load = partial(self._shelf.load, place.name)
            await asyncio.wrap_future(self._loaders.do(lambda: place.host.load(load)))
            if not place.loaded:
                raise place.host.failure or Unavailable("the server is shutting down")
            self._rest(place)  # if all who waited have left
        except asyncio.CancelledError:
            self._vacate(place)
            raise Unavailable(f"`{shown(place.name)}` was not loaded: the request for it has ended") from None
        except BaseException:
            self._vacate(place)
            raise
        finally:
            self._tell()

    async def _room(self, plan: Planned) -> Claim:
        """A claim for ``plan``; models that are used least have to go for it, but none before its users are done."""
        while not self._ledger.fits(plan):
            others = [place for place in self._places.values() if place.loaded and not place.leaving]
            if others:
                await self._evict(min(others, key=lambda place: (place.users > 0, place.last_used)))
            else:
                await self._change()
        return self._ledger.claim(plan)

    # -- unloading ----------------------------------------------------------------------------------------------------

    async def unload(self, name: str) -> bool:
        place = self._places.get(self.find(name))
        if place is None:
            return False
        await self._evict(place)
        return place.closing is not None

    async def _evict(self, place: _Place) -> None:
        """Unload the model of ``place`` when it is loaded and its users are done.

        If whoever wants that is cancelled before, and nobody else wants it, it stays.
        """
        place.evictors += 1
        place.stop_timer()
        try:
            while place.users or not place.filled:
                await self._change()
            if place.loaded and place.closing is None:
                place.closing = self._task(self._close(place))
        finally:
            place.evictors -= 1
            if not place.leaving:  # it stays, for those too who waited for it to go
                self._rest(place)
                self._tell()
        if place.closing is not None:
            await asyncio.shield(place.closing)

    async def _close(self, place: _Place) -> None:
        try:
            await asyncio.wrap_future(self._loaders.do(lambda: place.host.close(drain_seconds=0.0)))
            place.host = self._new_host(place.name)  # lets go of the engine
            await asyncio.wrap_future(self._loaders.do(give_memory_back))
        finally:
            self._vacate(place)
            self._tell()

    def _vacate(self, place: _Place) -> None:
        """There is no such place any more, and its memory is free."""
        if self._places.get(place.name) is place:
            del self._places[place.name]
        if place.claim is not None:
            place.claim.release()

    def close(self, *, drain_seconds: float) -> None:
        self._closing = True
        until = time.monotonic() + drain_seconds
        for place in list(self._places.values()):
            place.host.close(drain_seconds=max(0.0, until - time.monotonic()))
