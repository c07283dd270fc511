"""The turn, and linears whose rows are turned or have scales of their own: native and NumPy give the same bits."""

from __future__ import annotations

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import ThreadPool, attention, embedding, linear, pointwise, reference
from edge_llm.kernels.layout import pack_tiles, row_sums
from edge_llm.kernels.program import Program

POOL = ThreadPool(2)
BLOCKS = (0, 2, 4, 8, 16, 32, 64, 128)


@pytest.fixture(params=kernels.isa_variants())
def isa(request: pytest.FixtureRequest):
    before = kernels.isa()
    kernels.use_isa(request.param)
    yield request.param
    kernels.use_isa(before)


def rows(m: int, k: int, seed: int = 0) -> np.ndarray:
    """Uneven activations float32 [M, K]: some channels are loud, one row is silent."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((m, k)) * np.exp(random.standard_normal(k))
    x[m // 2] = 0
    return x.astype(np.float32)


def weight(n: int, k: int, turn: int, *, scale: float | None = None, bias: bool = False) -> tuple[tuple, dict]:
    """The arguments of `reference.linear`."""
    random = np.random.default_rng(n + k)
    integers = random.integers(-127, 128, (n, k)).astype(np.int8)
    weight_scale = random.uniform(1e-4, 1e-2, n).astype(np.float32)
    product_scale = weight_scale if scale is None else np.float32(scale) * weight_scale
    tiles = pack_tiles(integers)
    hot, hot_weight = np.empty(0, np.int32), np.empty((0, n), np.float16)
    biased = random.standard_normal(n).astype(np.float32) if bias else None
    arguments = (tiles, n, scale, product_scale, row_sums(tiles, n), hot, hot_weight)
    return arguments, {"bias": biased, "turn": turn}


def opened(arguments: tuple, how: dict, k: int) -> linear.Int8Linear:
    tiles, n, *others = arguments
    return linear.Int8Linear(tiles, n, k, *others, how["bias"], turn=how["turn"])


@pytest.mark.parametrize("block", BLOCKS)
def test_a_turn_multiplies_by_the_hadamard_matrix(isa: str, block: int) -> None:
    x = rows(5, 256)
    found = x.copy()
    pointwise.turn(found, block, POOL)
    np.testing.assert_array_equal(found, reference.turn(x, block))
    matrix = reference.turn(np.eye(max(block, 1), dtype=np.float32), block)
    wanted = x.reshape(5, -1, len(matrix)) @ matrix
    np.testing.assert_allclose(found, wanted.reshape(x.shape), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(matrix @ matrix, len(matrix) * np.eye(len(matrix)))


@pytest.mark.parametrize("columns, block", [(172, 4), (40, 8), (6, 2), (48, 16), (96, 32)])
def test_a_turn_takes_any_whole_number_of_blocks(isa: str, columns: int, block: int) -> None:
    x = rows(3, columns)
    found = x.copy()
    pointwise.turn(found, block, POOL)
    np.testing.assert_array_equal(found, reference.turn(x, block))


@pytest.mark.parametrize("block", [1, 3, 24, 256, -2])
def test_other_blocks_are_refused(block: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        pointwise.turn(rows(2, 768), block, POOL)


def test_blocks_that_do_not_divide_the_channels_are_refused() -> None:
    with pytest.raises(ValueError, match="divides 40 channels"):
        pointwise.turn(rows(2, 40), 16, POOL)
    with pytest.raises(ValueError, match="divides 40 channels"):
        opened(*weight(16, 40, 16), 40)


@pytest.mark.thorough(keep=12)
@pytest.mark.parametrize("scale", [None, 0.05])
@pytest.mark.parametrize("m", [1, 2, 7, 13, 130])
@pytest.mark.parametrize("n, k, turn", [(16, 40, 0), (24, 64, 64), (33, 172, 4), (96, 256, 128), (64, 576, 16)])
def test_a_linear_gives_the_bits_of_its_reference(isa: str, m: int, n: int, k: int, turn: int, scale: float | None) -> None:
    arguments, how = weight(n, k, turn, scale=scale, bias=m % 2 == 0)
    x, gain = rows(m, k), np.random.default_rng(1).standard_normal(k).astype(np.float32)
    add = rows(m, n, seed=3)
    found = linear.linear(x, opened(arguments, how, k), POOL, gain=gain, eps=1e-5, add=add)
    wanted = reference.linear(x, *arguments, **how, gain=gain, eps=1e-5, add=add)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("scale", [None, 0.05])
def test_swiglu_of_turned_rows(isa: str, scale: float | None) -> None:
    arguments, how = weight(64, 128, 32, scale=scale)
    for m in (1, 3, 40):
        x = rows(m, 128)
        found = linear.linear(x, opened(arguments, how, 128), POOL, swiglu=True)
        np.testing.assert_array_equal(found, reference.linear(x, *arguments, **how, swiglu=True))


@pytest.mark.parametrize("turn, scale", [(0, None), (64, None), (64, 0.05)])
def test_a_row_does_not_depend_on_the_others(isa: str, turn: int, scale: float | None) -> None:
    arguments, how = weight(48, 128, turn, scale=scale)
    x, handle = rows(150, 128), opened(arguments, how, 128)
    whole = linear.linear(x, handle, ThreadPool(3))
    for first, last in ((0, 1), (3, 10), (140, 150)):
        np.testing.assert_array_equal(linear.linear(x[first:last], handle, ThreadPool(1)), whole[first:last])


@pytest.mark.parametrize("turn", [0, 32])
def test_row_scales_reach_over_every_value(turn: int) -> None:
    x = rows(6, 64)
    x[1, 3] = 1e6
    q, scale = reference.quantize_rows(x, turn=turn)
    turned = reference.turn(x, turn)
    assert np.abs(q).max(axis=1).tolist() == [127, 127, 127, 0, 127, 127]
    assert np.abs(q * scale[:, None] - turned).max() <= 0.5001 * scale.max()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(isa: str, value: float) -> None:
    arguments, how = weight(16, 64, 64)
    x, out = rows(3, 64), np.full((3, 16), 7, np.float32)
    x[2, 5] = value
    with pytest.raises(ValueError, match="non-finite activation"):
        linear.linear(x, opened(arguments, how, 64), POOL, out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("largest", [3e38, 1e-40, 0.0])
def test_enormous_and_tiny_rows(isa: str, largest: float) -> None:
    """A turned sum beyond float32 is refused; without a turn even the largest float is a row like any other."""
    x = np.full((2, 64), largest, np.float32)
    arguments, how = weight(16, 64, 0)
    np.testing.assert_array_equal(
        linear.linear(x, opened(arguments, how, 64), POOL), reference.linear(x, *arguments, **how)
    )
    arguments, how = weight(16, 64, 64)
    if largest > 1e38:
        with pytest.raises(ValueError, match="non-finite activation"):
            linear.linear(x, opened(arguments, how, 64), POOL)
    else:
        np.testing.assert_array_equal(
            linear.linear(x, opened(arguments, how, 64), POOL), reference.linear(x, *arguments, **how)
        )


def test_hot_channels_do_not_go_with_a_turn_or_row_scales() -> None:
    tiles, n, _, product_scale, row_sum, _, _ = weight(16, 64, 0)[0]
    k = 64
    hot = (np.array([3], np.int32), np.zeros((1, 16), np.float16))
    with pytest.raises(ValueError, match="hot"):
        linear.Int8Linear(tiles, n, k, 0.1, product_scale, row_sum, *hot, None, turn=64)
    with pytest.raises(ValueError, match="hot"):
        linear.Int8Linear(tiles, n, k, None, product_scale, row_sum, *hot, None)


@pytest.mark.parametrize("residual", [True, False])
def test_turned_rows_are_quantized_and_their_overflow_kept(isa: str, residual: bool) -> None:
    x = rows(9, 128)
    none = np.empty(0, np.int32)
    q, rest = linear.quantize(x, 0.01, none, POOL, residual=residual, turn=64)
    wanted, wanted_rest = reference.quantize(x, 0.01, none, residual=residual, turn=64)
    np.testing.assert_array_equal(q, wanted)
    for found, other in zip(rest, wanted_rest, strict=True):
        np.testing.assert_array_equal(found, other)
    assert residual == bool(len(rest.value))


@pytest.mark.parametrize("block", [0, 8, 64])
def test_embeddings_are_turned_last(isa: str, block: int) -> None:
    tiles, _, _, scale, _, hot, hot_weight = weight(40, 192, 0)[0]
    k = 192
    tokens = np.array([0, 39, 7, 7], np.int64)
    found = embedding.embedding(tokens, tiles, k, scale, hot, hot_weight, POOL, turn=block)
    wanted = reference.embedding(tokens, tiles, k, scale, hot, hot_weight, turn=block)
    np.testing.assert_array_equal(found, wanted)
    plain = reference.embedding(tokens, tiles, k, scale, hot, hot_weight)
    np.testing.assert_array_equal(wanted, reference.turn(plain, block))


def key_arguments(seed: int, turn: int) -> tuple[list, np.ndarray]:
    """The arguments of `rope_append` for 5 rows of 4 heads and 2 key heads of 32 channels, and its qkv."""
    random = np.random.default_rng(seed)
    qkv = random.standard_normal((5, 8 * 32)).astype(np.float32)
    cos, sin = (random.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    gain, offset = random.standard_normal(32).astype(np.float32), random.standard_normal((2, 32)).astype(np.float32)
    pages = [np.zeros((2, 2, 16, 32), np.int8), np.zeros((2, 2, 16), np.float16)] * 2
    pages = [page.copy() for page in pages]
    positions, slots = np.arange(5, dtype=np.int32), np.arange(5, dtype=np.int64) + 3
    return [qkv, 4, 2, 32, positions, cos, sin, gain, gain, 1e-5, offset, *pages, slots], qkv


@pytest.mark.parametrize("turn", [0, 8, 32])
def test_queries_and_keys_are_turned_behind_the_rotation(isa: str, turn: int) -> None:
    native, qkv = key_arguments(0, turn)
    numpy, wanted = key_arguments(0, turn)
    attention.rope_append(*native, POOL, turn=turn)
    reference.rope_append(*numpy, turn)
    np.testing.assert_array_equal(qkv, wanted)
    for found, other in zip(native[11:15], numpy[11:15], strict=True):
        np.testing.assert_array_equal(found, other)


def test_turned_queries_and_keys_give_the_same_scores() -> None:
    plain, straight = key_arguments(0, 0)
    turned_arguments, turned = key_arguments(0, 32)
    attention.rope_append(*plain, POOL)
    attention.rope_append(*turned_arguments, POOL, turn=32)

    def scores(qkv: np.ndarray) -> np.ndarray:
        heads = qkv.reshape(5, 8, 32).astype(np.float64)
        return np.einsum("mhd,nhd->hmn", heads[:, :4], np.repeat(heads[:, 4:6], 2, axis=1))

    np.testing.assert_allclose(scores(turned) / 32, scores(straight), rtol=1e-4, atol=1e-4)


def test_a_program_runs_turned_calls(isa: str) -> None:
    arguments, how = weight(48, 64, 32)
    tiles, _, _, scale, _, hot, hot_weight = weight(40, 64, 0)[0]
    k = 64
    native, numpy = Program(), reference.Program()
    for program, handle in ((native, opened(arguments, how, 64)), (numpy, arguments)):
        x, y = np.zeros((4, 64), np.float32), np.zeros((4, 48), np.float32)
        program.embedding(tiles, k, scale, hot, hot_weight, out=x, turn=16)
        more = {} if program is native else how
        program.linear(x, handle, out=y, **more)
        rows_of_run = (np.array([1, 5, 39, 0]), np.zeros(4, np.int32), np.zeros(4, np.int64), np.zeros(4, np.int32))
        table = np.zeros((1, 1), np.int32)
        program.run(*rows_of_run, table, *((POOL,) if program is native else ()))
        if program is native:
            found = y
    np.testing.assert_array_equal(found, y)
