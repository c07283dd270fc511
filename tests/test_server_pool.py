"""The pool of models under tasks that come, leave and unload at any moment: what is lent works, and all memory comes back."""

import asyncio
import random
import time
from types import SimpleNamespace

import pytest

from edge_llm.config import RuntimeConfig
from edge_llm.errors import CorruptBundle, EdgeLLMError, ModelNotFound
from edge_llm.opening.budgets import card_budget
from edge_llm.opening.ledger import Ledger, MemoryNeeds
from edge_llm.server.host import ModelHost
from edge_llm.server.lending import _Lent, give_back, lent_name
from edge_llm.server.on_demand import OnDemandPool
from edge_llm.server.pool import Lease
from edge_llm.server.shelf import SizedModel

pytestmark = pytest.mark.thorough(file=3)

SIZES = {"a": 100, "b": 100, "c": 150, "broken": 100}
ROOM = 250


class StubService:
    """Counts how often it is closed."""

    running = waiting = 0

    def __init__(self):
        self.closed = 0

    def close(self, *, drain_seconds):
        self.closed += 1


class StubShelf:
    """Models without an engine, which take ``seconds()`` to load."""

    def __init__(self, seconds=lambda: 0.0):
        self._seconds = seconds
        self.services = []

    def names(self):
        return [*SIZES]

    def default(self):
        return "a"

    def plan(self, name):
        return SizedModel(name, MemoryNeeds(weights=SIZES[name]))

    def unknown(self, name):
        return ModelNotFound(f"no model `{name}` here", model=name)

    def load(self, name, progress):
        progress("weights", 1, 2)
        time.sleep(self._seconds())
        progress("weights", 2, 2)
        if name == "broken":
            raise CorruptBundle("this bundle is broken")
        self.services.append(StubService())
        tokenizer = SimpleNamespace(token_bytes=lambda token: b"x")
        return SimpleNamespace(tokenizer=tokenizer, config=SimpleNamespace(vocab_size=1), name=name), self.services[-1]


async def settled(state):
    """Wait for what ``state`` tells."""
    end = time.monotonic() + 60
    while not state():
        assert time.monotonic() < end, "it never comes"
        await asyncio.sleep(0.001)


def loaded(pool):
    return {one.names[0] for one in pool.models() if one.state == "loaded"}


async def use(pool, ledger, chance):
    """One user: takes a model for a moment; may give up at any time."""
    name = chance.choice([*SIZES])
    lease = await pool.acquire(name, chance.choice([None, 0.0, 0.001, 100.0]))
    try:
        for _ in range(chance.randrange(4)):
            assert (lease.host.names, lease.host.engine.name, lease.host.service.closed) == ((name,), name, 0)
            assert ledger.taken.main <= ROOM
            await asyncio.sleep(chance.choice([0, 0, 0.001]))
    finally:
        lease.release()


async def crowd(pool, ledger, chance, steps):
    tasks = []
    for _ in range(steps):
        what = chance.random()
        if what < 0.6:
            tasks.append(asyncio.create_task(use(pool, ledger, chance)))
        elif what < 0.75:
            tasks.append(asyncio.create_task(pool.unload(chance.choice([*SIZES]))))
        elif tasks:
            chance.choice(tasks).cancel()
        await asyncio.sleep(chance.choice([0, 0, 0, 0.0005]))
    async with asyncio.timeout(60):  # nobody waits for ever
        found = await asyncio.gather(*tasks, return_exceptions=True)
    odd = [one for one in found if isinstance(one, Exception) and not isinstance(one, EdgeLLMError)]
    assert not odd, odd


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("seed", range(8))
def test_whoever_comes_and_leaves_all_memory_comes_back(seed):
    async def run():
        chance = random.Random(seed)
        shelf, ledger = StubShelf(lambda: chance.choice([0.0, 0.001])), Ledger(main=ROOM)
        pool = OnDemandPool(shelf, ledger, keep_alive=chance.choice([0.0, 0.001, 100.0]))
        await crowd(pool, ledger, chance, 250)
        for name in SIZES:  # everybody has left: each can be had, and goes
            if name != "broken":
                async with pool.lease(name, 100.0) as host:
                    assert host.engine.name == name
                assert await pool.unload(name)
        await settled(lambda: ledger.taken.main == 0)
        assert loaded(pool) == set()
        assert [service.closed for service in shelf.services] == [1] * len(shelf.services)

    asyncio.run(run())


def test_a_lease_that_comes_after_the_end_of_its_request_goes_back():
    given = []
    scope = {}
    assert lent_name(scope) is None
    give_back(scope)
    _Lent.to(scope).keep(Lease(ModelHost(["a"]), lambda: given.append("a")))
    assert given == ["a"]


def test_who_waits_for_room_and_leaves_keeps_no_model_for_ever():
    """Where the one for whom a model should go leaves, that model stays, and its idle time begins anew."""

    async def run():
        ledger = Ledger(main=100)
        pool = OnDemandPool(StubShelf(), ledger, keep_alive=0.05)
        lease = await pool.acquire("a")
        waiting = asyncio.create_task(pool.acquire("b"))
        await settled(lambda: not pool.at_hand("a"))
        lease.release()  # and before `b` learns of it
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await settled(lambda: ledger.taken.main == 0)

    asyncio.run(run())


def test_models_on_a_card_share_its_memory(monkeypatch):
    monkeypatch.setattr(StubShelf, "plan", lambda _, name: SizedModel(name, MemoryNeeds(weights=1, card=SIZES[name])))

    async def run():
        pool = OnDemandPool(StubShelf(), Ledger(main=1000, card=card_budget(RuntimeConfig(card_memory="240"))))
        for name in "abc":
            async with pool.lease(name):
                pass
        assert loaded(pool) == {"c"}  # which has no room beside any of the others

    asyncio.run(run())


def test_a_model_that_is_being_loaded_is_unloaded_behind_its_requests():
    async def run():
        ledger = Ledger(main=ROOM)
        pool = OnDemandPool(StubShelf(lambda: 0.02), ledger)
        asked = asyncio.create_task(pool.acquire("a"))
        await asyncio.sleep(0)
        unloads = [asyncio.create_task(pool.unload("a")) for _ in range(2)]
        lease = await asked
        assert lease.host.engine.name == "a" and not any(one.done() for one in unloads)
        lease.release()
        assert await asyncio.gather(*unloads) == [True, True]
        assert (ledger.taken.main, loaded(pool)) == (0, set())
        assert not await pool.unload("a")

    asyncio.run(run())
