"""The INT8 linear: equal to the reference and to its own parts, bit for bit, on every ISA, at any thread and row count."""

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import layout, linear, reference
from edge_llm.kernels.activation import GELU_ERF, GELU_TANH, RELU, RELU_SQUARED, Activation, clamped_silu

NO_HOT = np.zeros(0, np.int32)


@pytest.fixture
def isa(every_isa: str) -> str:
    """Emulated ones, too."""
    return every_isa


class Problem(NamedTuple):
    x: reference.F32  # [M, K]
    weight: reference.I8  # [N, K]
    arguments: tuple[Any, ...]  # tiles .. hot_weight of `linear`
    bias: reference.F32
    add: reference.F32
    rounding: reference.Rounding


def problem(m: int, n: int, k: int, hot: int = 0, outliers: float = 0.02) -> Problem:
    """Activations with hot columns and some cold overflow; a share of rows without any."""
    generator = np.random.default_rng([m, n, k, hot])
    x = generator.standard_normal((m, k)).astype(np.float32)
    x[(generator.random((m, k)) < outliers) & (generator.random((m, 1)) < 0.7)] *= 40
    hot_index = np.sort(generator.choice(k, hot, replace=False)).astype(np.int32)
    x[:, hot_index] *= 100
    weight = generator.integers(-127, 128, (n, k)).astype(np.int8)
    weight[:, hot_index] = 0
    hot_weight = generator.standard_normal((hot, n)).astype(np.float16)
    tiles = layout.pack_tiles(weight)
    product_scale = (generator.random(n) * 1e-3).astype(np.float32)
    arguments = (tiles, n, 0.03, product_scale, layout.row_sums(tiles, n), hot_index, hot_weight)
    bias, add = generator.standard_normal(n).astype(np.float32), generator.standard_normal((m, n)).astype(np.float32)
    return Problem(x, weight, arguments, bias, add, rounding_of(n, k))


def rounding_of(n: int, k: int) -> reference.Rounding:
    """Scales under which products reach from subnormal float16 to beyond its range; some biases as large as may be."""
    generator = np.random.default_rng([n, k])
    scale = ((1 + generator.random(n)) * 2.0 ** generator.integers(-36, 4, n)).astype(np.float32)
    most = 2**31 - 1 - 127 * 127 * k
    bias = np.where(generator.random(n) < 0.2, generator.choice([-most, most], n), generator.integers(-99999, 99999, n))
    return reference.Rounding(scale, bias.astype(np.int32))


def ends_of(data: Problem) -> list[dict[str, Any]]:
    """How a product may end: with a bias, rounded, and either without a bias."""
    return [{"bias": data.bias}, {"rounding": data.rounding}, {}, {"rounding": data.rounding._replace(bias=None)}]


def assert_same_bits(actual: reference.F32, expected: reference.F32) -> None:
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


def multiply(
    x: Any, tiles: Any, n: int, input_scale: float, product_scale: Any, row_sum: Any, hot: Any, hot_weight: Any,
    pool: kernels.ThreadPool, *, bias: Any = None, rounding: Any = (), k: int | None = None, **options: Any,
) -> reference.F32:  # fmt: skip
    """`linear.linear` with a weight of these parts; ``k`` is its columns where x is not what it should be."""
    columns = x.shape[1] if k is None else k
    weight = linear.Int8Linear(tiles, n, columns, input_scale, product_scale, row_sum, hot, hot_weight, bias, *rounding)
    return linear.linear(x, weight, pool, **options)


# ---- quantize -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "k", "hot"), [(1, 1, 0), (1, 64, 2), (3, 17, 1), (5, 130, 7), (40, 515, 9)])
def test_quantize_equals_the_reference(isa: str, pools: list[kernels.ThreadPool], m: int, k: int, hot: int) -> None:
    data = problem(m, 1, k, hot)
    hot_index = data.arguments[5]
    expected_q, expected = reference.quantize(data.x, 0.03, hot_index)
    for pool in pools:
        q, residual = linear.quantize(data.x, 0.03, hot_index, pool)
        np.testing.assert_array_equal(q, expected_q)
        np.testing.assert_array_equal(residual.row_start, expected.row_start)
        np.testing.assert_array_equal(residual.column, expected.column)
        assert_same_bits(residual.value, expected.value)
    assert not q[:, hot_index].any()
    q, residual = linear.quantize(data.x, 0.03, hot_index, pools[1], residual=False)
    np.testing.assert_array_equal(q, expected_q)
    assert residual.row_start.tolist() == [0] * (m + 1)
    assert residual.column.size == residual.value.size == 0


@pytest.mark.parametrize(("m", "k", "hot"), [(1, 130, 7), (3, 515, 1), (40, 515, 9)])
def test_a_pool_counts_what_overflows(isa: str, m: int, k: int, hot: int) -> None:
    data = problem(m, 32, k, hot)
    data.x[-1, np.setdiff1d(np.arange(k), data.arguments[5])[[0, -1]]] = 99
    _, residual = reference.quantize(data.x, 0.03, data.arguments[5])
    gain = np.full(k, 2, np.float32)
    _, of_normed = reference.quantize(data.x, 0.03, data.arguments[5], gain=gain, eps=1e-5)
    assert len(residual.column)
    for threads in (1, 3):
        pool = kernels.ThreadPool(threads)
        linear.quantize(data.x, 0.03, data.arguments[5], pool)
        assert pool.overflow == len(residual.column)
        multiply(data.x, *data.arguments, pool)
        multiply(data.x, *data.arguments, pool, swiglu=True)
        assert pool.overflow == 3 * len(residual.column)
        multiply(data.x, *data.arguments, pool, gain=gain, eps=1e-5)
        assert pool.overflow == 3 * len(residual.column) + len(of_normed.column)
        counted = pool.overflow
        linear.quantize(data.x, 0.03, data.arguments[5], pool, residual=False)
        multiply(data.x, *data.arguments, pool, shadow=False)
        with pytest.raises(ValueError, match="non-finite"):
            multiply(np.where(data.x > 3, np.inf, data.x).astype(np.float32) * 40, *data.arguments, pool)
        assert pool.overflow == counted


def test_quantize_rounds_half_to_even_and_cuts_at_127(isa: str, pools: list[kernels.ThreadPool]) -> None:
    x = np.array([[0.5, 1.5, -0.5, -2.5, 126.5, 127.4, 127.5, 127.6, -127.5, -130, 1e6, 0]], np.float32)
    q, residual = linear.quantize(x, 1.0, NO_HOT, pools[0])
    assert q.tolist() == [[0, 2, 0, -2, 126, 127, 127, 127, -127, -127, 127, 0]]
    assert residual.column.tolist() == [7, 9, 10]
    assert_same_bits(residual.value, np.array([127.6, -130, 1e6], np.float32) - np.array([127, -127, 127], np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", [0, 20, 32, 34])
def test_a_non_finite_activation_is_refused(isa: str, pools: list[kernels.ThreadPool], bad: float, column: int) -> None:
    data = problem(20, 8, 35, 3)
    hot = np.array([20, 21, 33], np.int32)
    data.x[17, column] = bad
    arguments = (*data.arguments[:5], hot, data.arguments[6])
    with pytest.raises(ValueError, match="non-finite activation"), np.errstate(invalid="ignore"):
        reference.quantize(data.x, 0.03, hot)
    for pool in pools[:2]:
        with pytest.raises(ValueError, match="non-finite activation"):
            linear.quantize(data.x, 0.03, hot, pool)
        for shadow in (True, False):
            out = np.full((20, 8), 7, np.float32)
            with pytest.raises(ValueError, match="non-finite activation"):
                multiply(data.x, *arguments, pool, shadow=shadow, out=out)
            assert (out == 7).all()


def test_a_quotient_beyond_float32_is_refused_unless_hot(isa: str, pools: list[kernels.ThreadPool]) -> None:
    x = np.array([[1.0, 1e38]], np.float32)
    with pytest.raises(ValueError, match="non-finite activation"):
        linear.quantize(x, 1e-3, NO_HOT, pools[0])
    q, residual = linear.quantize(x, 1e-3, np.array([1], np.int32), pools[0])
    assert (q.tolist(), residual.column.tolist()) == ([[127, 0]], [0])
    expected_q, _ = reference.quantize(x, 1e-3, np.array([1], np.int32))
    assert expected_q.tolist() == [[127, 0]]


# ---- the integer product ------------------------------------------------------------------------------------------


def exact_product(q: reference.I8, weight: reference.I8) -> reference.F32:
    return (q.astype(np.int64) @ weight.astype(np.int64).T).astype(np.int32).astype(np.float32)


@pytest.mark.parametrize("k", [1, 3, 4, 67, 256])
@pytest.mark.parametrize("n", [1, 16, 31, 100])
def test_product_is_exact_for_every_tile_height(isa: str, pools: list[kernels.ThreadPool], n: int, k: int) -> None:
    generator = np.random.default_rng([n, k])
    weight = generator.integers(-127, 128, (n, k)).astype(np.int8)
    tiles = layout.pack_tiles(weight)
    ones, row_sum = np.ones(n, np.float32), layout.row_sums(tiles, n)
    for m in [*range(1, 28), 64]:
        q = generator.integers(-127, 128, (m, k)).astype(np.int8)
        y = linear.linear_int8(q, tiles, n, ones, row_sum, pools[m % len(pools)])
        np.testing.assert_array_equal(y, exact_product(q, weight))


@pytest.mark.parametrize(("m", "n", "k"), [(257, 130, 515), (1, 2051, 1030), (8, 336, 4864)])
def test_product_is_exact_at_larger_shapes(isa: str, pools: list[kernels.ThreadPool], m: int, n: int, k: int) -> None:
    generator = np.random.default_rng([m, n, k])
    weight = generator.integers(-127, 128, (n, k)).astype(np.int8)
    q = generator.integers(-127, 128, (m, k)).astype(np.int8)
    tiles = layout.pack_tiles(weight)
    for pool in pools:
        y = linear.linear_int8(q, tiles, n, np.ones(n, np.float32), layout.row_sums(tiles, n), pool)
        np.testing.assert_array_equal(y, exact_product(q, weight))


@pytest.mark.parametrize("q_value", [-127, 127, "alternating"])
@pytest.mark.parametrize("weight_value", [-127, 127, "alternating"])
def test_extreme_values_do_not_saturate(
    isa: str, pools: list[kernels.ThreadPool], q_value: int | str, weight_value: int | str
) -> None:
    def fill(rows: int, columns: int, value: int | str) -> reference.I8:
        if value == "alternating":
            return np.where(np.arange(columns) % 2, 127, -127).astype(np.int8)[None].repeat(rows, 0)
        return np.full((rows, columns), value, np.int8)

    for m, n, k in [(1, 17, 1027), (7, 33, 1027), (13, 40, 131072)]:
        q, weight = fill(m, k, q_value), fill(n, k, weight_value)
        tiles = layout.pack_tiles(weight)
        y = linear.linear_int8(q, tiles, n, np.ones(n, np.float32), layout.row_sums(tiles, n), pools[-1])
        np.testing.assert_array_equal(y, exact_product(q, weight))


def test_linear_int8_equals_the_reference(isa: str, pools: list[kernels.ThreadPool]) -> None:
    data = problem(19, 75, 150)
    tiles, n, _, product_scale, row_sum, _, _ = data.arguments
    q, _ = reference.quantize(data.x, 0.03, NO_HOT)
    for bias in (None, data.bias):
        expected = reference.linear_int8(q, tiles, n, product_scale, row_sum, bias=bias)
        out = np.empty((19, n), np.float32)
        for pool in pools:
            assert_same_bits(linear.linear_int8(q, tiles, n, product_scale, row_sum, pool, bias=bias), expected)
            assert linear.linear_int8(q, tiles, n, product_scale, row_sum, pool, bias=bias, out=out) is out
            assert_same_bits(out, expected)


@pytest.mark.parametrize("module", [linear, reference])
def test_minus_128_is_refused(isa: str, pools: list[kernels.ThreadPool], module: Any) -> None:
    data = problem(3, 20, 30)
    tiles, n, _, product_scale, row_sum, _, _ = data.arguments
    q = np.zeros((3, 30), np.int8)
    q[2, 29] = -128
    pool = (pools[0],) if module is linear else ()
    with pytest.raises(ValueError, match="`q` holds `-128`"):
        module.linear_int8(q, tiles, n, product_scale, row_sum, *pool)
    with pytest.raises(ValueError, match="`q` holds `-128`"):
        module.linear_rounded(q, tiles, n, data.rounding, row_sum, *pool)


# ---- the product rounded to float16 -------------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 7, 13, 64])
def test_linear_rounded_equals_the_reference(isa: str, pools: list[kernels.ThreadPool], m: int) -> None:
    data = problem(m, 75, 150)
    tiles, n, _, _, row_sum, _, _ = data.arguments
    q, _ = reference.quantize(data.x, 0.03, NO_HOT)
    for rounding in (data.rounding, data.rounding._replace(bias=None)):
        expected = reference.linear_rounded(q, tiles, n, rounding, row_sum)
        out = np.empty((m, n), np.float32)
        for pool in pools:
            assert_same_bits(linear.linear_rounded(q, tiles, n, rounding, row_sum, pool), expected)
            assert linear.linear_rounded(q, tiles, n, rounding, row_sum, pool, out=out) is out
            assert_same_bits(out, expected)


@pytest.mark.parametrize(
    ("total", "scale", "rounded"),
    [
        (2049, 1.0, 2048),  # a tie goes to the even one
        (2051, 1.0, 2052),
        (-2051, 1.0, -2052),
        (65519, 1.0, 65504),  # what would round to infinity is within the range before
        (65519, -1.0, -65504),
        (2**31 - 1, 1.0, 65504),
        (1 - 2**31, 3e38, -65504),  # also where float32 ends
        (2**24 + 1, 2.0**-24, 1.0),  # the sum becomes float32 before it is scaled
        (1, 2.0**-25, 0.0),  # a tie between 0 and the smallest float16
        (3, 2.0**-25, 2.0**-23),
        (-1, 2.0**-26, -0.0),
    ],
)
def test_how_a_sum_is_rounded(
    isa: str, pools: list[kernels.ThreadPool], total: int, scale: float, rounded: float
) -> None:
    tiles = layout.pack_tiles(np.ones((3, 0), np.int8))
    bias, scales = np.full(3, total, np.int32), np.full(3, scale, np.float32)
    expected = np.full((2, 3), rounded, np.float32)
    arguments = (np.zeros((2, 0), np.int8), tiles, 3, linear.Rounding(scales, bias), np.zeros(3, np.int32))
    assert_same_bits(reference.linear_rounded(*arguments), expected)
    assert_same_bits(linear.linear_rounded(*arguments, pools[1]), expected)


def test_product_and_bias_are_added_exactly(isa: str, pools: list[kernels.ThreadPool]) -> None:
    """Neither is a float32: each has more bits, and their sum does not."""
    q, weight = np.full((1, 2048), 127, np.int8), np.full((17, 2048), 127, np.int8)
    tiles, dot = layout.pack_tiles(weight), 127 * 127 * 2048
    rounding = linear.Rounding(np.ones(17, np.float32), np.arange(17, dtype=np.int32) - dot)
    found = linear.linear_rounded(q, tiles, 17, rounding, layout.row_sums(tiles, 17), pools[1])
    assert dot > 2**24 and found.tolist() == [list(range(17))]


def test_a_bias_leaves_room_for_every_product(pools: list[kernels.ThreadPool]) -> None:
    data = problem(3, 20, 30)
    tiles, _, _, _, row_sum, _, _ = data.arguments
    scale, q, most = np.ones(20, np.float32), np.full((3, 30), 127, np.int8), 2**31 - 1 - 127 * 127 * 30
    for bias in (most, -most):
        rounding = linear.Rounding(scale, np.full(20, bias, np.int32))
        expected = reference.linear_rounded(q, tiles, 20, rounding, row_sum)
        assert_same_bits(linear.linear_rounded(q, tiles, 20, rounding, row_sum, pools[0]), expected)
    for bias in (most + 1, -most - 1, -(2**31)):
        rounding = linear.Rounding(scale, np.full(20, bias, np.int32))
        with pytest.raises(ValueError, match="`rounded_bias`"):
            linear.linear_rounded(q, tiles, 20, rounding, row_sum, pools[0])
        with pytest.raises(ValueError, match="`rounded_bias`"):
            multiply(data.x, *data.arguments, pools[0], rounding=rounding)
        with pytest.raises(ValueError, match="`rounded_bias`"):
            reference.linear_rounded(q, tiles, 20, rounding, row_sum)


def test_a_rounding_that_does_not_fit_is_refused(pools: list[kernels.ThreadPool]) -> None:
    data = problem(3, 20, 30)
    scale, bias = data.rounding
    for name, wrong in {
        "rounded_scale": [(scale[:19], bias), (scale.astype(np.float64), bias), (None, bias)],
        "rounded_bias": [(scale, bias[:19]), (scale, bias.astype(np.int64)), (scale, scale)],
    }.items():
        for rounding in wrong:
            with pytest.raises(ValueError, match=name):
                multiply(data.x, *data.arguments, pools[0], rounding=rounding)
    with pytest.raises(ValueError, match="no `bias`"):
        multiply(data.x, *data.arguments, pools[0], bias=data.bias, rounding=data.rounding)


# ---- the fused linear ---------------------------------------------------------------------------------------------

SHAPES = [(1, 16, 4, 0), (1, 50, 67, 1), (2, 64, 64, 2), (5, 47, 130, 3), (13, 161, 96, 5), (33, 40, 515, 16)]


@pytest.mark.parametrize(("m", "n", "k", "hot"), SHAPES)
def test_linear_equals_the_reference(isa: str, pools: list[kernels.ThreadPool], m: int, n: int, k: int, hot: int) -> None:
    data = problem(m, n, k, hot)
    for end, more, shadow in itertools.product(ends_of(data), ({}, {"add": data.add}), (True, False)):
        options = end | more | {"shadow": shadow}
        expected = reference.linear(data.x, *data.arguments, **options)
        for pool in pools:
            assert_same_bits(multiply(data.x, *data.arguments, pool, **options), expected)


@pytest.mark.parametrize(("m", "n", "k", "hot"), SHAPES)
def test_linear_equals_its_parts(isa: str, pools: list[kernels.ThreadPool], m: int, n: int, k: int, hot: int) -> None:
    data = problem(m, n, k, hot)
    tiles, _, input_scale, product_scale, row_sum, hot_index, hot_weight = data.arguments
    for pool in pools:
        q, residual = linear.quantize(data.x, input_scale, hot_index, pool)
        whole = linear.linear_int8(q, tiles, n, product_scale, row_sum, pool, bias=data.bias)
        rounded = linear.linear_rounded(q, tiles, n, data.rounding, row_sum, pool)
        hot_sum = linear.hot_product(data.x, hot_index, hot_weight, pool)
        assert_same_bits(hot_sum, reference.hot_product(data.x, hot_index, hot_weight))
        overflow_sum = linear.overflow_product(residual, tiles, n, k, pool)
        assert_same_bits(overflow_sum, reference.overflow_product(residual, tiles, n, k))
        left, expected_left = np.full((2, m, n), 3, np.float32)
        linear.overflow_product(residual, tiles, n, k, pool, out=left)
        assert_same_bits(left, reference.overflow_product(residual, tiles, n, k, out=expected_left))
        assert (left[np.diff(residual.row_start) == 0] == 3).all()
        for product, end in zip((whole, rounded), ends_of(data), strict=False):
            for add in (None, data.add):
                y, expected = product.copy(), product.copy()
                linear.merge(y, hot_sum if hot else None, residual, overflow_sum, product_scale, pool, add=add)
                reference.merge(expected, hot_sum if hot else None, residual, overflow_sum, product_scale, add=add)
                assert_same_bits(y, expected)
                assert_same_bits(multiply(data.x, *data.arguments, pool, **end, add=add), y)


def test_merge_leaves_out_what_is_not_there(isa: str, pools: list[kernels.ThreadPool]) -> None:
    data = problem(3, 20, 30)
    product_scale = data.arguments[3]
    y = np.full((3, 20), -0.0, np.float32)
    linear.merge(y, None, None, None, product_scale, pools[0])
    assert np.signbit(y).all()
    one_overflows = linear.Residual(np.array([0, 0, 1, 1]), np.array([4], np.int32), np.ones(1, np.float32))
    linear.merge(y, None, one_overflows, np.zeros((3, 20), np.float32), product_scale, pools[0])
    assert np.signbit(y[[0, 2]]).all() and not np.signbit(y[1]).any()
    y = np.full((3, 20), -0.0, np.float32)
    linear.merge(y, data.add, None, None, product_scale, pools[0], add=y)
    assert_same_bits(y, data.add + np.float32(-0.0))


@pytest.mark.parametrize("size", [0.5000001, 873.25, 1e30, 2.6e36])
def test_what_overflows_meets_its_column_whatever_its_size(isa: str, pools: list[kernels.ThreadPool], size: float) -> None:
    n, k = 24, 37
    weight = np.random.default_rng(1).integers(-127, 128, (n, k)).astype(np.int8)
    columns = np.arange(k, dtype=np.int32)
    value = np.where(columns % 2 == 0, size, -size).astype(np.float32)
    residual = linear.Residual(np.arange(k + 1, dtype=np.int64), columns, value)
    y = linear.overflow_product(residual, layout.pack_tiles(weight), n, k, pools[0])
    np.testing.assert_array_equal(y, value[:, None] * weight.T.astype(np.float32))


# ---- norm before, swiglu after ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n", "k", "hot"), SHAPES)
def test_gain_norms_the_rows_first(isa: str, pools: list[kernels.ThreadPool], m: int, n: int, k: int, hot: int) -> None:
    data = problem(m, n, k, hot)
    gain = np.random.default_rng(k).standard_normal(k).astype(np.float32)
    normed = reference.rms_norm(data.x, gain, 1e-5)
    expected = reference.linear(normed, *data.arguments, add=data.add)
    assert_same_bits(reference.linear(data.x, *data.arguments, add=data.add, gain=gain, eps=1e-5), expected)
    hot_index = data.arguments[5]
    expected_q, expected_residual = reference.quantize(normed, 0.03, hot_index)
    for pool in pools:
        y = multiply(data.x, *data.arguments, pool, add=data.add, gain=gain, eps=1e-5)
        assert_same_bits(y, expected)
        q, residual = linear.quantize(data.x, 0.03, hot_index, pool, gain=gain, eps=1e-5)
        np.testing.assert_array_equal(q, expected_q)
        for found, wanted in zip(residual, expected_residual, strict=True):
            np.testing.assert_array_equal(found, wanted)


FEW_ROWS = [(m, 64, 67, 1) for m in range(1, 14)]
"""Up to a number of rows that depends on the instruction set, a tile takes a panel of the gate and its up panel at once."""


@pytest.mark.parametrize(
    ("m", "n", "k", "hot"), [*SHAPES[:4], *FEW_ROWS, (15, 96, 67, 1), (29, 416, 130, 4), (200, 256, 35, 2)]
)
def test_swiglu_of_the_halves(isa: str, pools: list[kernels.ThreadPool], m: int, n: int, k: int, hot: int) -> None:
    n += n % 2  # 32 gate and up channels and their multiples go through the tiles, others by way of the whole product
    data = problem(m, n, k, hot)
    gain = np.random.default_rng(k).standard_normal(k).astype(np.float32)
    for end, shadow in itertools.product(ends_of(data)[:2], (True, False)):
        options = end | {"shadow": shadow, "gain": gain, "eps": 1e-6}
        expected = reference.swiglu(reference.linear(data.x, *data.arguments, **options))
        assert_same_bits(reference.linear(data.x, *data.arguments, **options, swiglu=True), expected)
        for pool in pools:
            out = np.empty((m, n // 2), np.float32)
            assert multiply(data.x, *data.arguments, pool, **options, swiglu=True, out=out) is out
            assert_same_bits(out, expected)


@pytest.mark.parametrize("gate", [GELU_TANH, GELU_ERF, RELU, RELU_SQUARED, clamped_silu(1)], ids=str)
@pytest.mark.parametrize(("m", "n", "k", "hot"), [(1, 64, 67, 1), (7, 64, 40, 0), (15, 96, 67, 1), (29, 84, 35, 2)])
def test_gates_of_the_halves(
    isa: str, pools: list[kernels.ThreadPool], m: int, n: int, k: int, hot: int, gate: Activation
) -> None:
    data = problem(m, n, k, hot)
    expected = reference.gated(reference.linear(data.x, *data.arguments), gate)
    assert_same_bits(reference.linear(data.x, *data.arguments, gate=gate), expected)
    for pool in pools:
        assert_same_bits(multiply(data.x, *data.arguments, pool, gate=gate), expected)


def test_wrong_options_are_refused(pools: list[kernels.ThreadPool]) -> None:
    data = problem(3, 32, 30)
    with pytest.raises(ValueError, match="`gate` takes no `add`"):
        multiply(data.x, *data.arguments, pools[0], add=data.add, swiglu=True)
    with pytest.raises(ValueError, match="`gain`"):
        multiply(data.x, *data.arguments, pools[0], gain=data.bias[:29])
    with pytest.raises(ValueError, match="`out`"):
        multiply(data.x, *data.arguments, pools[0], swiglu=True, out=data.add)
    with pytest.raises(ValueError, match="even"):
        multiply(data.x, *problem(3, 31, 30).arguments, pools[0], swiglu=True)


def test_a_row_does_not_depend_on_its_neighbours(isa: str, pools: list[kernels.ThreadPool]) -> None:
    data = problem(64, 208, 320, 8)
    for end in ends_of(data)[:2]:
        whole = multiply(data.x, *data.arguments, pools[0], **end, add=data.add)
        for first, last in [(0, 1), (5, 6), (63, 64), (3, 10), (10, 23), (20, 52)]:
            for pool in pools:
                part = multiply(data.x[first:last], *data.arguments, pool, **end, add=data.add[first:last])
                assert_same_bits(part, whole[first:last])


def test_all_isa_variants_agree_at_a_larger_shape(pools: list[kernels.ThreadPool]) -> None:
    data = problem(150, 530, 1203, 30)
    for end in ends_of(data)[:2]:
        chosen, results = kernels.isa(), []
        for name in kernels.isa_variants():
            kernels.use_isa(name)
            results += [multiply(data.x, *data.arguments, pool, **end, add=data.add) for pool in pools]
        kernels.use_isa(chosen)
        for result in results[1:]:
            assert_same_bits(result, results[0])


def test_every_element_may_overflow(isa: str, pools: list[kernels.ThreadPool]) -> None:
    data = problem(17, 40, 130, 4, outliers=1.0)
    x = np.sign(data.x) * (np.abs(data.x) + 5)
    assert_same_bits(multiply(x, *data.arguments, pools[-1]), reference.linear(x, *data.arguments))


def test_out_may_be_add_or_x(isa: str, pools: list[kernels.ThreadPool]) -> None:
    data = problem(21, 96, 96, 3)
    expected = multiply(data.x, *data.arguments, pools[0], add=data.add)
    add = data.add.copy()
    assert multiply(data.x, *data.arguments, pools[-1], add=add, out=add) is add
    assert_same_bits(add, expected)
    x = data.x.copy()
    assert_same_bits(multiply(x, *data.arguments, pools[-1], add=data.add, out=x), expected)


def test_empty_sides(isa: str, pools: list[kernels.ThreadPool]) -> None:
    for m, n, k in [(0, 5, 8), (3, 0, 8), (3, 5, 0)]:
        data = problem(m, n, k)
        y = multiply(data.x, *data.arguments, pools[-1], bias=data.bias)
        assert_same_bits(y, np.broadcast_to(data.bias, (m, n)).copy())


def test_wrong_arguments_are_named(pools: list[kernels.ThreadPool]) -> None:
    data = problem(3, 20, 30, 2)
    pool = pools[0]
    names = ["x", "tiles", "n", "input_scale", "product_scale", "row_sum", "hot", "hot_weight"]
    good = dict(zip(names, (data.x, *data.arguments), strict=True))
    wrong = {
        "x": [data.x.astype(np.float64), data.x[:, ::2], data.x[0], None],
        "tiles": [data.arguments[0][:1], data.arguments[0][..., :2].copy()],
        "product_scale": [data.arguments[3][:5], data.arguments[3].astype(np.float16)],
        "row_sum": [data.arguments[4].astype(np.int64)],
        "hot": [np.array([3, 3], np.int32), np.array([-1, 3], np.int32), np.array([3, 30], np.int32)],
        "hot_weight": [data.arguments[6].T.copy(), data.arguments[6].astype(np.float32)],
        "input_scale": [0.0, -1.0, np.nan, np.inf, 1e-45],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValueError, match=name):
                multiply(**{**good, name: value}, pool=pool, k=30)
    for option, value in {"bias": data.bias[:3], "add": data.add[:2], "out": np.empty((3, 20))}.items():
        with pytest.raises(ValueError, match=f"`{option}`"):
            multiply(**good, k=30, pool=pool, **{option: value})
    read_only = np.empty((3, 20), np.float32)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="`out` .*writeable.*read-only"):
        multiply(**good, k=30, pool=pool, out=read_only)


NOTHING = linear.Residual(np.zeros(2, np.int64), np.empty(0, np.int32), np.empty(0, np.float32))
"""Of one row."""


@pytest.mark.parametrize("side", [-1, -4, -7, -8, -100, 131_073, 2**62, -(2**62)])
@pytest.mark.parametrize("blocks", [0, 3])
def test_a_weight_has_sides_that_it_can_have(blocks: int, side: int) -> None:
    tiles, channels = np.zeros((2, blocks, 16, 4), np.int8), np.zeros(32, np.int32)
    product_scale, no_hot, no_weight = np.ones(32, np.float32), np.empty(0, np.int32), np.empty((0, 32), np.float16)
    with pytest.raises(ValueError, match="columns"):
        linear.Int8Linear(tiles, 32, side, 0.1, product_scale, channels, no_hot, no_weight, None)
    with pytest.raises(ValueError, match="columns"):
        linear.overflow_product(NOTHING, tiles, 32, side, kernels.ThreadPool(1))


def test_a_malformed_residual_is_refused(pools: list[kernels.ThreadPool]) -> None:
    data = problem(2, 20, 30)
    tiles, _, _, product_scale, _, _, _ = data.arguments
    value, sums = np.ones(2, np.float32), np.zeros((2, 20), np.float32)
    for row_start, column in [([0, 1, 3], [1, 2]), ([1, 1, 2], [1, 2]), ([0, 3, 2], [1, 2]), ([0, 1, 2], [1, 30])]:
        residual = linear.Residual(np.array(row_start, np.int64), np.array(column, np.int32), value)
        with pytest.raises(ValueError, match=r"`residual\."):
            linear.overflow_product(residual, tiles, 20, 30, pools[0])
    with pytest.raises(ValueError, match=r"`residual.row_start`"):
        linear.overflow_product(NOTHING._replace(row_start=np.zeros(0, np.int64)), tiles, 20, 30, pools[0])
    with pytest.raises(ValueError, match=r"`residual.row_start`"):
        linear.merge(sums.copy(), None, NOTHING, sums, product_scale, pools[0])


def test_roofs_are_positive(isa: str, pools: list[kernels.ThreadPool]) -> None:
    from edge_llm.kernels import roofs

    assert roofs.int8_rate(pools[1], seconds=0.001) > 0
    assert roofs.read_bandwidth(pools[1], 1 << 20) > 0
