"""The tile layout: native equals reference, packing is undone by unpacking."""

import numpy as np
import pytest

from edge_llm.kernels import layout, reference

SHAPES = [(1, 1), (16, 4), (15, 3), (17, 5), (33, 130), (64, 64), (5, 1), (1, 257)]


def random_weight(n: int, k: int) -> reference.I8:
    return np.random.default_rng(n * 1000 + k).integers(-127, 128, (n, k)).astype(np.int8)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_every_function_equals_the_reference(n: int, k: int) -> None:
    weight = random_weight(n, k)
    tiles = layout.pack_tiles(weight)
    np.testing.assert_array_equal(tiles, reference.pack_tiles(weight))
    np.testing.assert_array_equal(layout.unpack_tiles(tiles, n, k), weight)
    np.testing.assert_array_equal(layout.row_sums(tiles, n), weight.sum(axis=1, dtype=np.int32))
    rows = np.array([n - 1, 0, n // 2, 0], np.int64)
    np.testing.assert_array_equal(layout.gather_rows(tiles, rows, k), weight[rows])
    np.testing.assert_array_equal(reference.gather_rows(tiles, rows, k), weight[rows])
    np.testing.assert_array_equal(reference.row_sums(tiles, n), weight.sum(axis=1, dtype=np.int32))


def test_a_tile_holds_sixteen_channels_of_four_columns() -> None:
    weight = np.arange(-60, 60, dtype=np.int8).reshape(20, 6)
    tiles = layout.pack_tiles(weight)
    assert tiles.shape == (2, 2, 16, 4)
    assert tiles[1, 1, 3, 1] == weight[16 + 3, 4 + 1]
    assert not tiles[1, :, 4:].any()  # channels beyond N
    assert not tiles[:, 1, :, 2:].any()  # columns beyond K


def test_empty_weights() -> None:
    assert layout.pack_tiles(np.zeros((0, 8), np.int8)).shape == (0, 2, 16, 4)
    assert layout.pack_tiles(np.zeros((8, 0), np.int8)).shape == (1, 0, 16, 4)
    assert layout.gather_rows(layout.pack_tiles(random_weight(4, 4)), np.zeros(0, np.int64), 4).shape == (0, 4)


@pytest.mark.parametrize("pack", [layout.pack_tiles, reference.pack_tiles])
def test_minus_128_is_refused(pack) -> None:
    weight = random_weight(20, 20)
    weight[19, 19] = -128
    with pytest.raises(ValueError, match="`-128`"):
        pack(weight)


def test_wrong_arguments_are_named() -> None:
    tiles = layout.pack_tiles(random_weight(20, 10))
    with pytest.raises(ValueError, match=r"`weight` must be a int8 array of 2 axes; got `float32\[2, 2\]`"):
        layout.pack_tiles(np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="`weight` .*C-contiguous"):
        layout.pack_tiles(np.zeros((4, 8), np.int8)[:, ::2])
    with pytest.raises(ValueError, match="`weight` .*got `list`"):
        layout.pack_tiles([[1]])
    with pytest.raises(ValueError, match=r"`tiles` must have shape \[\*, \*, 16, 4\]"):
        layout.unpack_tiles(np.zeros((1, 1, 4, 16), np.int8), 4, 4)
    with pytest.raises(ValueError, match="`n` .*got `33`"):
        layout.unpack_tiles(tiles, 33, 10)
    with pytest.raises(ValueError, match="`k` .*got `8`"):
        layout.unpack_tiles(tiles, 20, 8)
    with pytest.raises(ValueError, match="`rows` .*got `32`"):
        layout.gather_rows(tiles, np.array([32], np.int64), 10)
    with pytest.raises(ValueError, match="`rows` .*got `-1`"):
        layout.gather_rows(tiles, np.array([-1], np.int64), 10)
