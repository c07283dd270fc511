"""A device that works on its own and hands back completions: the model says the same, in any order of its parts."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edge_llm.ascend.devices.emulated import EmulatedDevice
from edge_llm.bench.synthetic import write_random
from edge_llm.config import LlamaConfig, RuntimeConfig
from edge_llm.errors import DeviceError
from edge_llm.formats.bundle import open_bundle
from edge_llm.models.rope import RopeTables
from edge_llm.runner.base import Segment
from edge_llm.runner.order import POLICIES
from edge_llm.runner.prefill import prefill_graph
from edge_llm.runner.rows import pack
from edge_llm.runner.runner import Int8Runner
from edge_llm.subgraphs.ops import CARD_LANE
from edge_llm.weights.resident import ResidentWeights

CONFIG = LlamaConfig(
    family="llama", vocab_size=97, hidden_size=64, intermediate_size=100, num_layers=3, num_heads=4,
    num_kv_heads=2, head_dim=16, context=320, norm_eps=1e-5, rope_theta=1e4, tied_embeddings=True,
)  # fmt: skip
PROMPT = np.random.default_rng(5).integers(0, CONFIG.vocab_size, 150).tolist()


class CardOnItsOwn(EmulatedDevice):
    """The card's subgraphs run in a thread of their own, one after the other."""

    def __init__(self, worker, **options):
        super().__init__("310p", 2, **options)
        self.sent = []
        self.left = 10**6  # subgraphs that it runs before it fails
        self._worker = worker

    def build(self, subgraph, tables):
        work = super().build(subgraph, tables)
        if subgraph.lane != CARD_LANE:
            return work

        def checked(*given):
            self.left -= 1
            if self.left < 0:
                raise DeviceError("the card is gone")
            work(*given)

        def run(*given):
            self.sent.append(self._worker.submit(checked, *given))
            return self.sent[-1].result

        return run


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    write_random(folder, CONFIG, seed=3)
    return open_bundle(folder)


@pytest.fixture
def card():
    with ThreadPoolExecutor(1) as worker:
        yield lambda **options: CardOnItsOwn(worker, **options)


def make_runner(bundle, device, watch=None, **runtime):
    return Int8Runner(
        bundle.config, ResidentWeights(bundle), device, RuntimeConfig(**{"chunk": 32, **runtime}), RopeTables(320), watch=watch
    )


def prompt_and_answer(runner, steps=3):
    """Logits of the prompt's last token and of some tokens decoded after it."""
    sequence = runner.open()
    rows = [runner.forward(sequence, PROMPT)]
    rows += [runner.forward(sequence, [int(rows[-1].argmax())]) for _ in range(steps)]
    return np.concatenate(rows)


@pytest.fixture(scope="module")
def expected(bundle):
    devices = {name: EmulatedDevice("310p", 2, placement=name) for name in ("split", "card")}
    return {name: prompt_and_answer(make_runner(bundle, device)) for name, device in devices.items()}


@pytest.mark.parametrize("placement", ["split", "card"])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_model_says_the_same_whoever_waits_for_its_parts(bundle, card, expected, placement, policy):
    device = card(placement=placement)
    runner = make_runner(bundle, device, policy=policy)
    assert np.array_equal(prompt_and_answer(runner), expected[placement])
    assert device.sent and all(part.done() for part in device.sent)


def test_a_part_hands_on_the_completion_of_its_subgraph(bundle, card):
    runner = make_runner(bundle, card(placement="split"))
    sequence = runner.open()
    runner.memory.reserve(sequence, 40)
    chunks = pack([Segment(sequence, PROMPT[:40])], (32,), 2)
    for task in prefill_graph(list(chunks), runner.model):
        completion = task.run()
        assert (completion is not None) == (task.lane == CARD_LANE)
        if completion is not None:
            completion()


def test_what_fails_in_flight_fails_the_request_and_nothing_else(bundle, card, expected):
    device = card(placement="split")
    runner = make_runner(bundle, device)
    sequence = runner.open()
    for left in (0, 1, 7):
        device.left = left
        with pytest.raises(DeviceError, match="the card is gone"):
            runner.forward(sequence, PROMPT)
        assert sequence.length == 0
        assert all(part.done() for part in device.sent)
    device.left = 10**6
    assert np.array_equal(prompt_and_answer(runner), expected["split"])


def test_a_watch_sees_the_end_of_the_work(bundle, card, expected):
    device = card(placement="split")
    seen = []

    def watch(ops, positions, seconds):
        (op,) = ops
        seen.append(op.op.kind)
        assert op.op.kind != "matmul" or all(part.done() for part in device.sent)

    assert np.array_equal(prompt_and_answer(make_runner(bundle, device, watch)), expected["split"])
    assert "matmul" in seen and device.sent
