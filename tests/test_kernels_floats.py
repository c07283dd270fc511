"""Float products and functions: their definition bit for bit, near the truth, and the same on every processor."""

from __future__ import annotations

import hashlib
import inspect
from decimal import Context, Decimal

import numpy as np
import pytest
from another_processor import run_on_another_processor

import kernels
from kernels import floats
from kernels.reference import floats as reference

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


@pytest.mark.parametrize(("m", "n", "k"), [(0, 3, 4), (3, 0, 4), (2, 3, 0), (1, 1, 1), (5, 7, 15), (4, 4, 16), (9, 13, 49)])
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
    script = f"import hashlib\nimport numpy as np\nfrom kernels import floats\n{inspect.getsource(digest_of_results)}"
    assert run_on_another_processor(f"{script}\nprint(digest_of_results())").strip() == digest_of_results()
