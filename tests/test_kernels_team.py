"""Pools of one size share their threads: each pool works as if it were alone, with the others in any state."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import _native, layout, linear, pointwise

PROC = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="this system does not tell threads")
FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def outcome(code: str) -> tuple[int, str]:
    """How a process of its own ends that runs ``code``, and what it says."""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    return ended.returncode, ended.stdout + ended.stderr


class Work:
    """Calls of several kinds, small and large, of one row and of many."""

    def __init__(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        weight = random.integers(-127, 128, (1100, 512)).astype(np.int8)
        self.channels, self.tiles = len(weight), layout.pack_tiles(weight)
        self.sums, self.scale = layout.row_sums(self.tiles, self.channels), random.random(self.channels).astype(np.float32)
        self.x = random.standard_normal((300, 512)).astype(np.float32)
        self.gain = random.random(512).astype(np.float32)
        self.rows = [random.integers(-127, 128, (rows, 512)).astype(np.int8) for rows in (1, 7, 300)]

    def run(self, pool: kernels.ThreadPool) -> list[bytes]:
        products = [linear.linear_int8(q, self.tiles, self.channels, self.scale, self.sums, pool) for q in self.rows]
        return [array.tobytes() for array in (*products, pointwise.rms_norm(self.x, self.gain, 1e-6, pool))]


def at_once(*works: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize(("threads", "callers"), [(2, 2), (2, 3), (3, 2), (4, 3), (9, 2)])
def test_pools_at_once_give_what_each_gives_alone(threads: int, callers: int) -> None:
    works = [Work(seed) for seed in range(callers)]
    alone = [work.run(kernels.ThreadPool(1)) for work in works]
    found: list[list[list[bytes]]] = [[] for _ in works]

    def call(i: int) -> None:
        pool = kernels.ThreadPool(threads)
        found[i].extend(works[i].run(pool) for _ in range(25))

    at_once(*(partial(call, i) for i in range(callers)))
    assert [each == [wanted] * 25 for each, wanted in zip(found, alone, strict=True)] == [True] * callers


THREADS = """
import os, threading, time
import numpy as np
from edge_llm import kernels
from edge_llm.kernels import pointwise

def threads():
    return len(os.listdir("/proc/self/task")) - before

def soon(wanted):
    # the system lists a thread a moment longer than it runs
    end = time.monotonic() + 60
    while threads() != wanted and time.monotonic() < end:
        time.sleep(0.001)
    return threads()

def works(pool):
    x = np.ones((300, 512), np.float32)
    return (pointwise.rms_norm(x, x[0], 1e-6, pool) == pointwise.rms_norm(x, x[0], 1e-6, kernels.ThreadPool(1))).all()

before = len(os.listdir("/proc/self/task"))
"""


@PROC
def test_pools_of_one_size_have_one_team_until_the_last_ends() -> None:
    said = """
first, second, other = kernels.ThreadPool(3), kernels.ThreadPool(3), kernels.ThreadPool(2)
found = [threads()]
assert works(first) and works(second) and works(other)
del first
found.append(threads())
assert works(second)
del second
found.append(soon(1))
again = kernels.ThreadPool(3)
assert works(again) and works(other)
print(*found, threads())
"""
    assert outcome(THREADS + said) == (0, "3 3 1 3\n")


@PROC
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system binds no threads")
def test_pools_on_other_cpus_have_teams_of_their_own() -> None:
    said = """
pools = [kernels.ThreadPool(2, [0, 0]), kernels.ThreadPool(2, [0, 0]), kernels.ThreadPool(2)]
found = [threads()]
mine = os.sched_getaffinity(0)
os.sched_setaffinity(0, {min(mine)})
pools.append(kernels.ThreadPool(2))  # its thread runs where its maker may
found.append(threads() == (2 if len(mine) == 1 else 3))
os.sched_setaffinity(0, mine)
pools.append(kernels.ThreadPool(2))
print(*found, threads() == (2 if len(mine) == 1 else 3), all(map(works, pools)))
"""
    assert outcome(THREADS + said) == (0, "2 True True True\n")


def test_a_failed_call_of_one_pool_leaves_the_others_usable() -> None:
    first, second, work = kernels.ThreadPool(2), kernels.ThreadPool(2), Work(1)
    bad, expected = np.full((64, 512), np.nan, np.float32), work.run(kernels.ThreadPool(1))
    refused: list[bool] = []

    def fail() -> None:
        for _ in range(50):
            with pytest.raises(ValueError, match="non-finite activation"):
                linear.quantize(bad, 1.0, np.zeros(0, np.int32), first)
            refused.append(True)

    right: list[bool] = []
    at_once(fail, lambda: right.extend(work.run(second) == expected for _ in range(20)))
    assert (len(refused), right) == (50, [True] * 20)
    assert work.run(first) == expected


def test_each_pool_counts_its_own_overflow() -> None:
    first, second = kernels.ThreadPool(2), kernels.ThreadPool(2)
    x = np.full((4, 64), 1000, np.float32)
    linear.quantize(x, 1.0, np.zeros(0, np.int32), first)
    assert (first.overflow, second.overflow) == (4 * 64, 0)


def test_long_calls_of_one_pool_keep_no_other_waiting() -> None:
    long_calls, done, began = [0], threading.Event(), threading.Event()
    work = Work(2)
    expected = work.run(kernels.ThreadPool(1))
    right: list[bool] = []

    def keep_busy() -> None:
        pool = kernels.ThreadPool(2)
        while not done.is_set():
            began.set()
            _native.int8_operations(2000, pool)
            long_calls[0] += 1

    def short() -> None:
        pool = kernels.ThreadPool(2)
        began.wait()
        right.extend(work.run(pool) == expected for _ in range(50))
        done.set()

    at_once(keep_busy, short)
    assert right == [True] * 50
    assert long_calls[0] <= 4 * 50  # `Work` makes four calls; in fair turns there would be a long one for each


FORKS = """
import os, threading, warnings
import numpy as np
from edge_llm import kernels
from edge_llm.kernels import _native, linear, pointwise

warnings.simplefilter("ignore")  # a fork of a process with threads, which is what is tried here
pools = [kernels.ThreadPool({threads}) for _ in range(3)]
x, gain = np.random.default_rng(0).random((300, 512)).astype(np.float32), np.ones(512, np.float32)
data, stop = np.zeros(1 << 24, np.int8), threading.Event()
linear.quantize(np.full((4, 64), 1000, np.float32), 1.0, np.zeros(0, np.int32), pools[1])

def right(pool):
    return (pointwise.rms_norm(x, gain, 1e-6, pool) == expected).all()

def work():
    while {busy} and not stop.is_set():
        _native.read_stream(data, pools[0])

expected = pointwise.rms_norm(x, gain, 1e-6, kernels.ThreadPool(1))
assert all(map(right, pools))
busy = threading.Thread(target=work, daemon=True)
busy.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        good = all(map(right, pools)) and [pool.overflow for pool in pools] == [0, 256, 0]
        new = [kernels.ThreadPool({threads}) for _ in range(2)]  # they share a team of the child
        good = good and all(map(right, new)) and all(map(right, pools))
        del pools, new
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert all(map(right, pools))
stop.set()
busy.join()
"""


@FORK
@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize("busy", [True, False])
def test_all_pools_work_in_a_child_that_was_forked_while_one_works(threads: int, busy: bool) -> None:
    assert outcome(FORKS.format(threads=threads, busy=busy)) == (0, "")
