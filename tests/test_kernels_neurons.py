"""Products with named neurons: the reference's sums, on every instruction set and by any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import neurons, reference

Case = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def case(rows: int, width: int, count: int, named: int, *, of_rows: bool) -> Case:
    """q, neurons, held and places: ``named`` of ``count`` neurons, each ``width`` bytes at a place of its own."""
    random = np.random.default_rng([rows, width, count])
    q = random.integers(-127, 128, (rows, width if of_rows else count), np.int8)
    q[random.random(q.shape) < 0.6] = 0
    held = random.integers(-127, 128, 7 + (width + 3) * named, np.int8)
    q[0], held[: width + 7] = 127, -127  # the largest sums
    places = 7 + (width + 3) * random.permutation(named)
    return q, np.sort(random.permutation(count)[:named]), held, places


SHAPES = [(1, 1, 1, 1), (1, 300, 70, 33), (3, 64, 2500, 2400), (5, 17, 40, 40), (2, 513, 9, 0)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("of_rows", [False, True])
def test_they_are_the_references(isa: str, pools: list[kernels.ThreadPool], shape: tuple[int, ...], of_rows: bool) -> None:
    rows, width, count, named = shape
    given = case(rows, width, count, named, of_rows=of_rows)
    sums = np.random.default_rng(1).integers(-9, 9, (rows, count if of_rows else width)).astype(np.int32)
    expected = sums.copy()
    (reference.dot_rows if of_rows else reference.add_columns)(*given, expected)
    for pool in pools:
        found = sums.copy()
        (neurons.dot_rows if of_rows else neurons.add_columns)(*given, found, pool)
        np.testing.assert_array_equal(found, expected)


def test_what_is_not_there_is_refused() -> None:
    q, named, held, places = case(2, 16, 8, 4, of_rows=False)
    sums, pool = np.zeros((2, 16), np.int32), kernels.ThreadPool(1)
    for wrong in (named + 5, named - 9):
        with pytest.raises(ValueError, match="`neurons` must be in 0..7"):
            neurons.add_columns(q, wrong, held, places, sums, pool)
    for wrong in (places + len(held), places - len(held)):
        with pytest.raises(ValueError, match="`places` must be in 0.."):
            neurons.add_columns(q, named, held, wrong, sums, pool)
    with pytest.raises(ValueError, match="`places` must have"):
        neurons.add_columns(q, named, held, places[:1], sums, pool)
