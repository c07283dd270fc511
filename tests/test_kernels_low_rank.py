"""Adapters' products: equal to the reference bit for bit, on every ISA, at any thread count, beside any other rows."""

import numpy as np
import pytest

from edge_llm import kernels
from edge_llm.kernels import LowRank, reference
from edge_llm.kernels.program import Program

COLUMNS, CHANNELS, ROWS, EPS = 37, 90, 40, 1e-5


def entries_of(seed):
    """One for all channels, none, one whose parts leave channels between them."""
    random = np.random.default_rng(seed)

    def half(*shape):
        return (random.standard_normal(shape) / 4).astype(np.float16)

    return [
        (half(COLUMNS, 5), [(0, 0, half(5, CHANNELS))]),
        None,
        (half(COLUMNS, 9), [(0, 3, half(4, 33)), (4, 50, half(5, 40))]),
    ]


def rows_of(adapters):
    count = len(adapters)
    zeros = np.zeros(count, np.int32)
    return np.zeros(count, np.int64), zeros, zeros.astype(np.int64), zeros, np.zeros((1, 1), np.int32)


def built(make, entries, low_rank, x, gain):
    widest = max(one[0].shape[1] for one in entries if one)
    out, t = np.zeros((ROWS, CHANNELS), np.float32), np.zeros((ROWS, widest), np.float32)
    program = make()
    program.low_rank_down(x, low_rank, gain=gain, eps=EPS, out=t)
    program.low_rank_up(t, low_rank, out=out)
    return program, out


@pytest.mark.parametrize("normed", [False, True])
def test_rows_get_what_their_adapters_add(isa, pools, normed):
    entries, random = entries_of(1), np.random.default_rng(2)
    x, gain = random.standard_normal((ROWS, COLUMNS)).astype(np.float32), random.random(COLUMNS).astype(np.float32)
    how = entries, x, gain if normed else None
    ours, found = built(Program, how[0], LowRank(COLUMNS, CHANNELS, entries), *how[1:])
    theirs, wanted = built(reference.Program, how[0], entries, *how[1:])
    before = random.standard_normal(wanted.shape).astype(np.float32)
    for count in (1, 2, ROWS):
        adapters = np.sort(random.integers(0, 4, count)).astype(np.int32)
        found[:], wanted[:] = before, before
        theirs.run(*rows_of(adapters), adapters=adapters)
        for pool in pools:
            found[:] = before
            ours.run(*rows_of(adapters), pool, adapters=adapters)
            np.testing.assert_array_equal(found.view(np.int32), wanted.view(np.int32))
        same = np.flatnonzero((adapters == 0) | (adapters == 2))
        np.testing.assert_array_equal(found[same], before[same])
    found[:] = before
    ours.run(*rows_of(np.zeros(ROWS)), pools[0])
    np.testing.assert_array_equal(found, before)


def test_a_row_has_the_same_bits_in_any_order(isa, pools):
    entries, random = entries_of(3), np.random.default_rng(4)
    low_rank = LowRank(COLUMNS, CHANNELS, entries)
    x, adapters = random.standard_normal((ROWS, COLUMNS)).astype(np.float32), random.integers(0, 4, ROWS).astype(np.int32)
    program, whole = built(Program, entries, low_rank, x, None)
    program.run(*rows_of(adapters), pools[2], adapters=adapters)
    order = random.permutation(ROWS)
    program, mixed = built(Program, entries, low_rank, np.ascontiguousarray(x[order]), None)
    program.run(*rows_of(adapters), pools[1], adapters=np.ascontiguousarray(adapters[order]))
    np.testing.assert_array_equal(mixed, whole[order])


def test_wrong_arguments_are_named(pools):
    entries = entries_of(5)
    low_rank, x = LowRank(COLUMNS, CHANNELS, entries), np.zeros((2, COLUMNS), np.float32)
    assert low_rank.widest == 9
    for wrong, named in [
        (lambda: LowRank(COLUMNS + 1, CHANNELS, entries), "`down`"),
        (lambda: LowRank(COLUMNS, CHANNELS - 1, entries), "`up`"),
        (lambda: Program().low_rank_down(x[:, 1:], low_rank, out=np.zeros((2, 9), np.float32)), "`x`"),
        (lambda: Program().low_rank_down(x, low_rank, out=np.zeros((2, 8), np.float32)), "`t`"),
        (lambda: Program().low_rank_up(np.zeros((2, 9), np.float32), low_rank, out=np.zeros((2, 9), np.float32)), "`out`"),
    ]:
        with pytest.raises(ValueError, match=named):
            wrong()
    program = Program()
    program.low_rank_down(x, low_rank, gain=np.ones(COLUMNS, np.float32), eps=EPS, out=np.zeros((2, 9), np.float32))
    for number in (-1, 4):
        adapters = np.array([0, number], np.int32)
        with pytest.raises(ValueError, match="`adapters`"):
            program.run(*rows_of(adapters), pools[0], adapters=adapters)
    x[1, 3] = np.inf
    with pytest.raises(ValueError, match="non-finite"):
        program.run(*rows_of(np.ones(2)), pools[0], adapters=np.ones(2, np.int32))
    assert isinstance(kernels.LowRank, type)
