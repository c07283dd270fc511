"""The float16 linear: equal to the reference bit for bit, on every ISA, at any thread and row count, alone and in a program."""

from typing import Any

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import linear, pointwise, reference
from edge_llm.kernels.activation import GELU_ERF, GELU_TANH, RELU, RELU_SQUARED, clamped_silu
from edge_llm.kernels.half_linear import half_linear
from edge_llm.kernels.program import Program

SHAPES = [(1, 1), (7, 16), (9, 2), (40, 66), (17, 130), (33, 324)]
"""K and N."""
EPS = 1e-5


class Problem:
    """Activations of 20 rows, a weight with subnormal and large values, and all that a product may take besides."""

    def __init__(self, k: int, n: int, rows: int = 20) -> None:
        random = np.random.default_rng([k, n])
        self.x = random.standard_normal((rows, k)).astype(np.float32)
        self.weight = (random.standard_normal((k, n)) * 2.0 ** random.integers(-24, 4, (k, n))).astype(np.float16)
        self.bias = random.standard_normal(n).astype(np.float32)
        self.gain = random.standard_normal(k).astype(np.float32)
        self.add = random.standard_normal((rows, n)).astype(np.float32)

    def ways(self, rows: int) -> list[dict[str, Any]]:
        """What a product of so many rows may be asked for."""
        norm = {"gain": self.gain, "eps": EPS}
        ways: list[dict[str, Any]] = [{}, {"bias": self.bias, **norm}, {"bias": self.bias, "add": self.add[:rows]}]
        if self.weight.shape[1] % 2 == 0:
            ways += [{"swiglu": True}, {"swiglu": True, "bias": self.bias, **norm}]
            ways += [{"gate": gate, "bias": self.bias} for gate in (GELU_TANH, GELU_ERF, RELU, RELU_SQUARED, clamped_silu(2))]
        return ways


def assert_same_bits(actual: reference.F32, expected: reference.F32) -> None:
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize(("k", "n"), SHAPES)
def test_it_equals_the_reference(isa: str, pools: list[kernels.ThreadPool], k: int, n: int) -> None:
    problem = Problem(k, n)
    for way in problem.ways(20):
        expected = reference.half_linear(problem.x, problem.weight, **way)
        for rows in range(1, 21):
            these = way | ({"add": way["add"][:rows]} if "add" in way else {})
            found = half_linear(problem.x[:rows], problem.weight, pools[rows % 3], **these)
            assert_same_bits(found, expected[:rows])


@pytest.mark.parametrize(("k", "n", "swiglu"), [(300, 600, False), (90, 1100, True), (19, 4200, False), (11, 12580, True)])
def test_strips_blocks_and_chunks_change_nothing(
    isa: str, pools: list[kernels.ThreadPool], k: int, n: int, swiglu: bool
) -> None:
    """Against the product of hot columns, which cuts nothing: from the widths that one core streams to those of several."""
    problem = Problem(k, n, rows=150)
    every = np.arange(k, dtype=np.int32)
    expected = linear.hot_product(problem.x, every, problem.weight, pools[3]) + problem.bias
    assert_same_bits(expected[:2], reference.half_linear(problem.x[:2], problem.weight, bias=problem.bias))
    expected = pointwise.swiglu(expected, pools[3]) if swiglu else expected
    for pool in pools[:3]:
        for rows in (1, 2, 3, 4, 5, 8, 13, 25, 150):
            found = half_linear(problem.x[:rows], problem.weight, pool, bias=problem.bias, swiglu=swiglu)
            assert_same_bits(found, expected[:rows])


def test_no_rows_and_no_channels(isa: str, pools: list[kernels.ThreadPool]) -> None:
    for m, k, n in [(0, 5, 8), (3, 5, 0), (3, 0, 8)]:
        x, weight, bias = np.ones((m, k), np.float32), np.ones((k, n), np.float16), np.full(n, 2, np.float32)
        assert_same_bits(half_linear(x, weight, pools[1], bias=bias), np.full((m, n), 2, np.float32))


@pytest.mark.parametrize("rows", [1, 4, 20])
def test_out_may_be_x_or_what_is_added(isa: str, pools: list[kernels.ThreadPool], rows: int) -> None:
    problem = Problem(66, 66)
    x, add = problem.x[:rows], problem.add[:rows].copy()
    expected = reference.half_linear(x, problem.weight, add=add)
    both = x.copy()
    assert half_linear(both, problem.weight, pools[2], add=add, out=both) is both
    assert_same_bits(both, expected)
    half_linear(x, problem.weight, pools[2], add=add, out=add)
    assert_same_bits(add, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rows", [1, 3, 20])
def test_a_non_finite_activation_is_refused_and_out_is_left(
    isa: str, pools: list[kernels.ThreadPool], bad: float, rows: int
) -> None:
    problem = Problem(40, 66)
    for column in (0, 17, 39):
        x = problem.x[:rows].copy()
        x[-1, column] = bad
        for way in ({}, {"gain": problem.gain, "eps": EPS}):
            out = np.full((rows, 66), 7, np.float32)
            with pytest.raises(ValueError, match="non-finite activation"):
                half_linear(x, problem.weight, pools[1], out=out, **way)
            assert (out == 7).all()
            with pytest.raises(ValueError, match="non-finite activation"):
                reference.half_linear(x, problem.weight, **way)


def test_wrong_arguments_are_named(pools: list[kernels.ThreadPool]) -> None:
    problem = Problem(40, 66)
    right = {"x": problem.x, "weight": problem.weight, "pool": pools[0]}
    for name, wrong in {
        "x": {"x": problem.x[:, :3].copy()}, "weight": {"weight": problem.weight.astype(np.float32)},
        "bias": {"bias": problem.bias[1:]}, "gain": {"gain": problem.bias}, "add": {"add": problem.add[1:]},
        "out": {"out": problem.add, "swiglu": True}, "gate` takes no `add": {"add": problem.add, "swiglu": True},
        "gate` takes an even number": {"weight": problem.weight[:, 1:].copy(), "swiglu": True},
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=f"`{name}"):
            half_linear(**right | wrong)


@pytest.mark.parametrize(("k", "n"), [(40, 66), (66, 40), (130, 324)])
def test_a_program_gives_the_bits_of_its_calls(isa: str, pools: list[kernels.ThreadPool], k: int, n: int) -> None:
    """Of the direct calls and of the reference's program, for any number of the first rows; the last one writes late."""
    problem = Problem(k, n)
    theirs, ours = Program(), reference.Program()
    outs: list[list[np.ndarray]] = [[], []]
    for way in problem.ways(20):
        width = n // 2 if {"swiglu", "gate"} & way.keys() else n
        for program, made in zip((theirs, ours), outs, strict=True):
            made.append(np.zeros((20, width), np.float32))
            program.half_linear(problem.x, problem.weight, out=made[-1], **way)
    for program in (theirs, ours):
        program.half_linear(problem.x, problem.weight, bias=problem.bias, out=None)
    for rows in (1, 5, 20):
        zeros = np.zeros(rows, np.int64)
        arguments = zeros, zeros.astype(np.int32), zeros, zeros.astype(np.int32), np.zeros((1, 1), np.int32)
        late, expected = np.empty((rows, n), np.float32), np.empty((rows, n), np.float32)
        assert theirs.run(*arguments, pools[rows % 3], late) == len(theirs)
        ours.run(*arguments, expected)
        assert_same_bits(late, expected)
        for mine, other, way in zip(*outs, problem.ways(rows), strict=True):
            assert_same_bits(mine, other)
            assert_same_bits(mine[:rows], half_linear(problem.x[:rows], problem.weight, pools[1], **way))


def test_a_program_stops_at_a_non_finite_activation(pools: list[kernels.ThreadPool]) -> None:
    problem = Problem(40, 66)
    program, out = Program(), np.full((20, 66), 7, np.float32)
    program.half_linear(problem.x, problem.weight, out=out)
    problem.x[3] = np.nan
    zeros = np.zeros(20, np.int64)
    arguments = zeros, zeros.astype(np.int32), zeros, zeros.astype(np.int32), np.zeros((1, 1), np.int32)
    with pytest.raises(ValueError, match="non-finite activation"):
        program.run(*arguments, pools[0])
    assert (out == 7).all()
