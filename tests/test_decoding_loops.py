"""The guard against loops: the first token at which a text is in one, found without looking at every token."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.decoding import loops
from edge_llm.decoding.loops import LIMITS, LoopGuard, LoopLimits, missing, runs

SMALL = LoopLimits(fewest=12, times=3, longest=6)
UNITS = st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(1, 9)), max_size=9)
"""Pieces of a text, and how often each is said."""


def in_loop(tokens, limits):
    """By the definition: the last tokens have a period."""
    return any(
        len(tokens) >= limits.tokens(period)
        and all(tokens[-at] == tokens[-at - period] for at in range(1, limits.tokens(period) - period + 1))
        for period in range(1, limits.longest + 1)
    )


def ends_at(tokens, limits=LIMITS):
    guard = LoopGuard(limits)
    return next((count for count, token in enumerate(tokens, 1) if guard.push(token)), None)


def text_of(units):
    return [token for unit, times in units for token in unit * times]


@given(units=UNITS)
def test_the_guard_ends_a_text_where_the_definition_says(units):
    tokens = text_of(units)
    first = next((count for count in range(1, len(tokens) + 1) if in_loop(tokens[:count], SMALL)), None)
    assert ends_at(tokens, SMALL) == first


@given(tokens=st.lists(st.integers(0, 1), max_size=40), longest=st.integers(1, 50))
def test_runs_are_counted_for_every_period(tokens, longest):
    found = runs(tokens, longest)
    assert len(found) == max(0, min(longest, len(tokens) - 1))
    for period, run in enumerate(found, 1):
        assert tokens[len(tokens) - run :] == tokens[len(tokens) - run - period : len(tokens) - period]
        assert len(tokens) - run - period == 0 or tokens[-run - 1] != tokens[-run - 1 - period]


@given(units=UNITS, more=st.lists(st.integers(0, 2), max_size=20))
def test_no_loop_comes_sooner_than_what_is_missing(units, more):
    tokens = text_of(units)
    if len(tokens) < SMALL.fewest:
        return
    left = missing(tokens, SMALL)
    assert (left == 0) == in_loop(tokens, SMALL)
    assert not any(in_loop(tokens + more[:count], SMALL) for count in range(1, min(left, len(more) + 1)))


@pytest.mark.parametrize("period", [1, 2, 7, 49, 50, 51, 100, 511, 512])
@pytest.mark.parametrize("before", [0, 1, 333, 5000])
def test_a_loop_ends_when_it_is_long_enough(period, before):
    unit = list(range(1000, 1000 + period))
    loop = (unit * (LIMITS.window // period + 1))[: LIMITS.window]
    assert ends_at([*range(10_000, 10_000 + before), *loop]) == before + max(200, 4 * period)


def test_a_longer_period_is_no_loop():
    assert ends_at(list(range(513)) * 20) is None


@given(seed=st.integers(0, 1000))
def test_one_other_token_begins_a_loop_anew(seed):
    source = random.Random(seed)
    unit = [source.randrange(50_000) for _ in range(source.randrange(1, 50))]
    broken = source.randrange(199)
    tokens = (unit * 400)[:400]
    tokens[broken] = -1
    assert ends_at(tokens) == broken + 1 + 200


@pytest.mark.parametrize(
    "text",
    [
        "a" * 199,
        "".join(f"{number}. Buy things that you do not need\n" for number in range(1, 60)),
        "| name | size |\n|---|---|\n" + "".join(f"| file{number} | {number * 37 % 91} |\n" for number in range(60)),
        "x = 0\n".join(f"if a[{at}] > {at * 7}:\n    return {at}\n" for at in range(60)),
        "\n".join(" " * (12 - row) + "*" * (2 * row + 1) for row in range(12)),
        "+-----+-----+\n|     |     |\n" * 6,
        "la " * 60,
        ", ".join(map(str, range(200))),
        "0 0 0 0 0 0 0 0\n" * 12,
    ],
)
def test_what_people_ask_for_is_no_loop(text):
    """Character by character, which gives the longest repeats that any tokenizer can."""
    assert ends_at(text.encode()) is None


@pytest.mark.parametrize(
    "tokens",
    [
        list(range(50_000)),
        [token for at in range(250) for token in [*(list(range(49)) * 4), -at]],
        [token for at in range(250) for token in [at, *([0] * 198)]],
        [token for at in range(60) for token in [*(list(range(40)) * 4), -at, *(list(range(300)) * 3)]],
        [int(bit) for number in range(6000) for bit in f"{number:b}"],
    ],
    ids=["all other", "nearly", "one short", "nested", "counting"],
)
def test_it_looks_at_few_tokens_for_each_that_comes(tokens, monkeypatch):
    """O(1) amortised: all looks together see a few times the window for each `fewest` tokens."""
    seen = []

    def counted(text, longest):
        seen.append(len(text))
        return runs(text, longest)

    monkeypatch.setattr(loops, "runs", counted)
    assert ends_at(tokens) is None
    assert sum(seen) <= 4 * LIMITS.window / LIMITS.fewest * len(tokens) + LIMITS.window
