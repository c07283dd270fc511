"""The experts of a layer in one call: the bits of each alone, added in order, on every ISA, at any thread and row count."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_kernels_blocks import assert_same_bits, file_rows
from test_kernels_w4 import codes_of

from edge_llm import kernels
from edge_llm.kernels import blocks, reference
from edge_llm.kernels.activation import SILU, Activation, clamped_silu
from edge_llm.kernels.blocks import KINDS, BlockLinear, block_linear
from edge_llm.kernels.experts import Expert, choose_experts, experts
from edge_llm.kernels.layout import pack_tiles, row_sums
from edge_llm.kernels.linear import Int8Linear, linear
from edge_llm.kernels.w4 import expand, pack_codes

K, WIDTH, COUNT = 96, 64, 7
NO_HOT = np.zeros(0, np.int32)


@dataclasses.dataclass
class Made:
    """A linear, and its product by the kernel of one linear."""

    linear: Int8Linear | BlockLinear
    bias: np.ndarray | None

    def apply(self, x: np.ndarray, pool: kernels.ThreadPool, gate: Activation | None = None) -> np.ndarray:
        if isinstance(self.linear, BlockLinear):
            return block_linear(x, self.linear, pool, bias=self.bias, gate=gate)
        return linear(x, self.linear, pool, gate=gate)


def made(form: str, n: int, k: int, seed: int, pool: kernels.ThreadPool) -> Made:
    """A linear [n, k] of codes, tiles or blocks of a kind, with a bias where ``form`` ends with one."""
    name, _, more = form.partition("+")
    random = np.random.default_rng(seed)
    bias = random.standard_normal(n).astype(np.float32) if more == "bias" else None
    if name in KINDS:
        panels = blocks.lay_out(file_rows(KINDS[name], n, k, seed), KINDS[name], n, k, pool)
        return Made(BlockLinear([(panels, KINDS[name], n)], k), bias)
    codes = None
    if name == "codes":
        some, multiplier, shift = codes_of(n, k)
        codes = pack_codes(np.roll(some, seed), multiplier, shift)
    tiles = pack_tiles(random.integers(-127, 128, (n, k), np.int8)) if codes is None else expand(codes, n, k, pool)
    scale = (random.random(n) / 500 + 1e-3).astype(np.float32)
    beside = (scale, row_sums(tiles, n), NO_HOT, np.zeros((0, n), np.float16), bias)
    turn = 32 if more == "turn" else 0
    make = Int8Linear if codes is None else Int8Linear.of_codes
    return Made(make(tiles if codes is None else codes, n, k, None, *beside, turn=turn), None)


def routed(rows: int, used: int, seed: int, count: int = COUNT) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    chosen = np.sort(np.argsort(random.random((rows, count)) ** 3, axis=1)[:, :used], axis=1)  # some experts are chosen more
    return chosen, random.standard_normal((rows, used)).astype(np.float32)


FORMS = ["tiles/tiles", "tiles+turn/codes", "codes/tiles+turn", "tiles+bias/codes+bias", "q4_0/q5_1", "q8_0+bias/mxfp4+bias"]


@pytest.mark.parametrize("form", [*FORMS, "q5_0/tiles", "codes/q8_0"])
def test_rows_have_the_bits_of_each_expert_alone(isa: str, pools: list[kernels.ThreadPool], form: str) -> None:
    """Few rows and many, an expert with one row and with a hundred, what is added, results in the place of what is added."""
    up, down = form.split("/")
    linears = [(made(up, 2 * WIDTH, K, 2 * e, pools[0]), made(down, K, WIDTH, 2 * e + 1, pools[0])) for e in range(COUNT)]
    weights = [Expert(one.linear, two.linear, one.bias, two.bias) for one, two in linears]
    random = np.random.default_rng(5)
    x, add = random.standard_normal((2, 150, K)).astype(np.float32)
    x[3] = 0
    x[4] *= 1e6
    for gate, used in ((SILU, 2), (clamped_silu(2), 5)):
        alone = {
            e: lambda rows, two=two, gate=gate: two[1].apply(two[0].apply(rows, pools[0], gate), pools[0])
            for e, two in enumerate(linears)
        }
        chosen, shares = routed(150, used, used)
        expected = reference.experts(x, chosen, shares, alone, add=add)
        plain = reference.experts(x, chosen, shares, alone)
        for rows in (1, 2, 3, 7, 13, 40, 150):
            pool = pools[rows % len(pools)]
            some = x[:rows], chosen[:rows], shares[:rows]
            assert_same_bits(experts(*some, weights, pool, gate=gate), plain[:rows])
            out = add[:rows].copy()
            assert experts(*some, weights, pool, gate=gate, add=out, out=out) is out
            assert_same_bits(out, expected[:rows])


@pytest.mark.parametrize("form", ["tiles/codes", "q4_k/q6_k"])
def test_more_rows_than_a_wave_takes(isa: str, pools: list[kernels.ThreadPool], form: str) -> None:
    up, down = form.split("/")
    k, width, count = 256, 256, 3
    linears = [(made(up, 2 * width, k, 2 * e, pools[0]), made(down, k, width, 2 * e + 1, pools[0])) for e in range(count)]
    weights = [Expert(one.linear, two.linear) for one, two in linears]
    x = np.random.default_rng(6).standard_normal((900, k)).astype(np.float32)
    chosen, shares = routed(900, 2, 1, count)
    whole = experts(x, chosen, shares, weights, pools[-1], gate=SILU)
    for row in (0, 1, 449, 898, 899):
        at = slice(row, row + 1)
        assert_same_bits(experts(x[at], chosen[at], shares[at], weights, pools[0], gate=SILU), whole[at])


def test_experts_that_nobody_chose_need_not_be_there(pools: list[kernels.ThreadPool]) -> None:
    one, two = made("tiles", 2 * WIDTH, K, 0, pools[0]), made("codes", K, WIDTH, 1, pools[0])
    x = np.random.default_rng(7).standard_normal((3, K)).astype(np.float32)
    chosen, shares = np.full((3, 1), 2), np.ones((3, 1), np.float32)
    expert = Expert(one.linear, two.linear)
    assert expert.width == WIDTH
    found = experts(x, chosen, shares, [None, None, expert], pools[-1], gate=SILU)
    assert_same_bits(found, np.float32(0) + two.apply(one.apply(x, pools[0], SILU), pools[0]) * np.float32(1))
    none = np.zeros((0, 1), np.int64), np.zeros((0, 1), np.float32)
    assert experts(x[:0], *none, [None], pools[-1], gate=SILU).shape == (0, K)
    with pytest.raises(ValueError, match="expert `2` is chosen and not there"):
        experts(x, chosen, shares, [expert, expert, None], pools[-1], gate=SILU)


def test_experts_that_are_made_when_they_are_asked_for_live_as_long_as_the_call(pools: list[kernels.ThreadPool]) -> None:
    linears = [
        (made("tiles", 2 * WIDTH, K, 2 * e, pools[0]).linear, made("tiles", K, WIDTH, 2 * e + 1, pools[0]).linear)
        for e in range(5)
    ]

    class Lazy(Sequence[Expert]):
        def __len__(self) -> int:
            return len(linears)

        def __getitem__(self, at: Any) -> Any:
            return Expert(*linears[at])

    x = np.random.default_rng(10).standard_normal((4, K)).astype(np.float32)
    chosen, shares = np.tile(np.arange(5), (4, 1)), np.ones((4, 5), np.float32)
    expected = experts(x, chosen, shares, [Expert(*pair) for pair in linears], pools[0], gate=SILU)
    assert_same_bits(experts(x, chosen, shares, Lazy(), pools[0], gate=SILU), expected)


def test_what_is_not_finite_leaves_the_result_as_it_was(pools: list[kernels.ThreadPool]) -> None:
    """In what comes in, and between the linears."""
    weights = [Expert(made("tiles", 2 * WIDTH, K, 0, pools[0]).linear, made("tiles", K, WIDTH, 1, pools[0]).linear)]
    chosen, shares = np.zeros((2, 1), np.int64), np.ones((2, 1), np.float32)
    for value in (np.nan, np.inf, 3e38):
        x, out = np.ones((2, K), np.float32), np.full((2, K), 7, np.float32)
        x[1, 5] = value
        with pytest.raises(ValueError, match="non-finite activation"):
            experts(x, chosen, shares, weights, pools[-1], gate=SILU, out=out)
        assert (out == 7).all()


def test_wrong_arguments_are_named(pools: list[kernels.ThreadPool]) -> None:
    pool = pools[0]
    up, down = made("tiles", 2 * WIDTH, K, 0, pool).linear, made("tiles", K, WIDTH, 1, pool).linear
    good = Expert(up, down)
    x, chosen, shares = np.ones((2, K), np.float32), np.array([[0, 1], [0, 1]]), np.ones((2, 2), np.float32)
    turned = Expert(made("tiles+turn", 2 * WIDTH, K, 0, pool).linear, down)

    def call(**changed: Any) -> None:
        given = {"x": x, "chosen": chosen, "shares": shares, "weights": [good, good], "add": None, "out": None} | changed
        add, out = given.pop("add"), given.pop("out")
        experts(*given.values(), pool, gate=SILU, add=add, out=out)

    call()
    wrong = [
        ({"x": x[:, :64].copy()}, "expert `0` is not of the shape"),
        ({"weights": [good, turned]}, "expert `1` is not of the shape"),
        ({"weights": [good]}, "`chosen` must be in 0..0; got `1`"),
        ({"chosen": -chosen}, "`chosen` must"),
        ({"chosen": chosen[:, ::-1].copy()}, "`chosen` must ascend"),
        ({"chosen": chosen[:1]}, "`chosen`"),
        ({"shares": shares[:, :1].copy()}, "`shares`"),
        ({"add": x[:1]}, "`add`"),
        ({"out": x[:1]}, "`out`"),
    ]
    for changed, message in wrong:
        with pytest.raises(ValueError, match=message):
            call(**changed)
    ones = np.ones(K, np.float32), np.ones(K, np.int32), NO_HOT, np.zeros((0, K), np.float16), None
    static = Int8Linear(pack_tiles(np.ones((K, WIDTH), np.int8)), K, WIDTH, 0.5, *ones)
    pairs = [
        ((up, static), "`down` must be a linear whose rows have scales"),
        ((down, up), "an expert is"),
        ((up, x), "`down`"),
    ]
    for pair, message in pairs:
        with pytest.raises(ValueError, match=message):
            Expert(*pair)


def test_the_order_of_experts_is_that_of_their_numbers(pools: list[kernels.ThreadPool]) -> None:
    """Sums of floats depend on their order: another numbering of the same experts gives other bits."""
    pool = pools[0]
    linears = [(made("tiles", 2 * WIDTH, K, 2 * e, pool), made("tiles", K, WIDTH, 2 * e + 1, pool)) for e in range(3)]
    weights = [Expert(one.linear, two.linear) for one, two in linears]
    x = np.random.default_rng(8).standard_normal((1, K)).astype(np.float32)
    shares = np.random.default_rng(9).standard_normal((1, 3)).astype(np.float32)
    found = set()
    for order in itertools.permutations(range(3)):
        these = [weights[one] for one in order]
        found.add(experts(x, np.array([[0, 1, 2]]), shares[:, order].copy(), these, pools[-1], gate=SILU).tobytes())
    assert len(found) > 1


@pytest.mark.parametrize(("rows", "count", "used"), [(0, 3, 1), (5, 1, 1), (40, 64, 8), (40, 7, 7), (200, 5, 2)])
def test_the_largest_scores_are_chosen(rows: int, count: int, used: int) -> None:
    """Many are equal; some are infinite."""
    scores = np.random.default_rng([rows, count]).integers(-3, 4, (rows, count)).astype(np.float32)
    scores[scores == -3] = -np.inf
    np.testing.assert_array_equal(choose_experts(scores, used), reference.choose_experts(scores, used))


@pytest.mark.parametrize("used", [0, 4])
def test_more_than_there_are_are_not_chosen(used: int) -> None:
    with pytest.raises(ValueError, match="`used` must be in 1..3"):
        choose_experts(np.zeros((2, 3), np.float32), used)
