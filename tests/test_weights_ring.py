"""A ring gives the bytes of the block that was asked for, whatever is requested, given up, or fails in between."""

from __future__ import annotations

import sys
from threading import Semaphore, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edge_llm.weights.pools import BufferPool
from edge_llm.weights.ring import Ring, in_turn

KEYS = range(7)
NBYTES = 3
FATES = ["good", "good", "good", "refused", "broken", "interrupted", "damaged"]


class Failure(BaseException):
    """Not even an `Exception`, as an interrupted wait is none."""


def content(key: int) -> bytes:
    return bytes(range(10 * key, 10 * key + NBYTES))


class Reading:
    """Writes a block byte by byte, also between two calls of the ring."""

    def __init__(self, key: int, buffer: bytearray, fate: str) -> None:
        self.key, self.buffer, self.fate = key, buffer, fate
        self.done = 0
        self.opened = False

    @property
    def running(self) -> bool:
        return self.done < NBYTES

    def advance(self) -> None:
        if self.running:
            self.buffer[self.done] = content(self.key)[self.done]
            self.done += 1

    def settle(self) -> int:
        while self.running:
            self.advance()
        return self.done

    def hurry(self) -> None:
        """A ring guesses nothing."""

    drop = hurry

    def wait(self) -> Reading:
        if self.fate == "interrupted":
            raise Failure  # and the reading goes on
        self.settle()
        if self.fate == "broken":
            raise Failure
        return self


class Disk:
    """Starts and opens blocks, and refuses what a ring must not ask for."""

    def __init__(self, buffers: int) -> None:
        self.buffers = [bytearray(NBYTES) for _ in range(buffers)]
        self.fate = "good"  # of what is started next
        self.readings: list[Reading] = []
        self.started: list[tuple[int, bool]] = []
        self.ring: Ring[int, bytearray] = Ring(BufferPool(self.buffers), self.start, self.open)

    def start(self, key: int, buffer: bytearray, urgent: bool) -> Reading:
        self.readings = [reading for reading in self.readings if reading.running]
        assert all(reading.buffer is not buffer for reading in self.readings)
        assert len(self.readings) < len(self.buffers)
        self.started.append((key, urgent))
        if self.fate == "refused":
            raise Failure
        self.readings.append(Reading(key, buffer, self.fate))
        return self.readings[-1]

    def open(self, key: int, buffer: bytearray, reading: Reading) -> bytearray:
        assert (reading.key, reading.buffer, reading.opened) == (key, buffer, False)
        reading.opened = True
        if reading.fate == "damaged":
            raise Failure
        return buffer


class AnyUse(RuleBasedStateMachine):
    """``here`` are the blocks that the ring should have, the one requested last at the end."""

    @initialize(buffers=st.integers(1, 4))
    def begin(self, buffers: int) -> None:
        self.disk = Disk(buffers)
        self.ring = self.disk.ring
        self.here: list[int] = []
        self.fates: dict[int, str] = {}  # of blocks that are on their way
        self.opened: set[int] = set()

    @rule(key=st.sampled_from(KEYS), urgent=st.booleans(), fate=st.sampled_from(FATES))
    def request(self, key: int, urgent: bool, fate: str) -> None:
        self.disk.fate = fate
        wanted = key not in self.here
        before = len(self.disk.started)
        if wanted and fate == "refused":
            with pytest.raises(Failure):
                self.ring.request(key, urgent=urgent)
        else:
            self.ring.request(key, urgent=urgent)
        assert self.disk.started[before:] == [(key, urgent)] * wanted
        self._requested(key, fate)

    @rule(key=st.sampled_from(KEYS), fate=st.sampled_from(FATES))
    def wait(self, key: int, fate: str) -> None:
        self.disk.fate = fate
        if key not in self.here:
            self._requested(key, fate)
        if key in self.opened or self.fates.get(key) == "good":
            self.ring.wait(key)
            self.opened.add(key)
        else:
            with pytest.raises(Failure):
                self.ring.wait(key)
            self._left(key)

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=12), given_up_after=st.integers(1, 12))
    def sweep(self, keys: list[int], given_up_after: int) -> None:
        self.disk.fate = "good"
        count = len(self.disk.buffers)
        for key in keys[:count]:
            self._requested(key, "good")
        found = in_turn(self.ring, keys)
        for place, key in enumerate(keys[:given_up_after]):
            if self.fates.get(key, "good") != "good" and key not in self.opened:
                with pytest.raises(Failure):
                    next(found)
                self._left(key)
                return
            assert next(found) == content(key)
            self.opened.add(key)
            assert set(keys[place : place + count]) <= set(self.here)
            if place + 1 < given_up_after:
                for later in keys[place + count : place + count + 1]:
                    self._requested(later, "good")

    @precondition(lambda self: self.disk.readings)
    @rule(data=st.data())
    def the_disk_goes_on(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.disk.readings)).advance()

    @invariant()
    def what_is_here_is_right(self) -> None:
        for key in KEYS:
            if key in self.opened:
                assert self.ring.use(key) == content(key)
            else:
                with pytest.raises(KeyError):
                    self.ring.use(key)

    def _requested(self, key: int, fate: str) -> None:
        if key in self.here:
            self.here.remove(key)
        else:
            if len(self.here) == len(self.disk.buffers):
                self._left(self.here[0])
            self.fates[key] = fate
        if self.fates[key] != "refused":
            self.here.append(key)

    def _left(self, key: int) -> None:
        self.opened.discard(key)
        if key in self.here:
            self.here.remove(key)


AnyUse.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestAnyUse = AnyUse.TestCase


@given(keys=st.lists(st.sampled_from(KEYS), max_size=12, unique=True), buffers=st.integers(1, 4))
def test_a_second_sweep_takes_what_was_requested_ahead(keys: list[int], buffers: int) -> None:
    """Every block comes once a sweep, in order; none comes again where all have a buffer of their own."""
    disk = Disk(buffers)
    assert [bytes(found) for found in in_turn(disk.ring, keys)] == [content(key) for key in keys]
    assert disk.started == [(key, True) for key in keys]
    for key in keys[:buffers]:
        disk.ring.request(key)
    ahead = keys[:buffers] if len(keys) > buffers else []
    assert [bytes(found) for found in in_turn(disk.ring, keys)] == [content(key) for key in keys]
    again = [*((key, False) for key in ahead), *((key, True) for key in keys[buffers:])]
    assert disk.started[len(keys) :] == again


def test_three_threads_request_wait_and_use() -> None:
    """A request waits for the last use of the block as many blocks before, a wait for its request, a use for its wait."""
    disk = Disk(2)
    keys = [key for _ in range(100) for key in KEYS]
    free, requested, ready = Semaphore(len(disk.buffers)), Semaphore(0), Semaphore(0)
    found: list[bytes] = []

    def each(before: Semaphore, verb: object, after: Semaphore) -> None:
        for key in keys:
            before.acquire()
            verb(key)  # type: ignore[operator]
            after.release()

    lanes = [
        Thread(target=each, args=(free, disk.ring.request, requested), daemon=True),
        Thread(target=each, args=(requested, disk.ring.wait, ready), daemon=True),
        Thread(target=each, args=(ready, lambda key: found.append(bytes(disk.ring.use(key))), free), daemon=True),
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join(30)
    assert found == [content(key) for key in keys]


def test_two_threads_may_request_at_once() -> None:
    """What one makes room with is not taken by the other."""
    ring = Disk(2).ring
    wrong: list[BaseException] = []

    def request(keys: list[int]) -> None:
        try:
            for key in keys:
                ring.request(key)
        except LookupError as error:
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        lanes = [Thread(target=request, args=([*KEYS[::step]] * 500,), daemon=True) for step in (1, -1)]
        for lane in lanes:
            lane.start()
        for lane in lanes:
            lane.join(30)
    finally:
        sys.setswitchinterval(before)
    assert wrong == []
    for key in ring.store.held:
        ring.wait(key)
        assert ring.use(key) == content(key)


def test_what_is_lent_is_empty_until_it_is_given_back() -> None:
    disk = Disk(2)
    ring = disk.ring
    for key in (3, 5):
        ring.request(key)
        ring.wait(key)
    places = [ring.store.place(key) for key in (5, 3)]
    assert [ring.store.buffer(place) for place in places] == [content(5), content(3)]
    writers = [Reading(key, buffer, "good") for key, buffer in zip((1, 2), disk.buffers, strict=True)]
    ring.store.lend(writers)
    for key in (3, 5):
        with pytest.raises(KeyError):
            ring.use(key)
    ring.request(4)  # nobody told what came there: whoever wrote is awaited, and the block is read
    assert [writer.running for writer in writers] == [False, True]
    ring.wait(4)
    assert ring.use(4) == content(4)
    ring.store.lend(writers)
    given = [Reading(key, buffer, "good") for key, buffer in zip((6, 0), disk.buffers, strict=True)]
    for place, (key, reading) in enumerate(zip((6, 0), given, strict=True)):
        ring.store.put(place, key, reading)
    before = len(disk.started)
    for key in (6, 0):
        ring.request(key)
        ring.wait(key)
        assert ring.use(key) == content(key)
    assert len(disk.started) == before
    ring.request(1)
    with pytest.raises(KeyError):
        ring.use(6)  # the one that was put first makes room
