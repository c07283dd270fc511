"""The benchmark's arithmetic: who runs when, what a row says, what a token costs, where time goes."""

import ctypes
import dataclasses
import mmap

import numpy as np
import pytest

from edge_llm.bench.breakdown import Clock, break_down, table
from edge_llm.bench.disk import DiskMeter, DiskUse, streaming
from edge_llm.bench.environment import CoreMeter, environment, load_warning
from edge_llm.bench.first_token import forget, measure_first_token, own_worker
from edge_llm.bench.measure import WARM_SECONDS, Measurement, OwnRunner, Ratio, Test, measure
from edge_llm.bench.memory import forget_peak, peak_rss_bytes
from edge_llm.bench.own_process import OwnProcess
from edge_llm.bench.roofs import Costs, Roofs, operations, shares
from edge_llm.bench.synthetic import SHAPES, write_random
from edge_llm.config import LlamaConfig, RuntimeConfig
from edge_llm.errors import DeviceError, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.models import describe
from edge_llm.opening.runner import load_runner

pytestmark = pytest.mark.thorough(file=6)

CONFIG = LlamaConfig(
    family="qwen2", vocab_size=320, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=16, context=512, norm_eps=1e-6, rope_theta=1e4, tied_embeddings=True, qkv_bias=True,
)  # fmt: skip


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("random")
    write_random(folder, CONFIG)
    return open_bundle(folder)


class Recorder:
    def __init__(self, name, log, seconds=0.5):
        self.name, self.log, self.seconds = name, log, seconds

    def begin(self, depth):
        self.log.append((self.name, "begin", depth))

    def run(self, test):
        self.log.append((self.name, test.label, test.depth))
        return self.seconds

    def peak_rss_bytes(self):
        return 7


def test_contestants_take_turns():
    log = []
    a, b = measure([Recorder("a", log), Recorder("b", log)], Test(2000, 0, 9), 2)
    label = "pp2000 @ d9"
    warm = "pp512 @ d9"
    assert log == [
        ("a", "begin", 9), ("a", warm, 9), ("b", "begin", 9), ("b", warm, 9),
        ("a", label, 9), ("b", label, 9), ("a", label, 9), ("b", label, 9),
    ]  # fmt: skip
    assert a.speeds.tolist() == b.speeds.tolist() == [4000.0, 4000.0]
    assert a.peak_rss_bytes == 7


def test_no_warm_up_runs_only_what_is_timed():
    log = []
    measure([Recorder("a", log)], Test(0, 3), 2, warm_up=False)
    assert log == [("a", "begin", 0), ("a", "tg3", 0), ("a", "tg3", 0)]


def test_short_runs_are_warmed_up_for_a_while():
    """The first runs of a tiny model are slower than the rest: one of them is not enough."""
    log = []
    (short,) = measure([Recorder("a", log, seconds=0.4 * WARM_SECONDS)], Test(0, 8), 2)
    assert log == [("a", "begin", 0), *[("a", "tg4", 0)] * 3, *[("a", "tg8", 0)] * 2]
    assert len(short.seconds) == 2


def test_a_row_is_the_samples_of_a_measurement():
    row = Measurement(Test(8, 2), (1.0, 2.0, 4.0)).as_row()
    assert row["samples_ts"] == [10.0, 5.0, 2.5]
    assert row["median_ts"] == 5.0
    assert row["avg_ts"] == pytest.approx(17.5 / 3)
    assert row["stddev_ts"] == pytest.approx(np.std([10, 5, 2.5], ddof=1))
    assert row["spread"] == pytest.approx(row["stddev_ts"] / row["avg_ts"])
    assert (row["test"], row["avg_ns"]) == ("pp8+tg2", 2333333333)
    assert Measurement(Test(8, 0), (1.0,)).as_row()["stddev_ts"] == 0.0


def test_a_ratio_pairs_neighbours():
    ours, theirs = Measurement(Test(10, 0), (1.0, 2.0, 1.0)), Measurement(Test(10, 0), (2.0, 2.0, 4.0))
    assert Ratio.of(ours, theirs) == Ratio(median=2.0, low=1.0, high=4.0)


def test_the_context_is_back_at_its_depth_after_every_run(bundle):
    runner, _ = load_runner(bundle, RuntimeConfig(threads=1), 64)
    own = OwnRunner(runner, CONFIG.vocab_size)
    for depth in (16, 0, 20):
        own.begin(depth)
        assert own._sequence.length == depth
        assert own.run(Test(8, 3, depth)) > 0
        assert own._sequence.length == depth


def test_operations_are_those_of_the_shapes():
    per_layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 96
    assert operations(describe(CONFIG)) == (2 * 2 * per_layer, 2 * 320 * 64)
    # A known figure: 0.36 billion weights outside of the embedding, as published for Qwen2.5-0.5B.
    assert operations(describe(SHAPES["qwen2.5-0.5b"]))[0] / 2 == pytest.approx(0.358e9, rel=0.01)


def test_rates_count_what_a_token_needs(bundle):
    costs = Costs.of_bundle(bundle)
    tiles = sum(tensor.nbytes for name, tensor in bundle.tensors.items() if name.endswith("tiles"))
    assert tiles < costs.weight_bytes <= bundle.size
    assert costs.kv_bytes == 2 * 2 * 2 * (16 + 2)  # keys and values, layers, heads, INT8 values and a float16 scale
    prompt = costs.rates(Measurement(Test(4, 0), (2.0,)))
    assert prompt["gops"] == pytest.approx((4 * costs.operations + costs.logit_operations) / 2.0 / 1e9)
    assert prompt["gb_s"] is None
    one = costs.rates(Measurement(Test(0, 1, 100), (0.5,)))
    assert one["gb_s"] == pytest.approx((costs.weight_bytes + 101 * costs.kv_bytes) / 0.5 / 1e9)
    assert one["gops"] is None


def test_an_untied_embedding_is_not_read_whole(tmp_path):
    write_random(tmp_path, dataclasses.replace(CONFIG, tied_embeddings=False))
    with open_bundle(tmp_path) as untied:
        embedding = sum(tensor.nbytes for name, tensor in untied.tensors.items() if name.startswith("embedding."))
        everything = sum(tensor.nbytes for tensor in untied.tensors.values())
        assert Costs.of_bundle(untied).weight_bytes == everything - embedding


def test_shares_are_of_the_higher_roof():
    roofs = Roofs(1, "x", 10e9, 4e9).higher(Roofs(1, "x", 8e9, 5e9))
    assert shares({"gops": 5.0, "gb_s": None}, roofs) == {"gops_share": 0.5, "gb_s_share": None}
    assert shares({"gops": None, "gb_s": 2.5}, roofs) == {"gops_share": None, "gb_s_share": 0.5}
    assert set(shares({"gops": 1.0, "gb_s": None}, None).values()) == {None}


def test_a_breakdown_adds_up(bundle):
    tests = [Test(40, 0), Test(0, 3, 16)]
    clock = Clock()
    runner, _ = load_runner(bundle, RuntimeConfig(threads=1, chunk=32), 40, clock.watch)
    prompt, generation = break_down(OwnRunner(runner, bundle.config.vocab_size), clock, tests, 2, threads=1)
    facts = prompt.as_dict(Roofs(1, "x", 1e9, 1e9))
    assert sum(part["share"] for part in facts["parts"]) == pytest.approx(1.0)
    assert 0 < facts["non_gemm_share"] < 1
    named = {(part["part"], part["operation"]): part for part in facts["parts"]}
    assert {part for part, _ in named} == {"embedding", "qkv", "keys", "attention", "o", "gate_up", "down", "head", "other"}
    assert named["qkv", "linear"]["calls"] == 2 * 2  # layers, chunks
    assert named["head", "linear"]["calls"] == 1
    seconds = named["qkv", "linear"]["ms"] / 1e3
    assert named["qkv", "linear"]["gops"] == pytest.approx(2 * 2 * 40 * 64 * 128 / seconds / 1e9)
    assert named["attention", "attention"]["gops"] is None
    attention = {part["part"]: part for part in generation.as_dict(None)["parts"]}["attention"]
    assert attention["gb_s"] == pytest.approx((17 + 18 + 19) * 2 * 2 * 2 * 18 / (attention["ms"] / 1e3) / 1e9)
    assert len(table(facts).splitlines()) == 4 + len(facts["parts"])
    assert "of roof" in table(facts) and "of roof" not in table(prompt.as_dict(None))


def test_a_test_that_is_longer_than_the_model_allows_is_refused(bundle):
    with pytest.raises(UsageError, match=f"`1000000` tokens is more than the {bundle.config.context}"):
        load_runner(bundle, RuntimeConfig(), 10**6)


PRODUCTS = ("linear", "matmul")


@pytest.mark.parametrize("device", ["host", "emulated:310p"])
def test_the_watched_runner_computes_the_same(bundle, device):
    clock, runtime = Clock(), RuntimeConfig(threads=1, chunk=32, device=device)
    plain, _ = load_runner(bundle, runtime, 64)
    watched, _ = load_runner(bundle, runtime, 64, clock.watch)
    sequence, seen = plain.open(), watched.open()
    for count, chunks in (40, 2), (1, 1), (1, 1):
        ids = list(range(count))
        assert (plain.forward(sequence, ids) == watched.forward(seen, ids)).all()
        spent = clock.take()
        assert spent["embedding", "embedding"].calls == chunks
        assert sum(found.calls for (part, kind), found in spent.items() if part == "qkv" and kind in PRODUCTS) == 2 * chunks
        assert all(found.seconds > 0 for found in spent.values())


def test_first_token_is_later_than_the_load(bundle):
    (found,) = measure_first_token([lambda: own_worker(bundle.folder, 1)], 1)
    assert 0 < found.load[0] < found.token[0]
    assert found.peak_rss_bytes > 1 << 20
    assert found.as_dict()["ttft_ms"] == 1e3 * found.token[0]


def test_a_forgotten_file_is_not_in_the_page_cache(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(1 << 20))
    if pages_of(path) == 0:
        pytest.skip("this file system has no page cache")
    forget(path)
    assert pages_of(path) == 0
    assert path.read_bytes() == bytes(1 << 20)


def pages_of(path):
    """How many pages of the file lie in memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        size = len(mapped)
        found = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
        first = ctypes.c_char.from_buffer(mapped)
        assert libc.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(size), found) == 0
        del first
        return sum(page & 1 for page in found)


def test_a_process_of_its_own_is_a_contestant(bundle):
    test = Test(20, 3)
    own = OwnProcess(bundle.folder, test.tokens, 1)
    try:
        (found,) = measure([own], test, 2)
    finally:
        own.close()
    assert all(seconds > 0 for seconds in found.seconds)
    assert found.peak_rss_bytes > 1 << 20
    with pytest.raises(DeviceError, match="too little"):
        OwnProcess(bundle.folder, test.tokens, 1, memory="1")


def test_the_disk_is_measured_around_a_test(bundle):
    meter = DiskMeter(bundle)
    before = meter.before()
    with_others, alone = meter.after(before, alone=False), meter.after(before, alone=True)
    assert with_others.rate > 0 and with_others.busy is None
    assert alone.busy is None or 0 <= alone.busy <= 1
    assert DiskMeter(None).after(DiskMeter(None).before(), alone=True) is None
    row = {"n_prompt": 0, "median_ts": 10.0}
    assert streaming(row, 300, DiskUse(4000.0, 0.5))["disk_share"] == 10.0 * 300 / 4000.0
    assert streaming(row | {"n_prompt": 5}, 300, DiskUse(4000.0, 0.5))["disk_share"] is None
    assert set(streaming(row, 0, None).values()) == {None}


def test_peak_memory_can_be_counted_anew():
    before = peak_rss_bytes()
    block = np.ones(64 << 20, np.uint8)
    high = peak_rss_bytes()
    assert high >= before
    assert high >= len(block)
    del block
    forget_peak()
    assert peak_rss_bytes() <= high


def test_the_environment_says_how_to_run_again():
    facts = environment()
    assert {"edge_llm", "commit", "dirty", "argv", "cpu", "isa", "cores_usable", "affinity", "cgroup_quota", "governor"} <= set(
        facts
    )
    assert {"memory_bytes", "os", "python", "numpy", "load_average_start", "seed", "time"} <= set(facts)


def test_load_is_judged_per_core(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert load_warning((1.9, 0, 0)) is None
    assert "2.5" in load_warning((2.5, 0, 0))


def test_our_own_work_is_not_others():
    meter = CoreMeter()
    while (usage := meter.read()) is None:
        sum(range(10000))
    assert usage.others >= 0.0
