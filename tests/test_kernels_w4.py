"""W4: linears of 4-bit codes give the bits of the INT8 linear of the expanded weights, on every ISA and at any row count."""

import itertools
from typing import Any

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import layout, linear, reference, w4
from edge_llm.kernels.activation import GELU_TANH
from edge_llm.kernels.reference import w4 as definition
from edge_llm.kernels.types import I8, U8

ROWS = [1, 2, 3, 4, 5, 6, 7, 12, 13, 33, 130]


def codes_of(n: int, k: int, extreme: bool = False) -> tuple[U8, U8, U8]:
    """Codes, multipliers and shifts of all kinds; the largest weights alone if ``extreme``."""
    generator = np.random.default_rng([n, k])
    shape = (n, -(-k // w4.GROUP))
    codes = generator.integers(0, 16, (n, k)).astype(np.uint8)
    multiplier = generator.integers(0, w4.MAX_MULTIPLIER + 1, shape).astype(np.int32)
    shift = generator.integers(w4.MIN_SHIFT, 16, shape).astype(np.int32)
    if extreme:
        codes, multiplier, shift = codes // 8 * 15, np.full(shape, 12), generator.integers(9, 11, shape)
    most = 127 // np.maximum(shift, 19 - shift)
    return codes, np.minimum(multiplier, most).astype(np.uint8), shift.astype(np.uint8)


@pytest.mark.parametrize(("n", "k"), [(1, 4), (16, 32), (17, 36), (40, 172), (64, 256)])
def test_packed_codes_are_what_was_packed(n: int, k: int) -> None:
    parts = codes_of(n, k)
    panels = w4.pack_codes(*parts)
    assert panels.shape == (-(-n // 16), w4.panel_bytes(k))
    for found, packed in zip(definition.unpack_codes(panels, n, k), parts, strict=True):
        np.testing.assert_array_equal(found, packed)
    for found, packed in zip(w4.steps_of(panels, n, k), parts[1:], strict=True):
        np.testing.assert_array_equal(found, packed)
    np.testing.assert_array_equal(definition.unpack_codes(panels, 16 * len(panels), k)[0][n:], 0)
    np.testing.assert_array_equal(layout.unpack_tiles(definition.expand(panels, n, k), n, k), definition.decode(*parts))


@pytest.mark.thorough(keep=6)
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize(("n", "k", "hot"), [(16, 4, 0), (17, 36, 2), (96, 172, 3), (160, 896, 5)])
def test_a_linear_of_codes_is_the_linear_of_their_weights(
    isa: str, pools: list[kernels.ThreadPool], n: int, k: int, hot: int, extreme: bool
) -> None:
    generator = np.random.default_rng([n, k, hot])
    parts = codes_of(n, k, extreme)
    panels, tiles = w4.pack_codes(*parts), layout.pack_tiles(definition.decode(*parts))
    hot_index = np.sort(generator.choice(k, hot, replace=False)).astype(np.int32)
    scale = (generator.random(n) * 1e-3).astype(np.float32)
    hot_weight = generator.standard_normal((hot, n)).astype(np.float16)
    bias = generator.standard_normal(n).astype(np.float32)
    rest = (n, k, 0.03, scale, layout.row_sums(tiles, n), hot_index, hot_weight)
    rounded_bias = generator.integers(-99999, 99999, n).astype(np.int32)
    rounding = (np.ldexp(scale, generator.integers(-9, 9, n)), rounded_bias)
    for end in ((bias,), (None, *rounding)):
        assert_codes_give_the_bits_of_tiles(generator, pools, panels, tiles, *rest, *end, extreme=extreme)


def assert_codes_give_the_bits_of_tiles(
    generator: np.random.Generator, pools: list[kernels.ThreadPool], panels: U8, tiles: I8, *rest: Any, extreme: bool
) -> None:
    """``rest`` are the arguments of `Int8Linear` behind its tiles."""
    n, k = rest[:2]
    of_codes, of_tiles = linear.Int8Linear.of_codes(panels, *rest), linear.Int8Linear(tiles, *rest)
    in_parts = parts_linear(generator, panels, tiles, *rest)
    for m in ROWS:
        x = generator.standard_normal((m, k)).astype(np.float32) * np.float32(20 if extreme else 1)
        x[generator.random((m, k)) < 0.02] *= 40
        add = generator.standard_normal((m, n)).astype(np.float32)
        for pool in pools:
            for how in ({"add": add}, {"shadow": False}, {"swiglu": n % 2 == 0}, {"gate": GELU_TANH if n % 2 == 0 else None}):
                expected = linear.linear(x, of_tiles, pool, **how)
                for weight in (of_codes, in_parts):
                    found = linear.linear(x, weight, pool, **how)
                    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


def parts_linear(generator: np.random.Generator, panels: U8, tiles: I8, n: int, *rest: Any) -> linear.Int8Linear:
    """The linear of ``panels`` of codes, or of their ``tiles``, in up to four parts that are one or the other."""
    cuts = sorted({0, len(panels), *generator.integers(0, len(panels), 3).tolist()})
    runs = list(itertools.pairwise(cuts))
    parts = [(panels, tiles)[int(generator.integers(2))][first:end] for first, end in runs]
    return linear.Int8Linear.of_parts(parts, [min(16 * end, n) - 16 * first for first, end in runs], *rest)


def test_overflow_of_a_linear_in_parts_is_counted_once(pools: list[kernels.ThreadPool]) -> None:
    n, k = 48, 36
    tiles = layout.pack_tiles(np.ones((n, k), np.int8))
    nothing = np.empty(0, np.int32), np.empty((0, n), np.float16), None
    rest = (k, 0.03, np.ones(n, np.float32), layout.row_sums(tiles, n), *nothing)
    x = np.zeros((5, k), np.float32)
    x[1, 3] = x[4, 0] = x[4, 35] = 9
    for pool in pools:
        before = pool.overflow
        linear.linear(x, linear.Int8Linear.of_parts([tiles[:1], tiles[1:]], [16, 32], *rest), pool)
        assert pool.overflow - before == 3


def test_parts_that_do_not_make_a_linear_are_refused() -> None:
    tiles, panels = np.zeros((1, 9, 16, 4), np.int8), w4.pack_codes(*codes_of(16, 36))
    vectors = np.ones(32, np.float32), np.zeros(32, np.int32), np.empty(0, np.int32), np.empty((0, 32), np.float16), None
    for parts, counts, said in (
        ([tiles, panels], [16], "as many"), ([], [], "as many"),
        ([tiles, panels], [16, 17], "codes"), ([tiles, tiles], [17, 16], "tiles"), ([tiles, tiles[:, :8]], [16, 16], "tiles"),
        ([tiles, panels.astype(np.int8)], [16, 16], "tiles"), ([tiles, None], [16, 16], "tiles"),
        ([tiles], [16], "product_scale"), ([tiles, panels], [16, -16], "0 or more"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            linear.Int8Linear.of_parts(parts, counts, 36, 1.0, *vectors)
    both = linear.Int8Linear.of_parts([tiles, panels], [16, 16], 36, 1.0, *vectors)
    pool, x = kernels.ThreadPool(1), np.zeros((40, 36), np.float32)
    with pytest.raises(ValueError, match="shares memory"):
        linear.linear(x, both, pool, out=x.reshape(-1)[: 40 * 32].reshape(40, 32))
    assert not linear.linear(x, both, pool, swiglu=True).any()  # in a second pass


def test_a_linear_of_codes_is_the_reference(isa: str, pools: list[kernels.ThreadPool]) -> None:
    n, k = 48, 100
    generator = np.random.default_rng(7)
    parts = codes_of(n, k)
    panels, tiles = w4.pack_codes(*parts), reference.pack_tiles(definition.decode(*parts))
    hot, hot_weight = np.array([3, 50], np.int32), generator.standard_normal((2, n)).astype(np.float16)
    scale, row_sum = (generator.random(n) * 1e-3).astype(np.float32), reference.row_sums(tiles, n)
    x = generator.standard_normal((7, k)).astype(np.float32)
    x[::2, 5] *= 60
    expected = reference.linear(x, tiles, n, 0.03, scale, row_sum, hot, hot_weight)
    weight = linear.Int8Linear.of_codes(panels, n, k, 0.03, scale, row_sum, hot, hot_weight, None)
    for pool in pools:
        np.testing.assert_array_equal(linear.linear(x, weight, pool).view(np.int32), expected.view(np.int32))


def steps_at_the_end_of_int16(n: int, k: int, kind: str) -> tuple[U8, U8, U8]:
    """Codes 16 away from the shift: 16 products of one sign make the largest sum that int16 must hold."""
    shape = (n, -(-k // w4.GROUP))
    code, shift = {"above": (15, 3), "below": (0, 15), "zeros": (15, 0)}[kind]
    multiplier = 0 if kind == "zeros" else 127 // max(shift, 19 - shift)
    steps = np.full(shape, multiplier, np.uint8), np.full(shape, shift, np.uint8)
    if kind == "zeros":
        steps[0][:, 1:] = 7
        steps[1][:, 1:] = 3
    return np.full((n, k), code, np.uint8), *steps


@pytest.mark.parametrize("k", [4, 28, 32, 36, 60, 64, 136])
@pytest.mark.parametrize("kind", ["above", "below", "zeros"])
def test_sums_at_the_ends_of_int16_are_exact(isa: str, pools: list[kernels.ThreadPool], kind: str, k: int) -> None:
    n = 24
    parts = steps_at_the_end_of_int16(n, k, kind)
    panels, weight = w4.pack_codes(*parts), definition.decode(*parts)
    rest = (1.0, np.ones(n, np.float32), weight.sum(axis=1, dtype=np.int32), np.zeros(0, np.int32))
    of_codes = linear.Int8Linear.of_codes(panels, n, k, *rest, np.zeros((0, n), np.float16), None)
    signs = np.array([[1, 1, 1, 1], [-1, -1, -1, -1], [1, 1, -1, -1], [-1, 1, -1, 1]], np.float32)
    for m in [1, 2, 3, 4, 5, 6, 7, 12, 13, 25]:
        x = np.tile(signs[np.arange(m) % 4], k // 4) * np.float32(127)
        for pool in pools:
            found = linear.linear(x, of_codes, pool)
            np.testing.assert_array_equal(found, (x.astype(np.int64) @ weight.astype(np.int64).T).astype(np.float32))


@pytest.mark.parametrize("k", [4, 36, 64, 172])
def test_each_column_of_codes_meets_what_overflows(isa: str, pools: list[kernels.ThreadPool], k: int) -> None:
    n = 24
    parts = codes_of(n, k)
    panels, weight = w4.pack_codes(*parts), definition.decode(*parts)
    rest = (1.0, np.ones(n, np.float32), weight.sum(axis=1, dtype=np.int32), np.zeros(0, np.int32))
    of_codes = linear.Int8Linear.of_codes(panels, n, k, *rest, np.zeros((0, n), np.float16), None)
    x = np.diag(np.full(k, 1000, np.float32))  # one column of each row, 873 of it residual
    for m in (1, k):
        found = linear.linear(x[:m], of_codes, pools[0])
        np.testing.assert_array_equal(found, 1000 * weight.T[:m].astype(np.float32))


@pytest.mark.parametrize("byte", [0x9D, 0x3C, 0xFF, 0x21])
def test_steps_that_leave_int8_are_refused(byte: int) -> None:
    panels = w4.pack_codes(*codes_of(16, 32)).copy()
    panels[0, 5] = byte
    no_hot, no_weight = np.zeros(0, np.int32), np.zeros((0, 16), np.float16)
    scale, row_sum = np.ones(16, np.float32), np.zeros(16, np.int32)
    with pytest.raises(ValueError, match="multiplier and shift"):
        linear.Int8Linear.of_codes(panels, 16, 32, 0.1, scale, row_sum, no_hot, no_weight, None)
    with pytest.raises(ValueError, match="multiplier"):
        w4.check_steps(np.array([[byte & 15]], np.uint8), np.array([[byte >> 4]], np.uint8))


def test_the_steps_that_fit_are_those_of_the_reference() -> None:
    multiplier, shift = np.divmod(np.arange(32 * 32), 32)
    expected = [definition.steps_fit(*pair) for pair in zip(multiplier.tolist(), shift.tolist(), strict=True)]
    np.testing.assert_array_equal(w4.steps_fit(multiplier, shift), expected)
    assert 0 < sum(expected) < len(expected)


@pytest.mark.parametrize("k", [32, 36, 172])
def test_groups_that_are_taken_are_those_of_the_reference(k: int) -> None:
    panels = w4.pack_codes(*codes_of(40, k))
    groups = np.arange(k // w4.GROUP)[::-2]  # whole ones
    columns = (w4.GROUP * groups[:, None] + np.arange(w4.GROUP)).reshape(-1)
    codes, *steps = definition.unpack_codes(panels, 40, k)
    expected = (codes[:, columns], *(one[:, groups] for one in steps))
    found = definition.unpack_codes(w4.take_groups(panels, k, groups), 40, len(columns))
    for one, wanted in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, wanted)


def test_columns_that_do_not_fill_a_tile_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 4"):
        w4.pack_codes(np.zeros((1, 6), np.uint8), np.zeros((1, 1), np.uint8), np.zeros((1, 1), np.uint8))


def matrix(n: int, k: int, kind: str) -> np.ndarray:
    """Weights of one kind: as trained ones look, even, skewed, with zeros and tiny values, or of every magnitude."""
    generator = np.random.default_rng([n, k])
    weight = generator.standard_normal((n, k)) * 0.02
    if kind == "laplace":
        weight = generator.laplace(size=(n, k)) * np.exp(generator.standard_normal((n, 1)))
    if kind == "skewed":
        weight = np.abs(weight) * generator.choice([-1, 1], (n, 1))
    if kind == "zeros":
        weight[::3] = 0
        weight[1::3, :32] = 0
        weight[2::3] *= 1e-33
    if kind == "magnitudes":
        weight *= 10.0 ** generator.integers(-38, 38, (n, 1))
    if kind == "magnitudes in a row":
        weight *= 10.0 ** generator.integers(-38, 38, (n, k))
    if kind == "steps":
        weight = np.round(weight * 100)
    return weight.astype(np.float32)


@pytest.mark.parametrize("kind", ["normal", "laplace", "skewed", "zeros", "steps", "magnitudes", "magnitudes in a row"])
@pytest.mark.parametrize(("n", "k"), [(1, 4), (5, 32), (20, 172), (7, 300)])
def test_searched_codes_equal_the_reference(
    isa: str, pools: list[kernels.ThreadPool], n: int, k: int, kind: str
) -> None:
    weight = matrix(n, k, kind)
    importance = np.random.default_rng(k).random(k).astype(np.float32)
    expected = definition.search(weight, importance)
    for pool in pools:
        for found, wanted in zip(w4.search(weight, importance, pool), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    codes, multiplier, shift, scale = expected
    np.testing.assert_array_equal(definition.encode(weight, scale, multiplier, shift), codes)
    np.testing.assert_array_equal(w4.encode(weight, scale, multiplier, shift, pools[-1]), codes)
    moved = weight * np.float32(0.93)
    expected_codes = definition.encode(moved, scale, multiplier, shift)
    np.testing.assert_array_equal(w4.encode(moved, scale, multiplier, shift, pools[-1]), expected_codes)
    panels = w4.pack_codes(codes, multiplier, shift)
    np.testing.assert_array_equal(w4.expand(panels, n, k, pools[0]), definition.expand(panels, n, k))


def test_searched_codes_are_near_the_weights() -> None:
    weight = matrix(64, 512, "normal")
    codes, multiplier, shift, scale = definition.search(weight, np.ones(512, np.float32))
    off = scale[:, None] * definition.decode(codes, multiplier, shift) - weight
    assert np.sqrt(np.square(off).sum() / np.square(weight).sum()) < 0.08  # Q4_0: 0.086


def test_columns_of_importance_are_nearer() -> None:
    weight, importance = matrix(64, 512, "laplace"), np.ones(512, np.float32)
    importance[::7] = 100

    def error(judged: np.ndarray) -> float:
        codes, multiplier, shift, scale = definition.search(weight, judged)
        off = (scale[:, None] * definition.decode(codes, multiplier, shift) - weight)[:, ::7]
        return float(np.square(off).sum())

    assert error(importance) < 0.9 * error(np.ones(512, np.float32))
