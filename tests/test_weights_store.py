"""Blocks by name: whatever is asked for, guessed, dropped and refused, in any order, what comes is what was asked for."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.errors import CorruptBundle, StorageError
from edge_llm.weights.cache import BlockCache
from edge_llm.weights.policies import DEFAULT, LRU, Key, Slots, Uses, policy_of
from edge_llm.weights.pools import Budget, BufferPool
from edge_llm.weights.store import BlockStore

LAYERS, EXPERTS = 3, 8


class Disk:
    """Blocks that come late: when somebody waits, hurries or settles, and as many before as ``random`` says."""

    def __init__(self, random: np.random.Generator, fails: float = 0.0) -> None:
        self.random, self.fails = random, fails
        self.queue: list[Reading] = []
        self.most = 0  # blocks in memory or on their way
        self.order: list[Key] = []

    def start(self, key: Key, buffer: np.ndarray, urgent: bool) -> Reading:
        assert not any(one.buffer is buffer and not one.over for one in self.queue), "two write to one buffer"
        reading = Reading(self, key, buffer, urgent)
        self.queue.append(reading)
        for one in self.next()[: int(self.random.integers(0, 2))]:
            one.land()
        return reading

    def next(self) -> list[Reading]:
        """What is read next, in order: the urgent ones first."""
        waiting = [one for one in self.queue if not one.over]
        return sorted(waiting, key=lambda one: not one.urgent)

    def open(self, key: Key, buffer: np.ndarray, waited: int) -> tuple[Key, np.ndarray]:
        if waited == 1:
            raise CorruptBundle("damaged")
        return key, buffer


class Reading:
    def __init__(self, disk: Disk, key: Key, buffer: np.ndarray, urgent: bool) -> None:
        self.disk, self.key, self.buffer, self.urgent = disk, key, buffer, urgent
        self.over, self.there = False, 0
        self.outcome = int(disk.random.integers(1, 3)) if disk.random.random() < disk.fails else 0

    def land(self) -> None:
        if not self.over:
            self.buffer[:] = 0 if self.outcome else content(self.key)
            self.over, self.there = True, len(self.buffer)
            self.disk.order.append(self.key)

    def wait(self) -> int:
        self.settle()
        if self.outcome == 2:
            raise StorageError("the disk is gone")
        return self.outcome

    def hurry(self) -> None:
        self.urgent = True

    def drop(self) -> None:
        self.over = True

    def settle(self) -> int:
        while not self.over:
            self.disk.next()[0].land()
        return self.there


def content(key: Key) -> int:
    return 1 + key.layer * EXPERTS + key.expert


def store_of(disk: Disk, slots: int) -> BlockStore[Key, tuple[Key, np.ndarray]]:
    return BlockStore(BufferPool([np.zeros(16, np.uint8) for _ in range(slots)]), disk.start, disk.open)


def assert_right(found: list[tuple[int, tuple[Key, np.ndarray]]], layer: int) -> list[int]:
    for expert, (key, buffer) in found:
        assert key == (layer, expert) and (buffer == content(key)).all()
    return [expert for expert, _ in found]


STEPS = st.lists(st.tuples(st.integers(0, LAYERS - 1), st.sets(st.integers(0, EXPERTS - 1), min_size=1)), max_size=30)


@settings(max_examples=80, deadline=None)
@given(STEPS, st.integers(1, EXPERTS), st.integers(1, 5), st.sampled_from([LRU, DEFAULT]), st.integers(0, 2**31))
def test_steps_have_what_they_need_and_a_policy_decides_the_reads(steps, quota, ahead, policy, seed):
    random = np.random.default_rng(seed)
    disk = Disk(random)
    store = store_of(disk, LAYERS * quota + ahead)
    cache = BlockCache(store, Slots(policy_of(policy, EXPERTS), quota), ahead)
    alone, uses = Slots(policy_of(policy, EXPERTS), quota), Uses()
    for layer, experts in steps:
        held, given = alone.held(layer), []
        taken = alone.take(layer, sorted(experts))
        uses += Uses(len(taken), sum(one.is_read for one in taken))
        for run in cache.take(layer, sorted(experts)):
            given += assert_right(run, layer)
            cache.guess((layer + 1) % LAYERS, random.permutation(EXPERTS)[: random.integers(0, EXPERTS)].tolist(), 4)
        assert given == sorted(experts & held) + sorted(experts - held)
        assert {key.expert for key in store.held if key.layer == layer} == alone.held(layer)
    assert cache.uses == uses


@settings(max_examples=80, deadline=None)
@given(STEPS, st.integers(1, EXPERTS), st.integers(1, 3), st.integers(0, 2**31))
def test_a_read_that_fails_ends_its_step_alone(steps, quota, ahead, seed):
    random = np.random.default_rng(seed)
    disk = Disk(random, fails=0.2)
    store = store_of(disk, LAYERS * quota + ahead)
    cache = BlockCache(store, Slots(policy_of(DEFAULT, EXPERTS), quota), ahead)
    for layer, experts in steps:
        given = []
        stops = random.integers(0, 2 * EXPERTS)  # or whoever computes with them fails
        try:
            for run in cache.take(layer, sorted(experts)):
                given += assert_right(run, layer)
                cache.guess((layer + 1) % LAYERS, random.permutation(EXPERTS)[:3].tolist(), 3)
                if len(given) > stops:
                    break
        except (StorageError, CorruptBundle):
            continue
        assert sorted(given) == sorted(experts) or len(given) > stops
    disk.fails = 0.0
    for layer in range(LAYERS):
        found: list[int] = []
        while not found:  # blocks whose reads had failed may be waited for, once each
            with contextlib.suppress(StorageError, CorruptBundle):
                found = [one for run in cache.take(layer, range(EXPERTS)) for one in assert_right(run, layer)]
        assert sorted(found) == list(range(EXPERTS))


def test_what_is_needed_is_read_before_guesses_and_wrong_ones_are_never_read():
    class Never:
        def random(self) -> float:
            return 1.0

        def integers(self, *_: int) -> int:
            return 0

    disk = Disk(Never())
    store = store_of(disk, 6)
    for expert in (1, 2, 3):
        assert store.guess(Key(0, expert))
    assert not store.guess(Key(0, 2)) and store.guesses == 3
    store.request(Key(0, 4))
    store.request(Key(0, 3))
    store.drop_guesses({Key(0, 2)})
    assert store.held == [Key(0, 2), Key(0, 4), Key(0, 3)]
    store.wait(Key(0, 4))
    store.request(Key(0, 2))
    store.wait(Key(0, 2))
    assert Key(0, 1) not in disk.order and disk.order[:2] == [Key(0, 3), Key(0, 4)] and store.vain_bytes == 0


def test_bytes_of_wrong_guesses_are_counted():
    disk = Disk(np.random.default_rng(0))
    store = store_of(disk, 1)
    store.guess(Key(0, 0))
    for one in disk.next():
        one.land()
    store.drop_guesses()
    store.request(Key(0, 1))
    assert store.vain_bytes == 16


def test_a_store_without_room_says_so():
    store = store_of(Disk(np.random.default_rng(0)), 1)
    store.request(Key(0, 0))
    assert not store.guess(Key(0, 1))
    with pytest.raises(LookupError, match="no slot"):
        store.request(Key(0, 1))
    with pytest.raises(KeyError):
        store.wait(Key(0, 1))
    store.close()
    assert not store.has_place(Key(0, 2)) and store.held == []
    with pytest.raises(ValueError, match="slot ahead"):
        BlockCache(store, Slots(policy_of(LRU, 1), 1), 0)


VERBS = ["request", "guess", "wait", "keep", "drop", "lend"]
REQUESTS = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 9)), max_size=60)


@settings(max_examples=150, deadline=None)
@given(REQUESTS, st.integers(1, 4), st.integers(0, 100), st.integers(0, 2**31))
def test_two_kinds_in_one_budget_have_what_was_asked_for_and_never_more_memory(requests, count, own, seed):
    """Blocks in slots and blocks of many sizes; what a step waits for stays until it was used, whatever else is asked for."""
    budget = Budget(16 * count + own)
    budget.take("slots", 16 * count)
    disk = Disk(np.random.default_rng(seed), fails=0.1)
    slots = BlockStore(BufferPool([np.zeros(16, np.uint8) for _ in range(count)]), disk.start, disk.open)
    pool = budget.byte_pool("own", own, lambda number: 7 * number)
    kept: BlockStore[int, bytes] = BlockStore(pool)
    for verb, number in requests:
        key = Key(0, number)
        if verb == "keep":
            if kept.make_place(number) and number not in kept:
                kept.keep(number, bytes([number] * 7 * number))
            assert (number in kept) == (7 * number <= own)
            assert sum(len(kept.use(one)) for one in kept.held) == pool.held <= own
        elif verb == "guess":
            before = slots.held
            assert slots.guess(key) == (key not in before and len(before) < count)
        elif verb == "drop":
            slots.drop_guesses([key])
        elif verb == "lend":
            writers = [Reading(disk, key, slots.buffer(place), urgent=True) for place in range(count)]
            for one in disk.queue:
                one.settle()
            slots.lend(writers)
            disk.queue += writers
            slots.put(0, key, writers[0])
        else:
            assert slots.make_place(key)
            slots.request(key, urgent=number % 2 == 0)
            if verb == "wait":
                with contextlib.suppress(StorageError, CorruptBundle):
                    assert_right([(number, slots.wait(key))], 0)
                    assert slots.use(key) is slots.wait(key)
        assert len(slots.held) <= count
        assert sum(budget.shares.values()) <= budget.nbytes


def test_a_budget_gives_no_more_than_it_has_and_what_is_given_back_again():
    budget = Budget(100)
    budget.take("layers", 60)
    with pytest.raises(MemoryError, match="`experts` wants 41 bytes, and 40 of the 100"):
        budget.byte_pool("experts", 41, len)
    budget.take("layers", 59)
    budget.take("experts", 41)
    assert budget.shares == {"layers": 59, "experts": 41}
    budget.give_back("layers")
    budget.take("tables", 59)
    with pytest.raises(LookupError, match="nothing brings it"):
        BlockStore(budget.byte_pool("none", 0, lambda key: 0)).request("layers.3")
