"""Layers as parts: who waits for whom, what is done in one pass, and that every cut computes the layer that was described."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from model_files import FAMILIES as LLAMA_LIKE
from model_files import tiny_config
from odd_layers import EPS, ODD, WIDTH, attention, down, gate_up, linear, norm, o, odd, qkv, random_weights, swiglu

from edge_llm.ascend.devices.card_weights import CardSlot, load_products
from edge_llm.ascend.devices.emulated import EmulatedDevice
from edge_llm.devices.host import HostDevice
from edge_llm.devices.kv_pages import PagedKV
from edge_llm.errors import UsageError
from edge_llm.kv.pages import PageAllocator
from edge_llm.kv.sequence import SequencePages
from edge_llm.models import describe, load_config
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.operations.attention import KEY_OFFSET
from edge_llm.operations.base import HIDDEN
from edge_llm.operations.layer import Layer
from edge_llm.quant.scheme import quantize_weight
from edge_llm.runner.base import Segment
from edge_llm.runner.rows import pack
from edge_llm.schemes import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.subgraphs.ops import DEVICE_BUFFERS, Part, Subgraph, buffer_widths
from edge_llm.subgraphs.placement import (
    CARD,
    HOST,
    PLACEMENTS,
    SPLIT,
    Placement,
    choose_placement,
    connect,
    embedding_part,
    final_norm_part,
    head_part,
    last_parts,
    on_card,
    place,
    place_on_host,
    split,
    whole_layers,
)

ALL_LAYERS = {family: lambda family=family: describe(load_config(tiny_config(family))).layers[0] for family in LLAMA_LIKE}
ALL_LAYERS |= {name: lambda name=name: odd(name) for name in ODD}
every_layer = pytest.mark.parametrize("layer", [make() for make in ALL_LAYERS.values()], ids=list(ALL_LAYERS))
CUTS = {"host": HOST, "split": SPLIT, "card": CARD}
every_cut = pytest.mark.parametrize("cut", CUTS.values(), ids=list(CUTS))


def names(parts):
    return [part.name for part in parts]


def kinds(parts):
    return {part.name: [op.kind for op in part.ops] for part in parts}


# ---- parts ----


@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_the_parts_of_a_family(family):
    decoder = describe(load_config(tiny_config(family)))
    for parts in place(decoder, HOST):
        assert kinds(parts) == {
            "qkv": ["linear"],
            "keys": ["rope_append"],
            "attention": ["attention"],
            "o": ["linear"],
            "gate_up": ["linear_glu"],
            "down": ["linear"],
        }
        assert {part.lane for part in parts} == {"cpu"}
    for parts in place(decoder, SPLIT):
        assert kinds(parts) == {
            "qkv.quantize": ["quantize"],
            "qkv": ["matmul"],
            "qkv.shadow": ["shadow"],
            "keys": ["merge", "rope_append"],
            "attention": ["attention", "quantize"],
            "o": ["matmul"],
            "o.shadow": ["shadow"],
            "gate_up.quantize": ["merge", "quantize"],
            "gate_up": ["matmul"],
            "gate_up.shadow": ["shadow"],
            "glu": ["merge", "glu", "quantize"],
            "down": ["matmul"],
            "down.shadow": ["shadow"],
            "down.merge": ["merge"],
        }
        assert [part.name for part in parts if part.lane == "npu"] == ["qkv", "o", "gate_up", "down"]
        assert {part.lane for part in parts} == {"cpu", "npu"}


@pytest.mark.parametrize("family", LLAMA_LIKE)
def test_what_the_parts_of_a_family_wait_for(family):
    layer = describe(load_config(tiny_config(family))).layers[0]
    assert {part.name: part.after for part in place_on_host(layer)} == {
        "qkv": (),
        "keys": ("qkv",),
        "attention": ("keys",),
        "o": ("attention",),
        "gate_up": ("o",),
        "down": ("gate_up",),
    }
    assert {part.name: part.after for part in split(layer)} == {
        "qkv.quantize": (),
        "qkv": ("qkv.quantize",),
        "qkv.shadow": ("qkv.quantize",),
        "keys": ("qkv", "qkv.shadow"),
        "attention": ("keys",),
        "o": ("attention",),
        "o.shadow": ("attention",),
        "gate_up.quantize": ("o", "o.shadow"),
        "gate_up": ("gate_up.quantize",),
        "gate_up.shadow": ("gate_up.quantize",),
        "glu": ("gate_up", "gate_up.shadow"),
        "down": ("glu",),
        "down.shadow": ("glu",),
        "down.merge": ("down", "down.shadow"),
    }


@every_cut
@every_layer
def test_a_linear_that_a_part_does_is_done_once(layer, cut):
    ops = [op for part in cut.layer(layer) for op in part.ops]
    for kind in ("linear", "matmul", "quantize", "shadow", "merge"):
        done = [op.of for op in ops if op.kind == kind or (kind == "linear" and op.kind == "linear_glu")]
        assert done == (list(layer.linears) if (kind == "linear") == (cut is HOST) else [])
    for kind in ("rope_append", "attention"):
        assert [op.of for op in ops if op.kind == kind] == [layer.attention]


def other_layer(decoder):
    """One of the same width, with another epsilon."""
    norm, *others = decoder.layers[0].operations
    return replace(decoder.layers[0], operations=(replace(norm, eps=0.5), *others))


def test_like_layers_have_the_same_parts():
    decoder = describe(load_config(tiny_config(num_hidden_layers=3)))
    other = replace(decoder, layers=(*decoder.layers, other_layer(decoder)))
    for cut in CUTS.values():
        first, second, third, different = place(other, cut)
        assert first is second is third
        assert not set(first) & set(different)


def test_whole_layers_do_what_their_parts_do_in_their_order_and_wait_for_earlier_keys():
    decoder = describe(load_config(tiny_config(num_hidden_layers=3)))
    apart = place(replace(decoder, layers=(*decoder.layers, other_layer(decoder))), HOST)
    whole = whole_layers(apart)
    assert whole[0] is whole[1] is whole[2] is not whole[3]
    for parts, (one,) in zip(apart, whole, strict=True):
        assert one.ops == tuple(op for part in parts for op in part.ops)
        assert {one.lane} == {part.lane for part in parts}
        assert (one.after, one.after_earlier) == ((), (one.name,))


@every_cut
def test_the_ends_of_a_decoder(cut):
    decoder = describe(load_config(tiny_config()))
    (embedding_op,) = embedding_part(decoder, cut).ops
    assert (embedding_op.kind, embedding_op.reads, embedding_op.writes) == ("embedding", (), (HIDDEN,))
    assert embedding_op.of is decoder.embedding
    (norm_op,) = final_norm_part(decoder, cut).ops
    assert (norm_op.kind, norm_op.reads, norm_op.writes, norm_op.of) == ("rms_norm", (HIDDEN,), ("normed",), decoder.norm)
    head = head_part(decoder, cut)
    assert [op.kind for op in head.ops] == (["quantize", "matmul", "shadow", "merge"] if cut is CARD else ["linear"])
    first, last = head.ops[0], head.ops[-1]
    assert (first.reads, last.writes) == ((HIDDEN,), ("logits",))
    assert ({op.linear for op in head.ops}, first.norm, last.adds) == ({decoder.output}, decoder.norm, "")
    assert {part.lane for part in (embedding_part(decoder, cut), final_norm_part(decoder, cut), head)} == {cut.lane}


@every_cut
def test_a_run_of_the_output_matrix_is_the_same_with_fewer_rows(cut):
    decoder = describe(load_config(tiny_config()))
    whole, run = head_part(decoder, cut), head_part(decoder, cut, 16)
    assert head_part(decoder, cut, decoder.output.rows).ops == whole.ops
    assert run.ops == tuple(replace(op, of=run.ops[0].of) for op in whole.ops)
    assert (run.ops[0].linear.rows, run.ops[0].linear.columns) == (16, decoder.output.columns)
    assert run.ops[0].linear.name == decoder.output.name


@every_layer
def test_a_card_does_a_whole_layer_as_the_cut_of_both_does(layer):
    (whole,) = on_card(layer)
    assert (whole.lane, whole.after) == ("npu", ())
    assert whole.ops == tuple(op for part in split(layer) for op in part.ops)


def test_a_placement_keeps_keys_and_values_in_one_place():
    assert {name: (one.prefill, one.decode) for name, one in PLACEMENTS.items()} == {
        "host": (HOST, HOST),
        "split": (SPLIT, SPLIT),
        "split,host": (SPLIT, HOST),
        "card": (CARD, CARD),
    }
    assert [name for name, one in PLACEMENTS.items() if one.decodes_on_host] == ["host", "split,host"]
    for prefill, decode in ((CARD, HOST), (SPLIT, CARD)):
        with pytest.raises(ValueError, match="the placement `both` has keys and values in two places"):
            Placement("both", prefill, decode)


def test_a_placement_is_chosen_by_name_among_what_the_device_does():
    able = ("split", "card")
    assert choose_placement("auto", able, "the card") == (PLACEMENTS["split"], "the default of the card")
    assert choose_placement("card", able, "the card") == (PLACEMENTS["card"], "asked for")
    for name, why in (("host", "the card does not do it"), ("elsewhere", "it is no placement")):
        with pytest.raises(UsageError, match=f"--placement `{name}`: {why}; the card does: split, card") as refused:
            choose_placement(name, able, "the card")
        assert refused.value.param == "placement"


def test_a_placement_that_does_not_fit_the_model_is_passed_over_or_refused_with_the_reason():
    able, unfit = ("card", "split"), {"card": "head size 8: attention takes multiples of 16"}
    assert choose_placement("auto", able, "the card", unfit) == (PLACEMENTS["split"], unfit["card"])
    assert choose_placement("split", able, "the card", unfit) == (PLACEMENTS["split"], "asked for")
    with pytest.raises(UsageError, match="--placement `card`: head size 8: .* of 16; the card does: split$"):
        choose_placement("card", able, "the card", unfit)
    with pytest.raises(UsageError, match="--placement `host`: the card does not do it; the card does: split$"):
        choose_placement("host", able, "the card", unfit)
    with pytest.raises(UsageError, match="--placement `auto`: head size 8: .* of 16; the card does: none$"):
        choose_placement("auto", able[:1], "the card", unfit)


# ---- who waits for whom ----


def closed(pairs):
    """The transitive closure of ``pairs``."""
    found = set(pairs)
    while True:
        more = {(a, d) for a, b in found for c, d in found if b == c} - found
        if not more:
            return found
        found |= more


def touched(part, field):
    return {name for op in part.ops for name in getattr(op, field)}


def conflicts(parts):
    """Every two parts, in program order, of which one writes what the other reads or writes."""
    for first, second in combinations(parts, 2):
        reads, writes = touched(first, "reads"), touched(first, "writes")
        if writes & touched(second, "reads") or reads & touched(second, "writes") or writes & touched(second, "writes"):
            yield first.name, second.name


@every_cut
@every_layer
def test_a_part_waits_for_what_dataflow_demands_and_for_nothing_else(layer, cut):
    parts = cut.layer(layer)
    demanded = closed(conflicts(parts))
    assert closed((before, part.name) for part in parts for before in part.after) == demanded
    for part in parts:
        ancestors = [name for name in names(parts) if (name, part.name) in demanded]
        nearest = [name for name in ancestors if not any((name, other) in demanded for other in ancestors)]
        assert list(part.after) == nearest


@every_cut
@every_layer
def test_attention_alone_waits_for_keys_of_earlier_chunks(layer, cut):
    waits = {part.name: part.after_earlier for part in cut.layer(layer) if part.after_earlier}
    assert waits == ({"layer": ("layer",)} if cut is CARD else {"attention": ("keys",)})


@every_cut
@every_layer
def test_when_the_last_parts_have_ended_all_have(layer, cut):
    parts = cut.layer(layer)
    last = last_parts(parts)
    demanded = closed(conflicts(parts))
    assert {name for name in names(parts) if name not in last} == {a for a, b in demanded if b in last}
    assert not any(a in last for a, _ in demanded)


def test_what_writes_where_others_still_read_waits_for_them():
    """Two chains that share a buffer and nothing else."""
    layer = Layer("", (norm("a"), qkv(), attention(), linear("x", WIDTH, 96, "attended", "normed"), o(), linear(
        "y", WIDTH, WIDTH, "normed", HIDDEN, adds=HIDDEN)))  # fmt: skip
    after = {part.name: part.after for part in place_on_host(layer)}
    assert after == {"qkv": (), "keys": ("qkv",), "attention": ("keys",), "x": ("attention",), "o": ("attention",),
                     "y": ("x", "o")}  # fmt: skip


# ---- what is refused ----


def test_a_read_of_what_nobody_wrote_is_refused():
    layer = odd("plain")
    parts = place_on_host(layer)
    for missing in ("qkv", "keys", "attention", "gate_up"):
        with pytest.raises(ValueError, match="which no part before it writes"):
            connect(part for part in parts if part.name != missing)
    with pytest.raises(ValueError, match="part `qkv` reads `quantized`, which no part before it writes"):
        connect(split(layer)[1:])
    with pytest.raises(ValueError, match="`down` reads `activated`"):
        connect([*parts[:4], parts[5], parts[4]])


def test_two_parts_of_one_name_are_refused():
    first, *others = place_on_host(odd("plain"))
    with pytest.raises(ValueError, match="two parts of a layer are called `qkv`"):
        connect([first, *others, Part("qkv", "cpu", first.ops)])


@every_cut
@pytest.mark.parametrize("name", sorted(DEVICE_BUFFERS))
def test_a_buffer_called_like_one_of_the_devices_own_is_refused(name, cut):
    layer = Layer("", (qkv(HIDDEN), attention(), o(), linear("a", WIDTH, WIDTH, HIDDEN, name), linear(
        "b", WIDTH, WIDTH, name, HIDDEN)))  # fmt: skip
    with pytest.raises(ValueError, match=f"computes a buffer `{name}`"):
        cut.layer(layer)


# ---- what is done in one pass ----


def rms_norms(parts):
    return [op.of.gain.name for part in parts for op in part.ops if op.kind == "rms_norm"]


@pytest.mark.parametrize(
    ("name", "alone"),
    [
        ("plain", []),
        ("one norm, attention and MLP beside each other", []),
        ("one norm, the MLP after the attention was added", ["norm"]),
        ("a norm before o, of another width, while the first is still read", ["norm"]),
        ("norms behind the sums", ["attention_norm", "mlp_norm"]),
        ("a norm whose rows are added", ["attention_norm"]),
        ("a norm that is read and added by one linear", ["square_norm"]),
    ],
)
@every_cut
def test_a_norm_is_done_by_its_linears_only_where_it_comes_to_the_same(name, alone, cut):
    layer = odd(name)
    parts = cut.layer(layer)
    assert rms_norms(parts) == alone
    fused = {op.norm.gain.name for part in parts for op in part.ops if op.norm}
    assert fused == {gain.name for gain in layer.gains} - set(alone)


def test_what_a_norm_reads_may_not_change_before_its_linears_run():
    layer = Layer("", (norm("a"), qkv(), attention(), o(), gate_up(), swiglu(), down()))
    unchanged = Layer("", (norm("a"), qkv(), attention(), gate_up(), o(), swiglu(), down()))
    for cut in CUTS.values():
        assert rms_norms(cut.layer(layer)) == ["a"]
        assert rms_norms(cut.layer(unchanged)) == []


@pytest.mark.parametrize(
    ("name", "fused"),
    [
        ("plain", {"gate_up"}),
        ("one norm, attention and MLP beside each other", {"gate_up"}),
        ("two MLPs beside each other, whose products share a buffer", {"gate_up1"}),
        ("gate and up that something else reads too", set()),
        ("gate and up to which something is added", set()),
    ],
)
def test_swiglu_is_done_by_its_linear_only_where_it_comes_to_the_same(name, fused):
    ops = [op for part in place_on_host(odd(name)) for op in part.ops]
    assert {op.linear.name for op in ops if op.kind == "linear_glu"} == fused
    done = [op for op in ops if op.kind in ("glu", "linear_glu")]
    assert sorted(op.writes[0] for op in done) == ["activated"] * sum(name.startswith("gate_up") for name in odd_linears(name))


def odd_linears(name):
    return [one.name for one in odd(name).linears]


# ---- what is computed ----

TOKENS = 21


def quantized(layer, weights, inputs):
    """The same in INT8, with some hot channels and scales that a few values overflow."""
    linears = {}
    for one in layer.linears:
        x, hot = inputs[one.name], np.array([1, 5, one.columns - 1], np.int32)
        scale = np.float32(np.abs(x).max() / 120)
        made = quantize_weight(weights.linears[one.name].weight, hot)
        linears[one.name] = Int8Weight(
            tiles=made.tiles, rows=one.rows, columns=one.columns, input_scale=float(scale), weight_scale=made.weight_scale,
            row_sum=made.row_sum, hot_index=made.hot_index, hot_weight=made.hot_weight,
            bias=weights.linears[one.name].bias,
        )  # fmt: skip
    offset = np.zeros((layer.attention.kv_heads, layer.attention.head_dim), np.float32)
    return BlockWeights(linears, {**weights.gains, KEY_OFFSET: offset})


class OneLayer:
    """The weights of a model of one layer."""

    def __init__(self, block):
        self._block = block

    def use(self, index):
        return self._block

    host_part = use


class Watched(dict):
    """Buffers that remember which of them were touched."""

    def __init__(self, buffers):
        super().__init__(buffers)
        self.seen = set()

    def __getitem__(self, name):
        self.seen.add(name)
        return super().__getitem__(name)

    def __setitem__(self, name, value):
        self.seen.add(name)
        super().__setitem__(name, value)


def run_parts(layer, parts, device, block, x):
    """What ``parts`` make of x [T, hidden] on ``device``; no operation touches a buffer that it does not name."""
    kv = PagedKV((layer.attention,), 64)
    sequence = SequencePages(PageAllocator(kv.count))
    sequence.reserve(len(x))
    (chunk,) = pack([Segment(sequence, [0] * len(x))], (32,))
    buffers = Watched({name: np.zeros((32, width), np.float32) for name, width in buffer_widths(parts, x.shape[1]).items()})
    buffers[HIDDEN][: len(x)] = x
    tables = RopeTables(64)
    for part in parts:
        for op in part.ops:
            buffers.seen.clear()
            device.build(Subgraph(part.name, part.lane, 32, (op,)), tables)(block, buffers, chunk.rows, kv.layers[0])
            assert buffers.seen <= {*op.reads, *op.writes}, f"{part.name}: {op.kind}"
    return buffers[HIDDEN][: len(x)].copy()


@every_layer
def test_every_placement_computes_the_layer_that_was_described(layer):
    weights = random_weights(layer)
    x = np.random.default_rng(1).standard_normal((TOKENS, layer.widths[HIDDEN]), np.float32)
    inputs = {}
    wanted = layer_forward(x, layer, weights, RopeTables(TOKENS), None, inputs.__setitem__)
    block = quantized(layer, weights, inputs)
    on_host = run_parts(layer, place_on_host(layer), HostDevice(1), block, x)
    device = EmulatedDevice("910b", 1)
    on_both = load_products(device.chip)(OneLayer(block), 0, CardSlot())
    beside_a_card = run_parts(layer, split(layer), device, on_both, x)
    np.testing.assert_array_equal(beside_a_card, on_host)
    alone = EmulatedDevice("910b", 1, placement="card")
    in_one_go = run_parts(layer, on_card(layer), alone, load_products(alone.chip)(OneLayer(block), 0, CardSlot()), x)
    np.testing.assert_array_equal(in_one_go, on_host)
    assert np.abs(on_host - wanted).max() < 0.04 * np.abs(wanted).max()


def test_a_norm_in_one_pass_has_the_constants_of_its_own():
    layer = odd("plain")
    (first,) = place_on_host(layer)[0].ops
    assert first.norm is layer.operations[0] and first.norm.eps == EPS
