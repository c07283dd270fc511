"""Activations alone and clamped gates: the float reference, its way back, the host's call, folds, and what is refused."""

import numpy as np
import pytest
from odd_layers import ODD

from edge_llm.kernels import ThreadPool, pointwise
from edge_llm.kernels.activation import Activation
from edge_llm.operations.activation import Activate
from edge_llm.operations.base import FloatRun, Folding, Gain, LayerWeights
from edge_llm.operations.glu import CLAMPED, GLU
from edge_llm.operations.layer import Layer
from edge_llm.operations.norm import Norm

RUN = FloatRun(LayerWeights({}, {}), {})
ALONE = ("silu", "gelu_tanh", "relu", "relu_squared")
OPERATIONS = [*(Activate(24, "x", "y", name) for name in ALONE), GLU(24, "x", "y", CLAMPED, 1.5)]


@pytest.fixture
def x():
    operations = max(operation.read_width for operation in OPERATIONS)
    return 2 * np.random.default_rng(0).standard_normal((40, operations), np.float32)


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_the_float_reference_is_near_the_kernel(operation, x):
    x, pool = np.ascontiguousarray(x[:, : operation.read_width]), ThreadPool(1)
    if isinstance(operation, GLU):
        found = pointwise.gated(x, operation.gate, pool)
    else:
        found = pointwise.activate(x, Activation(operation.activation), pool)
    np.testing.assert_allclose(operation.forward({"x": x}, RUN), found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("operation", OPERATIONS, ids=str)
def test_gradients_are_differences(operation, x):
    x = np.ascontiguousarray(x[:, : operation.read_width])
    edges = (0.0,) if isinstance(operation, Activate) else (-1.5, 1.5)
    step, seen = 1e-3, np.random.default_rng(1).standard_normal((len(x), operation.write_width), np.float32)
    y, back = operation.forward_and_back({"x": x}, RUN)
    np.testing.assert_array_equal(y, operation.forward({"x": x}, RUN))
    ((name, found),) = back(seen)
    for column in range(operation.read_width):
        moved = np.zeros_like(x)
        moved[:, column] = step
        ahead, behind = (operation.forward({"x": x + sign * moved}, RUN).astype(np.float64) for sign in (1, -1))
        wanted = ((ahead - behind) * seen).sum(axis=1) / (2 * step)
        smooth = np.all([np.abs(np.abs(x[:, column]) - abs(edge)) > 2 * step for edge in edges], axis=0)
        np.testing.assert_allclose(found[smooth, column], wanted[smooth], rtol=2e-2, atol=5e-3)
    assert name == "x"


@pytest.mark.parametrize(("name", "degree"), [("relu", 1), ("relu_squared", 2)])
def test_what_is_divided_before_it_is_divided_behind_it(name, degree, x):
    """A fold changes the rows of the linear before it, so that its own channels are divided by the factors."""
    layer = Layer("", tuple(_with(one, name) for one in ODD["an MLP without a gate, by squared ReLU"]))
    operation = next(one for one in layer.operations if isinstance(one, Activate))
    (place,) = operation.places(layer)
    factors = np.random.default_rng(2).uniform(0.5, 2.0, place.shape).astype(np.float32)
    folding = Folding({}, {})
    operation.fold(layer, place, factors, folding)
    inner = x[:, : operation.width]
    before, folded = (operation.forward({operation.reads: one}, RUN) for one in (inner, inner * folding.rows["up"]))
    np.testing.assert_allclose(folded, before / factors, rtol=1e-5)
    assert place.readers == (layer.linear("down"),) and operation.evens_its_input


def _with(operation, name):
    return Activate(operation.width, operation.reads, operation.writes, name) if isinstance(operation, Activate) else operation


def test_what_no_factor_goes_through_has_no_place():
    for name in ("an MLP without a gate, by GELU", "a clamped gate"):
        layer = Layer("", ODD[name])
        (inside,) = (one for one in layer.operations if isinstance(one, Activate | GLU))
        assert not list(inside.places(layer)) and not inside.evens_its_input
        assert inside.pairs_its_input == isinstance(inside, GLU)


@pytest.mark.parametrize("fields", [("mish", 0.0), (CLAMPED, 0.0), (CLAMPED, -1.0), ("silu", 7.0)])
def test_gates_that_there_are_not_are_refused(fields):
    with pytest.raises(ValueError, match="the gate into `y`"):
        GLU(8, "x", "y", *fields)


@pytest.mark.parametrize("fields", [(8, "x", "y", "mish"), (0, "x", "y", "relu"), (8, "x", "y", CLAMPED)])
def test_activations_that_there_are_not_are_refused(fields):
    with pytest.raises(ValueError, match="the activation into `y`"):
        Activate(*fields)


def test_vectors_of_a_norm_have_its_names():
    gain, bias = Gain("g", "n.weight", 6), Gain("b", "n.bias", 6)
    norm = Norm(gain, 1e-5, "x", "y", centred=True, bias=bias)
    x, vectors = (np.random.default_rng(3).standard_normal((rows, 6), np.float32) for rows in (5, 2))
    run = FloatRun(LayerWeights({}, norm.named(vectors)), {})
    centred = x - x.mean(axis=1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-5) * vectors[0] + vectors[1]
    np.testing.assert_allclose(norm.forward({"x": x}, run), wanted, atol=1e-5)
    np.testing.assert_array_equal(norm.applied(x, vectors), norm.forward({"x": x}, run))
