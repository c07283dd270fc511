"""The whole model on an emulated card: the host's bits, one launch for a step, nothing of it left on the host."""

import gc
import re
import weakref
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import tiny_config, write_model

from edge_llm.ascend.devices.card_memory import CardMemory
from edge_llm.ascend.devices.emulated import EmulatedDevice
from edge_llm.ascend.npu.chips import CHIPS, chip_law
from edge_llm.bench.synthetic import write_random
from edge_llm.config import LlamaConfig, RuntimeConfig
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.devices import open_device
from edge_llm.devices.base import DeviceOptions
from edge_llm.errors import DeviceError, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.models.rope import RopeTables
from edge_llm.opening.carry_out import read_weights
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import resolve
from edge_llm.opening.runner import load_runner
from edge_llm.runner.base import Segment
from edge_llm.runner.runner import Int8Runner
from edge_llm.weights.plan import plan_memory
from edge_llm.weights.resident import ResidentWeights
from edge_llm.weights.sizes import WeightSizes
from edge_llm.weights.staged import StagedWeights

pytestmark = pytest.mark.thorough(file=8)

PLACEMENTS = ("split", "split,host", "card")
EXACT = {"310p": "emulated:310p:s8gemm", "310b": "emulated:310b:s8gemm", "910b": "emulated:910b"}
"""The chips by the routes whose products have the host's bits."""
SHAPES = {
    "tied": LlamaConfig(
        family="llama", vocab_size=97, hidden_size=64, intermediate_size=96, num_layers=6, num_heads=4,
        num_kv_heads=2, head_dim=16, context=640, norm_eps=1e-5, rope_theta=1e4, tied_embeddings=True,
    ),
    "odd": LlamaConfig(
        family="qwen2", vocab_size=130, hidden_size=72, intermediate_size=75, num_layers=4, num_heads=3,
        num_kv_heads=1, head_dim=24, context=640, norm_eps=1e-6, rope_theta=1e6, qkv_bias=True,
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=SHAPES, ids=list(SHAPES))
def bundle(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bundle")
    write_random(folder, SHAPES[request.param], seed=3)
    return open_bundle(folder)


def runtime(**options):
    return RuntimeConfig(
        **{"threads": 2, "context": 512, "chunk": 64, "kv_tokens": 2048, "activations": "static", **options}
    )


def runner_of(bundle, **options):
    return load_runner(bundle, runtime(**options), 300)[0]


def answers(runner, tokens, steps=4):
    """Logits of all ``tokens``, of ``steps`` steps after them, and states of the first."""
    sequence = runner.open()
    rows = [runner.forward(sequence, tokens, wanted=len(tokens))]
    rows += [runner.forward(sequence, [7 * step % 90]) for step in range(steps)]
    sequence.close()
    other = runner.open()
    rows.append(runner.run([Segment(other, tokens[:40], 5, states=True)])[0])
    other.close()
    return np.concatenate([row.ravel() for row in rows])


def tokens_of(bundle, count=150):
    return np.random.default_rng(5).integers(0, bundle.config.vocab_size, count).tolist()


# ---- the same numbers ----


@pytest.mark.thorough(keep=7)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_placement_gives_the_bits_of_the_host(bundle, chip, placement):
    tokens = tokens_of(bundle)
    expected = answers(runner_of(bundle), tokens)
    found = answers(runner_of(bundle, device=EXACT[chip], placement=placement), tokens)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("way", [{"chunk": 16, "window": 3}, {"chunk": 33}, {"threads": 1}, {"shadow": False}])
def test_on_a_card_alone_however_it_is_cut(bundle, way):
    tokens = tokens_of(bundle)
    card = runner_of(bundle, device=EXACT["310p"], placement="card", **way)
    assert np.array_equal(answers(card, tokens), answers(runner_of(bundle, **way), tokens))


@pytest.mark.parametrize("placement", ["split", "card"])
def test_the_route_of_a_chip_decides_and_not_the_placement(bundle, placement):
    """A prompt through float16 products is near the exact one, and the same bit for bit wherever the rest runs."""
    tokens = tokens_of(bundle, 60)

    def logits(**options):
        runner = runner_of(bundle, device="emulated:310p", **options)
        return runner.forward(runner.open(), tokens, wanted=len(tokens))

    assert np.abs(logits(placement=placement) - logits()).max() <= 0.02 * np.abs(logits()).max()


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=5),
    streamed=st.booleans(),
    placement=st.sampled_from(PLACEMENTS),
)
def test_a_batch_is_each_alone(tied, lengths, streamed, placement):
    tokens = tokens_of(tied.bundle, max(lengths))
    card = tied.runner(placement, streamed)
    sequences = [card.open() for _ in lengths]
    together = card.run([Segment(one, tokens[:n], n) for one, n in zip(sequences, lengths, strict=True)])
    steps = card.run([Segment(one, [n], 1) for one, n in zip(sequences, lengths, strict=True)])
    for one in sequences:
        one.close()
    for found, step, n in zip(together, steps, lengths, strict=True):
        alone = tied.host.open()
        assert np.array_equal(found, tied.host.forward(alone, tokens[:n], wanted=n))
        assert np.array_equal(step, tied.host.forward(alone, [n]))
        alone.close()


class Tied:
    """One model and its runners, each made once."""

    def __init__(self, folder):
        write_random(folder, SHAPES["tied"], seed=3)
        self.bundle = open_bundle(folder)
        self.host = runner_of(self.bundle)
        self._runners = {}

    def runner(self, placement, streamed):
        if (placement, streamed) not in self._runners:
            options = {"device": EXACT["310p"], "placement": placement}
            if streamed:
                options["card_memory"] = least_card_memory(self.bundle, placement)
            self._runners[placement, streamed] = runner_of(self.bundle, **options)
        return self._runners[placement, streamed]


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    return Tied(tmp_path_factory.mktemp("tied"))


# ---- what lies where ----


def open_on_card(bundle, placement="card", **options):
    """A runner that has a card, and its device."""
    plan = resolve(runtime(device=EXACT["310p"], placement=placement, **options), this_machine(), bundle)
    device, weights, settings_ = plan.device, read_weights(plan), plan.runtime
    return Int8Runner(bundle.config, weights, device, settings_, RopeTables(512), decoder=bundle.decoder), device


def test_a_step_is_one_launch_and_copies_no_weights(bundle):
    runner, device = open_on_card(bundle)
    sequence = runner.open()
    runner.forward(sequence, [1, 2, 3])
    runner.forward(sequence, [4])  # builds the step's subgraphs
    memory = device.chip.memory
    held, launches, copied_in, copied_out = memory.held, device.arrays.launches, memory.copied_in, memory.copied_out
    for token in range(5):
        runner.forward(sequence, [token])
    assert device.arrays.launches == launches + 5
    assert memory.copied_in - copied_in < 5 * 200  # token, sequence, position, slot and page table
    assert memory.copied_out - copied_out == 5 * 4 * bundle.config.vocab_size
    assert memory.held == held


def test_a_prompt_is_a_launch_for_each_chunk_and_layer(bundle):
    runner, device = open_on_card(bundle)
    runner.forward(runner.open(), list(range(90)))  # two chunks
    assert device.arrays.launches == 2 * (len(bundle.decoder.layers) + 2)  # and the embedding and the head


def test_the_host_holds_nothing_of_a_model_that_lies_on_the_card(bundle):
    plan = resolve(runtime(device=EXACT["310p"], placement="card"), this_machine(), bundle)
    device, weights, settings_ = plan.device, read_weights(plan), plan.runtime
    assert isinstance(weights, StagedWeights)
    blocks = []
    for index in range(len(bundle.decoder.layers)):
        weights.wait(index)
        blocks.append(weakref.ref(weights.use(index)))
    runner = Int8Runner(bundle.config, weights, device, settings_, RopeTables(512), decoder=bundle.decoder)
    gc.collect()
    assert [block() for block in blocks] == [None] * len(blocks)
    assert runner.model.weights.nbytes == 0
    with pytest.raises(KeyError):
        weights.use(0)


def test_what_beside_a_card_the_host_keeps_has_no_int8_matrix(bundle):
    runner = runner_of(bundle, device=EXACT["310p"])
    kept = [runner.model.weights.use(index) for index in range(len(bundle.decoder.layers))]
    assert {linear.tiles.size for block in kept for linear in block.linears.values()} == {0}
    both = runner_of(bundle, device=EXACT["310p"], placement="split,host")
    assert all(linear.tiles.size for linear in both.model.weights.use(0).linears.values())


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize(
    ("name", "placement"),
    [*((EXACT["310p"], placement) for placement in PLACEMENTS), ("emulated:310p", "split"), ("emulated:310b", "card")],
)
def test_the_plan_of_a_card_is_not_exceeded_and_not_far_off(bundle, name, placement):
    plan = resolve(runtime(device=name, placement=placement), this_machine(), bundle)
    device, weights, settings_ = plan.device, read_weights(plan), plan.runtime
    runner = Int8Runner(bundle.config, weights, device, settings_, RopeTables(512), decoder=bundle.decoder)
    needs = device.needs(bundle.decoder, bundle.tensors, plan.room)
    answers(runner, tokens_of(bundle, 300))
    sequences = [runner.open() for _ in range(12)]
    runner.run([Segment(one, [1, 2], 2) for one in sequences])
    for length in (1, 5, 20, 50):
        runner.forward(runner.open(), [3] * length, wanted=length)
    assert device.chip.memory.peak <= needs.total
    assert needs.total <= 1.6 * device.chip.memory.peak + (2 << 20)


# ---- a card that is too small ----


def least_card_memory(bundle, placement, **options):
    with pytest.raises(UsageError, match="of card memory are too little") as error:
        runner_of(bundle, device=EXACT["310p"], placement=placement, card_memory="1000", **options)
    assert error.value.param == "card_memory"
    return re.search(r"works is (\d+) bytes", str(error.value))[1]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_layers_are_streamed_to_a_small_card(bundle, placement):
    tokens = tokens_of(bundle)
    least = least_card_memory(bundle, placement)
    runner = runner_of(bundle, device=EXACT["310p"], placement=placement, card_memory=least)
    assert len(runner.model.weights.streamed) >= 3 and runner.model.weights.slots == 2
    assert np.array_equal(answers(runner, tokens), answers(runner_of(bundle), tokens))
    with pytest.raises(UsageError, match="too little"):
        runner_of(bundle, device=EXACT["310p"], placement=placement, card_memory=str(int(least) - 1))


@pytest.mark.parametrize("share", [1.0, 0.75, 0.5])
def test_a_small_host_beside_a_small_card_streams_what_either_lacks(bundle, share):
    tokens = tokens_of(bundle)
    sizes = WeightSizes.of_bundle(bundle)
    budget = int(share * (sizes.total - 1)) + int((1 - share) * least_memory(sizes))
    placed = {"device": EXACT["310p"], "placement": "split,host", "card_memory": least_card_memory(bundle, "split,host")}
    runner = runner_of(bundle, **placed, memory=str(budget))
    on_card, on_host = runner_of(bundle, **placed), runner_of(bundle, memory=str(budget))
    assert {*runner.model.weights.streamed} == {*on_card.model.weights.streamed, *on_host.model.weights.streamed}
    assert np.array_equal(answers(runner, tokens), answers(runner_of(bundle), tokens))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_as_much_memory_as_all_weights_take_is_enough_beside_any_card(bundle, placement):
    """Also where tables are smaller than the buffers that runs of them are read into."""
    tokens = tokens_of(bundle)
    runner = runner_of(bundle, device=EXACT["310p"], placement=placement, memory="100%")
    assert np.array_equal(answers(runner, tokens), answers(runner_of(bundle), tokens))


def least_memory(sizes):
    with pytest.raises(UsageError) as error:
        plan_memory(sizes, 1, flash_tables=True)
    return int(re.search(r"works is (\d+) bytes", str(error.value))[1])


def test_enough_card_memory_streams_nothing(bundle):
    runner = runner_of(bundle, device=EXACT["310p"], placement="card", card_memory="1GiB")
    assert runner.model.weights.streamed == ()


@pytest.mark.parametrize("way", [{}, {"context": 32768, "kv_tokens": 512}], ids=["long prompt", "long context"])
def test_the_least_card_memory_is_enough_for_all_that_a_prompt_may_be_asked_for(tmp_path, way):
    """Logits of each token, of a vocabulary larger than all else; and tables of more positions than pages hold."""
    write_random(tmp_path, replace(SHAPES["tied"], vocab_size=20000, context=32768), seed=3)
    wide = open_bundle(tmp_path)
    tokens = tokens_of(wide, 200)
    least = least_card_memory(wide, "card", chunk=256, **way)
    runner = runner_of(wide, device=EXACT["310p"], placement="card", card_memory=least, chunk=256, **way)
    assert np.array_equal(answers(runner, tokens), answers(runner_of(wide, chunk=256, **way), tokens))


def test_more_card_memory_than_the_chip_has_is_what_it_has(bundle):
    (_, unlimited), (_, device) = open_on_card(bundle), open_on_card(bundle, card_memory="1000GiB")
    assert device.chip.memory.ceiling == unlimited.chip.memory.ceiling > chip_law("310p").ceiling()
    assert unlimited.chip.memory.ceiling < chip_law("310p").ceiling(weights=unlimited.chip.memory.held)


def test_layers_of_other_schemes_take_turns_in_the_same_card_memory(tmp_path):
    """Tensors of another number, type and size over each other: what is held does not grow, and every layer is itself."""
    write_model(tmp_path / "source", tiny_config("llama", num_hidden_layers=6, max_position_embeddings=1024))
    outliers = Outliers(schemes=tuple((name, "float16") for name in ("layers.1.qkv", "layers.1.down", "layers.4.o")))
    mixed = open_bundle(import_model(tmp_path / "source", target=tmp_path / "bundle", outliers=outliers))
    tokens = tokens_of(mixed, 60)
    least = least_card_memory(mixed, "card")
    runner, device = open_on_card(mixed, card_memory=least)
    expected = answers(runner_of(mixed), tokens)
    assert np.array_equal(answers(runner, tokens), expected)
    held = []
    for _ in range(3):
        assert np.array_equal(answers(runner, tokens), expected)
        held.append(device.chip.memory.held)
    assert len(set(held)) == 1


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_a_card_that_is_full_holds_nothing_of_what_failed(bundle, placement):
    """Whatever the array that finds no room: the error takes nothing with it, and later the answers are right."""
    tokens = tokens_of(bundle)
    expected = answers(runner_of(bundle), tokens)
    unharmed, its_device = open_on_card(bundle, placement)
    answers(unharmed, tokens)
    runner, device = open_on_card(bundle, placement)
    memory, begun = device.chip.memory, device.chip.memory.held
    for ceiling in range(begun, its_device.chip.memory.held, 12345):
        memory.ceiling = ceiling
        held = [held_after_no_room(runner, memory, tokens) for _ in range(3)]
        assert held[1:] == held[:-1]
    memory.ceiling = 2**30
    assert np.array_equal(answers(runner, tokens), expected)
    assert memory.held == its_device.chip.memory.held


def held_after_no_room(runner, memory, tokens):
    sequence = runner.open()
    with pytest.raises(DeviceError, match="out of memory"):
        runner.forward(sequence, tokens, wanted=len(tokens))
        runner.forward(sequence, [1])
    sequence.close()
    return memory.held


# ---- pages ----


def test_pages_go_from_one_device_to_another(tied):
    """A beginning that the host computed is known to a card, whose pages are longer, and the other way around."""
    tokens = tokens_of(tied.bundle, 300)
    runners = [tied.host, tied.runner("card", False)]
    expected = [runner.forward(runner.open(), tokens) for runner in runners]
    for source, target in (runners, runners[::-1]):
        given_, taken = source.open(), target.open()
        source.forward(given_, tokens[:-1])
        count = (len(tokens) - 1) // 16
        taken.reserve(len(tokens))
        data = source.model.kv.read_pages(given_.host_pages(np.arange(count)))
        target.model.kv.write_pages(taken.host_pages(np.arange(count)), data)
        taken.length = 16 * count
        assert np.array_equal(target.forward(taken, tokens[16 * count :]), expected[0])
        assert np.array_equal(expected[0], expected[1])
        given_.close()
        taken.close()


def test_a_card_has_pages_of_its_own_size(tied):
    card = tied.runner("card", False)
    assert (card.model.kv.page_tokens, tied.host.model.kv.page_tokens) == (CHIPS["310p"].page_tokens, 16)
    assert card.memory.pages.pages == 2048 // 128


# ---- what is refused ----


@pytest.mark.parametrize(
    ("device", "placement", "words"),
    [
        ("host", "card", r"`card`: the device `host` does not do it; the device `host` does: host"),
        ("emulated:310p", "host", r"`host`: the device `emulated:310p` does not do it.* does: split, split,host, card"),
        ("emulated:310p", "crad", r"`crad`: it is no placement.* does: split, split,host, card"),
    ],
)
def test_a_placement_that_a_device_cannot_do_is_refused(device, placement, words):
    with pytest.raises(UsageError, match=words) as error:
        open_device(device, DeviceOptions(1, placement=placement))
    assert error.value.param == "placement"


def test_the_host_has_no_card_memory():
    with pytest.raises(UsageError, match="--card-memory has no meaning on the host"):
        open_device("host", DeviceOptions(1, card_memory=1))


def test_a_model_that_does_not_fit_is_refused_before_it_is_used(bundle):
    with pytest.raises(DeviceError, match="out of memory on Ascend310P3.*--card-memory"):
        device = EmulatedDevice("310p", 2, placement="card")
        device.chip.memory = CardMemory(chip_law("310p"), 2**18)
        Int8Runner(bundle.config, ResidentWeights(bundle), device, runtime(), RopeTables(512), decoder=bundle.decoder)


def test_a_static_subgraph_on_the_card_takes_its_rows_and_no_others(tied):
    model = tied.runner("card", False).model
    part = model.layer_parts[0][0]
    run = model._subgraphs.get(part, 8)
    with pytest.raises(DeviceError, match="`layer` is static: it takes 8 rows and refuses `1`"):
        slot = model._slots[0]
        run(model.weights.use(0), slot.buffers, replace(slot.rows, static=1), None)
