"""`--device ascend` with its operators computed by PyTorch on the CPU: the same code that runs a card, from the other side."""

import re
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from card_reference import logits_of
from hypothesis import given, settings
from hypothesis import strategies as st
from test_devices_card import SHAPES, tokens_of

from edge_llm.ascend.devices.card.inputs import Inputs
from edge_llm.ascend.devices.card.key_forms import put_rows
from edge_llm.ascend.devices.card.layers import Layers, settled
from edge_llm.ascend.npu.calls import MASK_SIZE, Calls
from edge_llm.ascend.npu.chips import chip_law
from edge_llm.ascend.npu.emulated_runtime import EmulatedRuntime
from edge_llm.ascend.npu.law import OPERATORS
from edge_llm.ascend.npu.runtime import GRAPH_ROWS, run
from edge_llm.bench.synthetic import write_random
from edge_llm.config import DEFAULT_CHUNK, GenerationParams, LlamaConfig, RuntimeConfig
from edge_llm.devices import open_device
from edge_llm.devices.base import DeviceOptions
from edge_llm.errors import DeviceError, DeviceLost, NumericError, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.load import load_engine
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import resolve
from edge_llm.opening.runner import load_runner
from edge_llm.providers.local import LocalProvider
from edge_llm.runner.base import Segment
from edge_llm.schemes.int8_weight import Int8Weight

pytestmark = pytest.mark.thorough(file=14)

BUILTIN = Path(__file__).resolve().parents[1] / "edge_llm" / "builtin"
FLOAT16 = "emulated:310p:float16"
STEPS = 6
SHAPES = SHAPES | {
    "heads of 8": LlamaConfig(
        family="llama", vocab_size=97, hidden_size=64, intermediate_size=172, num_layers=3, num_heads=8,
        num_kv_heads=4, head_dim=8, context=640, norm_eps=1e-5, rope_theta=1e4, tied_embeddings=True,
    ),
    "qk norms": LlamaConfig(
        family="qwen3", vocab_size=131, hidden_size=48, intermediate_size=96, num_layers=3, num_heads=4,
        num_kv_heads=2, head_dim=32, context=640, norm_eps=1e-6, rope_theta=1e6, qk_norm=True,
    ),
}  # fmt: skip
BIASED = LlamaConfig(
    family="qwen2", vocab_size=131, hidden_size=128, intermediate_size=192, num_layers=3, num_heads=2, num_kv_heads=1,
    head_dim=64, context=640, norm_eps=1e-6, rope_theta=1e6, tied_embeddings=True, qkv_bias=True,
)  # fmt: skip
ON_CARD = ["tied", "qk norms"]
"""Shapes that the attention of a 310P takes."""


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", "emulated")


@pytest.fixture(scope="module")
def bundles(tmp_path_factory):
    found = {}
    for name, shape in SHAPES.items():
        folder = tmp_path_factory.mktemp("bundle")
        write_random(folder, shape, seed=3)
        found[name] = open_bundle(folder)
    return found


def runtime_of(**options):
    return RuntimeConfig(**{"threads": 2, "context": 512, "chunk": 64, "kv_tokens": 1536, "device": "ascend", **options})


def runner_of(bundle, **options):
    return load_runner(bundle, runtime_of(**options), 300)[0]


def logits(runner, tokens, steps=STEPS):
    """Of a prompt of all but ``steps`` of ``tokens``, and of a step for each of the others."""
    sequence = runner.open()
    rows = [runner.forward(sequence, tokens[:-steps], wanted=len(tokens) - steps)]
    rows += [runner.forward(sequence, [token]) for token in tokens[-steps:]]
    sequence.close()
    return np.concatenate(rows)


# ---- split ----


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("way", [{}, {"chunk": 8}, {"window": 1}, {"shadow": False}], ids=str)
def test_split_gives_the_bits_of_the_emulated_chip(bundles, name, way):
    bundle = bundles[name]
    tokens = tokens_of(bundle, 100)
    ours = logits(runner_of(bundle, placement="split", **way), tokens)
    assert np.array_equal(ours, logits(runner_of(bundle, device=FLOAT16, placement="split", **way), tokens))


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", SHAPES)
def test_steps_of_split_may_be_the_hosts(bundles, name):
    tokens = tokens_of(bundles[name], 100)
    plain = logits(runner_of(bundles[name], placement="split"), tokens)
    assert np.array_equal(plain, logits(runner_of(bundles[name], placement="split,host"), tokens, steps=30))


def test_in_split_card_and_cpu_work_at_the_same_time(bundles):
    traces = []
    runner = runner_of(bundles["tied"], placement="split", window=4, chunk=32)
    runner.on_trace = traces.append
    runner.forward(runner.open(), tokens_of(bundles["tied"], 128))
    card, cpu = (traces[0].on(lane) for lane in ("npu", "cpu"))
    assert any(one.start < other.end and other.start < one.end for one in card for other in cpu)


# ---- card ----

BOUND = 0.15
"""Of the largest logit: how far the card may be from the reference.  Nearly all rows are the same bits; where a sum that is
made in another order ends a last bit apart, an INT8 value may be rounded the other way, and later tokens see that."""
GAP = 0.05
"""The same between the two best tokens of the reference: further apart, both name the same token."""
INT8_KEYS = 0.25
"""Of the largest logit: how far INT8 keys under static ranges may be from float16 ones."""


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", [*ON_CARD, "builtin"])
def test_card_is_close_to_the_reference(bundles, name):
    bundle = open_bundle(BUILTIN) if name == "builtin" else bundles[name]
    tokens = tokens_of(bundle, 120)
    want, got = logits_of(bundle, tokens), logits(runner_of(bundle, placement="card"), tokens)
    largest = np.abs(want).max()
    assert np.abs(got - want).max() <= BOUND * largest
    best = np.sort(want, axis=1)
    differ = got.argmax(1) != want.argmax(1)
    same = (got == want).all(axis=1).sum()
    error = np.abs(got - want).max() / largest
    print(f"{name}: {same} of {len(tokens)} rows are the same bits, {differ.sum()} tokens differ, logits at most {error:.4f}")
    assert not (differ & (best[:, -1] - best[:, -2] > GAP * largest)).any()


@pytest.mark.parametrize("name", ON_CARD)
def test_steps_of_a_chip_that_takes_lengths_from_the_host_are_replayed_and_close_to_the_reference(bundles, name):
    tokens = tokens_of(bundles[name], 120)
    runner = runner_of(bundles[name], placement="card", device="ascend:910b")
    assert not runner.model._runtime.capture_refusal
    before = runner.model._runtime.counters.replays
    got, want = logits(runner, tokens, steps=40), logits_of(bundles[name], tokens)
    assert runner.model._runtime.counters.replays == before + 40
    assert np.abs(got - want).max() <= BOUND * np.abs(want).max()


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", ON_CARD)
@pytest.mark.parametrize(
    "way", [{"chunk": 8}, {"chunk": 200}, {"window": 1}, {"threads": 1}], ids=str
)
def test_on_the_card_rows_do_not_depend_on_their_chunks(bundles, name, way):
    bundle = bundles[name]
    tokens = tokens_of(bundle, 100)
    plain = logits(runner_of(bundle, placement="card"), tokens)
    assert np.array_equal(plain, logits(runner_of(bundle, placement="card", **way), tokens))
    assert np.array_equal(plain, logits(runner_of(bundle, placement="card", **way), tokens, steps=40))


def test_on_the_card_a_batch_is_as_each_alone(bundles):
    runner = runner_of(bundles["tied"], placement="card")
    tokens = tokens_of(bundles["tied"], 90)
    cuts = [tokens[:70], tokens[5:12], tokens[40:75], tokens[3:4]]
    alone = [runner.forward(runner.open(), cut, wanted=len(cut)) for cut in cuts]
    together = runner.run([Segment(runner.open(), cut, len(cut)) for cut in cuts])
    few = runner.run([Segment(runner.open(), cut[:6], 1) for cut in cuts])
    assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))
    assert all(np.array_equal(one[min(5, len(one) - 1)], other[0]) for one, other in zip(alone, few, strict=True))


def test_int8_keys_are_close_to_float16_ones_and_rows_do_not_depend_on_their_chunks(bundles):
    bundle = bundles["qk norms"]
    tokens = tokens_of(bundle, 150)
    plain = logits(runner_of(bundle, placement="card"), tokens)
    runner = runner_of(bundle, placement="card", keys="int8")
    narrow = logits(runner, tokens)
    assert np.array_equal(narrow, logits(runner_of(bundle, placement="card", keys="int8", chunk=16), tokens, steps=40))
    error = np.abs(plain - narrow).max() / np.abs(plain).max()
    print(f"int8 keys: logits differ by at most {error:.4f} of the largest")
    assert 0 < error < INT8_KEYS
    assert runner.model.kv.page_bytes * 2 == runner_of(bundle, placement="card").model.kv.page_bytes


def test_a_chunk_of_more_rows_than_one_call_takes_is_attended_in_pieces(bundles):
    """A 310P's attention over INT8 keys takes 256 rows, its default chunk has more."""
    bundle = bundles["qk norms"]
    tokens = tokens_of(bundle, 600)
    whole, pieces = (runner_of(bundle, placement="card", keys="int8", context=640, chunk=chunk) for chunk in (600, 100))
    assert np.array_equal(logits(whole, tokens), logits(pieces, tokens))


@pytest.mark.parametrize("chip", ["310p", "910b"])
@pytest.mark.parametrize("keys", ["float16", "int8"])
def test_biases_are_added_where_rows_have_scales(tmp_path, monkeypatch, chip, keys):
    """Those of queries, keys and values of a turned model; `write_random` alone makes them zeros."""
    from edge_llm.bench import synthetic

    plain = synthetic._random_tensor

    def biased(name, shape, columns, random):
        found = plain(name, shape, columns, random)
        return random.standard_normal(shape).astype(found.dtype) if name.endswith(".bias") else found

    monkeypatch.setattr(synthetic, "_random_tensor", biased)
    write_random(tmp_path, BIASED, seed=3, turned=True)
    bundle = open_bundle(tmp_path)
    tokens = tokens_of(bundle, 40)
    ours = logits(runner_of(bundle, placement="card", keys=keys, device=f"ascend:{chip}"), tokens)
    host = logits(runner_of(bundle, device="host"), tokens)
    assert np.abs(ours - host).max() < 0.1 * np.abs(host).max()


def test_int8_keys_are_refused_where_the_attention_does_not_take_them(bundles):
    with pytest.raises(UsageError, match="--kv `int8`.*head_size.*use --kv float16"):
        runner_of(bundles["tied"], placement="card", keys="int8")
    with pytest.raises(UsageError, match="--kv `float16`.*the host keeps keys and values as int8"):
        runner_of(bundles["tied"], placement="split", keys="float16")


def test_states_are_those_that_the_output_matrix_multiplies(bundles):
    runner = runner_of(bundles["tied"], placement="card")
    tokens = tokens_of(bundles["tied"], 50)
    (states,) = runner.run([Segment(runner.open(), tokens, 50, states=True)])
    (few,) = runner.run([Segment(runner.open(), tokens[:9], 3, states=True)])
    assert states.shape == (50, 64) and np.array_equal(states[6:9], few)


def test_a_step_is_one_copy_in_one_replay_one_copy_out_and_one_wait(bundles):
    runner = runner_of(bundles["tied"], placement="card")
    counters = runner.model._runtime.counters
    sequences = [runner.open() for _ in range(3)]
    for length, sequence in zip((5, 130, 60), sequences, strict=True):
        runner.forward(sequence, tokens_of(bundles["tied"], length))
    for turn in range(4):
        segments = [Segment(sequence, [turn], 1) for sequence in sequences]
        runner.run(segments)
        before = (counters.copies_in, counters.copies_out, counters.replays, counters.waits, counters.captures)
        runner.run(segments)
        after = (counters.copies_in, counters.copies_out, counters.replays, counters.waits, counters.captures)
        assert [new - old for old, new in zip(before, after, strict=True)] == [1, 1, 1, 1, 0]


def test_every_number_of_rows_has_one_graph(bundles):
    runner = runner_of(bundles["tied"], placement="card", kv_tokens=32 * 128)
    counters = runner.model._runtime.counters
    for rows in [*range(1, 33), *range(1, 33)]:
        sequences = [runner.open() for _ in range(rows)]
        runner.run([Segment(sequence, tokens_of(bundles["tied"], 1), 1) for sequence in sequences])
        for sequence in sequences:
            sequence.close()
    assert counters.captures == 6


@pytest.mark.parametrize(
    ("name", "placed"),
    [
        ("tied", {"placement": "split"}),
        ("tied", {"placement": "card"}),
        ("qk norms", {"placement": "card", "keys": "float16"}),
        ("qk norms", {"placement": "card", "keys": "int8"}),
    ],
    ids=str,
)
def test_streamed_layers_give_the_same(bundles, name, placed):
    bundle = bundles[name]
    tokens = tokens_of(bundle, 100)
    plain = logits(runner_of(bundle, **placed), tokens)
    plan = resolve(runtime_of(**placed), this_machine(), bundle)
    needs = plan.device.needs(bundle.decoder, bundle.tensors, plan.room)
    streamed = runner_of(bundle, **placed, card_memory=str(needs.total - sum(needs.layers[: len(needs.layers) // 3])))
    assert streamed.model.weights.streamed
    assert np.array_equal(plain, logits(streamed, tokens))


def test_pages_go_out_and_come_back_as_they_were(bundles):
    bundle = bundles["tied"]
    tokens = tokens_of(bundle, 200)
    one, other = (runner_of(bundle, placement="card") for _ in range(2))
    held, empty = one.open(), other.open()
    want = one.forward(held, tokens)
    other.memory.reserve(empty, 200)
    pages = np.arange(200 // 16)
    other.model.kv.write_pages(empty.host_pages(pages)[::-1], one.model.kv.read_pages(held.host_pages(pages)[::-1]))
    empty.length = 16 * len(pages)
    assert np.array_equal(other.forward(empty, tokens[empty.length :]), want)


def kept(bundle, tokens, **options):
    """How many of ``tokens`` a new runner finds on disk, and their logits; it leaves them for the next."""
    runner = runner_of(bundle, prefix_cache="64MiB", **options)
    sequence = runner.memory.open(tokens)
    found = sequence.length
    logits = runner.forward(sequence, tokens[found:])
    runner.memory.remember(sequence, tokens)
    sequence.close()
    runner.memory._disk.close()
    return found, logits


def test_pages_on_disk_are_taken_by_the_same_numeric_alone_and_give_the_same(bundles):
    bundle = bundles["qk norms"]
    tokens = tokens_of(bundle, 300)
    for options in ({"placement": "card"}, {"placement": "card", "keys": "int8"}, {"placement": "split"}):
        nothing, first = kept(bundle, tokens, **options)
        some, second = kept(bundle, tokens, **options)
        assert nothing == 0 and some >= 256 and np.array_equal(first, second)


def test_pages_of_int8_keys_serve_whatever_the_context_is(bundles):
    bundle = bundles["qk norms"]
    tokens = tokens_of(bundle, 200)
    options = {"placement": "card", "keys": "int8"}
    runner = runner_of(bundle, context=512, **options)
    plain = runner.forward(runner.open(), tokens)
    kept(bundle, tokens, context=320, **options)
    some, found = kept(bundle, tokens, context=512, **options)
    assert some and np.array_equal(plain, found)


def test_without_graphs_steps_give_the_same_and_the_chat_says_why(bundles, monkeypatch):
    plain = logits(runner_of(bundles["tied"], placement="card"), tokens_of(bundles["tied"], 50))
    monkeypatch.setattr(EmulatedRuntime, "capture_refusal", "it is tired")
    runner = runner_of(bundles["tied"], placement="card")
    assert np.array_equal(plain, logits(runner, tokens_of(bundles["tied"], 50)))
    assert runner.model._runtime.counters.captures == 0
    provider = LocalProvider(load_engine(BUILTIN, runtime_of(placement="card")))
    assert any("operator by operator, which takes longer: it is tired" in note for note in provider.facts.notes)
    assert "its steps are not recorded: it is tired" in provider.facts.site


@pytest.mark.parametrize("rows", [1, 20, 70])
@pytest.mark.parametrize("wanted", [0, 1])
def test_rows_that_are_no_numbers_any_more_are_refused_and_the_next_are_not(bundles, rows, wanted):
    """Also a row that is not wanted: its keys are seen by those that are."""
    runner = runner_of(bundles["tied"], placement="card")
    plain = runner.forward(runner.open(), tokens_of(bundles["tied"], rows))
    fill, bad = runner.model._fill, []
    runner.model._fill = lambda rows, inputs: (fill(rows, inputs), inputs.host("hidden")[0].fill(bad[0] if bad else 0))
    for bad[:] in ([np.nan], [np.inf], [-np.inf]):
        sequence = runner.open()
        with pytest.raises(NumericError, match="not finite"):
            runner.forward(sequence, tokens_of(bundles["tied"], rows), wanted=wanted)
        assert sequence.length == 0
    runner.model._fill = fill
    assert np.array_equal(plain, runner.forward(runner.open(), tokens_of(bundles["tied"], rows)))


@pytest.mark.parametrize("rows", [1, 70])
@pytest.mark.parametrize("chip", ["310p", "910b"])
def test_activations_that_leave_float32_are_refused_also_where_the_chip_has_no_infinity(bundles, chip, rows, monkeypatch):
    layer = Layers.run
    monkeypatch.setattr(Layers, "run", lambda *given: settled(layer(*given)) * 3e38 * 3e38)
    runner = runner_of(bundles["tied"], placement="card", device=f"ascend:{chip}")
    with pytest.raises(NumericError, match="not finite"):
        runner.forward(runner.open(), tokens_of(bundles["tied"], rows))


@pytest.mark.parametrize(("chip", "expected"), [("310p", [65504, -65504, 0]), ("910b", [np.inf, -np.inf, np.nan])])
def test_an_emulated_chip_has_infinities_where_the_chip_has_them(chip, expected):
    import torch

    runtime, made = EmulatedRuntime(chip_law(chip)), []
    numbers = torch.tensor([60000, -60000, 0], dtype=torch.float16)
    run(runtime, lambda: made.append(torch.stack((numbers[0] * 2, numbers[1] * 2, numbers[2] / numbers[2]))))
    assert np.array_equal(made[0].numpy(), np.array(expected, np.float16), equal_nan=True)


@pytest.mark.parametrize("placement", ["split", "card"])
def test_weights_that_are_no_numbers_are_refused_by_name(bundles, placement, monkeypatch):
    monkeypatch.setattr(Int8Weight, "product_scale", property(lambda weight: np.full(weight.rows, np.nan, np.float32)))
    with pytest.raises(NumericError, match=r"`(qkv|output)\.scale` of the model's weights is not finite"):
        runner_of(bundles["qk norms"], placement=placement)


def test_what_is_cut_off_is_counted(bundles):
    bundle = open_bundle(BUILTIN)
    runner = runner_of(bundle, placement="card")
    assert runner.clipped == 0
    tokens = tokens_of(bundle, 200)
    runner.forward(runner.open(), tokens)
    inputs = len(tokens) * sum(linear.columns for layer in bundle.decoder.layers for linear in layer.linears)
    assert 0 < runner.clipped < inputs / 1000


@given(places=st.lists(st.integers(0, 15), min_size=1, max_size=12))
def test_rows_that_the_host_places_lie_where_the_card_would_place_them(places):
    import torch

    rows = torch.arange(1, len(places) + 1, dtype=torch.int8)[:, None].expand(-1, 4)
    target, expected = torch.zeros((16, 4), dtype=torch.int8), torch.zeros((16, 4), dtype=torch.int8)
    put_rows(target, np.array(places, np.int32), rows)
    for place, row in zip(places, rows, strict=True):
        expected[place] = row
    assert torch.equal(target, expected)


@settings(max_examples=20)
@given(rows=st.integers(1, 40), width=st.integers(1, 100), blocks=st.integers(1, 20))
def test_what_a_step_is_given_lies_at_multiples_of_32_bytes_and_arrives(rows, width, blocks):
    runtime = EmulatedRuntime(chip_law("310p"))
    inputs = Inputs(rows, width, blocks, runtime)
    names = ("hidden", "positions", "slots", "wanted", "lengths", "table")
    for number, name in enumerate(names):
        inputs.host(name)[...] = number
    run(runtime, inputs.copy)
    begin = inputs.card("hidden").data_ptr()
    assert all((inputs.card(name).data_ptr() - begin) % 32 == 0 for name in names)
    assert all((inputs.card(name) == number).all() for number, name in enumerate(names))


# ---- what is called ----


@pytest.mark.parametrize("chip", ["310p", "910b"])
def test_every_operator_that_a_model_calls_is_in_the_law_of_its_chip(bundles, chip, monkeypatch):
    """Those of torch too; moving, naming and making arrays takes no operator of the chip."""
    seen = watch_operators(monkeypatch)
    for placed in ({"placement": "split"}, {"placement": "card"}, {"placement": "card", "keys": "int8"}):
        runner = runner_of(bundles["qk norms"], device=f"ascend:{chip}", **placed)
        sequence = runner.open()
        runner.forward(sequence, tokens_of(bundles["qk norms"], 100))
        runner.forward(sequence, [1])
        pages = sequence.host_pages(np.arange(2))
        runner.model.kv.write_pages(pages, runner.model.kv.read_pages(pages))
    law = OPERATORS[chip]
    unknown = {name for name in seen if name not in law and name.rstrip("_") not in law} - PLAIN
    assert not unknown and {"npu_quant_matmul", "index_select", "mm", "npu_add_rms_norm"} <= set(seen)


PLAIN = {
    "empty", "empty_like", "zeros", "ones", "arange", "split_with_sizes", "slice", "select", "transpose", "unsqueeze", "view",
    "reshape", "chunk", "unbind", "detach", "alias", "lift_fresh",
    "triu_", "matmul", "_to_copy", "clone", "expand", "permute", "_unsafe_view",
}  # fmt: skip


def watch_operators(monkeypatch):
    """The names of all operators that work for a card calls from now on."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.add(function.overloadpacket.__name__)
            return function(*args, **(kwargs or {}))

    def watched(work):
        def run():
            with Watch():
                work()

        return run

    given = EmulatedRuntime._given
    monkeypatch.setattr(EmulatedRuntime, "_given", lambda self, thread, work, after: given(self, thread, watched(work), after))
    return seen


# ---- which placement ----


def test_a_shape_that_the_attention_refuses_falls_back_by_name(bundles):
    runner = runner_of(bundles["heads of 8"])
    assert runner.site.placement.startswith("split") and "8" in runner.site.placement_reason
    assert runner_of(bundles["tied"]).site.placement == "card"
    with pytest.raises(UsageError, match="8.*does: split"):
        runner_of(bundles["heads of 8"], placement="card")


def test_a_shape_that_the_swiglu_refuses_falls_back_by_name(tmp_path):
    write_random(tmp_path, replace(SHAPES["tied"], intermediate_size=100), seed=3)
    runner = runner_of(open_bundle(tmp_path))
    assert runner.site.placement.startswith("split") and "gate_and_up is `200`" in runner.site.placement_reason
    assert runner_of(open_bundle(tmp_path), device="ascend:910b").site.placement == "card"


# ---- what is refused ----


def test_a_draft_model_runs_on_the_host_however_the_card_keeps_its_keys(bundles):
    options = {"placement": "card", "keys": "float16", "context": 128, "threads": 1}
    alone, helped = (
        load_engine(BUILTIN, RuntimeConfig(device="ascend", draft=draft, **options)) for draft in ("none", str(BUILTIN))
    )
    prompt = alone.token_request(tokens_of(bundles["tied"], 20), GenerationParams(max_tokens=12, ignore_eos=True))
    assert alone.answer(prompt).tokens == helped.answer(prompt).tokens


def test_masks_of_chunks_are_counted_where_each_chunk_has_its_own(bundles, monkeypatch):
    bundle, seen = bundles["tied"], []
    attend = Calls.attend_chunk

    def attended(self, query, keys, values, kv_heads, table, lengths, mask, query_lengths):
        seen.append(mask.numel())
        return attend(self, query, keys, values, kv_heads, table, lengths, mask, query_lengths)

    monkeypatch.setattr(Calls, "attend_chunk", attended)
    for chip in ("310p", "910b"):
        found = resolve(runtime_of(device=f"ascend:{chip}", placement="card", context=640), this_machine(), bundle)
        plan = found.device._plan(bundle.decoder, bundle.tensors, found.room)
        runner = runner_of(bundle, device=f"ascend:{chip}", placement="card", context=640)
        seen.clear()
        runner.forward(runner.open(), tokens_of(bundle, 600))
        # what is compared, in float16, and lowered; of every chunk of a window
        assert 5 * max(seen) * (found.runtime.window if chip == "910b" else 0.4) <= plan._masks()
        assert plan._masks() <= 2 * MASK_SIZE**2 or chip == "910b"


def test_too_little_memory_is_said_with_both_sizes(bundles):
    with pytest.raises(UsageError, match=r"least that works is \d+ bytes"):
        runner_of(bundles["tied"], card_memory="4096")
    with pytest.raises(DeviceError, match=r"takes \d+ MiB of the card and its keys and values \d+ MiB, but only \d+ MiB"):
        runner_of(bundles["tied"], placement="card", kv_tokens=10**9)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ascend:", "called `ascend`"),
        ("ascend:310p:x", "called `ascend`"),
        ("ascend:1", "ASCEND_RT_VISIBLE_DEVICES=`1`"),
        ("ascend:9x", "no chip `9x`"),
    ],
)
@pytest.mark.parametrize("operators", ["emulated", ""])
def test_names_that_no_card_has(monkeypatch, operators, name, words):
    """Said before it is asked whether a card is here."""
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", operators)
    with pytest.raises(UsageError, match=re.escape(words)):
        open_device(name, DeviceOptions(1))


def test_the_variable_takes_one_value(monkeypatch):
    monkeypatch.setenv("EDGE_LLM_NPU_OPS", "fast")
    with pytest.raises(DeviceError, match="`fast`.*`emulated`"):
        open_device("ascend", DeviceOptions(1))


def test_emulation_is_said(caplog):
    device = open_device("ascend", DeviceOptions(1))
    assert "EDGE_LLM_NPU_OPS is set" in caplog.text and "emulated" in device.name


# ---- before the first step ----


def test_every_graph_is_recorded_before_the_first_step(bundles):
    runner = runner_of(bundles["qk norms"], placement="card", kv_tokens=33 * 128)
    counters, seen = runner._device.runtime.counters, []
    runner.prepare(lambda stage, done, total: seen.append((stage, done, total)))
    assert counters.captures == len(GRAPH_ROWS)
    assert seen[0] == ("graphs", 0, len(GRAPH_ROWS)) and seen[-1] == ("graphs", len(GRAPH_ROWS), len(GRAPH_ROWS))
    tokens = tokens_of(bundles["qk norms"], 100)
    found = logits(runner, tokens)
    for rows in (1, 3, 5, 9, 17, 32):
        sequences = [runner.open() for _ in range(rows)]
        runner.run([Segment(sequence, [7]) for sequence in sequences])
        for sequence in sequences:
            sequence.close()
    assert counters.captures == len(GRAPH_ROWS)
    assert np.array_equal(found, logits(runner_of(bundles["qk norms"], placement="card"), tokens))


@pytest.mark.parametrize("options", [{"placement": "split"}, {"placement": "card", "keys": "int8"}], ids=str)
def test_what_records_no_graphs_has_nothing_to_prepare(bundles, options):
    runner = runner_of(bundles["qk norms"], **options)
    runner.prepare()
    assert runner._device.runtime.counters.captures == 0


def test_inputs_of_chunks_are_copied_beside_the_computation(bundles, monkeypatch):
    """On a stream of their own, so that a chunk's are there when the one before ends; a step is one piece of work."""
    threads = []
    copy = EmulatedRuntime.copy_in
    tokens = tokens_of(bundles["qk norms"], 150)
    runner = runner_of(bundles["qk norms"], placement="card", chunk=64, window=2)
    plain = logits(runner, tokens)

    def copy_in(self, card, host):
        threads.append(threading.current_thread().name.rpartition("_")[0])
        copy(self, card, host)

    monkeypatch.setattr(EmulatedRuntime, "copy_in", copy_in)
    assert np.array_equal(logits(runner, tokens), plain)
    steps = 1 + STEPS  # the last 16 tokens of the prompt are one too
    assert threads == ["npu copies"] * 2 + ["npu stream"] * steps


@pytest.mark.parametrize("device", ["ascend", "ascend:910b"])
def test_a_card_that_is_lost_while_graphs_are_recorded_gives_way_to_the_host(monkeypatch, device):
    """A 910B records one while the model is loaded, to see whether it can be told lengths."""
    lost = []

    def capture(self, work):
        lost.append(True)
        raise DeviceLost("ascend", "error code 507011")

    def given(self, thread, work, after):
        if lost:
            raise DeviceLost("ascend", "error code 507011")
        return give(self, thread, work, after)

    give = EmulatedRuntime._given
    monkeypatch.setattr(EmulatedRuntime, "capture", capture)
    engine = load_engine(None, RuntimeConfig(threads=2, context=512, device=device, placement="card"))
    monkeypatch.setattr(EmulatedRuntime, "_given", given)
    engine.batcher.prepare()
    if device == "ascend:910b":
        assert lost and "its steps are not recorded: error code 507011" in str(engine.runner.site)
        with pytest.raises(DeviceLost):
            engine.answer(engine.text_request("Once upon", GenerationParams(max_tokens=4, temperature=0)))
    answer = engine.answer(engine.text_request("Once upon", GenerationParams(max_tokens=4, temperature=0)))
    assert engine.runner.site.device == "host" and "507011" in engine.runner.site.device_reason
    assert engine.runner._lengths[-1] == DEFAULT_CHUNK, "the host's own"
    host = load_engine(None, RuntimeConfig(threads=2, context=512, device="host"))
    assert answer.text == host.answer(host.text_request("Once upon", GenerationParams(max_tokens=4, temperature=0))).text
