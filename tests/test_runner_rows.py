"""Chunks: the pieces of a prompt cover it exactly, and a tail takes the shortest length that holds it."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.devices.base import static_length
from edge_llm.kv.pages import PageAllocator
from edge_llm.kv.sequence import SequencePages
from edge_llm.runner.base import Segment
from edge_llm.runner.rows import ladder, pack, split


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


@st.composite
def segments(draw):
    """Of sequences that hold some tokens already, in pages that lie anywhere."""
    allocator, found = PageAllocator(200), []
    for _ in range(draw(st.integers(1, 5))):
        sequence = SequencePages(allocator)
        count = draw(st.just(1) | st.integers(1, 70))
        sequence.length = draw(st.integers(0, 40))
        sequence.reserve(sequence.length + count)
        sequence.table = draw(st.permutations(sequence.table.tolist()).map(lambda pages: np.array(pages, np.int32)))
        tokens = draw(st.lists(st.integers(0, 10**6), min_size=count, max_size=count))
        found.append(Segment(sequence, tokens, draw(st.integers(0, count)), draw(st.booleans())))
    return found


@given(segments(), st.integers(1, 80), st.integers(1, 3))
def test_rows_are_the_tokens_of_all_segments_one_by_one(given, longest, window):
    expected, wanted = [], {False: [], True: []}
    for number, segment in enumerate(given):
        table, start = segment.sequence.table, segment.sequence.length
        for i, token in enumerate(segment.tokens):
            page, at = divmod(start + i, 16)
            if i >= len(segment.tokens) - segment.wanted:
                wanted[segment.states].append(len(expected))
            expected.append((token, number, start + i, table[page] * 16 + at))
    found, logits, states = [], [], []
    for number, chunk in enumerate(pack(given, ladder(longest), window)):
        rows = chunk.rows
        assert chunk.index == number % window
        assert rows.count <= rows.static == static_length(rows.count, ladder(longest))
        logits += (chunk.logits + len(found)).tolist()
        states += (chunk.states + len(found)).tolist()
        found += zip(rows.tokens, rows.sequence, rows.position, rows.slots, strict=True)
        types = [array.dtype for array in (rows.tokens, rows.sequence, rows.position, rows.slots, chunk.logits, chunk.states)]
        assert types == [np.int64, np.int32, np.int32, np.int64, np.int64, np.int64]
        for row, segment in zip(rows.page_table, given, strict=True):
            assert row[: len(segment.sequence.table)].tolist() == segment.sequence.table.tolist()
    assert found == expected
    assert (logits, states) == (wanted[False], wanted[True])
