"""The index of beginnings against a table of what was inserted: longest match, holders, and who goes first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.kv import prefix
from edge_llm.kv.pages import PAGE_TOKENS, PageAllocator
from edge_llm.kv.prefix import PrefixIndex, page_keys

PAGES = 24
texts = st.lists(st.integers(0, 1), min_size=1, max_size=5)
"""A text as the kinds of its pages: few kinds, so that many texts begin alike."""


def tokens_of(kinds, rest=0):
    return [kind for kind in kinds for _ in range(PAGE_TOKENS)] + [9] * rest


def beginnings(kinds):
    return {tuple(kinds[:n]) for n in range(1, len(kinds) + 1)}


class Bench:
    """An index, and what must be in it."""

    def __init__(self, most_pages=PAGES):
        self.allocator = PageAllocator(PAGES)
        self.index = PrefixIndex(self.allocator, b"model", most_pages)
        self.holds: dict[int, tuple[int, ...]] = {}

    def run(self, kinds, rest=0):
        """What a request does: take the known beginning, compute the rest, remember, let go.  How many pages were known."""
        tokens = tokens_of(kinds, rest)
        table = self.index.match(tokens)
        known = len(table)
        assert [self.holds[page] for page in table] == [tuple(kinds[: n + 1]) for n in range(known)]
        missing = len(kinds) - known
        self.index.evict(missing - self.allocator.free)
        table += self.allocator.allocate(missing)
        self.holds |= {page: tuple(kinds[: n + 1]) for n, page in enumerate(table)}
        self.index.insert(tokens, np.array(table, np.int32))
        self.allocator.release(table)
        return known

    def known(self, kinds):
        table = self.index.match(tokens_of(kinds))
        self.allocator.release(table)
        return len(table)


@given(st.lists(texts, max_size=12), texts, st.integers(0, PAGE_TOKENS - 1))
def test_match_gives_the_longest_known_beginning(earlier, kinds, rest):
    bench = Bench(most_pages=PAGES)
    inserted = set()
    for text in earlier:
        if len(inserted | beginnings(text)) <= PAGES - len(kinds):
            bench.run(text)
            inserted |= beginnings(text)
    assert len(bench.index) == len(inserted)
    longest = max((n for n in range(len(kinds) + 1) if n == 0 or tuple(kinds[:n]) in inserted), default=0)
    assert bench.run(kinds, rest) == longest


@settings(max_examples=60)
@given(st.lists(st.tuples(texts, st.integers(0, 4)), max_size=30), st.integers(5, PAGES))
def test_ends_go_before_beginnings_and_holders_never_leak(steps, most_pages):
    bench = Bench(most_pages)
    seen = set()
    for kinds, evict in steps:
        bench.run(kinds)
        seen.add(tuple(kinds))
        bench.index.evict(evict)
        reachable = {tuple(text[:n]) for text in seen for n in range(1, bench.known(list(text)) + 1)}
        assert len(reachable) == len(bench.index) <= most_pages  # no end is left whose beginning is gone
        assert bench.allocator.free == PAGES - len(bench.index) == PAGES - bench.index.evictable()
    bench.index.evict(PAGES)
    assert bench.allocator.free == PAGES


def test_what_was_used_last_stays():
    bench = Bench()
    bench.run([0, 0, 0])
    bench.run([1, 1])
    bench.run([0, 0, 0])
    assert bench.index.evict(2) == 2
    assert (bench.known([1, 1]), bench.known([0, 0, 0])) == (0, 3)
    assert bench.index.evict(1) == 1
    assert bench.known([0, 0, 0]) == 2


def test_pages_that_somebody_uses_are_not_evicted():
    bench = Bench()
    bench.run([0, 1])
    used = bench.index.match(tokens_of([0]))
    assert bench.index.evict(5) == 1
    assert (len(bench.index), bench.index.evictable()) == (1, 0)
    bench.allocator.release(used)
    assert bench.index.evictable() == 1


def test_equal_keys_are_not_enough(monkeypatch):
    bench = Bench()
    bench.run([0, 0])
    keys = {tuple(tokens): key for key, tokens in page_keys(b"model", tokens_of([0]))}
    [key] = keys.values()
    monkeypatch.setattr(prefix, "page_keys", lambda identity, tokens, size: iter([(key, tuple(tokens[:size]))]))
    assert bench.known([1]) == 0
    assert bench.known([0]) == 1


def test_a_key_names_model_and_whole_beginning():
    def keys(identity, kinds, rest=0):
        return [key for key, _ in page_keys(identity, tokens_of(kinds, rest))]

    base = keys(b"model", [0, 1, 1])
    assert len(set(base)) == 3
    assert keys(b"model", [0, 1, 1], rest=PAGE_TOKENS - 1) == base
    assert keys(b"model", [0, 1, 0])[:2] == base[:2]
    assert not set(keys(b"other", [0, 1, 1])) & set(base)
    assert not set(keys(b"model", [1, 1, 1])) & set(base)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 40])
def test_only_full_pages_have_keys(count):
    found = list(page_keys(b"", range(count)))
    assert [tokens for _, tokens in found] == [tuple(range(n, n + 16)) for n in range(0, count - 15, 16)]
