"""Norms, rotary embedding, gates and activations: equal to the reference bit for bit, on every ISA and at any thread count."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import pointwise, reference
from edge_llm.kernels.activation import (
    GELU_ERF,
    GELU_TANH,
    RELU,
    RELU_SQUARED,
    SILU,
    Activation,
    clamped_silu,
    soft_cap,
)

F32 = reference.F32


def assert_same_bits(actual: F32, expected: F32) -> None:
    """Same shape and bits; any NaN equals any other."""
    assert actual.dtype == expected.dtype == np.float32
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(actual), nan)
    np.testing.assert_array_equal(np.where(nan, 0, actual.view(np.int32)), np.where(nan, 0, expected.view(np.int32)))


def normal(*shape: int, scale: float = 1.0) -> F32:
    return (np.random.default_rng(list(shape)).standard_normal(shape) * scale).astype(np.float32)


def hard_rows(width: int) -> F32:
    """Rows that a careless kernel gets wrong: outliers, zeros, constants, signed zeros, denormals, huge and not finite."""
    rows = np.stack(
        [
            np.where(np.arange(width) % 13 == 5, 1e4, normal(width)),
            np.zeros(width),
            np.full(width, -0.0),
            np.full(width, 3.25),
            normal(width, scale=1e-41),
            normal(width, scale=1e-22),
            normal(width, scale=1e19),
            np.where(np.arange(width) == width // 2, np.nan, 1.0),
            np.where(np.arange(width) == width - 1, np.inf, -1.0),
        ]
    )
    return rows.astype(np.float32)


# ---- exp ----------------------------------------------------------------------------------------------------------


def test_exp_is_close_to_the_true_exponential() -> None:
    x = np.concatenate([np.linspace(-87.3, 88.7, 200_001), normal(20_000), normal(1000, scale=1e-6)]).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.abs(reference.exp(x) / exact - 1).max() < 2e-7


def test_exp_at_the_ends_of_its_range() -> None:
    x = np.array([0.0, -0.0, -np.inf, np.inf, -88, -1e9, 1e9, 89], np.float32)
    np.testing.assert_array_equal(reference.exp(x), np.array([1, 1, 0, np.inf, 0, 0, np.inf, np.inf], np.float32))
    assert np.isnan(reference.exp(np.array([np.nan], np.float32)))[0]


def test_native_exp_equals_the_reference(isa: str, pools: list[kernels.ThreadPool]) -> None:
    gate = np.concatenate([np.linspace(-90, 90, 30_001), hard_rows(50).ravel()]).astype(np.float32)
    gate_up = np.concatenate([gate, np.ones_like(gate)])[None]
    assert_same_bits(pointwise.swiglu(gate_up, pools[0]), reference.swiglu(gate_up))


# ---- rms_norm and head_norm ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "k"), [(0, 64), (1, 1), (1, 896), (3, 17), (5, 31), (2, 16), (130, 200)])
def test_rms_norm_equals_the_reference(isa: str, pools: list[kernels.ThreadPool], m: int, k: int) -> None:
    x, gain = normal(m, k), normal(k)
    expected = reference.rms_norm(x, gain, 1e-6)
    for pool in pools:
        assert_same_bits(pointwise.rms_norm(x, gain, 1e-6, pool), expected)


@pytest.mark.parametrize("width", [5, 64, 100])
def test_rms_norm_of_hard_rows(isa: str, pools: list[kernels.ThreadPool], width: int) -> None:
    x, gain = hard_rows(width), normal(width)
    assert_same_bits(pointwise.rms_norm(x, gain, 1e-5, pools[0]), reference.rms_norm(x, gain, 1e-5))


def test_rms_norm_of_a_row_does_not_depend_on_the_others(isa: str, pools: list[kernels.ThreadPool]) -> None:
    x, gain = normal(300, 77), normal(77)
    whole = pointwise.rms_norm(x, gain, 1e-6, pools[3])
    assert_same_bits(np.concatenate([pointwise.rms_norm(row[None], gain, 1e-6, pools[0]) for row in x]), whole)


def test_rms_norm_is_close_to_float64(pools: list[kernels.ThreadPool]) -> None:
    x, gain = normal(20, 896, scale=3), normal(896)
    wide = x.astype(np.float64)
    exact = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6) * gain
    np.testing.assert_allclose(pointwise.rms_norm(x, gain, 1e-6, pools[0]), exact, rtol=1e-6, atol=1e-7)


def test_rms_norm_takes_strided_rows_and_writes_in_place(isa: str, pools: list[kernels.ThreadPool]) -> None:
    wide, gain = normal(9, 100), normal(40)
    expected = reference.rms_norm(wide[:, 20:60], gain, 1e-6)
    assert_same_bits(pointwise.rms_norm(wide[:, 20:60], gain, 1e-6, pools[0]), expected)
    x = wide[:, 20:60].copy()
    assert pointwise.rms_norm(x, gain, 1e-6, pools[0], out=x) is x
    assert_same_bits(x, expected)


@pytest.mark.parametrize(("m", "heads", "dim"), [(1, 1, 8), (3, 5, 64), (70, 3, 40), (2, 2, 128)])
def test_head_norm_equals_the_reference(isa: str, pools: list[kernels.ThreadPool], m: int, heads: int, dim: int) -> None:
    gain = normal(dim)
    for pool in pools:
        joint = normal(m, (heads + 2) * dim)
        expected = joint.copy()
        reference.head_norm(heads_of(expected, 1, heads, dim), gain, 1e-6)
        pointwise.head_norm(heads_of(joint, 1, heads, dim), gain, 1e-6, pool)
        assert_same_bits(joint, expected)  # the neighbours too


def heads_of(joint: F32, first: int, heads: int, dim: int) -> F32:
    """Heads first .. first+heads-1 of a joint matrix [M, all heads * dim], as a view."""
    return joint.reshape(joint.shape[0], joint.shape[1] // dim, dim)[:, first : first + heads]


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("kind", ["rms", "layer", "layer and bias"])
@pytest.mark.parametrize(("m", "k"), [(0, 64), (1, 1), (1, 896), (3, 17), (5, 31), (130, 200)])
def test_norms_of_rows_equal_the_reference(
    isa: str, pools: list[kernels.ThreadPool], m: int, k: int, kind: str, added: bool
) -> None:
    """To a new array, to columns of a wider one, and in place, of the rows and of what is added."""
    wide, gain, bias = normal(m, k + 9, scale=3) + np.float32(1), normal(k), normal(1, k)[0] if "bias" in kind else None
    x, add = wide[:, 4 : 4 + k], normal(m, k + 1)[:, 1:] if added else None

    def norm(of: Any, x: F32, add: F32 | None, **where: Any) -> F32:
        arguments = (x, gain, 1e-5) if kind == "rms" else (x, gain, bias, 1e-5)
        return (of.rms_norm if kind == "rms" else of.layer_norm)(*arguments, add=add, **where)

    expected = norm(reference, x, add)
    for pool in pools:
        assert_same_bits(norm(pointwise, x, add, pool=pool), expected)
        within = wide.copy()
        columns = within[:, 4 : 4 + k]
        assert norm(pointwise, columns, add, pool=pool, out=columns) is columns
        assert_same_bits(columns, expected)
        np.testing.assert_array_equal(np.delete(within, np.s_[4 : 4 + k], 1), np.delete(wide, np.s_[4 : 4 + k], 1))
        if add is not None:
            onto = add.copy()
            assert_same_bits(norm(pointwise, x, onto, pool=pool, out=onto), expected)


@pytest.mark.parametrize("width", [5, 64, 100])
def test_layer_norm_of_hard_rows(isa: str, pools: list[kernels.ThreadPool], width: int) -> None:
    x, gain, bias = hard_rows(width), normal(width), normal(1, width)[0]
    assert_same_bits(pointwise.layer_norm(x, gain, bias, 1e-5, pools[0]), reference.layer_norm(x, gain, bias, 1e-5))


def test_layer_norm_is_close_to_float64(pools: list[kernels.ThreadPool]) -> None:
    x, gain, bias = normal(20, 896, scale=3) + np.float32(5), normal(896), normal(1, 896)[0]
    wide = x.astype(np.float64)
    exact = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + 1e-6) * gain + bias
    np.testing.assert_allclose(pointwise.layer_norm(x, gain, bias, 1e-6, pools[0]), exact, rtol=1e-5, atol=2e-6)


# ---- rope ---------------------------------------------------------------------------------------------------------


def angles(context: int, dim: int) -> tuple[F32, F32]:
    turn = np.arange(context)[:, None] * 10000.0 ** (-np.arange(dim // 2) / (dim // 2))
    return np.cos(turn).astype(np.float32), np.sin(turn).astype(np.float32)


@pytest.mark.parametrize(("m", "heads", "dim"), [(0, 2, 64), (1, 1, 8), (3, 5, 64), (90, 3, 40), (2, 2, 256), (4, 1, 2)])
def test_rope_equals_the_reference(isa: str, pools: list[kernels.ThreadPool], m: int, heads: int, dim: int) -> None:
    cos, sin = angles(50, dim)
    positions = np.random.default_rng(m).integers(0, 50, m).astype(np.int32)
    for pool in pools:
        joint = normal(m, (heads + 2) * dim)
        expected = joint.copy()
        reference.rope(heads_of(expected, 1, heads, dim), positions, cos, sin)
        pointwise.rope(heads_of(joint, 1, heads, dim), positions, cos, sin, pool)
        assert_same_bits(joint, expected)


def test_rope_turns_pairs_of_halves(pools: list[kernels.ThreadPool]) -> None:
    x = normal(6, 2, 32)
    cos, sin = angles(40, 32)
    positions = np.array([0, 1, 2, 39, 7, 7], np.int32)
    turned = x.copy()
    pointwise.rope(turned, positions, cos, sin, pools[0])
    # As complex numbers: (x1 + i x2) * (cos + i sin).
    factor = (cos + 1j * sin)[positions][:, None]
    exact = (x[..., :16] + 1j * x[..., 16:]) * factor
    np.testing.assert_allclose(turned, np.concatenate([exact.real, exact.imag], -1), atol=1e-6)
    np.testing.assert_array_equal(turned[0], x[0])  # position 0 is no turn


@pytest.mark.parametrize("position", [-1, 40])
def test_rope_refuses_a_position_outside_its_tables(pools: list[kernels.ThreadPool], position: int) -> None:
    cos, sin = angles(40, 32)
    x = normal(2, 1, 32)
    with pytest.raises(ValueError, match=rf"`positions` must be in 0\.\.39.*`{position}`"):
        pointwise.rope(x, np.array([0, position], np.int32), cos, sin, pools[0])


# ---- swiglu -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "width"), [(0, 5), (1, 1), (1, 4864), (7, 33), (200, 50)])
def test_swiglu_equals_the_reference(isa: str, pools: list[kernels.ThreadPool], m: int, width: int) -> None:
    gate_up = normal(m, 2 * width, scale=4)
    expected = reference.swiglu(gate_up)
    for pool in pools:
        assert_same_bits(pointwise.swiglu(gate_up, pool), expected)


def test_swiglu_of_hard_rows(isa: str, pools: list[kernels.ThreadPool]) -> None:
    gate_up = hard_rows(64)
    assert_same_bits(pointwise.swiglu(gate_up, pools[0]), reference.swiglu(gate_up))


def test_swiglu_is_close_to_float64(pools: list[kernels.ThreadPool]) -> None:
    gate_up = normal(10, 400, scale=5)
    gate, up = gate_up[:, :200].astype(np.float64), gate_up[:, 200:]
    out = np.empty((10, 200), np.float32)
    assert pointwise.swiglu(gate_up, pools[0], out=out) is out
    np.testing.assert_allclose(out, gate / (1 + np.exp(-gate)) * up, rtol=1e-6, atol=1e-30)


# ---- gates and activations ----------------------------------------------------------------------------------------

GATES = [SILU, GELU_TANH, GELU_ERF, RELU, RELU_SQUARED, clamped_silu(7.0), clamped_silu(0.25)]
PLAIN = [SILU, GELU_TANH, GELU_ERF, RELU, RELU_SQUARED, soft_cap(30.0), soft_cap(0.5)]


def exact_activation(kind: Activation, g: np.ndarray) -> np.ndarray:
    """In float64."""
    erf = np.vectorize(math.erf)
    return {
        "silu": lambda: g / (1 + np.exp(-g)),
        "gelu_tanh": lambda: 0.5 * g * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))),
        "gelu_erf": lambda: 0.5 * g * (1 + erf(g / math.sqrt(2))),
        "relu": lambda: np.maximum(g, 0),
        "relu_squared": lambda: np.maximum(g, 0) ** 2,
        "soft_cap": lambda: kind.limit * np.tanh(g / kind.limit),
    }[kind.name]()


def numbers_of_all_sizes() -> F32:
    return np.concatenate([np.linspace(-20, 20, 4001), normal(500, scale=1e-4), normal(500, scale=1e4)]).astype(np.float32)


@pytest.mark.parametrize("gate", GATES, ids=str)
@pytest.mark.parametrize(("m", "width"), [(0, 5), (1, 1), (1, 4864), (7, 33), (200, 50)])
def test_gates_equal_the_reference(isa: str, pools: list[kernels.ThreadPool], m: int, width: int, gate: Activation) -> None:
    gate_up = normal(m, 2 * width, scale=4)
    expected = reference.gated(gate_up, gate)
    for pool in pools:
        assert_same_bits(pointwise.gated(gate_up, gate, pool), expected)


@pytest.mark.parametrize("kind", PLAIN, ids=str)
def test_activations_equal_the_reference(isa: str, pools: list[kernels.ThreadPool], kind: Activation) -> None:
    for x in (hard_rows(64), hard_rows(33), normal(150, 70, scale=4), np.linspace(-90, 90, 20_001, dtype=np.float32)[None]):
        expected = reference.activate(x, kind)
        for pool in pools:
            assert_same_bits(pointwise.activate(x, kind, pool), expected)
            within = x.copy()
            assert pointwise.activate(within, kind, pool, out=within) is within
            assert_same_bits(within, expected)


@pytest.mark.parametrize("gate", GATES, ids=str)
def test_gates_of_hard_rows(isa: str, pools: list[kernels.ThreadPool], gate: Activation) -> None:
    gate_up = hard_rows(64)
    assert_same_bits(pointwise.gated(gate_up, gate, pools[0]), reference.gated(gate_up, gate))


@pytest.mark.parametrize("kind", PLAIN, ids=str)
def test_activations_are_close_to_float64(pools: list[kernels.ThreadPool], kind: Activation) -> None:
    x = numbers_of_all_sizes()
    exact = exact_activation(kind, x.astype(np.float64))
    np.testing.assert_allclose(pointwise.activate(x[None], kind, pools[0])[0], exact, rtol=1e-6, atol=3e-7 * max(1, kind.limit))


def test_a_clamped_gate_is_close_to_float64(pools: list[kernels.ThreadPool]) -> None:
    gate, up = numbers_of_all_sizes(), numbers_of_all_sizes()[::-1]
    g, u = np.minimum(gate.astype(np.float64), 7), np.clip(up.astype(np.float64), -7, 7)
    with np.errstate(over="ignore"):
        exact = (u + 1) * g / (1 + np.exp(-1.702 * g))
    found = pointwise.gated(np.concatenate([gate, up])[None], clamped_silu(7), pools[0])[0]
    np.testing.assert_allclose(found, exact, rtol=2e-6, atol=1e-6)


def test_activations_that_there_are_not_are_refused(pools: list[kernels.ThreadPool]) -> None:
    for arguments in [("mish",), ("relu", 2.0), ("soft_cap",), ("clamped_silu", -1.0), ("soft_cap", math.nan)]:
        with pytest.raises(ValueError, match="activation|limit"):
            Activation(*arguments)
    with pytest.raises(ValueError, match="no gate"):
        pointwise.gated(normal(2, 8), soft_cap(3.0), pools[0])
    with pytest.raises(ValueError, match="up half"):
        pointwise.activate(normal(2, 8), clamped_silu(3.0), pools[0])


# ---- refusals -----------------------------------------------------------------------------------------------------


def test_refusals_name_the_argument(pools: list[kernels.ThreadPool]) -> None:
    pool, x = pools[0], normal(4, 16)
    with pytest.raises(ValueError, match="`x`.*float32.*float64"):
        pointwise.rms_norm(x.astype(np.float64), normal(16), 1e-6, pool)
    with pytest.raises(ValueError, match="`gain`"):
        pointwise.rms_norm(x, normal(15), 1e-6, pool)
    with pytest.raises(ValueError, match="`x`.*last axis contiguous"):
        pointwise.rms_norm(x.T, normal(4), 1e-6, pool)
    with pytest.raises(ValueError, match="`out`"):
        pointwise.rms_norm(x, normal(16), 1e-6, pool, out=normal(4, 15))
    read_only = normal(4, 2, 8)
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="`x`.*writeable"):
        pointwise.head_norm(read_only, normal(8), 1e-6, pool)
    with pytest.raises(ValueError, match="even"):
        pointwise.swiglu(normal(2, 7), pool)
    with pytest.raises(ValueError, match="`cos` must have at most half"):
        pointwise.rope(normal(2, 1, 7), np.zeros(2, np.int32), normal(4, 4), normal(4, 4), pool)
    with pytest.raises(ValueError, match="`add`"):
        pointwise.rms_norm(x, normal(16), 1e-6, pool, add=normal(4, 15))
    with pytest.raises(ValueError, match="`bias`"):
        pointwise.layer_norm(x, normal(16), normal(15), 1e-6, pool)
