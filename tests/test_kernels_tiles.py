"""Linears and attention by tiles (AMX), with the instructions or emulated: the bits of every other instruction set."""

import itertools
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm import kernels
from edge_llm.kernels import attention, layout, linear, reference, w4
from edge_llm.kernels.activation import GELU_TANH, SILU
from edge_llm.kernels.types import F32

TILES = "amxint8"
HAS_TILES = TILES in kernels.isa_variants()
needs_tiles = pytest.mark.skipif(not HAS_TILES, reason="this processor has no tiles, or the system does not permit them")


@pytest.fixture(scope="module")
def pools() -> list[kernels.ThreadPool]:
    return [kernels.ThreadPool(threads) for threads in (1, 2, 3)]


@pytest.fixture(autouse=True)
def chosen_again() -> Iterator[None]:
    chosen = kernels.isa()
    yield
    kernels.use_isa(chosen)


def by(isa: str, *arguments: Any, **options: Any) -> F32:
    kernels.use_isa(isa)
    return linear.linear(*arguments, **options)


def other_isa() -> str:
    """What tiles are compared with."""
    return next(name for name in reversed(kernels.isa_variants()) if name != TILES)


def assert_tiles_give_the_same(x: F32, weight: linear.Int8Linear, pool: kernels.ThreadPool, **options: Any) -> None:
    found = by(TILES, x, weight, pool, **options)
    expected = by(other_isa(), x, weight, pool, **options)
    np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


def weight_of(generator: np.random.Generator, n: int, k: int, extreme: bool, coded: bool, hot: int = 0) -> linear.Int8Linear:
    """Integers of all kinds, or the ends of their range alone; in 4-bit codes if ``coded``."""
    scale, bias = (generator.random(n) * 1e-3).astype(np.float32), generator.standard_normal(n).astype(np.float32)
    hot_index = np.sort(generator.choice(k, hot, replace=False)).astype(np.int32)
    rest = (hot_index, generator.standard_normal((hot, n)).astype(np.float16), bias)
    if coded:
        shape = (n, -(-k // w4.GROUP))
        shift = generator.integers(w4.MIN_SHIFT, 16, shape)
        multiplier = w4.MAX_MULTIPLIER if extreme else generator.integers(0, w4.MAX_MULTIPLIER + 1, shape)
        multiplier = np.minimum(multiplier, 127 // np.maximum(shift, 19 - shift))
        codes = generator.choice([0, 15], (n, k)) if extreme else generator.integers(0, 16, (n, k))
        panels = w4.pack_codes(codes.astype(np.uint8), multiplier.astype(np.uint8), shift.astype(np.uint8))
        tiles = w4.expand(panels, n, k, kernels.ThreadPool(1))
        return linear.Int8Linear.of_codes(panels, n, k, 0.03, scale, layout.row_sums(tiles, n), *rest)
    integers = generator.choice([-127, 127], (n, k)) if extreme else generator.integers(-127, 128, (n, k))
    tiles = layout.pack_tiles(integers.astype(np.int8))
    return linear.Int8Linear(tiles, n, k, 0.03, scale, layout.row_sums(tiles, n), *rest)


def rows_of(generator: np.random.Generator, m: int, k: int, extreme: bool) -> F32:
    x = generator.choice([-4, 4], (m, k)) if extreme else generator.standard_normal((m, k))
    return x.astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 512), st.integers(1, 100), st.integers(1, 2600), st.booleans(), st.booleans(), st.data())
def test_any_shape(pools: list[kernels.ThreadPool], m: int, n: int, k: int, extreme: bool, coded: bool, data: Any) -> None:
    m = min(m, max(13, 2**21 // (-(-n // 16) * 16 * k)))  # emulated products take their time
    k = -(-k // 4) * 4 if coded else k
    pool = data.draw(st.sampled_from(pools))
    generator = np.random.default_rng([m, n, k])
    weight = weight_of(generator, n, k, extreme, coded, hot=min(k, data.draw(st.integers(0, 3))))
    x = rows_of(generator, m, k, extreme)
    add = generator.standard_normal((m, n)).astype(np.float32) if data.draw(st.booleans()) else None
    assert_tiles_give_the_same(x, weight, pool, add=add)
    if n % 2 == 0:
        assert_tiles_give_the_same(x, weight, pool, gate=data.draw(st.sampled_from([SILU, GELU_TANH])))


@pytest.mark.parametrize("coded", [False, True])
def test_every_small_shape(pools: list[kernels.ThreadPool], coded: bool) -> None:
    """Around the ends of a tile of rows, of a panel and of a step of 64 columns."""
    for m, n, k in itertools.product((13, 15, 16, 17, 31, 32, 33, 48, 49), (15, 16, 17, 32, 33), (1, 4, 63, 64, 65, 96, 129)):
        k = -(-k // 4) * 4 if coded else k
        generator = np.random.default_rng([m, n, k])
        assert_tiles_give_the_same(rows_of(generator, m, k, False), weight_of(generator, n, k, False, coded), pools[0])


@pytest.mark.parametrize("coded", [False, True])
@pytest.mark.parametrize("k", [1216, 1220, 1276, 2500])
def test_a_panel_that_is_cut(pools: list[kernels.ThreadPool], k: int, coded: bool) -> None:
    """Long panels are multiplied in parts, whose sums wait in memory."""
    generator = np.random.default_rng(k)
    weight = weight_of(generator, 33, k, False, coded)
    for m, pool in itertools.product((13, 33, 70), pools):
        assert_tiles_give_the_same(rows_of(generator, m, k, False), weight, pool)


def test_the_reference_says_what_is_right(pools: list[kernels.ThreadPool]) -> None:
    generator = np.random.default_rng(5)
    n, k = 40, 133
    integers = generator.integers(-127, 128, (n, k)).astype(np.int8)
    tiles, scale = layout.pack_tiles(integers), (generator.random(n) * 1e-3).astype(np.float32)
    none = (np.zeros(0, np.int32), np.zeros((0, n), np.float16))
    weight = linear.Int8Linear(tiles, n, k, 0.03, scale, layout.row_sums(tiles, n), *none, None)
    for m in (13, 40):
        x = rows_of(generator, m, k, False)
        expected = reference.linear(x, tiles, n, 0.03, scale, layout.row_sums(tiles, n), *none)
        found = by(TILES, x, weight, pools[2])
        np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(1, 1), (2, 2), (3, 1), (8, 2), (14, 2)]),
    st.sampled_from([8, 16, 24, 40, 64, 72, 96, 128, 200, 512]),
    st.integers(1, 90),
    st.integers(0, 900),
    st.sampled_from([0, 1, 17, 255, 256, 300]),
    st.booleans(),
)
def test_attention(
    pools: list[kernels.ThreadPool], heads: tuple[int, int], dim: int, rows: int, depth: int, window: int, capped: bool
) -> None:
    """Rows of two sequences, the second far behind the first, and one of no sequence; what no row sees holds anything."""
    (q_heads, kv_heads), tokens = heads, depth + rows
    generator = np.random.default_rng([q_heads, dim, rows, depth])
    pages_each = -(-tokens // attention.PAGE)
    shape = (2 * pages_each, kv_heads, attention.PAGE, dim)
    keys, values = (generator.integers(-127, 128, shape).astype(np.int8) for _ in range(2))
    scales = [(generator.random(shape[:3]) * 0.1).astype(np.float16) for _ in range(2)]
    table = generator.permutation(shape[0]).astype(np.int32).reshape(2, pages_each)
    sequence = (np.arange(rows) >= rows * 2 // 3).astype(np.int32)
    position = np.where(sequence == 0, np.arange(rows), depth + np.arange(rows)).astype(np.int32)
    position[rows // 2] = -1
    q = generator.standard_normal((rows, q_heads, dim)).astype(np.float32)
    sinks = generator.standard_normal(q_heads).astype(np.float32) if capped else None
    arguments = (q, keys, scales[0], values, scales[1], table, sequence, position, dim**-0.5)
    found = []
    for isa, pool in ((TILES, pools[0]), (TILES, pools[2]), (other_isa(), pools[0])):
        kernels.use_isa(isa)
        found.append(attention.paged_attention(*arguments, pool, window=window, cap=20.0 if capped else 0.0, sinks=sinks))
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].view(np.int32), other.view(np.int32))


def test_tiles_are_never_chosen_where_they_are_emulated() -> None:
    assert (TILES in kernels.emulated_isas()) is not HAS_TILES
    if not HAS_TILES:
        assert kernels.isa() != TILES
        kernels.use_isa(TILES)
        assert kernels.isa() == TILES


CHILD = """
import os, numpy as np
from edge_llm import kernels
from edge_llm.kernels import layout, linear
tiles = layout.pack_tiles(np.ones((64, 64), np.int8))
none = (np.zeros(0, np.int32), np.zeros((0, 64), np.float16), None)
weight = linear.Int8Linear(tiles, 64, 64, 1.0, np.ones(64, np.float32), layout.row_sums(tiles, 64), *none)
pool = kernels.ThreadPool(2)
multiply = lambda: linear.linear(np.ones((64, 64), np.float32), weight, pool)
assert kernels.isa() == "amxint8"
assert (multiply() == 64).all()
if (child := os.fork()) == 0:
    os._exit(0 if (multiply() == 64).all() else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@needs_tiles
def test_a_child_has_what_the_system_permits() -> None:
    subprocess.run([sys.executable, "-c", CHILD], check=True)


SMALL_STACK = """
import ctypes
class Stack(ctypes.Structure):
    _fields_ = [("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]
room = ctypes.create_string_buffer(8192)
stack = Stack(ctypes.addressof(room), 0, 8192)
assert ctypes.CDLL(None, use_errno=True).sigaltstack(ctypes.byref(stack), None) == 0
from edge_llm import kernels
assert kernels.isa() == "avx512vnni", kernels.isa()
assert "too small" in kernels.isa_refusal(), kernels.isa_refusal()
assert "amxint8" in kernels.emulated_isas()
"""


@needs_tiles
def test_a_system_that_refuses_leaves_avx512vnni() -> None:
    """A thread's alternate signal stack has no room for tiles."""
    subprocess.run([sys.executable, "-c", SMALL_STACK], check=True)
