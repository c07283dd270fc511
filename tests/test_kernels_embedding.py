"""Embeddings: equal to the reference bit for bit, on every ISA and at any thread count."""

import numpy as np
import pytest

from edge_llm.kernels import layout, reference, w4
from edge_llm.kernels.embedding import embedding


def table(rows, columns, hot, spare=0):
    """A table as the arguments of `embedding` behind the tokens; ``spare`` tiles in either direction hold anything."""
    random = np.random.default_rng([rows, columns, hot, spare])
    weight = random.integers(-127, 128, (rows + 16 * spare, columns + 4 * spare)).astype(np.int8)
    hot_weight = (random.standard_normal((hot, rows)) * 10.0 ** random.integers(-7, 4, (hot, rows))).astype(np.float16)
    hot_index = np.sort(random.choice(columns, hot, replace=False)).astype(np.int32)
    scale = (random.random(rows) * 1e-2).astype(np.float32)
    return layout.pack_tiles(weight), columns, scale, hot_index, hot_weight


@pytest.mark.parametrize("rows", [1, 16, 100])
@pytest.mark.parametrize(("columns", "hot"), [(1, 0), (7, 7), (64, 0), (65, 3), (90, 40), (896, 20)])
@pytest.mark.parametrize("spare", [0, 1])
def test_rows_are_those_of_the_reference(isa, pools, rows, columns, hot, spare):
    of = table(rows, columns, hot, spare)
    for count in (0, 1, 3, 70):
        tokens = np.random.default_rng(count).integers(0, rows, count)
        expected = reference.embedding(tokens, *of)
        assert expected.shape == (count, columns)
        for pool in pools:
            out = np.full((count, columns), np.nan, np.float32)
            assert embedding(tokens, *of, pool, out) is out
            np.testing.assert_array_equal(out.view(np.int32), expected.view(np.int32))
            np.testing.assert_array_equal(embedding(tokens, *of, pool), out)


@pytest.mark.parametrize("rows", [1, 16, 100])
@pytest.mark.parametrize(("columns", "hot"), [(4, 0), (20, 3), (64, 0), (100, 40), (896, 20)])
def test_codes_are_the_tiles_that_they_stand_for(isa, pools, rows, columns, hot):
    _, _, scale, hot_index, hot_weight = table(rows, columns, hot)
    codes = random_panels(rows, columns)
    tiles = reference.w4.expand(codes, rows, columns)
    for count in (0, 1, 3, 70):
        tokens = np.random.default_rng(count).integers(0, rows, count)
        expected = reference.embedding(tokens, tiles, columns, scale, hot_index, hot_weight)
        np.testing.assert_array_equal(reference.embedding(tokens, codes, columns, scale, hot_index, hot_weight), expected)
        for pool in pools:
            found = embedding(tokens, codes, columns, scale, hot_index, hot_weight, pool)
            np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


def random_panels(rows, columns):
    """Codes of every value under steps of every kind."""
    random = np.random.default_rng([rows, columns])
    groups = -(-columns // 32)
    shift = random.integers(3, 16, (rows, groups)).astype(np.uint8)
    multiplier = random.integers(0, 127 // np.maximum(shift, 19 - shift) + 1).clip(0, 12).astype(np.uint8)
    codes = random.integers(0, 16, (rows, columns)).astype(np.uint8)
    return w4.pack_codes(codes, multiplier, shift)


def test_a_row_is_a_sum_of_nothing_else(isa, pools):
    """Values times their scale, hot columns as they are stored, from plain arrays."""
    weight = np.arange(-60, 60, dtype=np.int8).reshape(20, 6)
    scale, hot = np.arange(1, 21, dtype=np.float32) / 8, np.array([1, 4], np.int32)
    hot_weight = np.arange(40, dtype=np.float16).reshape(2, 20)
    tokens = np.array([3, 19, 0, 3])
    found = embedding(tokens, layout.pack_tiles(weight), 6, scale, hot, hot_weight, pools[0])
    expected = weight[tokens] * scale[tokens, None]
    expected[:, hot] = hot_weight.T[tokens]
    np.testing.assert_array_equal(found, expected)


WRONG = {
    "tokens": [np.array([100]), np.array([-1]), np.array([0], np.int32), np.zeros((1, 1), np.int64)],
    "tiles": [np.zeros((7, 9, 4, 16), np.int8), np.zeros((6, 17, 16, 4), np.int8), np.zeros((7, 16, 16, 4), np.int8)],
    "columns": [-1, 69],
    "scale": [np.zeros(100), np.zeros((100, 1), np.float32)],
    "hot": [np.array([3, 3], np.int32), np.array([1, 65], np.int32), np.array([1, 2])],
    "hot_weight": [np.zeros((1, 100), np.float16), np.zeros((2, 99), np.float16), np.zeros((2, 100), np.float32)],
    "out": [np.zeros((2, 65), np.float32), np.zeros((1, 65)), np.zeros((1, 130), np.float32)[:, ::2]],
}


WRONG_CODES = [np.zeros((7, 100), np.uint8), np.zeros((6, 576), np.uint8)]


@pytest.mark.parametrize("codes", WRONG_CODES, ids=["bytes", "panels"])
def test_wrong_codes_are_named(pools, codes):
    _, columns, scale, hot, hot_weight = table(100, 64, 2)
    with pytest.raises(ValueError, match="`codes`"):
        embedding(np.array([5]), codes, columns, scale, hot, hot_weight, pools[0])


@pytest.mark.parametrize(("name", "at"), [(name, at) for name, wrong in WRONG.items() for at in range(len(wrong))])
def test_a_wrong_argument_is_named(pools, name, at):
    tiles, columns, scale, hot, hot_weight = table(100, 65, 2)
    given = {"tokens": np.array([5]), "integers": tiles, "columns": columns, "scale": scale, "hot": hot}
    given |= {"hot_weight": hot_weight, "pool": pools[0], "out": None, "integers" if name == "tiles" else name: WRONG[name][at]}
    with pytest.raises(ValueError, match=f"`{name}`"):
        embedding(**given)
