"""Chunks: the pieces of a prompt cover it exactly, and a tail takes the shortest length that holds it."""

from hypothesis import given
from hypothesis import strategies as st

from edge_llm.devices.base import static_length
from edge_llm.runner.rows import ladder, split


@given(st.integers(0, 500), st.integers(1, 900), st.integers(1, 300))
def test_pieces_cover_the_prompt_in_order(start, count, longest):
    pieces = list(split(start, start + count, longest))
    assert [token for first, end in pieces for token in range(first, end)] == list(range(start, start + count))
    assert max(end - first for first, end in pieces) <= longest


@given(st.integers(1, 4096), st.data())
def test_the_ladder_holds_every_length_up_to_the_longest(longest, data):
    lengths = ladder(longest)
    assert lengths == tuple(sorted(set(lengths)))
    assert lengths[-1] == longest
    tokens = data.draw(st.integers(1, longest))
    fit = static_length(tokens, lengths)
    assert fit >= tokens
    assert all(length < tokens for length in lengths if length < fit)


def test_a_short_prompt_does_not_pay_for_a_whole_chunk():
    assert [static_length(tokens, ladder(256)) for tokens in (1, 2, 9, 33, 100, 256)] == [1, 8, 32, 64, 128, 256]
