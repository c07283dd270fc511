"""ThreadPool: sizes, callers, idleness, end; and the choice of the instruction set."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import layout, linear, reference


def multiply(pool: kernels.ThreadPool, seed: int) -> bool:
    """One product large enough to be split; whether it is right."""
    generator = np.random.default_rng(seed)
    q = generator.integers(-127, 128, (40, 96)).astype(np.int8)
    weight = generator.integers(-127, 128, (208, 96)).astype(np.int8)
    tiles = layout.pack_tiles(weight)
    y = linear.linear_int8(q, tiles, 208, np.ones(208, np.float32), layout.row_sums(tiles, 208), pool)
    return np.array_equal(y, (q.astype(np.int32) @ weight.T.astype(np.int32)).astype(np.float32))


@pytest.mark.parametrize("threads", [1, 2, 3, 4, 9, 33])
def test_any_number_of_threads(threads: int) -> None:
    pool = kernels.ThreadPool(threads)
    assert pool.threads == threads
    assert all(multiply(pool, seed) for seed in range(5))


@pytest.mark.parametrize("threads", [0, -1, 1025])
def test_impossible_sizes_are_refused(threads: int) -> None:
    with pytest.raises(ValueError, match=f"`{threads}`"):
        kernels.ThreadPool(threads)


def test_bound_to_cpus() -> None:
    assert multiply(kernels.ThreadPool(2, cpus=[0, 0]), 1)
    assert multiply(kernels.ThreadPool(2, [0, 1 << 20]), 1)  # no such CPU: left unbound
    with pytest.raises(ValueError, match="`cpus`"):
        kernels.ThreadPool(2, cpus=[0])


def test_two_callers_take_turns() -> None:
    pool = kernels.ThreadPool(2)
    good: list[bool] = []

    def call(seed: int) -> None:
        good.extend(multiply(pool, seed + i) for i in range(20))

    callers = [threading.Thread(target=call, args=(100 * i,)) for i in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert good == [True] * 60


def stream(pool: kernels.ThreadPool, weights: list[np.ndarray], tiles: list[np.ndarray], seed: int) -> bool:
    """One row through every weight, as in decoding; whether all products are right."""
    q = np.random.default_rng(seed).integers(-127, 128, (1, weights[0].shape[1])).astype(np.int8)
    right = True
    for weight, packed in zip(weights, tiles, strict=True):
        n = len(weight)
        y = linear.linear_int8(q, packed, n, np.ones(n, np.float32), layout.row_sums(packed, n), pool)
        right &= np.array_equal(y, (q.astype(np.int32) @ weight.T.astype(np.int32)).astype(np.float32))
    return right


@pytest.fixture(scope="module")
def matrices() -> list[np.ndarray]:
    """Fewer panels than workers, fewer than are dealt out at the start of a call, and many more."""
    generator = np.random.default_rng(5)
    return [generator.integers(-127, 128, (n, 1000)).astype(np.int8) for n in (20, 1100, 6000, 7)]


def test_two_pools_work_at_the_same_time(matrices: list[np.ndarray]) -> None:
    packed = [layout.pack_tiles(weight) for weight in matrices]
    good: list[bool] = []

    def call(seed: int) -> None:
        pool = kernels.ThreadPool(2)
        for i in range(10):
            good.append(multiply(pool, seed + i))
            good.append(stream(pool, matrices, packed, seed + i))

    callers = [threading.Thread(target=call, args=(100 * i,)) for i in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert good == [True] * 40


@pytest.mark.parametrize("threads", [1, 2, 4, 9])
def test_streams_in_any_order(threads: int, matrices: list[np.ndarray]) -> None:
    pool = kernels.ThreadPool(threads)
    packed = [layout.pack_tiles(weight) for weight in matrices]
    for seed in range(6):  # the order changes: what the pool expected to come next does not
        order = np.random.default_rng(seed).permutation(len(matrices))
        assert stream(pool, [matrices[i] for i in order], [packed[i] for i in order], seed)
        time.sleep(0.001 * (seed % 2))  # workers asleep, or not


def test_weights_may_go_while_they_are_expected(matrices: list[np.ndarray]) -> None:
    pool = kernels.ThreadPool(4)
    for seed in range(4):
        packed = [layout.pack_tiles(weight) for weight in matrices]
        for _ in range(2):  # the second time the pool knows what comes next
            assert stream(pool, matrices, packed, seed)
        del packed


def test_works_again_after_sleep_and_costs_nothing_idle(matrices: list[np.ndarray]) -> None:
    pool = kernels.ThreadPool(2)
    assert multiply(pool, 1)
    assert stream(pool, matrices, [layout.pack_tiles(weight) for weight in matrices], 1)

    def idle() -> float:
        before = time.process_time()
        time.sleep(0.2)
        return time.process_time() - before

    assert any(idle() < 0.05 for _ in range(20))  # workers sleep; a spinning one would always count 0.2
    assert multiply(pool, 2)


def test_pools_come_and_go() -> None:
    before = threading.active_count()
    for seed in range(20):
        assert multiply(kernels.ThreadPool(3), seed)
    assert threading.active_count() == before


def test_a_failed_call_leaves_the_pool_usable() -> None:
    pool = kernels.ThreadPool(2)
    x = np.full((64, 512), np.nan, np.float32)
    with pytest.raises(ValueError, match="non-finite activation"):
        linear.quantize(x, 1.0, np.zeros(0, np.int32), pool)
    assert multiply(pool, 3)


def test_isa_is_one_of_the_variants() -> None:
    chosen = kernels.isa()
    assert kernels.isa_variants()[0] == "portable"
    assert chosen in kernels.isa_variants()
    with pytest.raises(ValueError, match="unknown ISA variant `abacus`; this CPU runs portable"):
        kernels.use_isa("abacus")
    assert kernels.isa() == chosen


def test_reference_fma_rounds_once() -> None:
    # 1 + 2^-12 squared is 1 + 2^-11 + 2^-24: the last term survives only without a rounding in between.
    x = np.float32(1 + 2.0**-12)
    assert reference.fma(x, x, np.float32(-1)) == np.float32(2.0**-11 + 2.0**-24)
    assert np.float32(x * x) - np.float32(1) == np.float32(2.0**-11)
    # Rounding the float64 sum first would make a tie of it and round it down.
    assert reference.fma(np.float32(1), np.float32(1), np.float32(2.0**-24)) == 1
    assert reference.fma(np.float32(1 + 2.0**-23), np.float32(1), np.float32(2.0**-24)) == np.float32(1 + 2.0**-22)


ENDS_UNDER_KERNELS = """
import threading, time
import numpy as np
from edge_llm import kernels
from edge_llm.kernels import _native

pool = kernels.ThreadPool({threads})
data = np.zeros(1 << 24, np.int8)

def work():
    while True:
        _native.read_stream(data, pool)

for _ in range(3):  # one works, the others wait for the pool, then for the interpreter
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.05)
"""


@pytest.mark.parametrize("threads", [1, 2, 1, 2])
def test_the_interpreter_may_end_under_kernels_of_daemon_threads(threads: int) -> None:
    code = ENDS_UNDER_KERNELS.format(threads=threads)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


FORKS = """
import os, sys, threading, warnings
import numpy as np
from edge_llm import kernels
from edge_llm.kernels import _native, pointwise, sampling

warnings.simplefilter("ignore")  # a fork of a process with threads, which is what is tried here
pool = kernels.ThreadPool({threads})
x, gain = np.random.default_rng(0).random((300, 512)).astype(np.float32), np.ones(512, np.float32)
data, stop = np.zeros(1 << 24, np.int8), threading.Event()

def work():
    while not stop.is_set():
        _native.read_stream(data, pool)

expected = pointwise.rms_norm(x, gain, 1e-6, pool)
logits = x.reshape(-1)

def draw(pool):
    return sampling.draw(logits, logits.max(), temperature=1.0, top_k=0, top_p=0.9, min_p=0.0, chance=0.7, pool=pool)

busy = [threading.Thread(target=work, daemon=True) for _ in range(2)]
for thread in busy:
    thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        right = all((pointwise.rms_norm(x, gain, 1e-6, pool) == expected).all() for _ in range(3))
        right = right and draw(pool) == draw(None)
        right = right and _native.int8_operations(1, pool) > 0 and (pointwise.rms_norm(x, gain, 1e-6, kernels.ThreadPool(2)) == expected).all()
        del pool
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (pointwise.rms_norm(x, gain, 1e-6, pool) == expected).all()
stop.set()
for thread in busy:
    thread.join()
"""  # noqa: E501


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_a_pool_works_in_a_child_that_was_forked_under_kernels(threads: int) -> None:
    ended = subprocess.run([sys.executable, "-c", FORKS.format(threads=threads)], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")


STOPPED = """
import numpy as np
from edge_llm import kernels
from edge_llm.kernels import pointwise

pool = kernels.ThreadPool(3)
x, gain = np.random.default_rng(0).random((2000, 512)).astype(np.float32), np.ones(512, np.float32)
expected = pointwise.rms_norm(x, gain, 1e-6, pool)
print("ready", flush=True)
assert all((pointwise.rms_norm(x, gain, 1e-6, pool) == expected).all() for _ in range(1000))
print("done", flush=True)
"""


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system cannot stop a process")
def test_a_process_that_is_stopped_and_continued_in_the_middle_is_right() -> None:
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        while process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.01)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.03)
        assert (process.stdout.read(), process.returncode) == ("done\n", 0)
