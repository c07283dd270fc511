"""INT8 weights fitted to what is read: nearer in the output, the same scales, hot channels apart."""

import numpy as np
import pytest

from edge_llm.errors import InvalidModel
from edge_llm.quant.int8 import dense, fit_weight
from edge_llm.quant.scheme import quantize_weight

NONE = np.empty(0, np.int32)


def inputs(columns, tokens=600):
    """Rows whose channels go together, and their energy."""
    draw = np.random.default_rng(columns)
    x = draw.standard_normal((tokens, 12)) @ draw.standard_normal((12, columns)) + 0.3 * draw.standard_normal((tokens, columns))
    x = x.astype(np.float32)
    return x, (x.T @ x / tokens + 0.01 * np.eye(columns)).astype(np.float32)


def error(x, found, weight):
    return float(np.square(x @ (dense(found) - weight).T).sum())


@pytest.mark.parametrize("hot", [NONE, np.array([2, 17], np.int32)], ids=["", "hot"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 20), (33, 48), (16, 90)])
def test_a_fitted_weight_is_nearer_in_the_output(rows, columns, hot):
    weight = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    x, energy = inputs(columns)
    near, fitted = quantize_weight(weight, hot, "w"), fit_weight(weight, hot, energy, "w")
    assert np.array_equal(fitted.weight_scale, near.weight_scale)
    assert fitted.tiles.shape == near.tiles.shape and np.abs(fitted.tiles.astype(int)).max() <= 127
    assert np.array_equal(fitted.row_sum, fitted.tiles.sum(axis=(1, 3), dtype=np.int32).reshape(-1)[:rows])
    assert error(x, fitted, weight) < 0.7 * error(x, near, weight)
    off = np.abs(dense(fitted) - weight)
    off[:, hot] = 0
    assert off.max() < 20 * near.weight_scale.max()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_no_numbers_are_named(bad):
    weight = np.ones((4, 8), np.float32)
    weight[2, 3] = bad
    with pytest.raises(InvalidModel, match="layers.0.o"):
        fit_weight(weight, NONE, np.eye(8, dtype=np.float32), "layers.0.o")


def test_silent_inputs_and_rows_of_zeros_do_no_harm():
    weight = np.zeros((3, 8), np.float32)
    weight[1] = np.arange(8)
    found = fit_weight(weight, NONE, 1e-6 * np.eye(8, dtype=np.float32), "w")
    assert np.allclose(dense(found), weight, atol=found.weight_scale.max())


def fitted_in_float64(weight, energy, scale):
    """GPTQ as it is written down, all of it in float64."""
    order = np.argsort(-np.diag(energy), kind="stable")
    ordered = energy[np.ix_(order, order)].astype(np.float64)
    factor = np.linalg.cholesky(ordered[::-1, ::-1])[::-1, ::-1]
    wanted, found = weight[:, order].astype(np.float64), np.empty(weight.shape)
    for j in range(len(order)):
        best = wanted[:, j] + (wanted[:, :j] - found[:, :j]) @ factor[:j, j] / factor[j, j]
        found[:, j] = np.clip(np.rint(best / scale), -127, 127) * scale
    return found[:, np.argsort(order)]


@pytest.mark.parametrize("columns", [50, 300, 700])
def test_float32_is_as_good_as_float64(columns):
    weight = np.random.default_rng(columns).standard_normal((300, columns)).astype(np.float32)
    x, energy = inputs(columns)
    fitted = fit_weight(weight, NONE, energy, "w")
    precise = np.square(x @ (fitted_in_float64(weight, energy, fitted.weight_scale) - weight).T).sum()
    assert error(x, fitted, weight) == pytest.approx(precise, rel=0.01)
    near = quantize_weight(weight, NONE, "w")
    assert error(x, fitted, weight) < 0.7 * error(x, near, weight)
