"""Pages: the allocator against a table of holders, and the page list of a sequence."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.config import LlamaConfig
from edge_llm.devices.kv_pages import PagedKV
from edge_llm.errors import OutOfMemory
from edge_llm.kv.pages import PAGE_TOKENS, PageAllocator, page_bytes, pages_for
from edge_llm.kv.sequence import SequencePages
from edge_llm.models import describe
from edge_llm.runner.base import Segment
from edge_llm.runner.rows import pack

TINY = LlamaConfig(
    family="llama", vocab_size=32, hidden_size=16, intermediate_size=32, num_layers=3, num_heads=2, num_kv_heads=1,
    head_dim=64, context=256, norm_eps=1e-5, rope_theta=1e4,
)  # fmt: skip
ATTENTIONS = describe(TINY).attentions


@given(st.lists(st.tuples(st.sampled_from(["allocate", "share", "release"]), st.integers(0, 5)), max_size=60))
def test_allocator_equals_a_table_of_holders(steps):
    pages = 9
    allocator = PageAllocator(pages)
    holders = [0] * pages
    held: list[list[int]] = []
    for action, number in steps:
        if action == "allocate":
            if number > holders.count(0):
                with pytest.raises(OutOfMemory, match=f"`{number}` are needed"):
                    allocator.allocate(number)
            else:
                taken = allocator.allocate(number)
                assert taken == [page for page in range(pages) if holders[page] == 0][:number]
                held.append(taken)
                for page in taken:
                    holders[page] += 1
        elif held:
            group = held[number % len(held)]
            if action == "share":
                allocator.share(group)
                held.append(list(group))
            else:
                allocator.release(group)
                held.remove(group)
            for page in group:
                holders[page] += 1 if action == "share" else -1
        assert allocator.free == holders.count(0)


def test_a_page_released_twice_is_our_own_bug():
    allocator = PageAllocator(2)
    pages = allocator.allocate(1)
    allocator.release(pages)
    with pytest.raises(AssertionError, match="released twice"):
        allocator.release(pages)


def test_slots_follow_the_pages_of_each_sequence():
    allocator = PageAllocator(4)
    first = allocator.allocate(2)
    sequence = SequencePages(allocator)
    sequence.reserve(20)
    allocator.release(first)
    sequence.reserve(40)
    assert sequence.table.tolist() == [2, 3, 0]
    other = SequencePages(allocator)
    other.reserve(16)
    sequence.length = 15
    chunk = next(pack([Segment(other, [7]), Segment(sequence, [1, 2, 3], 2)], (8,)))
    rows = chunk.rows
    assert rows.slots.tolist() == [16, 2 * 16 + 15, 3 * 16, 3 * 16 + 1]
    assert (rows.position.tolist(), rows.sequence.tolist()) == ([0, 15, 16, 17], [0, 1, 1, 1])
    assert (chunk.logits.tolist(), chunk.states.tolist()) == ([0, 2, 3], [])


def test_truncate_gives_back_whole_pages_only():
    pages = PageAllocator(4)
    sequence = SequencePages(pages)
    sequence.reserve(40)
    sequence.length = 40
    sequence.truncate(17)
    assert (len(sequence.table), pages.free) == (2, 2)
    sequence.truncate(16)
    assert (len(sequence.table), pages.free) == (1, 3)
    sequence.close()
    assert (sequence.length, pages.free) == (0, 4)


def test_a_failed_reservation_changes_nothing():
    pages = PageAllocator(2)
    sequence = SequencePages(pages)
    sequence.reserve(16)
    with pytest.raises(OutOfMemory):
        sequence.reserve(49)
    assert (sequence.capacity, pages.free) == (16, 1)


@pytest.mark.parametrize("tokens", [1, 15, 16, 17, 100])
def test_bytes_are_counted(tokens):
    kv = PagedKV(ATTENTIONS, tokens)
    assert kv.nbytes == pages_for(tokens) * page_bytes(ATTENTIONS)


@pytest.mark.parametrize("tokens", [2**50, 2**61, 2**70])
def test_more_than_any_memory_is_too_much_memory(tokens):
    with pytest.raises(MemoryError):
        PagedKV(ATTENTIONS, tokens)


def test_a_value_costs_at_most_8_3_bits():
    values = 2 * TINY.num_layers * TINY.num_kv_heads * TINY.head_dim * PAGE_TOKENS
    assert 8 * page_bytes(ATTENTIONS) / values <= 8.3


def test_pages_start_as_zeros_of_the_stored_types():
    layer = PagedKV(ATTENTIONS, 32).layers[0]
    assert (layer.k.dtype, layer.k_scale.dtype) == (np.int8, np.float16)
    assert layer.k.shape == (2, 1, 16, 64)
    assert layer.v_scale.shape == (2, 1, 16)
    assert not layer.k.any()
