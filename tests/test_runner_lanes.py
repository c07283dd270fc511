"""Prefill and decode on lanes: whatever is streamed and in whatever order tasks run, the tokens are the same."""

import itertools
import threading
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm import scheduler
from edge_llm.bench.synthetic import write_random
from edge_llm.config import LlamaConfig, RuntimeConfig
from edge_llm.devices import model
from edge_llm.devices.host import HostDevice
from edge_llm.errors import StorageError, UsageError
from edge_llm.formats import layout
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.direct import DirectFile
from edge_llm.models.rope import RopeTables
from edge_llm.runner.base import Segment
from edge_llm.runner.order import POLICIES
from edge_llm.runner.runner import Int8Runner
from edge_llm.weights import table
from edge_llm.weights.plan import plan_memory
from edge_llm.weights.resident import ResidentWeights
from edge_llm.weights.sizes import WeightSizes
from edge_llm.weights.streamed import StreamedWeights

CONFIG = LlamaConfig(
    family="llama", vocab_size=97, hidden_size=64, intermediate_size=100, num_layers=6, num_heads=4,
    num_kv_heads=2, head_dim=16, context=320, norm_eps=1e-5, rope_theta=1e4, tied_embeddings=True,
)  # fmt: skip


class SlottedWeights:
    """Resident weights that behave as streamed ones do, and fail where a read comes too late or a slot is taken too early."""

    def __init__(self, weights, streamed, slots):
        self._weights = weights
        self.embedding = weights.embedding
        self.head = weights.head
        self.nbytes = weights.nbytes
        self.streamed = streamed
        self.flash_tables = weights.flash_tables
        self.streamed_bytes = self.sent_bytes = 0
        self.token_bytes = weights.token_bytes
        self.slots = slots
        self.requests = []
        self.failing = None
        self._slots = []  # streamed layers, the one asked for last at the end
        self._there = set()
        self._lock = threading.Lock()

    def use(self, index):
        with self._lock:
            assert index not in self.streamed or index in self._there, f"layer {index} was used before it was read"
        return self._weights.use(index)

    def turns(self):
        return None  # as where reads must go through Python

    def embedding_rows(self, tokens):
        return self._weights.embedding_rows(tokens)

    def head_blocks(self):
        return self._weights.head_blocks()

    def request(self, index):
        with self._lock:
            if index not in self._slots:
                self.requests.append(index)
            self._slots = [*(layer for layer in self._slots if layer != index), index][-self.slots :]
            self._there &= set(self._slots)

    def wait(self, index):
        if index == self.failing:
            raise StorageError(f"cannot read layer `{index}`")
        with self._lock:
            assert index in self._slots, f"layer {index} was read before it was requested"
            self._there.add(index)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    write_random(folder, CONFIG, seed=3)
    return open_bundle(folder)


@pytest.fixture(scope="module")
def resident(bundle):
    return ResidentWeights(bundle)


def make_runner(bundle, weights, **runtime):
    return Int8Runner(
        bundle.config, weights, HostDevice(2), RuntimeConfig(**{"chunk": 32, **runtime}), RopeTables(320)
    )


def prompt_and_answer(runner, tokens, steps=4):
    """Logits of the prompt's last token and of some tokens decoded after it."""
    sequence = runner.open()
    rows = [runner.forward(sequence, tokens)]
    rows += [runner.forward(sequence, [int(rows[-1].argmax())]) for _ in range(steps)]
    return np.concatenate(rows)


@settings(max_examples=40, deadline=None)
@given(
    streamed=st.sets(st.integers(0, CONFIG.num_layers - 1), min_size=3),
    slots=st.integers(1, 3),
    policy=st.sampled_from(sorted(POLICIES)),
    window=st.integers(1, 5),
    length=st.integers(1, 200),
)
def test_streamed_is_resident_under_any_policy(bundle, resident, streamed, slots, policy, window, length):
    tokens = np.random.default_rng(length).integers(0, CONFIG.vocab_size, length).tolist()
    slots = min(slots, len(streamed) - 1)
    weights = SlottedWeights(resident, tuple(sorted(streamed)), slots)
    streaming = make_runner(bundle, weights, window=window, policy=policy)
    assert np.array_equal(prompt_and_answer(streaming, tokens), prompt_and_answer(make_runner(bundle, resident), tokens))


def test_one_sweep_reads_each_streamed_layer_once(bundle, resident):
    weights = SlottedWeights(resident, (0, 2, 4, 5), 2)
    runner = make_runner(bundle, weights, window=4)
    runner.forward(runner.open(), list(range(90)))  # three chunks in one window
    assert weights.requests == [0, 2, 4, 5, 0, 2]  # the last two are for the next sweep
    runner.forward(runner.open(), [1, 2, 3])
    assert weights.requests[6:] == [4, 5, 0, 2]


def test_a_failing_read_fails_the_request_and_nothing_else(bundle, resident):
    weights = SlottedWeights(resident, (1, 3, 5), 2)
    runner = make_runner(bundle, weights)
    sequence = runner.open()
    whole = prompt_and_answer(make_runner(bundle, resident), list(range(50)))
    for failing in (1, 5):
        weights.failing = failing
        with pytest.raises(StorageError, match=f"layer `{failing}`"):
            runner.forward(sequence, list(range(50)))
        assert sequence.length == 0
    weights.failing = None
    assert np.array_equal(prompt_and_answer(runner, list(range(50))), whole)


def test_every_run_can_be_watched_and_teaches_the_cost_model(bundle, resident):
    runner = make_runner(bundle, SlottedWeights(resident, (1, 3, 5), 2))
    traces = []
    runner.on_trace = traces.append
    prompt_and_answer(runner, list(range(40)), steps=1)
    assert [set(trace.lanes) for trace in traces] == [{"cpu", "flash"}, {"cpu", "flash"}]
    assert {span.name for span in traces[0].on("flash")} >= {"layer1.read", "layer3.read", "layer5.read"}
    assert runner.cost.predict("layer/32@0", "cpu") != scheduler.CostModel().predict("layer/32@0", "cpu")


def test_subgraphs_are_shared_by_chunks_and_layers(bundle, resident, monkeypatch):
    monkeypatch.setattr(model, "whole_layers", lambda parts: parts)
    runner = make_runner(bundle, resident)
    monkeypatch.setattr(runner.model, "_fuse", None)  # as on a device that has no programs
    runner.forward(runner.open(), [7] * 128)  # four chunks of six layers, six parts each
    sharing = runner.model.sharing
    assert sharing.built == 8  # and the embedding, and the head
    assert sharing.uses == 4 * (1 + 6 * 6) + 1
    assert sharing.saved_bytes > 100 * 32 * 4 * CONFIG.hidden_size


def test_an_unknown_policy_is_refused(bundle, resident):
    with pytest.raises(UsageError, match="unknown policy `fastest`; choose one of: auto, in-order"):
        make_runner(bundle, resident, policy="fastest")


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory):
    """A model whose tables have pieces enough to be worth leaving on flash."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "PIECE_BYTES", 2 * layout.BLOCK_ALIGNMENT)
        patch.setattr(table, "BLOCK_BYTES", 4 * layout.BLOCK_ALIGNMENT)
        patch.setattr(table, "BLOCK_BUFFERS", 3)
        patch.setattr(table, "ROW_BUFFERS", 2)
        patch.setattr(table, "ROW_PIECES", 3)
        folder = tmp_path_factory.mktemp("large")
        write_random(folder, replace(CONFIG, vocab_size=2990), seed=4)
        yield open_bundle(folder)


def least_plan(bundle):
    """The plan with the least memory, of which the tables are no part."""
    sizes = WeightSizes.of_bundle(bundle)
    with pytest.raises(UsageError) as error:
        plan_memory(sizes, 1, flash_tables=True)
    plan = plan_memory(sizes, int(str(error.value).split("works is ")[1].split()[0]), flash_tables=True)
    assert plan.flash_tables
    assert len(plan.streamed) > plan.slots
    return plan


@settings(max_examples=10, deadline=None)
@given(
    policy=st.sampled_from(sorted(POLICIES)),
    window=st.integers(1, 4),
    tokens=st.lists(st.integers(0, 2989), min_size=1, max_size=120),
)
def test_all_on_flash_is_resident(large_vocabulary, policy, window, tokens):
    weights = StreamedWeights(large_vocabulary, least_plan(large_vocabulary))
    streaming = make_runner(large_vocabulary, weights, window=window, policy=policy)
    resident = make_runner(large_vocabulary, ResidentWeights(large_vocabulary))
    assert np.array_equal(prompt_and_answer(streaming, tokens), prompt_and_answer(resident, tokens))
    sequence, other = streaming.open(), resident.open()
    every = streaming.run([Segment(sequence, tokens, len(tokens))])[0]
    assert np.array_equal(every, resident.run([Segment(other, tokens, len(tokens))])[0])
    states = [runner.run([Segment(runner.open(), tokens, len(tokens), states=True)])[0] for runner in (streaming, resident)]
    assert np.array_equal(*states)


class BrokenFile(DirectFile):
    """Fails every read that touches a byte range."""

    descriptor = -1
    broken = range(0)

    def read_into(self, out, offset):
        if offset < self.broken.stop and self.broken.start < offset + len(out):
            raise StorageError("cannot read `weights.bin`: Input/output error; check the disk")
        super().read_into(out, offset)


@pytest.mark.parametrize("block", ["embedding", "layers.0", "layers.5"])
def test_a_disk_that_breaks_and_recovers(large_vocabulary, block):
    file = BrokenFile(large_vocabulary.folder / "weights.bin")
    runner = make_runner(large_vocabulary, StreamedWeights(large_vocabulary, least_plan(large_vocabulary), file=file))
    expected = prompt_and_answer(make_runner(large_vocabulary, ResidentWeights(large_vocabulary)), [1, 2, 3])
    where = large_vocabulary.blocks[block]
    assert np.array_equal(prompt_and_answer(runner, [1, 2, 3]), expected)
    file.broken = range(where.offset, where.offset + where.nbytes)
    for _ in range(2):
        with pytest.raises(StorageError, match="Input/output"):
            prompt_and_answer(runner, [1, 2, 3])
    file.broken = range(0)
    assert np.array_equal(prompt_and_answer(runner, [1, 2, 3]), expected)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.sets(st.integers(0, 11)), st.integers(0, 20))
def test_layers_go_together_as_far_as_their_work_allows(work, streamed, most):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "STRETCH", most)
        runs = model.stretches(work, sorted(streamed))
    assert [layer for run in runs for layer in run] == list(range(len(work)))
    for run in runs:
        assert len(run) == 1 or (sum(work[layer] for layer in run) <= most and not streamed & {*run})
    for run, following in itertools.pairwise(runs):
        more = sum(work[layer] for layer in (*run, following[0]))
        assert more > most or streamed & {*run, following[0]}
