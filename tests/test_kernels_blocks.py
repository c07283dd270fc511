"""Weights in blocks: panels, rows and products equal the reference bit for bit, on every ISA, at any thread and row count."""

import itertools
from typing import Any

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.formats.gguf_blocks import TYPES, decode
from edge_llm.kernels import blocks
from edge_llm.kernels.activation import GELU_TANH, SILU, clamped_silu
from edge_llm.kernels.blocks import KINDS, BlockKind, BlockLinear, block_linear
from edge_llm.kernels.program import Program
from edge_llm.kernels.reference import blocks as reference

EPS = 1e-5
_HALVES = {"q4_1": (0, 2), "q5_1": (0, 2), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "mxfp4": ()}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def file_rows(kind: BlockKind, n: int, k: int, seed: int = 0) -> np.ndarray:
    """Bytes of ``n`` rows in a file: any codes and steps, scales and minimums of weights of the usual size."""
    random = np.random.default_rng([seed, kind.number, n, k])
    raw = random.integers(0, 256, (n * (k // kind.columns), kind.nbytes), np.uint8)
    for at in _HALVES.get(kind.name, (0,)):
        raw[:, at : at + 2] = (0.01 * random.standard_normal(len(raw))).astype("<f2").view(np.uint8).reshape(-1, 2)
    if kind.name == "mxfp4":
        raw[:, 0] = random.integers(110, 130, len(raw))
    return raw.reshape(-1)


def laid_out(kind: BlockKind, n: int, k: int) -> np.ndarray:
    return blocks.lay_out(file_rows(kind, n, k), kind, n, k, kernels.ThreadPool(1))


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


@EVERY_KIND
@pytest.mark.parametrize(("n", "k"), [(1, 256), (16, 512), (35, 768), (0, 256)])
def test_panels_are_those_of_the_reference(pools: list[kernels.ThreadPool], kind: BlockKind, n: int, k: int) -> None:
    raw = file_rows(kind, n, k)
    panels = blocks.lay_out(raw, kind, n, k, pools[-1])
    np.testing.assert_array_equal(panels, reference.lay_out(raw, kind, n, k))
    read, written = reference.of_panels(panels, kind, n, k), reference.of_file(raw, kind, n, k)
    for found, expected in zip(read, written, strict=True):
        np.testing.assert_array_equal(found, expected)


@EVERY_KIND
def test_a_panel_has_the_values_of_the_file(isa: str, pools: list[kernels.ThreadPool], kind: BlockKind) -> None:
    n, k = 37, 512
    raw = file_rows(kind, n, k)
    expected = decode(TYPES[kind.ggml], raw).reshape(n, k)
    panels = blocks.lay_out(raw, kind, n, k, pools[0])
    rows = np.random.default_rng(1).integers(0, n, 20)
    assert_same_bits(blocks.rows_of(panels, kind, k, rows, pools[-1]), expected[rows])
    assert_same_bits(reference.rows_of(panels, kind, k, rows), expected[rows])


@EVERY_KIND
def test_products_equal_the_reference(isa: str, pools: list[kernels.ThreadPool], kind: BlockKind) -> None:
    """In every tile: few rows, many rows, a panel left over, a gate, what is added."""
    n, k = 72, 512
    random = np.random.default_rng(2)
    x = random.standard_normal((45, k)).astype(np.float32)
    x[3] = 0
    x[4, 32:64] *= 1e-34
    x[5] *= 1e6
    bias, gain = random.standard_normal(n).astype(np.float32), random.standard_normal(k).astype(np.float32)
    add = random.standard_normal((45, n)).astype(np.float32)
    panels = laid_out(kind, n, k)
    some = BlockLinear([(panels, kind, n)], k)
    for way in ({}, {"bias": bias, "gain": gain, "eps": EPS}, {"bias": bias, "add": add}):
        expected = reference.block_linear(x, [(panels, kind, n)], **way)
        for rows in (1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 33, 35, 36, 37, 45):
            these = way | ({"add": add[:rows]} if "add" in way else {})
            assert_same_bits(block_linear(x[:rows], some, pools[rows % len(pools)], **these), expected[:rows])
    gated = BlockLinear([(panels[:4], kind, 64)], k)
    for gate in (SILU, GELU_TANH, clamped_silu(2)):
        expected = reference.block_linear(x, [(panels[:4], kind, 64)], bias=bias[:64], gate=gate)
        for rows in (1, 9, 45):
            found = block_linear(x[:rows], gated, pools[rows % len(pools)], bias=bias[:64], gate=gate)
            assert_same_bits(found, expected[:rows])


def test_parts_of_several_kinds_are_one_product(isa: str, pools: list[kernels.ThreadPool]) -> None:
    k = 512
    parts = [(laid_out(KINDS[name], n, k), KINDS[name], n) for name, n in (("q4_k", 40), ("q6_k", 24), ("q8_0", 9))]
    x = np.random.default_rng(3).standard_normal((38, k)).astype(np.float32)
    bias = np.linspace(-1, 1, 73, dtype=np.float32)
    expected = reference.block_linear(x, parts, bias=bias)
    linear = BlockLinear(parts, k)
    assert (linear.rows, linear.columns, linear.gated_in_one_pass) == (73, k, False)
    for rows in (1, 6, 38):
        assert_same_bits(block_linear(x[:rows], linear, pools[-1], bias=bias), expected[:rows])


def test_many_rows_are_cut_into_blocks(isa: str, pools: list[kernels.ThreadPool]) -> None:
    """A row of hundreds has the bits that it has alone."""
    kind, n, k = KINDS["q5_k"], 112, 2048
    linear = BlockLinear([(laid_out(kind, n, k), kind, n)], k)
    x = np.random.default_rng(4).standard_normal((421, k)).astype(np.float32)
    whole = block_linear(x, linear, pools[-1])
    for row in (0, 1, 210, 211, 419, 420):
        assert_same_bits(block_linear(x[row : row + 1], linear, pools[0]), whole[row : row + 1])


def test_results_may_take_the_place_of_the_input(pools: list[kernels.ThreadPool]) -> None:
    k, one, other = 64, KINDS["q4_0"], KINDS["q8_0"]
    whole = BlockLinear([(laid_out(one, 64, k), one, 64)], k)
    parts = BlockLinear([(laid_out(kind, 32, k), kind, 32) for kind in (one, other)], k)
    for linear, rows in itertools.product((whole, parts), (3, 40)):
        x = np.random.default_rng(5).standard_normal((rows, k)).astype(np.float32)
        expected = block_linear(x, linear, pools[-1], add=x)
        assert_same_bits(block_linear(x, linear, pools[-1], add=x, out=x), expected)


def test_a_program_gives_the_same(isa: str, pools: list[kernels.ThreadPool]) -> None:
    k, rows, vocabulary = 256, 5, 50
    table, kind = laid_out(KINDS["q6_k"], vocabulary, k), KINDS["q4_k"]
    panels, many = laid_out(kind, 96, k), [(laid_out(one, 48, k), one, 48) for one in (kind, KINDS["q8_0"])]
    gain = np.linspace(0.5, 2, k, dtype=np.float32)

    def run(program: Any, one: Any, two: Any, pool: Any) -> np.ndarray:
        x, y, z = np.zeros((8, k), np.float32), np.zeros((8, 48), np.float32), np.zeros((8, 48), np.float32)
        program.block_embedding(table, KINDS["q6_k"], vocabulary, k, out=x, factor=1.7)
        program.block_linear(x, one, gain=gain, eps=EPS, gate=SILU, out=y)
        if pool is not None:
            program.block_linear(x, two, gate=SILU, out=z)
        program.block_linear(x, one, out=None)
        tokens, ints = np.array([3, 49, 0, 7, 7], np.int64), np.zeros(rows, np.int32)
        out = np.zeros((rows, 96), np.float32)
        pages = (ints, np.zeros(rows, np.int64), ints, np.zeros((1, 1), np.int32))
        program.run(tokens, *pages, *(() if pool is None else (pool,)), out=out)
        if pool is not None:
            assert_same_bits(z[:rows], reference.block_linear(x[:rows], many, gate=SILU))
        return np.concatenate([y[:rows], out], axis=1)

    found = run(Program(), BlockLinear([(panels, kind, 96)], k), BlockLinear(many, k), pools[-1])
    expected = run(kernels.reference.Program(), [(panels, kind, 96)], None, None)
    assert_same_bits(found, expected)


def test_what_is_wrong_is_named(pools: list[kernels.ThreadPool]) -> None:
    kind, n, k, pool = KINDS["q4_k"], 32, 256, pools[0]
    panels = laid_out(kind, n, k)
    linear, x = BlockLinear([(panels, kind, n)], k), np.ones((2, k), np.float32)
    with pytest.raises(ValueError, match="`raw`"):
        blocks.lay_out(np.zeros(10, np.uint8), kind, n, k, pool)
    with pytest.raises(ValueError, match="multiple of 256 columns"):
        blocks.lay_out(np.zeros(10, np.uint8), kind, 1, 128, pool)
    with pytest.raises(ValueError, match="`panels`"):
        BlockLinear([(panels, kind, n + 1)], k)
    with pytest.raises(ValueError, match="has parts"):
        BlockLinear([], k)
    with pytest.raises(ValueError, match="`rows`"):
        blocks.rows_of(panels, kind, k, np.array([32]), pool)
    with pytest.raises(ValueError, match="`x`"):
        block_linear(x[:, :32], linear, pool)
    with pytest.raises(ValueError, match="takes no `add`"):
        block_linear(x, linear, pool, gate=SILU, add=np.ones((2, n), np.float32))
    with pytest.raises(ValueError, match="in one part"):
        block_linear(x, BlockLinear([(panels, kind, n)] * 2, k), pool, gate=SILU)
    for bad in (np.nan, np.inf, -np.inf):
        x[1, 200] = bad
        out = np.full((2, n), 7, np.float32)
        with pytest.raises(ValueError, match="non-finite activation"):
            block_linear(x, linear, pool, out=out)
        assert (out == 7).all()
