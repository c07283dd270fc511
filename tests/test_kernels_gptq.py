"""GPTQ and coordinate descent: the reference's bits, on every instruction set and by any number of threads."""

from __future__ import annotations

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import gptq, w4
from edge_llm.kernels.gptq import Steps
from edge_llm.kernels.reference import gptq as reference
from edge_llm.kernels.types import F32


def case(rows: int, columns: int) -> tuple[F32, F32, np.ndarray]:
    """A weight [N, K], an energy [K, K] of correlated inputs, and an order of the columns."""
    random = np.random.default_rng([rows, columns])
    x = random.standard_normal((3 * columns, columns)) @ (random.standard_normal((columns, columns)) + 2 * np.eye(columns))
    energy = (x.T @ x / len(x) + np.eye(columns)).astype(np.float32)
    return random.standard_normal((rows, columns)).astype(np.float32), energy, random.permutation(columns)


def whole(weight: F32) -> tuple[Steps, reference.Rounded]:
    step = np.maximum(np.abs(weight).max(axis=1) / 127, 1e-30).astype(np.float32)
    return Steps(step[None]), reference.whole_steps(step)


def coded(weight: F32) -> tuple[Steps, reference.Rounded]:
    _, multiplier, shift, scale = w4.search(weight, np.ones(weight.shape[1], np.float32), kernels.ThreadPool(1))
    step = np.ascontiguousarray((scale[:, None] * multiplier).T)
    inverse = np.divide(np.float32(1), step, out=np.zeros_like(step), where=step > 0)
    steps = step, inverse, np.ascontiguousarray(shift.T, np.float32)
    return Steps(*steps), reference.code_steps(*steps)


def unpanelled(panels: F32) -> F32:
    """The matrix [K, K] that the panels are of."""
    joined = np.concatenate(list(panels), axis=1)
    assert not joined[:, panels.shape[1] :].any()
    return joined[:, : panels.shape[1]]


SHAPES = [(1, 1), (3, 63), (70, 64), (65, 65), (5, 131), (130, 96)]


@pytest.mark.parametrize("columns", [1, 2, 63, 64, 65, 130])
def test_the_factor_is_the_references_and_makes_the_energy(isa: str, pools: list[kernels.ThreadPool], columns: int) -> None:
    _, energy, order = case(1, columns)
    ordered = energy[np.ix_(order, order)]
    expected = reference.factor(ordered)
    assert expected is not None
    for pool in pools:
        panels = gptq.panels(energy, order, pool)
        np.testing.assert_array_equal(unpanelled(panels), ordered)
        assert gptq.factor(panels, pool)
        np.testing.assert_array_equal(np.tril(unpanelled(panels)), expected)
    np.testing.assert_allclose(expected.T @ expected, ordered, rtol=1e-3, atol=1e-4 * ordered.max())


def test_an_energy_that_is_not_positive_has_no_factor(isa: str) -> None:
    pool = kernels.ThreadPool(1)
    for bad in (0.0, -1.0, np.nan, np.inf):
        energy = np.eye(70, dtype=np.float32)
        energy[3, 3] = bad
        assert not gptq.factor(gptq.panels(energy, np.arange(70), pool), pool)
        assert reference.factor(energy) is None


@pytest.mark.parametrize("how", [whole, coded])
@pytest.mark.parametrize(("rows", "columns"), SHAPES)
def test_fit_and_descent_are_the_references(isa: str, pools: list[kernels.ThreadPool], rows: int, columns: int, how) -> None:
    weight, energy, order = case(rows, columns)
    steps, rounded = how(weight)
    lower, ordered = reference.factor(energy[np.ix_(order, order)]), energy[np.ix_(order, order)]
    assert lower is not None
    for kept in (0, columns // 3):
        expected = reference.fit(weight, lower, order, kept, rounded)
        nearer = reference.descend(weight, expected, ordered, order, kept, rounded, passes=2)
        for pool in pools:
            panels = gptq.panels(energy, order, pool)
            factored = panels.copy()
            assert gptq.factor(factored, pool)
            found = gptq.fit(weight, factored, order, kept, steps, pool)
            np.testing.assert_array_equal(found, expected)
            gptq.descend(weight, found, panels, order, kept, steps, 2, pool)
            np.testing.assert_array_equal(found, nearer)


def test_wrong_arguments_are_named() -> None:
    weight, energy, order = case(4, 40)
    pool, (steps, _) = kernels.ThreadPool(1), whole(weight)
    panels = gptq.panels(energy, order, pool)
    with pytest.raises(ValueError, match="order"):
        gptq.panels(energy, np.zeros(40, np.int64), pool)
    with pytest.raises(ValueError, match="order"):
        gptq.fit(weight, panels, np.arange(1, 41), 0, steps, pool)
    with pytest.raises(ValueError, match="kept"):
        gptq.fit(weight, panels, order, 41, steps, pool)
    with pytest.raises(ValueError, match="panels"):
        gptq.fit(weight, panels[:, 1:].copy(), order, 0, steps, pool)
    with pytest.raises(ValueError, match="step"):
        gptq.fit(weight, panels, order, 0, Steps(steps.step[:, 1:].copy()), pool)
    with pytest.raises(ValueError, match="passes"):
        gptq.descend(weight, weight.copy(), panels, order, 0, steps, 0, pool)
