"""Mixers with a state of fixed size: equal to the reference bit for bit, on every ISA, at any thread count, cut anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import recurrent, reference

F32 = reference.F32
RUNS = np.array([[0, 5, 2, 2], [5, 6, 0, 3], [6, 14, 1, 4]], np.int32)
"""A sequence that goes on, one that begins with a single row, and one whose state before is kept."""


def same_bits(actual: F32, expected: F32) -> None:
    assert actual.dtype == expected.dtype == np.float32
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


def normal(*shape: int, scale: float = 1.0) -> F32:
    return (np.random.default_rng(list(shape)).standard_normal(shape) * scale).astype(np.float32)


def slots(*shape: int) -> F32:
    """States of five slots, the first of which nobody has written."""
    found = normal(5, *shape)
    found[0] = 0
    return found


def cut(runs: np.ndarray, row: int) -> list[tuple[slice, np.ndarray]]:
    """``runs`` before and behind a row of the last one: the slot that it writes is read on."""
    first, second = runs.copy(), runs[-1:].copy()
    first[-1, 1] = row
    second[0, :3] = 0, runs[-1, 1] - row, runs[-1, 3]
    return [(slice(0, row), first), (slice(row, runs[-1, 1]), second)]


@pytest.mark.parametrize("silu", [True, False])
@pytest.mark.parametrize(("channels", "taps"), [(48, 4), (37, 3), (16, 1)])
def test_the_convolution(isa: str, pools: list[kernels.ThreadPool], channels: int, taps: int, silu: bool) -> None:
    wide, weight, bias = normal(14, channels + 5), normal(taps, channels), normal(channels) if silu else None
    tails = slots(taps - 1, channels)
    expected_tails = tails.copy()
    expected = reference.short_convolution(wide[:, 2:-3], weight, bias, expected_tails, RUNS, silu=silu)
    for pool in pools:
        found = tails.copy()
        same_bits(recurrent.short_convolution(wide[:, 2:-3], weight, bias, found, RUNS, pool, silu=silu), expected)
        same_bits(found, expected_tails)
    found, parts = tails.copy(), []
    for rows, runs in cut(RUNS, 8):
        parts.append(recurrent.short_convolution(wide[rows, 2:-3], weight, bias, found, runs, pools[0], silu=silu))
    same_bits(np.concatenate(parts), expected)
    same_bits(found, expected_tails)


def test_softplus_is_close_to_the_true_one() -> None:
    x = np.linspace(-80, 80, 100_001).astype(np.float32)
    exact = np.logaddexp(0, x.astype(np.float64))
    assert np.abs(reference.softplus(x) / exact - 1).max() < 3e-7


@pytest.mark.parametrize("writes", [True, False])
def test_the_rates(isa: str, pools: list[kernels.ThreadPool], writes: bool) -> None:
    wide = normal(14, 50, scale=4.0)
    wide[0, :6] = [0.0, -0.0, 90.0, -90.0, 1e30, -1e30]
    steps, write, bias, rate = wide[:, :19], wide[:, 20:39] if writes else None, normal(19), -np.exp(normal(19))
    expected = reference.rates(steps, bias, rate, write, low=0.01, high=3.0)
    for pool in pools:
        found = recurrent.rates(steps, bias, rate, write, pool, low=0.01, high=3.0)
        for one, other in zip(found, expected, strict=True):
            same_bits(one, other)


def mixed(heads: int, groups: int, keys: int, values: int) -> dict[str, Any]:
    """Rows of q, k and v beside each other, and all that a recurrence takes beside them."""
    wide = normal(14, 2 * groups * keys + heads * values, scale=0.5)
    q, k, v = np.split(wide, [groups * keys, 2 * groups * keys], axis=1)
    return {
        "q": q.reshape(14, groups, keys), "k": k.reshape(14, groups, keys), "v": v.reshape(14, heads, values),
        "decay": np.exp(-np.abs(normal(14, heads))), "strength": 1 / (1 + np.exp(-normal(14, heads))),
    }  # fmt: skip


@pytest.mark.parametrize("corrects", [True, False])
@pytest.mark.parametrize(("heads", "groups", "keys", "values"), [(4, 2, 16, 32), (3, 1, 9, 48), (2, 2, 24, 80), (1, 1, 1, 16)])
def test_the_recurrence(
    isa: str, pools: list[kernels.ThreadPool], heads: int, groups: int, keys: int, values: int, corrects: bool
) -> None:
    arrays, skip, states = mixed(heads, groups, keys, values), None if corrects else normal(heads), slots(heads, keys, values)
    expected_states = states.copy()
    expected = reference.recurrence(**arrays, skip=skip, states=expected_states, runs=RUNS, corrects=corrects)
    for pool in pools:
        found = states.copy()
        same_bits(recurrent.recurrence(**arrays, skip=skip, states=found, runs=RUNS, pool=pool, corrects=corrects), expected)
        same_bits(found, expected_states)
    found, parts = states.copy(), []
    for rows, runs in cut(RUNS, 9):
        some = {name: array[rows] for name, array in arrays.items()}
        parts.append(recurrent.recurrence(**some, skip=skip, states=found, runs=runs, pool=pools[0], corrects=corrects))
    same_bits(np.concatenate(parts), expected)
    same_bits(found, expected_states)


def test_the_delta_rule_replaces_what_a_key_had() -> None:
    """With a strength of 1 and no fading, a key of length 1 gives back the last value that was written with it."""
    key, values = np.zeros((2, 1, 4), np.float32), normal(2, 1, 16)
    key[:, :, 1] = 1
    ones, states = np.ones((2, 1), np.float32), np.zeros((1, 1, 4, 16), np.float32)
    runs = np.array([[0, 2, 0, 0]], np.int32)
    found = reference.recurrence(key, key, values, ones, ones, None, states, runs, corrects=True)
    np.testing.assert_allclose(found, values, atol=1e-6)
    np.testing.assert_allclose(states[0, 0, 1], values[1, 0], atol=1e-6)


@pytest.mark.parametrize("gate_first", [True, False])
@pytest.mark.parametrize("group", [20, 80])
def test_the_gated_norm(isa: str, pools: list[kernels.ThreadPool], group: int, gate_first: bool) -> None:
    wide = normal(9, 170)
    x, gate = wide[:, :80], wide[:, 85:165]
    for gain in (normal(group), normal(80)):
        expected = reference.gated_norm(x, gate, gain, 1e-6, group, gate_first=gate_first)
        for pool in pools:
            same_bits(recurrent.gated_norm(x, gate, gain, 1e-6, group, pool, gate_first=gate_first), expected)


def test_the_sigmoid_gate(isa: str, pools: list[kernels.ThreadPool]) -> None:
    x, gate = normal(9, 83), normal(9, 83, scale=30.0)
    for pool in pools:
        same_bits(recurrent.sigmoid_gate(x, gate, pool), reference.sigmoid_gate(x, gate))
        found = x.copy()
        assert recurrent.sigmoid_gate(found, gate, pool, found) is found
        same_bits(found, reference.sigmoid_gate(x, gate))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"runs": RUNS[:2]}, "cover 14 rows"),
        ({"runs": RUNS[[0, 2, 1]]}, "follow each other"),
        ({"runs": np.array([[0, 5, 2, 2], [5, 14, 2, 3]], np.int32)}, "share a slot"),
        ({"runs": np.array([[0, 14, 0, 5]], np.int32)}, "slots below 5"),
        ({"runs": np.array([[0, 14, -1, 1]], np.int32)}, "slots below 5"),
        ({"states": slots(4, 16, 31)}, "states"),
        ({"states": slots(4, 16, 64)[..., ::2]}, "states"),
        ({"states": slots(4, 32, 32)[:, :, ::2]}, "contiguous slots"),
        ({"v": normal(14, 3, 32)}, "whole groups"),
        ({"k": normal(14, 2, 15)}, "q"),
        ({"decay": normal(14, 2)}, "decay"),
        ({"skip": normal(3)}, "skip"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], named: str) -> None:
    given = mixed(4, 2, 16, 32) | {"skip": None, "states": slots(4, 16, 32), "runs": RUNS} | change
    with pytest.raises(ValueError, match=named):
        recurrent.recurrence(**given, pool=kernels.ThreadPool(1), corrects=True)


def test_widths_that_no_kernel_has_are_refused() -> None:
    pool, runs = kernels.ThreadPool(1), np.array([[0, 14, 0, 1]], np.int32)
    for keys, values in ((257, 16), (16, 24)):
        given = mixed(1, 1, keys, values) | {"skip": None, "states": slots(1, keys, values)}
        with pytest.raises(ValueError, match="channels a head"):
            recurrent.recurrence(**given, runs=runs, pool=pool, corrects=False)
    with pytest.raises(ValueError, match="taps"):
        recurrent.short_convolution(normal(14, 16), normal(17, 16), None, slots(16, 16), runs, pool)
    with pytest.raises(ValueError, match="group"):
        recurrent.gated_norm(normal(2, 16), normal(2, 16), normal(5), 1e-6, 5, pool, gate_first=True)
