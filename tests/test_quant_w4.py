"""Quantizing to 4-bit codes: rounding, GPTQ, hot columns, and what cannot be quantized."""

import numpy as np
import pytest

from edge_llm.errors import InvalidModel
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.floats import product
from edge_llm.kernels.gptq import Steps
from edge_llm.quant.gptq import column_order, damped_energy, damping, descend, gptq, input_energy, summed_energy
from edge_llm.quant.w4 import dense, fit_weight, fits, round_weight

NO_HOT = np.empty(0, np.int32)
WHOLE = Steps(np.ones((1, 5), np.float32))
"""Five rows become whole numbers."""


def inputs(tokens: int, columns: int, seed: int = 0) -> np.ndarray:
    """Correlated activations, some channels louder than others."""
    random = np.random.default_rng(seed)
    mixing = random.standard_normal((columns, columns)) / columns**0.5 + 0.3 * np.eye(columns)
    loudness = np.exp(random.standard_normal(columns))
    return (random.standard_normal((tokens, columns)) @ mixing * loudness).astype(np.float32)


def output_error(x: np.ndarray, found: np.ndarray, weight: np.ndarray) -> float:
    return float(np.square(x @ (found - weight).T).sum() / np.square(x @ weight.T).sum())


def energy_of(off: np.ndarray, energy: np.ndarray) -> float:
    return float(np.einsum("nk,kl,nl->", off, energy, off, dtype=np.float64))


@pytest.mark.parametrize("hot", [NO_HOT, np.array([3, 40, 95], np.int32)])
def test_gptq_has_the_lesser_error_on_other_tokens(hot):
    rows, columns = 80, 96
    weight = np.random.default_rng(1).standard_normal((rows, columns)).astype(np.float32)
    x = inputs(3000, columns)
    seen, held_out = x[:2000], x[2000:]
    energy = damped_energy(input_energy(seen), damping(len(seen), columns))
    near, fitted = dense(round_weight(weight, hot, "w")), dense(fit_weight(weight, hot, energy, "w"))
    assert output_error(held_out, fitted, weight) < 0.6 * output_error(held_out, near, weight)


def test_without_correlations_the_nearest_codes_are_kept():
    weight = np.random.default_rng(2).standard_normal((20, 64)).astype(np.float32)
    near = round_weight(weight, NO_HOT, "w")
    fitted = fit_weight(weight, NO_HOT, np.eye(64, dtype=np.float32), "w")
    np.testing.assert_array_equal(near.codes, fitted.codes)
    np.testing.assert_array_equal(near.row_sum, fitted.row_sum)
    assert np.square(dense(fitted) - weight).sum() <= np.square(dense(near) - weight).sum()


def test_columns_that_are_not_rounded_take_up_the_error():
    weight = np.random.default_rng(4).standard_normal((5, 200)).astype(np.float32)
    hot, x = np.array([7, 150], np.int32), inputs(1000, 200, seed=1)
    energy = damped_energy(input_energy(x), 0.01)
    found = gptq(weight, energy, hot, WHOLE)
    cold = np.setdiff1d(np.arange(200), hot)
    np.testing.assert_array_equal(found[:, cold], np.rint(found[:, cold]))
    assert not np.array_equal(found[:, hot], weight[:, hot])
    kept = found.copy()
    kept[:, hot] = weight[:, hot]
    assert output_error(x, found, weight) < output_error(x, kept, weight)
    nearer = found.copy()
    descend(weight, nearer, energy, hot, WHOLE, passes=3)
    np.testing.assert_array_equal(nearer[:, cold], np.rint(nearer[:, cold]))
    assert energy_of(nearer - weight, energy) < energy_of(found - weight, energy)
    assert column_order(np.diag(energy), hot)[-2:].tolist() in ([7, 150], [150, 7])


@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_few_tokens_and_silent_channels_are_no_trouble(tokens):
    weight = np.random.default_rng(5).standard_normal((8, 100)).astype(np.float32)
    x = inputs(tokens, 100)
    x[:, ::3] = 0
    found = dense(fit_weight(weight, NO_HOT, damped_energy(input_energy(x), damping(tokens, 100)), "w"))
    assert np.isfinite(found).all()
    assert np.abs(found[:, ::3] - weight[:, ::3]).max() < 1.0


def test_singular_energy_is_damped():
    weight, one = np.random.default_rng(6).standard_normal((8, 64)).astype(np.float32), inputs(1, 64)
    assert np.isfinite(dense(fit_weight(weight, NO_HOT, summed_energy(one), "w"))).all()


@pytest.mark.parametrize("columns", [1, 511, 512, 1100])
def test_energy_is_the_product_of_all_columns_with_all(columns):
    x = inputs(37, columns)
    expected = product(x.T, x.T)
    for pool in (None, ThreadPool(2)):
        np.testing.assert_array_equal(summed_energy(x, pool), expected)


def test_what_is_not_finite_or_too_large_is_refused_by_name():
    weight = np.ones((4, 32), np.float32)
    weight[2, 3] = np.inf
    with pytest.raises(InvalidModel, match=r"layers\.0\.o"):
        round_weight(weight, NO_HOT, "layers.0.o")
    weight[2, 3] = 1e6
    with pytest.raises(InvalidModel, match="float16"):
        round_weight(weight, np.array([3], np.int32), "w")
    assert not fits(30) and fits(36)


@pytest.mark.parametrize("power", [0, 15, 18, 20, 25, 30])
def test_enormous_weights_have_finite_scales(power):
    """Whatever is fitted can be opened again: a bundle with another scale is refused as damaged."""
    weight = np.random.default_rng(0).standard_normal((16, 32)).astype(np.float32)
    weight[3, 5] = 10.0**power
    none = np.empty(0, np.int32)
    for made in (round_weight(weight, none, "w"), fit_weight(weight, none, np.eye(32, dtype=np.float32), "w")):
        assert np.isfinite(made.weight_scale).all()
        assert (made.weight_scale >= 0).all()
