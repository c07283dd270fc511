"""Attention over paged INT8 keys and values: equal to the reference bit for bit, however the rows are handed over."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm import kernels
from edge_llm.kernels import attention, pointwise, reference

F32 = reference.F32
PAGE = attention.PAGE


@pytest.fixture(scope="module")
def pool(pools: list[kernels.ThreadPool]) -> kernels.ThreadPool:
    return pools[3]


def assert_same_bits(actual: F32, expected: F32) -> None:
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual.view(np.int32), expected.view(np.int32))


class Pages(NamedTuple):
    k: reference.I8  # [P, Hkv, 16, D]
    k_scale: reference.F16  # [P, Hkv, 16]
    v: reference.I8
    v_scale: reference.F16

    def copy(self) -> Pages:
        return Pages(self.k.copy(), self.k_scale.copy(), self.v.copy(), self.v_scale.copy())


def stale_pages(count: int, kv_heads: int, dim: int) -> Pages:
    """Pages as another sequence left them: any integer, any finite scale."""
    generator = np.random.default_rng([count, kv_heads, dim])
    shape = (count, kv_heads, PAGE, dim)
    integers = [generator.integers(-128, 128, shape).astype(np.int8) for _ in range(2)]
    scales = [generator.choice([6e-8, 1.0, -3.0, 65504.0], shape[:3]).astype(np.float16) for _ in range(2)]
    return Pages(integers[0], scales[0], integers[1], scales[1])


class Problem(NamedTuple):
    q: F32  # [T, Hq, D], a view of the joint matrix
    k: F32  # [T, Hkv, D], likewise
    v: F32
    pages: Pages  # the T tokens appended
    table: reference.I32  # [1, max_pages]
    slots: reference.I64  # [T]


@lru_cache
def problem(heads: int, kv_heads: int, dim: int, tokens: int) -> Problem:
    generator = np.random.default_rng([heads, kv_heads, dim, tokens])
    joint = generator.standard_normal((tokens, heads + 2 * kv_heads, dim)).astype(np.float32)
    joint[generator.random(joint.shape) < 0.001] *= 100
    q, k, v = joint[:, :heads], joint[:, heads : heads + kv_heads], joint[:, heads + kv_heads :]
    needed = -(-tokens // PAGE)
    table = generator.permutation(needed + 3)[: needed + 1].astype(np.int32)
    slots = table[np.arange(tokens) // PAGE].astype(np.int64) * PAGE + np.arange(tokens) % PAGE
    pages = stale_pages(needed + 3, kv_heads, dim)
    reference.append_kv(k, v, *pages, slots)
    return Problem(q, k, v, pages, table[None], slots)


class Rope(NamedTuple):
    positions: reference.I32  # [M]
    cos: F32  # [C, D/2]
    sin: F32


def append(k: F32, v: F32, pages: Pages, slots: reference.I64, pool: kernels.ThreadPool) -> None:
    """k, v [M, Hkv, D] as they are: no queries, no norms, no turn, no offset."""
    m, kv_heads, dim = k.shape
    qkv = np.concatenate([k, v], axis=1).reshape(m, 2 * kv_heads * dim)
    still = Rope(np.zeros(m, np.int32), np.ones((1, dim // 2), np.float32), np.zeros((1, dim // 2), np.float32))
    offset = np.zeros((kv_heads, dim), np.float32)
    no_norm = (None, None, 1e-6)
    attention.rope_append(qkv, 0, kv_heads, dim, *still, *no_norm, offset, *pages, slots=slots, pool=pool)


def by_token(pages: Pages) -> Pages:
    """The integers as [P, Hkv, 16, D]."""
    return pages._replace(k=reference.keys_of(pages.k), v=reference.values_of(pages.v))


def attend(p: Problem, rows: list[int], pool: kernels.ThreadPool) -> F32:
    """The tokens `rows` of the one sequence, each seeing everything up to itself."""
    position = np.array(rows, np.int32)
    sequence = np.zeros(len(rows), np.int32)
    return attention.paged_attention(p.q[rows], *p.pages, p.table, sequence, position, softmax_scale(p), pool)


def softmax_scale(p: Problem) -> float:
    return float(p.q.shape[2] ** -0.5)


SHAPES = [  # query heads, kv heads, head size, tokens
    (14, 2, 64, 700),
    (3, 1, 8, 40),
    (4, 4, 40, 20),
    (6, 3, 80, 260),
    (8, 2, 128, 530),
    (2, 2, 256, 17),
    (9, 1, 32, 100),
    (71, 1, 16, 33),
    (1, 1, 24, 1),
]


def some_rows(tokens: int) -> list[int]:
    edges = [0, 1, 14, 15, 16, 17, 254, 255, 256, 257, 511, 512, tokens - 2, tokens - 1]
    return sorted({row for row in edges if 0 <= row < tokens})


@lru_cache
def expected_rows(shape: tuple[int, int, int, int]) -> F32:
    p, rows = problem(*shape), some_rows(shape[3])
    position, sequence = np.array(rows, np.int32), np.zeros(len(rows), np.int32)
    return reference.paged_attention(p.q[rows], *p.pages, p.table, sequence, position, softmax_scale(p))


# ---- rope_append --------------------------------------------------------------------------------------------------


def turned(m: int, dim: int, generator: np.random.Generator) -> Rope:
    angle = generator.uniform(-4, 4, (m + 5, dim // 2))
    positions = generator.integers(0, m + 5, m).astype(np.int32)
    return Rope(positions, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32))


@pytest.mark.parametrize("gains", [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize(
    ("m", "heads", "kv_heads", "dim"),
    [(0, 4, 2, 64), (1, 14, 2, 64), (1, 1, 1, 8), (5, 6, 3, 40), (33, 8, 2, 128), (70, 14, 2, 64), (3, 2, 1, 256)],
)
def test_rope_append_equals_the_reference(
    isa: str, pools: list[kernels.ThreadPool], m: int, heads: int, kv_heads: int, dim: int, gains: tuple[bool, bool]
) -> None:
    generator = np.random.default_rng([m, heads, kv_heads, dim])
    source = generator.standard_normal((m, (heads + 2 * kv_heads) * dim)).astype(np.float32)
    source[generator.random(source.shape) < 0.01] *= 1e3
    q_gain, k_gain = (generator.standard_normal(dim).astype(np.float32) if given else None for given in gains)
    k_offset = generator.standard_normal((kv_heads, dim)).astype(np.float32)
    rope = turned(m, dim, generator)
    count = m // PAGE + 2
    slots = generator.permutation(count * PAGE)[:m]
    slots[1::7] = -1  # left out
    arguments = heads, kv_heads, dim, *rope, q_gain, k_gain, 1e-6, k_offset
    expected, expected_pages = source.copy(), stale_pages(count, kv_heads, dim)
    reference.rope_append(expected, *arguments, *expected_pages, slots)
    for pool in pools:
        qkv, pages = source.copy(), stale_pages(count, kv_heads, dim)
        attention.rope_append(qkv, *arguments, *pages, slots, pool)
        assert_same_bits(qkv, expected)
        for actual, wanted in zip(pages, expected_pages, strict=True):
            np.testing.assert_array_equal(actual, wanted)


@pytest.mark.parametrize("start", [0, 1, 15])
@pytest.mark.parametrize("dim", [8, 40, 64])
def test_neighbouring_tokens_are_stored_as_if_each_came_alone(
    isa: str, pools: list[kernels.ThreadPool], dim: int, start: int
) -> None:
    m, heads, kv_heads = 70, 3, 2
    generator = np.random.default_rng([dim, start])
    source = generator.standard_normal((m, (heads + 2 * kv_heads) * dim)).astype(np.float32)
    rope, k_offset = turned(m, dim, generator), generator.standard_normal((kv_heads, dim)).astype(np.float32)
    slots = np.arange(start, start + m, dtype=np.int64)
    slots[[4, 11, 12, 40]] = -1  # left out: an even one, an odd one, both of a pair
    slots[50:54] = slots[[53, 51, 52, 50]]
    alone = stale_pages(6, kv_heads, dim)
    for row in range(m):
        one = slice(row, row + 1)
        arguments = heads, kv_heads, dim, rope.positions[one], rope.cos, rope.sin, None, None, 1e-6, k_offset
        reference.rope_append(source[one].copy(), *arguments, *alone, slots[one])
    for pool in pools:
        pages = stale_pages(6, kv_heads, dim)
        attention.rope_append(source.copy(), heads, kv_heads, dim, *rope, None, None, 1e-6, k_offset, *pages, slots, pool)
        for actual, wanted in zip(pages, alone, strict=True):
            np.testing.assert_array_equal(actual, wanted)


def test_rope_append_is_the_composition(isa: str, pool: kernels.ThreadPool) -> None:
    m, heads, kv_heads, dim = 40, 6, 2, 64
    generator = np.random.default_rng(4)
    qkv = generator.standard_normal((m, (heads + 2 * kv_heads) * dim)).astype(np.float32)
    gain, k_offset = (generator.standard_normal(shape).astype(np.float32) for shape in (dim, (kv_heads, dim)))
    rope, slots = turned(m, dim, generator), np.arange(m, dtype=np.int64)
    joint = qkv.copy().reshape(m, heads + 2 * kv_heads, dim)
    q_and_k = joint[:, : heads + kv_heads]
    pointwise.head_norm(q_and_k, gain, 1e-5, pool)
    pointwise.rope(q_and_k, *rope, pool)
    expected = stale_pages(3, kv_heads, dim)
    append(joint[:, heads : heads + kv_heads] - k_offset, joint[:, heads + kv_heads :], expected, slots, pool)
    pages = stale_pages(3, kv_heads, dim)
    attention.rope_append(qkv, heads, kv_heads, dim, *rope, gain, gain, 1e-5, k_offset, *pages, slots, pool)
    assert_same_bits(qkv.reshape(joint.shape)[:, :heads], joint[:, :heads])
    for actual, wanted in zip(pages, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)


@given(st.data())
@settings(max_examples=40)
def test_rope_append_of_families_equals_the_reference(pools: list[kernels.ThreadPool], data: st.DataObject) -> None:
    """Partial rotation or none, norms behind it, normed values, factors of queries."""
    heads, kv_heads, dim = data.draw(st.sampled_from([(6, 2, 64), (4, 4, 40), (2, 1, 96), (3, 1, 8)]))
    m, rotated = data.draw(st.integers(0, 40)), 2 * data.draw(st.integers(0, dim // 2))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    source = generator.standard_normal((m, (heads + 2 * kv_heads) * dim)).astype(np.float32)
    q_gain, k_gain, v_gain = (
        generator.standard_normal(dim).astype(np.float32) if data.draw(st.booleans()) else None for _ in range(3)
    )
    rope, k_offset = turned(m, rotated, generator), generator.standard_normal((kv_heads, dim)).astype(np.float32)
    how = {
        "turn": data.draw(st.sampled_from([0, 2, 8])),
        "v_gain": v_gain,
        "norm_last": data.draw(st.booleans()),
        "q_scale": generator.standard_normal(len(rope.cos)).astype(np.float32) if data.draw(st.booleans()) else None,
    }
    slots = generator.permutation((m // PAGE + 1) * PAGE)[:m]
    arguments = heads, kv_heads, dim, *rope, q_gain, k_gain, 1e-6, k_offset
    expected, expected_pages = source.copy(), stale_pages(m // PAGE + 1, kv_heads, dim)
    reference.rope_append(expected, *arguments, *expected_pages, slots, **how)
    pool, chosen = pools[data.draw(st.integers(0, 3))], kernels.isa()
    try:
        for name in kernels.isa_variants():
            kernels.use_isa(name)
            qkv, pages = source.copy(), stale_pages(m // PAGE + 1, kv_heads, dim)
            attention.rope_append(qkv, *arguments, *pages, slots, pool, **how)
            assert_same_bits(qkv, expected)
            for actual, wanted in zip(pages, expected_pages, strict=True):
                np.testing.assert_array_equal(actual, wanted)
    finally:
        kernels.use_isa(chosen)


def test_no_rotation_and_a_part_leave_the_other_channels(isa: str, pool: kernels.ThreadPool) -> None:
    m, heads, kv_heads, dim = 9, 3, 1, 32
    generator = np.random.default_rng(2)
    source = generator.standard_normal((m, (heads + 2 * kv_heads) * dim)).astype(np.float32)
    slots, offset = np.arange(m, dtype=np.int64), np.zeros((kv_heads, dim), np.float32)
    for rotated in (0, 8, 32):
        qkv, rope = source.copy(), turned(m, rotated, generator)
        pages = stale_pages(1, kv_heads, dim)
        attention.rope_append(qkv, heads, kv_heads, dim, *rope, None, None, 1e-6, offset, *pages, slots, pool)
        before, after = (x.reshape(m, -1, dim)[:, : heads + kv_heads] for x in (source, qkv))
        np.testing.assert_array_equal(after[..., rotated:], before[..., rotated:])
        assert (after[..., :rotated] != before[..., :rotated]).all()


def test_pages_lie_in_pairs() -> None:
    tokens = np.arange(PAGE * 8, dtype=np.int8).reshape(PAGE, 8)
    keys, values = reference.key_page(tokens).reshape(4, PAGE, 2), reference.value_page(tokens).reshape(PAGE // 2, 8, 2)
    for token in range(PAGE):
        np.testing.assert_array_equal(keys[:, token].reshape(-1), tokens[token])
        np.testing.assert_array_equal(values[token // 2, :, token % 2], tokens[token])
    np.testing.assert_array_equal(reference.keys_of(keys.reshape(tokens.shape)), tokens)
    np.testing.assert_array_equal(reference.values_of(values.reshape(tokens.shape)), tokens)


def test_append_of_hard_rows(isa: str, pool: kernels.ThreadPool) -> None:
    dim = 24
    ramp = np.linspace(-1, 1, dim)
    rows: list[np.ndarray] = [ramp * size for size in (0, -0.0, 1e-45, 1e-41, 1e-6, 8e-6, 1, 1e4, 8e6, 8.4e6, 1e20, 3e38)]
    rows += [np.full(dim, 2.5), np.where(np.arange(dim) == 3, 1e4, ramp), np.arange(dim) * 0.5]
    k = np.array(rows, np.float32)[:, None]
    slots = np.arange(len(rows), dtype=np.int64)
    pages, expected = stale_pages(2, 1, dim), stale_pages(2, 1, dim)
    append(k, -k, pages, slots, pool)
    reference.append_kv(k, -k, *expected, slots)
    for actual, wanted in zip(pages, expected, strict=True):
        np.testing.assert_array_equal(actual, wanted)
    assert np.isfinite(pages.k_scale).all() and by_token(pages).k.reshape(-1, dim)[: len(rows)].min() >= -127
    np.testing.assert_array_equal(by_token(pages).k[0, 0, 0], 0)


def test_append_is_within_half_a_step(pool: kernels.ThreadPool) -> None:
    k = np.random.default_rng(0).standard_normal((64, 2, 64)).astype(np.float32)
    pages = stale_pages(4, 2, 64)
    append(k, k, pages, np.arange(64, dtype=np.int64), pool)
    step = pages.k_scale.astype(np.float32)[..., None]
    restored = (by_token(pages).k * step).transpose(0, 2, 1, 3).reshape(64, 2, 64)
    # Half a step, and float16's rounding of the step where the value is clamped.
    bound = step.transpose(0, 2, 1, 3).reshape(64, 2, 1) * 0.57
    assert (np.abs(restored - k) <= bound).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 9, 23])
def test_append_refuses_what_is_not_finite(isa: str, pool: kernels.ThreadPool, bad: float, place: int) -> None:
    k = np.ones((3, 1, 24), np.float32)
    v = k.copy()
    v[1, 0, place] = bad
    pages = stale_pages(1, 1, 24)
    with pytest.raises(ValueError, match="non-finite key or value"):
        append(k, v, pages, np.arange(3, dtype=np.int64), pool)
    np.testing.assert_array_equal(by_token(pages).v[0, 0, 1], 0)  # nothing that is not finite gets into a page
    assert np.isfinite(pages.v_scale).all()


# ---- paged_attention ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_equals_the_reference(isa: str, pools: list[kernels.ThreadPool], shape: tuple[int, int, int, int]) -> None:
    for pool in pools:
        assert_same_bits(attend(problem(*shape), some_rows(shape[3]), pool), expected_rows(shape))


@pytest.mark.parametrize("shape", [(14, 2, 64, 700), (8, 8, 64, 530)])
def test_a_row_alone_has_the_bits_of_a_batch(
    isa: str, pools: list[kernels.ThreadPool], shape: tuple[int, int, int, int]
) -> None:
    p = problem(*shape)
    rows = [*some_rows(shape[3]), *range(300, 340)]
    together = attend(p, rows, pools[3])
    for pool in (pools[0], pools[3]):  # alone, a deep row's segments are shared out over the threads
        assert_same_bits(np.concatenate([attend(p, [row], pool) for row in rows]), together)
    assert_same_bits(attend(p, rows[::-1], pools[2])[::-1], together)


def test_rows_of_several_sequences_in_any_order(isa: str, pools: list[kernels.ThreadPool]) -> None:
    lengths = [5, 300, 1, 600]
    generator = np.random.default_rng(8)
    pages = stale_pages(70, 2, 64)
    free = generator.permutation(70)
    table = np.full((4, 40), -1, np.int32)  # beyond a sequence's pages there is nothing
    rows = []
    for sequence, length in enumerate(lengths):
        needed = -(-length // PAGE)
        table[sequence, :needed], free = free[:needed], free[needed:]
        tokens = np.arange(length)
        slots = table[sequence, tokens // PAGE].astype(np.int64) * PAGE + tokens % PAGE
        k = generator.standard_normal((length, 2, 64)).astype(np.float32)
        append(k, k[::-1].copy(), pages, slots, pools[0])
        rows += [(sequence, position) for position in {0, length // 2, length - 2, length - 1} if position >= 0]
    order = generator.permutation(len(rows))
    sequence, position = np.array(rows, np.int32)[order].T.copy()
    q = generator.standard_normal((len(rows), 6, 64)).astype(np.float32)
    expected = reference.paged_attention(q, *pages, table, sequence, position, 0.125)
    for pool in pools:
        assert_same_bits(attention.paged_attention(q, *pages, table, sequence, position, 0.125, pool), expected)


def test_page_numbers_do_not_matter(isa: str, pool: kernels.ThreadPool) -> None:
    p = problem(14, 2, 64, 700)
    count = p.pages.k.shape[0]
    moved = np.random.default_rng(3).permutation(count)  # page i goes to moved[i]
    pages = p.pages.copy()
    pages.k[moved], pages.k_scale[moved] = p.pages.k, p.pages.k_scale
    pages.v[moved], pages.v_scale[moved] = p.pages.v, p.pages.v_scale
    elsewhere = p._replace(pages=pages, table=moved[p.table].astype(np.int32))
    rows = some_rows(700)
    assert_same_bits(attend(elsewhere, rows, pool), attend(p, rows, pool))


@pytest.mark.parametrize("chunk", [1, 7, 16, 100, 256])
def test_chunks_equal_the_whole(isa: str, pool: kernels.ThreadPool, chunk: int) -> None:
    p = problem(6, 2, 32, 290)
    whole = attend(p, list(range(290)), pool)
    pages = stale_pages(p.pages.k.shape[0], 2, 32)
    parts = []
    for begin in range(0, 290, chunk):
        rows = slice(begin, begin + chunk)
        append(p.k[rows], p.v[rows], pages, p.slots[rows], pool)
        parts.append(attend(p._replace(pages=pages), list(range(290))[rows], pool))
    assert_same_bits(np.concatenate(parts), whole)


def test_what_lies_beyond_a_row_never_matters(isa: str, pools: list[kernels.ThreadPool]) -> None:
    p = problem(14, 2, 64, 700)
    rows = [3, 100, 300, 301]
    expected = attend(p, rows, pools[0])
    pages = p.pages.copy()
    flat_slots = p.slots[302:]
    page, offset = flat_slots // PAGE, flat_slots % PAGE
    integers = by_token(pages)
    integers.k[page, :, offset] = integers.v[page, :, offset] = -128
    pages = pages._replace(k=reference.key_page(integers.k), v=reference.value_page(integers.v))
    for scales, value in ((pages.k_scale, np.inf), (pages.v_scale, np.nan)):
        scales[page, :, offset] = value
    for pool in pools:
        assert_same_bits(attend(p._replace(pages=pages), rows, pool), expected)


def test_a_row_that_sees_nothing_gives_zeros(isa: str, pools: list[kernels.ThreadPool]) -> None:
    p = problem(14, 2, 64, 700)
    position = np.array([-1, 650, 651, -1], np.int32)
    sequence = np.zeros(4, np.int32)
    for pool in pools:
        out = np.full((4, 14, 64), np.nan, np.float32)
        result = attention.paged_attention(p.q[:4], *p.pages, p.table, sequence, position, 0.125, pool, out=out)
        assert result is out
        np.testing.assert_array_equal(out[[0, 3]], 0)
        alone = attention.paged_attention(p.q[1:3], *p.pages, p.table, sequence[1:3], position[1:3], 0.125, pool)
        assert_same_bits(out[1:3], alone)
        empty = attention.paged_attention(p.q[:2], *p.pages, p.table, sequence[:2], position[[0, 3]], 0.125, pool)
        np.testing.assert_array_equal(empty, 0)
    assert attend(p, [], pools[3]).shape == (0, 14, 64)


def test_hard_values_equal_the_reference(isa: str, pool: kernels.ThreadPool) -> None:
    tokens, dim = 300, 40
    generator = np.random.default_rng(5)
    k = generator.standard_normal((tokens, 1, dim)).astype(np.float32)
    k[10] = 0
    k[20:40] = 1.5  # equal scores
    k[50] = 1e4
    k[60:70] *= 1e-6
    v = k[::-1] * np.float32(30)
    p = problem(6, 1, dim, tokens)
    pages = stale_pages(p.pages.k.shape[0], 1, dim)
    append(k, v.copy(), pages, p.slots, pool)
    q = generator.standard_normal((7, 6, dim)).astype(np.float32)
    q[0] = 0
    q[1] = -0.0
    q[2] = 1e4
    q[3, :, ::5] *= 1e4
    q[4] *= 1e-41
    q[5] *= 1e15
    q[6] *= 1e-3
    position = np.array([299, 299, 299, 298, 280, 299, 40], np.int32)
    sequence = np.zeros(7, np.int32)
    expected = reference.paged_attention(q, *pages, p.table, sequence, position, 0.3)
    assert np.isfinite(expected).all()
    assert_same_bits(attention.paged_attention(q, *pages, p.table, sequence, position, 0.3, pool), expected)
    # A query of zeros sees every value with the same weight, up to 2^-16 of the largest value's.
    values = by_token(pages).v * pages.v_scale.astype(np.float64)[..., None]
    restored = values[p.table[0], 0].reshape(-1, dim)
    np.testing.assert_allclose(expected[0, 0], restored[:300].mean(0), rtol=1e-3, atol=0.2)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_query_that_is_not_finite_spoils_only_its_own_head(isa: str, pools: list[kernels.ThreadPool], bad: float) -> None:
    p = problem(14, 2, 64, 700)
    rows = [250, 600, 699]
    q = p.q[rows].copy()
    q[1, 4, 7] = bad
    position, sequence = np.array(rows, np.int32), np.zeros(3, np.int32)
    expected = attend(p, rows, pools[0])
    for pool in pools:
        result = attention.paged_attention(q, *p.pages, p.table, sequence, position, softmax_scale(p), pool)
        assert np.isnan(result[1, 4]).all()
        result[1, 4] = expected[1, 4]
        assert_same_bits(result, expected)


def float_attention(p: Problem, pages: Pages, rows: list[int], seen: Seen | None = None) -> np.ndarray:
    """float64, on the pages' own keys and values: [M, Hq, D]."""
    integers, group = by_token(pages), p.q.shape[1] // p.k.shape[1]

    def restored(q: reference.I8, scale: reference.F16) -> np.ndarray:  # [T, Hq, D]
        x = (q.astype(np.float64) * scale.astype(np.float64)[..., None])[p.table[0, :-1]]
        return np.repeat(x.transpose(0, 2, 1, 3).reshape(-1, x.shape[1], x.shape[3]), group, axis=1)

    k, v = restored(integers.k, pages.k_scale), restored(integers.v, pages.v_scale)
    score = np.einsum("mhd,thd->hmt", p.q[rows].astype(np.float64), k) * softmax_scale(p)
    window, cap, sinks = seen or Seen()
    if cap:
        score = cap * np.tanh(score / cap)
    behind = np.array(rows)[:, None] - np.arange(k.shape[0])
    score[:, (behind < 0) | (behind >= (window or len(k)))] = -np.inf
    weight, total = np.exp(score), np.exp(score).sum(-1, keepdims=True)
    if sinks is not None:
        total = total + np.exp(sinks)[:, None, None]
    return np.einsum("hmt,thd->mhd", weight / total, v)


@pytest.mark.parametrize("sharpness", [0.0, 1.0, 8.0])
@pytest.mark.parametrize("shape", [(14, 2, 64, 700), (3, 1, 8, 40), (8, 2, 128, 530)])
def test_int16_queries_and_weights_cost_little(
    pool: kernels.ThreadPool, shape: tuple[int, int, int, int], sharpness: float
) -> None:
    p = problem(*shape)
    p = p._replace(q=np.clip(p.q, -5, 5) * np.float32(sharpness))
    rows = some_rows(shape[3])
    exact = float_attention(p, p.pages, rows)
    error = attend(p, rows, pool) - exact
    # A score moves by at most 2^-16 * max|q| * sum|k| * scale, a weight by 2^-16 of the largest; both average out.
    assert np.abs(error).max() < (3e-4 + 2e-3 * sharpness) * np.abs(exact).max()
    assert np.sqrt((error**2).mean()) < (2e-4 + 1e-4 * sharpness) * np.sqrt((exact**2).mean())


def test_close_to_float_attention(pool: kernels.ThreadPool) -> None:
    tokens, heads, kv_heads, dim = 700, 14, 2, 64
    generator = np.random.default_rng(1)
    q, k, v = (generator.standard_normal((tokens, n, dim)).astype(np.float32) for n in (heads, kv_heads, kv_heads))
    p = problem(heads, kv_heads, dim, tokens)
    pages = stale_pages(p.pages.k.shape[0], kv_heads, dim)
    append(k, v, pages, p.slots, pool)
    result = attend(p._replace(q=q, pages=pages), list(range(tokens)), pool)

    score = np.einsum("mhd,thd->hmt", q, np.repeat(k, 7, axis=1), dtype=np.float64) / np.sqrt(dim)
    score[:, np.triu(np.ones((tokens, tokens), bool), 1)] = -np.inf
    weight = np.exp(score - score.max(-1, keepdims=True))
    exact = np.einsum("hmt,thd->mhd", weight / weight.sum(-1, keepdims=True), np.repeat(v, 7, axis=1))
    error = result - exact
    # INT8 keys and values: steps of absmax/127 leave an error of about 0.6 % of a value's spread.
    assert np.sqrt((error**2).mean()) < 0.004 * np.sqrt((exact**2).mean()) + 0.002
    assert np.abs(error).max() < 0.05


# ---- windows, caps, sinks -----------------------------------------------------------------------------------------


class Seen(NamedTuple):
    """What rows see, and how."""

    window: int = 0
    cap: float = 0.0
    sinks: F32 | None = None


def attend_seen(p: Problem, rows: list[int], seen: Seen, pool: kernels.ThreadPool | None) -> F32:
    """`attend` through a window, or the reference without a pool."""
    position, sequence = np.array(rows, np.int32), np.zeros(len(rows), np.int32)
    where = p.table, sequence, position, softmax_scale(p)
    if pool is None:
        return reference.paged_attention(p.q[rows], *p.pages, *where, **seen._asdict())
    return attention.paged_attention(p.q[rows], *p.pages, *where, pool, **seen._asdict())


def some_sinks(heads: int) -> F32:
    return np.random.default_rng(heads).normal(0, 3, heads).astype(np.float32)


WINDOWED = [(14, 2, 64, 700), (8, 8, 16, 700), (3, 1, 40, 290), (2, 1, 512, 300)]


@given(st.data())
@settings(max_examples=60)
def test_windows_caps_and_sinks_equal_the_reference(pools: list[kernels.ThreadPool], data: st.DataObject) -> None:
    """Windows of 1 to 600 tokens, across the borders of pages and segments, for rows in any order."""
    shape = data.draw(st.sampled_from(WINDOWED))
    tokens = shape[3]
    border = st.sampled_from([1, 2, 15, 16, 17, 31, 32, 33, 255, 256, 257, 271, 272, 273, 511, 512, 513])
    window = data.draw(border | st.integers(1, 600))
    rows = data.draw(st.lists(st.sampled_from(some_rows(tokens)) | st.integers(0, tokens - 1), min_size=1, max_size=12))
    if data.draw(st.booleans()):
        rows = list(range(min(rows), min(min(rows) + len(rows), tokens)))  # neighbours, which share tiles
    cap = data.draw(st.sampled_from([0.0, 0.5, 50.0]))
    seen = Seen(window, cap, some_sinks(shape[0]) if data.draw(st.booleans()) else None)
    p, pool = problem(*shape), pools[data.draw(st.integers(0, 3))]
    expected = attend_seen(p, rows, seen, None)
    chosen = kernels.isa()
    try:
        for name in kernels.isa_variants():
            kernels.use_isa(name)
            assert_same_bits(attend_seen(p, rows, seen, pool), expected)
    finally:
        kernels.use_isa(chosen)


@pytest.mark.parametrize("window", [1, 16, 100, 300])
def test_a_windowed_row_alone_has_the_bits_of_a_batch(isa: str, pools: list[kernels.ThreadPool], window: int) -> None:
    p = problem(14, 2, 64, 700)
    rows = [*some_rows(700), *range(300, 340)]
    seen = Seen(window, 20.0, some_sinks(14))
    together = attend_seen(p, rows, seen, pools[3])
    for pool in (pools[0], pools[3]):
        assert_same_bits(np.concatenate([attend_seen(p, [row], seen, pool) for row in rows]), together)
    assert_same_bits(attend_seen(p, rows[::-1], seen, pools[2])[::-1], together)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_chunks_equal_the_whole_through_a_window(isa: str, pool: kernels.ThreadPool, chunk: int) -> None:
    p, seen = problem(6, 2, 32, 600), Seen(40, 0.0, some_sinks(6))
    rows = list(range(600))
    whole = attend_seen(p, rows, seen, pool)
    parts = [attend_seen(p, rows[begin : begin + chunk], seen, pool) for begin in range(0, 600, chunk)]
    assert_same_bits(np.concatenate(parts), whole)


@pytest.mark.parametrize("window", [1, 30, 256, 299])
def test_what_lies_before_a_window_never_matters(isa: str, pools: list[kernels.ThreadPool], window: int) -> None:
    """Tokens before it may be anything, and pages before it may be gone."""
    p, seen = problem(14, 2, 64, 700), Seen(window)
    rows = list(range(640, 656))
    expected = attend_seen(p, rows, seen, pools[0])
    first = rows[0] + 1 - window
    page, offset = p.slots[:first] // PAGE, p.slots[:first] % PAGE
    integers, scales = by_token(p.pages.copy()), p.pages.copy()
    integers.k[page, :, offset] = integers.v[page, :, offset] = -128
    scales.k_scale[page, :, offset], scales.v_scale[page, :, offset] = np.inf, np.nan
    table = p.table.copy()
    table[0, : first // PAGE] = -1
    spoiled = p._replace(
        pages=scales._replace(k=reference.key_page(integers.k), v=reference.value_page(integers.v)), table=table
    )
    for pool in [*pools, None]:
        assert_same_bits(attend_seen(spoiled, rows, seen, pool), expected)
    with pytest.raises(ValueError, match="`page_table` must name pages"):
        attend_seen(spoiled, rows, Seen(window + PAGE), pools[0])


def test_a_wide_window_and_a_sink_far_below_change_nothing(isa: str, pools: list[kernels.ThreadPool]) -> None:
    p, rows = problem(14, 2, 64, 700), some_rows(700)
    for seen in (Seen(700), Seen(2**40), Seen(0, 0.0, np.full(14, -1e9, np.float32))):
        assert_same_bits(attend_seen(p, rows, seen, pools[3]), attend(p, rows, pools[3]))


def test_padding_sees_nothing_of_sinks_and_windows(isa: str, pools: list[kernels.ThreadPool]) -> None:
    p, seen = problem(14, 2, 64, 700), Seen(20, 3.0, some_sinks(14))
    for pool in pools:
        result = attend_seen(p, [-1, 690, -1], seen, pool)
        np.testing.assert_array_equal(result[[0, 2]], 0)
        assert_same_bits(result[1:2], attend_seen(p, [690], seen, pool))


@pytest.mark.parametrize("seen", [Seen(100), Seen(0, 2.0), Seen(0, 0.0, some_sinks(14)), Seen(257, 5.0, some_sinks(14))])
def test_windows_caps_and_sinks_are_close_to_float64(pool: kernels.ThreadPool, seen: Seen) -> None:
    p, rows = problem(14, 2, 64, 700), some_rows(700)
    exact = float_attention(p, p.pages, rows, seen)
    error = attend_seen(p, rows, seen, pool) - exact
    assert np.abs(error).max() < 3e-3 * np.abs(exact).max()


def test_attention_refuses_what_no_row_can_see_through(pool: kernels.ThreadPool) -> None:
    p = problem(3, 1, 8, 40)
    for name, seen in {
        "window": Seen(-1), "cap": Seen(0, -1.0), "cap` must be 0": Seen(0, np.nan), "cap` must": Seen(0, np.inf),
        "sinks": Seen(sinks=np.zeros(2, np.float32)), "sinks` must be a float32": Seen(sinks=np.zeros(3)),
    }.items():  # fmt: skip
        with pytest.raises(ValueError, match=f"`{name}"):
            attend_seen(p, [3], seen, pool)


# ---- refusals -----------------------------------------------------------------------------------------------------


def test_attention_refuses_rows_and_pages_out_of_range(pool: kernels.ThreadPool) -> None:
    p = problem(3, 1, 8, 40)
    q, count = p.q[:2], p.pages.k.shape[0]

    def run(table: reference.I32, sequence: list[int], position: list[int]) -> None:
        attention.paged_attention(q, *p.pages, table, np.array(sequence, np.int32), np.array(position, np.int32), 1.0, pool)

    run(p.table, [0, 0], [3, 39])
    for sequence in ([0, 1], [-1, 0]):
        with pytest.raises(ValueError, match=r"`row_sequence` must be in 0\.\.0.*got `-?1`"):
            run(p.table, sequence, [0, 0])
    limit = p.table.shape[1] * PAGE
    for position in ([0, limit], [-2, 0]):
        with pytest.raises(ValueError, match=rf"`row_position` must be -1 or in 0\.\.{limit - 1}"):
            run(p.table, [0, 0], position)
    for page in (-1, count, 2**31 - 1):
        table = p.table.copy()
        table[0, 2] = page
        run(table, [0, 0], [31, 5])  # not needed, so not looked at
        with pytest.raises(ValueError, match=rf"`page_table` must name pages in 0\.\.{count - 1}.*`{page}`"):
            run(table, [0, 0], [31, 32])


def test_rope_append_refuses_what_is_out_of_range(pool: kernels.ThreadPool) -> None:
    k = np.ones((2, 1, 8), np.float32)
    pages = stale_pages(3, 1, 8)
    for slot in (-2, 48, 2**40):
        with pytest.raises(ValueError, match=rf"`slots` must be -1 or in 0\.\.47.*`{slot}`"):
            append(k, k, pages, np.array([0, slot], np.int64), pool)

    def run(**changed: object) -> None:
        arguments: dict[str, object] = {
            "qkv": np.ones((2, 32), np.float32),
            "heads": 2,
            "kv_heads": 1,
            "head_dim": 8,
            "positions": np.zeros(2, np.int32),
            "cos": np.ones((4, 4), np.float32),
            "sin": np.zeros((4, 4), np.float32),
            "q_gain": None,
            "k_gain": None,
            "eps": 1e-6,
            "k_offset": np.zeros((1, 8), np.float32),
            **dict(zip(("k_pages", "k_scales", "v_pages", "v_scales"), pages, strict=True)),
            "slots": np.arange(2, dtype=np.int64),
            "pool": pool,
        }
        attention.rope_append(**(arguments | changed))  # type: ignore[arg-type]

    run()
    for position in (-1, 4):
        with pytest.raises(ValueError, match=rf"`positions` must be in 0\.\.3; got `{position}`"):
            run(positions=np.array([0, position], np.int32))
    for name, wrong in {
        "qkv": np.ones((2, 24), np.float32),
        "sin": np.ones((3, 4), np.float32),
        "q_gain": np.ones(7, np.float32),
        "v_gain": np.ones(7, np.float32),
        "q_scale": np.ones(5, np.float32),
        "k_gain": np.ones(16, np.float32),
        "k_offset": np.ones((2, 8), np.float32),
        "slots": np.arange(3, dtype=np.int64),
        "v_pages": pages.v[:, :, :, :0],
    }.items():
        with pytest.raises(ValueError, match=f"`{name}` must have shape"):
            run(**{name: wrong})
    with pytest.raises(ValueError, match="head size"):
        run(head_dim=12)


def test_refusals_name_the_argument(pool: kernels.ThreadPool) -> None:
    p = problem(3, 1, 8, 40)
    zeros = np.zeros(2, np.int32)

    def run(q: F32, pages: Pages) -> None:
        attention.paged_attention(q, *pages, p.table, zeros, zeros, 1.0, pool)

    with pytest.raises(ValueError, match=r"`v_pages` must have shape"):
        run(p.q[:2], p.pages._replace(v=p.pages.v[:-1], v_scale=p.pages.v_scale[:-1]))
    with pytest.raises(ValueError, match=r"`k_scales`.*float16"):
        run(p.q[:2], p.pages._replace(k_scale=p.pages.k_scale.astype(np.float32)))
    with pytest.raises(ValueError, match="`row_sequence` must have shape"):
        run(p.q[:3], p.pages)
    with pytest.raises(ValueError, match="multiple of the `2` kv heads"):
        run(p.q[:2], stale_pages(8, 2, 8))
    with pytest.raises(ValueError, match="head size"):
        run(np.ones((2, 3, 12), np.float32), stale_pages(8, 1, 12))
    with pytest.raises(ValueError, match="`slots` must have shape"):
        append(p.k[:2], p.v[:2], p.pages.copy(), p.slots[:3], pool)
    read_only = p.pages.copy()
    read_only.k.flags.writeable = False
    with pytest.raises(ValueError, match="`k_pages`.*writeable"):
        append(p.k[:2], p.v[:2], read_only, p.slots[:2], pool)
