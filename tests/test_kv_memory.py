"""Memory of sequences on devices whose pages hold 16, 32 or 128 tokens: what is known, what fits, and that no byte changes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paged_script import DictDisk, forget

from edge_llm.bench.synthetic import write_random
from edge_llm.config import LlamaConfig, RuntimeConfig
from edge_llm.devices.arrays import HostArrays
from edge_llm.devices.host import HostDevice
from edge_llm.devices.kv_pages import PagedKV
from edge_llm.devices.model import PlacedModel
from edge_llm.devices.watched import builder
from edge_llm.errors import OutOfMemory
from edge_llm.formats.bundle import open_bundle
from edge_llm.kv.memory import KVMemory
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes
from edge_llm.kv.prefix_store import PrefixStore
from edge_llm.models import describe
from edge_llm.models.rope import RopeTables
from edge_llm.runner.runner import Int8Runner
from edge_llm.weights.resident import ResidentWeights

CONFIG = LlamaConfig(
    family="llama", vocab_size=97, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=2, num_kv_heads=1,
    head_dim=16, context=640, norm_eps=1e-5, rope_theta=1e4, tied_embeddings=True,
)  # fmt: skip
ATTENTIONS = describe(CONFIG).attentions
PAGE_BYTES = page_bytes(ATTENTIONS)
IDENTITY = b"memory" + bytes(26)
SIZES = (16, 32, 128)
sizes = st.sampled_from(SIZES)
LONG = ([0] * 24, [0] * 9 + [1] * 15, [0, 1] * 12)
kinds = st.builds(lambda long, pages: long[:pages], st.sampled_from(LONG), st.integers(0, 24))
texts = st.tuples(kinds, st.integers(0, PAGE_TOKENS - 1))
"""A text as the kinds of its host pages, so that many texts begin alike; and how many tokens come after them."""


def tokens_of(text):
    kinds, rest = text
    return [kind for kind in kinds for _ in range(PAGE_TOKENS)] + [9] * rest


def data_of(tokens):
    """What the last host page of ``tokens`` holds, which all of them decide: uint8 [page bytes]."""
    seed = [len(tokens), *tokens[::PAGE_TOKENS]]
    return np.random.default_rng(seed).integers(0, 256, PAGE_BYTES, np.uint8)


class Device:
    """A device's pages, who shares them, and a check of every byte."""

    def __init__(self, size, tokens=4096, disk=None):
        self.kv = PagedKV(ATTENTIONS, tokens, size)
        self.memory = KVMemory(self.kv, IDENTITY, disk)
        self.running = []

    @property
    def left(self):
        """Pages that no running sequence holds."""
        return self.kv.count - len({page for sequence, _ in self.running for page in sequence.table.tolist()})

    def check(self, sequence, tokens):
        """``sequence`` must hold what was computed for the full host pages of its tokens."""
        count = sequence.length // PAGE_TOKENS
        found = self.kv.read_pages(sequence.host_pages(np.arange(count)))
        for number, row in enumerate(found):
            np.testing.assert_array_equal(row, data_of(tokens[: (number + 1) * PAGE_TOKENS]))

    def open(self, tokens):
        """A sequence that begins with what is known of ``tokens``, which is as it was written: it, and how many tokens."""
        sequence = self.memory.open(tokens)
        assert sequence.length <= max(0, len(tokens) - 1)
        assert len(sequence.table) == -(-sequence.length // self.kv.page_tokens)
        self.running.append((sequence, tokens))
        self.check(sequence, tokens)
        return sequence, sequence.length

    def compute(self, sequence, tokens):
        """Write the rest of ``tokens``, and remember them."""
        self.memory.reserve(sequence, len(tokens))
        first, end = sequence.length // PAGE_TOKENS, len(tokens) // PAGE_TOKENS
        if end > first:
            data = np.stack([data_of(tokens[: (number + 1) * PAGE_TOKENS]) for number in range(first, end)])
            self.kv.write_pages(sequence.host_pages(np.arange(first, end)), data)
        sequence.length = len(tokens)
        self.check(sequence, tokens)
        self.memory.remember(sequence, tokens)

    def close(self, number):
        sequence, tokens = self.running.pop(number)
        self.check(sequence, tokens)
        sequence.close()

    def run(self, text):
        """What a request does, from opening to closing: how many tokens were known."""
        tokens = tokens_of(text)
        sequence, known = self.open(tokens)
        self.compute(sequence, tokens)
        self.close(-1)
        return known


def longest(tokens, seen, size):
    """How many tokens, in pages of ``size`` and never all, ``tokens`` has in common with the start of a text in ``seen``."""
    whole = (max(0, len(tokens) - 1) // size) * size
    return next(n for n in range(whole, -1, -size) if n == 0 or any(tokens[:n] == other[:n] for other in seen))


@settings(max_examples=60, deadline=None)
@given(sizes, st.lists(texts, max_size=6))
def test_in_memory_whole_pages_of_the_device_are_known(size, asked):
    device, seen = Device(size), []
    for text in asked:
        assert device.run(text) == longest(tokens_of(text), seen, size)
        seen.append(tokens_of(text))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(sizes, texts), max_size=6))
def test_on_disk_host_pages_are_known_whoever_wrote_them(asked):
    """Every text goes to a device of its own, which all have one disk."""
    disk, seen = DictDisk(), []
    for size, text in asked:
        assert Device(size, disk=disk).run(text) == longest(tokens_of(text), seen, PAGE_TOKENS)
        seen.append(tokens_of(text))


@settings(max_examples=60, deadline=None)
@given(sizes, st.lists(texts, max_size=8))
def test_what_memory_has_in_part_the_disk_has_in_whole(size, asked):
    device, seen = Device(size, disk=DictDisk()), []
    for text in asked:
        assert device.run(text) == longest(tokens_of(text), seen, PAGE_TOKENS)
        seen.append(tokens_of(text))


steps = st.lists(st.one_of(st.tuples(texts, st.booleans()), st.integers(0, 5)), max_size=20)
"""A text to be opened and, unless its request is given up, computed; or the number of a running sequence to be closed."""


@settings(max_examples=200, deadline=None)
@given(sizes, st.integers(128, 512), st.booleans(), steps)
def test_little_memory_changes_no_byte_and_leaks_no_page(size, tokens, with_disk, steps):
    device = Device(size, tokens, DictDisk() if with_disk else None)
    for step in steps:
        if isinstance(step, int):
            if device.running:
                device.close(step % len(device.running))
            continue
        text, given_up = step
        wanted = tokens_of(text)
        pages = -(-len(wanted) // size)
        assert device.memory.has_room(len(wanted)) == (pages <= device.left)
        sequence, _ = device.open(wanted)
        if given_up:
            device.close(-1)
        elif pages - len(sequence.table) <= device.left:
            device.compute(sequence, wanted)
        else:
            before = sequence.table.tolist()
            with pytest.raises(OutOfMemory):
                device.compute(sequence, wanted)
            assert sequence.table.tolist() == before
            device.close(-1)
        for each, its_tokens in device.running:
            device.check(each, its_tokens)
    while device.running:
        device.close(0)
    assert device.memory.pages.free + forget(device.memory) == device.kv.count


@pytest.mark.parametrize("size", SIZES)
def test_restoring_takes_only_the_pages_that_nobody_uses(size):
    disk = DictDisk()
    Device(16, disk=disk).run((LONG[2], 0))
    device = Device(size, 512, disk)
    running = device.memory.open()
    device.memory.reserve(running, 288)
    _, known = device.open(tokens_of((LONG[2], 1)))
    assert known == (512 - 288) // size * size
    assert device.memory.pages.free == 0
    device.close(-1)
    running.close()
    assert device.memory.pages.free + forget(device.memory) == device.kv.count


@pytest.mark.parametrize("size", SIZES)
def test_what_never_fits_is_refused_by_the_room_there_is(size):
    device = Device(size, 200)
    room = device.kv.count * size
    assert 200 <= room < 200 + size
    device.memory.check_fits(room)
    with pytest.raises(OutOfMemory, match=f"holds `{room}` tokens and the request needs `{room + 1}`"):
        device.memory.check_fits(room + 1)


@pytest.mark.parametrize("reader", SIZES)
@pytest.mark.parametrize("writer", SIZES)
def test_the_stored_pages_of_one_device_are_another_ones_too(tmp_path, writer, reader):
    """And back: what the reader adds is read by a device like the writer."""
    opened = []

    def device(size):
        opened.append(PrefixStore(tmp_path, IDENTITY, PAGE_BYTES, 1 << 30, {"model": "random"}))
        opened[-1].flush()
        return Device(size, disk=opened[-1])

    short, long = ([0, 1] * 9, 5), ([0, 1] * 20, 5)
    assert device(writer).run(short) == 0
    opened[-1].close()
    assert device(reader).run(long) == 18 * PAGE_TOKENS
    opened[-1].close()
    assert device(writer).run(long) == 40 * PAGE_TOKENS
    opened[-1].close()
    assert [store.counts.written for store in opened] == [18, 22, 0]
    assert {store.counts.damaged + store.counts.failed + store.counts.dropped for store in opened} == {0}


# ---- a model on such pages ----


class LargePages(HostArrays):
    """Pages of 128 tokens: the kernels find them as the eight host pages that each of them is."""

    page_tokens = 128

    def pages(self, layers, room):
        return PagedKV([layer.attention for layer in layers], room.tokens, self.page_tokens)

    def rows(self, slot, rows):
        each = self.page_tokens // PAGE_TOKENS
        table = rows.page_table[:, :, None] * each + np.arange(each, dtype=np.int32)
        return replace(rows, page_table=np.ascontiguousarray(table.reshape(len(rows.page_table), -1)))


class LargePagesDevice(HostDevice):
    def open(self, decoder, weights, tables, room, watch=None):
        build = builder(self.build, tables, watch)
        return PlacedModel(decoder, weights, self.placement, build, LargePages(), room)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    write_random(folder, CONFIG, seed=3)
    return open_bundle(folder)


@pytest.fixture
def answer(bundle):
    """(logits, tokens that were known) of a prompt on a fresh runner, which keeps what it computed on ``disk``."""

    def answer_(device, tokens, disk=None):
        runtime, tables = RuntimeConfig(context=640, chunk=64), RopeTables(640)
        runner = Int8Runner(CONFIG, ResidentWeights(bundle), device, runtime, tables, IDENTITY, disk)
        sequence = runner.memory.open(tokens)
        known = sequence.length
        logits = [runner.forward(sequence, tokens[known:])[-1]]
        for token in range(5):
            logits.append(runner.forward(sequence, [token])[-1])
        runner.memory.remember(sequence, [*tokens, *range(5)])
        return np.stack(logits), known

    return answer_


def test_a_model_on_large_pages_gives_the_bits_of_the_host_and_shares_its_stored_pages(answer):
    tokens = np.random.default_rng(0).integers(0, CONFIG.vocab_size, 500).tolist()
    expected, _ = answer(HostDevice(1), tokens)
    for ways in ((HostDevice, LargePagesDevice, HostDevice), (LargePagesDevice, HostDevice, LargePagesDevice)):
        disk = DictDisk()
        for device, length in zip(ways, (140, 300, 500), strict=True):
            plain, _ = answer(HostDevice(1), tokens[:length])
            found, known = answer(device(1), tokens[:length], disk)
            np.testing.assert_array_equal(found, plain)
            assert known == {140: 0, 300: 128, 500: 288}[length]
        np.testing.assert_array_equal(found, expected)
