"""Float products and functions: their definition bit for bit, near the truth, and the same on every processor."""

from __future__ import annotations

import hashlib
import inspect
from decimal import Context, Decimal

import numpy as np
import pytest
from another_processor import run_on_another_processor

from edge_llm import kernels
from edge_llm.kernels import floats
from edge_llm.kernels.reference import floats as reference
from edge_llm.operations.arithmetic import SAME_BITS
from edge_llm.operations.base import Arithmetic
from edge_llm.operations.scores import attend

F32 = floats.F32
EXACT = Context(prec=40)


def assert_same_bits(actual: F32, expected: F32) -> None:
    """Same shape and bits; any NaN equals any other."""
    assert actual.dtype == expected.dtype == np.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(np.where(nan, 0, actual.view(np.int32)), np.where(nan, 0, expected.view(np.int32)))


def normal(*shape: int, scale: float = 1.0) -> F32:
    return (np.random.default_rng(list(shape)).standard_normal(shape) * scale).astype(np.float32)


# ---- product --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("m", "n", "k"),
    [(0, 3, 4), (3, 0, 4), (2, 3, 0), (1, 1, 1), (5, 7, 15), (4, 4, 16), (8, 12, 40), (9, 13, 49), (4, 10, 33)],
)
def test_product_equals_the_reference(isa: str, pools: list[kernels.ThreadPool], m: int, n: int, k: int) -> None:
    x, weight = normal(m, k), normal(n, k, scale=100.0)
    expected = reference.product(x, weight)
    for pool in (None, *pools):
        assert_same_bits(floats.product(x, weight, pool), expected)


def test_product_shares_its_channels_and_keeps_the_bits(isa: str, pools: list[kernels.ThreadPool]) -> None:
    x, weight = normal(130, 1040), normal(50, 1040)  # more rows than a block of them, channels for all threads
    expected = floats.product(x, weight)
    for pool in pools:
        assert_same_bits(floats.product(x, weight, pool), expected)
    assert_same_bits(np.concatenate([floats.product(row[None], weight) for row in x]), expected)
    np.testing.assert_allclose(expected, x.astype(np.float64) @ weight.T.astype(np.float64), atol=1e-3)


def test_product_of_very_many_columns(isa: str, pools: list[kernels.ThreadPool]) -> None:
    x, weight = normal(70, 8210), normal(43, 8210)
    expected = reference.product(x[::23], weight[::6])
    for pool in pools:
        found = floats.product(x, weight, pool)
        assert_same_bits(found[::23, ::6], expected)
        assert_same_bits(np.concatenate([floats.product(x, one[None], pool) for one in weight], axis=1), found)


def test_product_of_what_is_not_finite(isa: str) -> None:
    x = np.array([[np.inf, 1, 0], [np.nan, 1, 0], [3e38, 3e38, 1], [-0.0, 0, -0.0]], np.float32)
    weight = np.array([[1, 2, 3], [0, 1, np.inf], [10, -10, 1]], np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        assert_same_bits(floats.product(x, weight), reference.product(x, weight))


def test_products_of_stacks_are_the_products_of_each() -> None:
    x, weight = normal(2, 3, 5, 9), normal(2, 1, 4, 9)
    found = floats.product(x, weight)
    assert found.shape == (2, 3, 5, 4)
    for one, two in np.ndindex(2, 3):
        assert_same_bits(found[one, two], floats.product(x[one, two], weight[one, 0]))
    views = x.transpose(1, 0, 2, 3)[::-1], weight.transpose(1, 0, 2, 3)
    assert_same_bits(floats.product(*views), found.transpose(1, 0, 2, 3)[::-1])


def test_product_refuses_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="`weight`"):
        floats.product(normal(2, 3), normal(2, 4))
    with pytest.raises(ValueError, match="`x`"):
        floats.product(normal(2, 3).astype(np.float64), normal(2, 3))  # type: ignore[arg-type]


# ---- exp ------------------------------------------------------------------------------------------------------------


def test_exp_equals_the_reference(isa: str, pools: list[kernels.ThreadPool]) -> None:
    ends = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 88.722, 88.723, -87.336, -87.337, 3e38, -3e38]
    x = np.concatenate([np.linspace(-90, 90, 50_001), ends]).astype(np.float32)
    for pool in (None, *pools):
        assert_same_bits(floats.exp(x, pool), reference.exp(x))
    assert_same_bits(floats.exp(x[:100].reshape(4, 25).T), reference.exp(x[:100].reshape(4, 25).T))


# ---- what import measures -------------------------------------------------------------------------------------------


def spread_out(*shape: int) -> F32:
    """Values of very different sizes, whose sums depend on the order."""
    return np.exp(normal(*shape, scale=6.0)).astype(np.float32)


def assert_equal(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("channels", "tokens"), [(1, 1), (3, 7), (5, 8), (2, 127), (4, 128), (3, 129), (9, 1001), (0, 5), (3, 0)]
)
def test_rounding_errors_equal_the_reference(isa: str, pools: list[kernels.ThreadPool], channels: int, tokens: int) -> None:
    x = spread_out(channels, tokens)
    for inverse in (0.3, 20.0, 1e5):
        expected = reference.rounding_errors(x, inverse)
        for pool in (None, *pools):
            assert_equal(floats.rounding_errors(x, inverse, pool), expected)


def test_rounding_errors_are_summed_as_numpy_sums_columns() -> None:
    x = spread_out(6, 1003)
    steps = x * np.float32(3.0)
    lost = np.square(steps - np.minimum(np.rint(steps), 127))
    rounded, _, _ = floats.rounding_errors(x, 3.0)
    np.testing.assert_array_equal(rounded, lost.sum(axis=1, dtype=np.float64))


@pytest.mark.parametrize(("tokens", "channels"), [(1, 1), (0, 3), (7, 5), (40, 1030), (300, 33)])
def test_channel_powers_equal_the_reference_and_numpy(isa: str, tokens: int, channels: int) -> None:
    x = spread_out(tokens, channels) * np.sign(normal(tokens, channels))
    x[:, channels // 2] = 0.0
    for pairs in (1, 3):
        found = floats.channel_powers(x, pairs)
        assert_equal(found, reference.channel_powers(x, pairs))
        if channels > 1:  # a single column is one run of memory, which NumPy adds by halves
            shares = np.square(x / np.where(found[0] > 0, found[0], np.float32(1)))
            raised = shares if pairs == 1 else shares * shares * shares
            np.testing.assert_array_equal(found[1], raised.sum(axis=0, dtype=np.float64))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (0, 3), (7, 5), (40, 1030), (300, 33)])
def test_column_squares_equal_the_reference_and_numpy(isa: str, rows: int, columns: int) -> None:
    x = spread_out(2 * rows, columns)[::2]
    for unit in (1.0, 0.3):
        found = floats.column_squares(x, unit)
        assert_equal((found,), (reference.column_squares(x, unit),))
        if columns > 1:
            np.testing.assert_array_equal(found, np.square(x / np.float32(unit), dtype=np.float64).sum(axis=0))


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (16, 4), (17, 19), (0, 4), (35, 130)])
def test_quantize_rows_equals_the_reference(isa: str, pools: list[kernels.ThreadPool], rows: int, columns: int) -> None:
    weight = normal(rows, columns)
    weight[3:4], weight[4:5] = 0.0, 1e-35
    for hot in ([], [0], [columns - 1], range(0, columns, 5)):
        channels = np.array(hot, np.int32)
        expected = reference.quantize_rows(weight, channels)
        for pool in (None, *pools):
            assert_equal(floats.quantize_rows(weight, channels, pool), expected)


def test_quantize_rows_of_what_is_not_finite(isa: str) -> None:
    weight = normal(5, 21)
    weight[0, 3], weight[1, 20], weight[2, 0], weight[3, 7] = np.nan, np.inf, -np.inf, np.nan
    hot = np.array([7], np.int32)
    found = floats.quantize_rows(weight, hot)
    assert_equal(found, reference.quantize_rows(weight, hot))
    np.testing.assert_array_equal(np.isfinite(found[1]), [False, False, False, True, True])


def test_quantize_rows_refuses_channels_that_do_not_ascend() -> None:
    for hot in ([2, 1], [1, 1], [-1], [4]):
        with pytest.raises(ValueError, match="`hot`"):
            floats.quantize_rows(normal(3, 4), np.array(hot, np.int32))


@pytest.mark.parametrize(("rows", "channels"), [(1, 1), (5, 2), (7, 33), (40, 130), (0, 4)])
def test_row_levels_equal_the_reference(isa: str, pools: list[kernels.ThreadPool], rows: int, channels: int) -> None:
    x = spread_out(rows, channels) * np.sign(normal(rows, channels))
    x[1:2], x[2:3, ::2], x[3:4] = 0.0, -1.0, np.float32(1e-42)
    for index in {0, channels // 2, int(0.97 * (channels - 1)), channels - 1}:
        expected = reference.row_levels(x, index)
        for pool in (None, *pools):
            assert_equal((floats.row_levels(x, index, pool),), (expected,))


@pytest.mark.parametrize(
    ("tokens", "positions", "heads", "groups", "dim"),
    [(1, 1, 1, 1, 1), (5, 5, 4, 2, 8), (33, 33, 3, 1, 20), (70, 150, 6, 2, 64), (64, 64, 2, 2, 16), (0, 3, 2, 1, 4)],
)
def test_attention_equals_the_reference(
    isa: str, pools: list[kernels.ThreadPool], tokens: int, positions: int, heads: int, groups: int, dim: int
) -> None:
    queries, keys = normal(tokens, heads, dim, scale=3.0), normal(groups, positions, dim)
    values = np.ascontiguousarray(keys[:, ::-1])
    expected = reference.attention(queries, keys, values, 0.37)
    for pool in (None, *pools):
        assert_same_bits(floats.attention(queries, keys, values, 0.37, pool), expected)


def test_attention_is_what_its_parts_make(isa: str) -> None:
    parts = Arithmetic(floats.product, floats.exp)
    tokens, past = 300, 7
    q, k = normal(tokens, 6, 32), normal(2, past + tokens, 32)
    v = np.ascontiguousarray(k[:, ::-1])
    assert_same_bits(attend(q, k, v, past, SAME_BITS), attend(q, k, v, past, parts))


def test_attention_refuses_what_does_not_fit() -> None:
    for queries, keys, values in [((2, 3, 4), (2, 2, 4), (2, 2, 4)), ((3, 2, 4), (2, 2, 4), (2, 2, 4)),
                                  ((2, 2, 4), (2, 2, 5), (2, 2, 5)), ((2, 2, 4), (2, 2, 4), (2, 3, 4))]:  # fmt: skip
        with pytest.raises(ValueError, match="`(queries|keys|values)`"):
            floats.attention(normal(*queries), normal(*keys), normal(*values), 1.0)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 100])
@pytest.mark.parametrize("bfloat16", [True, False])
def test_widening_equals_the_reference(isa: str, count: int, bfloat16: bool) -> None:
    x = np.random.default_rng(count).integers(0, 0x7800, count).astype(np.uint16) | np.uint16(0x8000)
    out = np.empty(count, np.float32)
    largest = floats.widen(x, out, bfloat16=bfloat16)
    expected = reference.widen(x, bfloat16=bfloat16)
    assert_same_bits(out, expected)
    assert largest == np.abs(expected).max(initial=0.0)


@pytest.mark.parametrize(("bits", "bfloat16"), [(0x7FC0, True), (0xFF81, True), (0x7E00, False), (0xFC01, False)])
def test_widening_tells_of_what_is_not_a_number(isa: str, bits: int, bfloat16: bool) -> None:
    for place in (0, 17, 39):
        x = np.full(40, 0x7800, np.uint16)
        x[place] = bits
        out = np.empty(40, np.float32)
        assert np.isnan(floats.widen(x, out, bfloat16=bfloat16))
        assert np.isnan(out[place])


# ---- float64 --------------------------------------------------------------------------------------------------------


def units_off(found: np.ndarray, exact: list[Decimal]) -> float:
    """The largest error in units in the last place of the exact value."""
    unit = np.spacing(np.abs(np.array(exact, np.float64)))
    return max(abs(float((Decimal(a) - b) / Decimal(c))) for a, b, c in zip(found.tolist(), exact, unit.tolist(), strict=True))


def test_exp64_is_near_the_truth() -> None:
    x = np.concatenate([np.linspace(-700, 709, 997), normal(200).astype(np.float64), 1e-9 * normal(50)])
    assert units_off(floats.exp64(x), [EXACT.exp(Decimal(value)) for value in x.tolist()]) < 2
    np.testing.assert_array_equal(floats.exp64([0.0, -np.inf, np.inf, -1e300, 1e300]), [1.0, 0.0, np.inf, 0.0, np.inf])
    assert np.isnan(floats.exp64(np.nan))


def test_log64_is_near_the_truth() -> None:
    x = np.concatenate([2.0 ** np.linspace(-1070, 1020, 997), np.linspace(0.6, 1.6, 500)])
    assert units_off(floats.log64(x), [EXACT.ln(Decimal(value)) for value in x.tolist()]) < 3
    np.testing.assert_array_equal(floats.log64([1.0, 0.0, np.inf]), [0.0, -np.inf, np.inf])
    assert np.isnan(floats.log64([-1.0, np.nan])).all()


def test_power64_is_near_the_truth() -> None:
    x = 10.0 ** np.linspace(-30, 30, 301)
    for y in (0.5, 1.0 / 6.0, 3.0):
        np.testing.assert_allclose(floats.power64(x, y), x**y, rtol=1e-13)
    assert floats.power64(0.0, 0.5) == 0.0


def test_cos_sin64_is_near_the_truth() -> None:
    angle = np.concatenate([np.linspace(0, 10, 5000), np.linspace(-1e6, 1e6, 5001), np.arange(40) * (np.pi / 4)])
    cos, sin = floats.cos_sin64(angle)
    np.testing.assert_allclose(cos, np.cos(angle), rtol=0, atol=2.3e-16)
    np.testing.assert_allclose(sin, np.sin(angle), rtol=0, atol=2.3e-16)


# ---- the same everywhere --------------------------------------------------------------------------------------------


def digest_of_results() -> str:
    rng = np.random.default_rng(7)
    x, weight = rng.random((33, 70), np.float32) - 0.5, rng.random((20, 70), np.float32) - 0.5
    wide = rng.random(20_000) * 200.0 - 100.0
    results = [
        floats.product(x, weight), floats.exp(x), floats.exp64(wide), floats.log64(np.abs(wide)),
        floats.power64(np.abs(wide), 0.3), *floats.cos_sin64(wide * 1000.0),
    ]  # fmt: skip
    return hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest()


def test_every_processor_gives_the_same_bits() -> None:
    assert digest_of_results() == "b8992d71ebe0e17f4a8a06eef1fccb083f4063e145704554dd32878f79e1c42d"
    script = f"import hashlib\nimport numpy as np\nfrom edge_llm.kernels import floats\n{inspect.getsource(digest_of_results)}"
    assert run_on_another_processor(f"{script}\nprint(digest_of_results())").strip() == digest_of_results()
