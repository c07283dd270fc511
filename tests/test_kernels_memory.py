"""Arrays in recycled memory are arrays like any others, and what waits is never more than what was once in use."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from edge_llm.kernels.memory import recycled, share

LARGE = 1 << 20


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_the_next_array_of_about_the_size_lies_where_the_last_one_lay() -> None:
    with recycled():
        first = np.ones(LARGE, np.float32)
        place = address(first)
        del first
        assert address(np.ones(LARGE - 1000, np.float32)) == place


def test_two_arrays_that_live_never_share_memory() -> None:
    random = np.random.default_rng(0)
    with recycled():
        kept: list[tuple[int, np.ndarray]] = []
        for number in range(300):
            kept.append((number, np.full(int(random.integers(1, LARGE // 4)), number, np.float32)))
            if len(kept) > 12:
                kept.pop(int(random.integers(len(kept))))
            assert all((array == value).all() for value, array in kept)


def test_zeros_are_zero_in_memory_that_was_used() -> None:
    with recycled():
        np.full(LARGE, 7.0, np.float32)
        assert not np.zeros(LARGE, np.float32).any()


@pytest.mark.parametrize("before", [0, 100, LARGE])
@pytest.mark.parametrize("after", [0, 100, LARGE, 3 * LARGE])
def test_an_array_that_grows_or_shrinks_keeps_its_values(before: int, after: int) -> None:
    with recycled():
        array = np.arange(before, dtype=np.float64)
        array.resize(after, refcheck=False)
        both = min(before, after)
        np.testing.assert_array_equal(array[:both], np.arange(both))
        assert not array[both:].any()


def test_an_array_outlives_the_block_that_made_it() -> None:
    with recycled():
        kept = np.arange(LARGE, dtype=np.float32)
        np.ones(LARGE, np.float32)
    others = [np.full(LARGE, 5.0, np.float32) for _ in range(4)]
    np.testing.assert_array_equal(kept, np.arange(LARGE, dtype=np.float32))
    del kept, others


def test_memory_goes_back_afterwards() -> None:
    before = resident()
    with recycled():
        for _ in range(3):
            np.ones(64 * LARGE, np.uint8)
    assert resident() - before < 16 * LARGE


def test_what_waits_makes_room_for_what_is_new() -> None:
    """Arrays of ever other sizes, one at a time: no more than the largest stays."""
    before = resident()
    with recycled():
        for size in (96, 2, 40, 5, 18, 1, 9):
            np.ones(size * LARGE, np.uint8)
        assert resident() - before < 112 * LARGE


def test_what_a_block_has_behind_its_array_makes_room_for_what_is_new() -> None:
    """Half of a large block holds an array; beside it there is room for the other half only."""
    before = resident()
    with recycled():
        np.ones(100 * LARGE, np.uint8)
        arrays = [np.full(size * LARGE, size, np.uint8) for size in (51, 30, 19)]
        assert resident() - before < 116 * LARGE
        assert all((array == len(array) // LARGE).all() for array in arrays)


def test_a_thread_shares_the_memory_of_another() -> None:
    with recycled():
        place = address(np.ones(LARGE, np.float32))
        found: list[int] = []
        join = share()

        def work() -> None:
            join()
            found.append(address(np.ones(LARGE, np.float32)))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == [place]


def test_an_array_too_large_for_memory_is_a_memory_error() -> None:
    with recycled(), pytest.raises(MemoryError):
        np.ones(1 << 58, np.uint8)
