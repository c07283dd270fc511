"""Which linears stay INT8 under a number of bits: what is measured for it, how, and that what costs most per byte stays."""

from dataclasses import replace

import numpy as np
import pytest
from model_files import tiny_config, write_model

from edge_llm.config import FLOAT16, INT8, W4
from edge_llm.convert import job, sensitivity
from edge_llm.convert.allocate import AUTO, NOTHING_FIXED, LayerBits, allocate, that_fit
from edge_llm.convert.calibrate import some_of
from edge_llm.convert.importer import import_model
from edge_llm.convert.parallel import workers
from edge_llm.convert.sensitivity import four_bit_costs
from edge_llm.convert.turns import quantizable
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels.w4 import panel_bytes
from edge_llm.models import describe
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import read_embedding, read_final_norm, read_output
from edge_llm.operations.arithmetic import rms_norm
from edge_llm.operations.base import LayerWeights
from edge_llm.quant.quality import log_softmax
from edge_llm.quant.shadow import COLD, Treatment
from edge_llm.quant.turning import turned
from edge_llm.sources import open_source

pytestmark = pytest.mark.thorough(file=1)

FIXED = "layers.1.o"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("allocate") / "source"
    write_model(folder, tiny_config("llama", num_hidden_layers=3))
    return folder


@pytest.fixture(scope="module")
def decoder(source):
    with open_source(source) as opened:
        return describe(opened.config)


@pytest.fixture(scope="module")
def asked(source, tmp_path_factory):
    """What import asks `four_bit_costs`, one linear being fixed, and what that found."""
    calls = []

    def note(opened, decoder, survey, chosen, names, progress):
        found = four_bit_costs(opened, decoder, survey, chosen, names, progress)
        calls.append((decoder, survey, chosen, found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "four_bit_costs", note)
        target = tmp_path_factory.mktemp("asked") / "b"
        import_model(source, target=target, weights=LayerBits(AUTO, 7.0, {FIXED: INT8}))
    return calls[-1]


def layer_bytes(folder):
    """What the linears of the layers take in a bundle."""
    with open_bundle(folder) as bundle:
        names = tuple(f"{name}." for name in bundle.decoder.linears() if name != "output")
        return sum(one.nbytes for one in bundle.tensors.values() if one.name.startswith(names))


def schemes_of(folder):
    with open_bundle(folder) as bundle:
        return {name: one.scheme for name, one in bundle.decoder.linears().items()}


def parts_in(choice, scheme):
    """The parts of linears that have ``scheme``: their linears and their numbers; a linear with one scheme is one."""
    schemes = {(name, number): part for name, one in choice.items() for number, part in enumerate(one.scheme.split(","))}
    return {part for part, found in schemes.items() if found == scheme}


def expected_parts(decoder):
    return [
        (name, number)
        for name, linear in decoder.linears().items()
        if name not in ("output", FIXED)
        for number in range(3 if name.endswith("qkv") else 1)  # gate and up have one scheme: GLU takes one pass then
    ]


def divergence_of(opened, decoder, survey, chosen, name, number):
    """The KL, in nats, of the float model in which one matrix of the linear ``name`` is rounded to 4 bits."""
    _, index, own_name = name.split(".")
    sequences = some_of(survey.sequences, sensitivity.TOKENS)
    tables, embedding = RopeTables(256), read_embedding(opened, decoder)
    gain, output = read_final_norm(opened, decoder), read_output(opened, decoder)

    def log_likely(coded):
        states = [embedding[ids] for ids in sequences]
        with workers() as pool:
            for at, layer in enumerate(decoder.layers):
                weights = survey.folded_layer(opened, decoder, at, pool)
                if coded and at == int(index):
                    linear = layer.linear(own_name)
                    ready = quantizable(weights, layer, pool)[own_name].weight
                    error, _ = sensitivity.weight_errors(linear, ready, chosen[name].hot)
                    first = sum(one.count for one in linear.sources[:number])
                    rows = slice(first, first + linear.sources[number].count)
                    plain = weights.linears[own_name].weight.copy()
                    plain[rows] += turned(error[rows], linear.turn)  # back in the channels of the folded layer
                    changed = replace(weights.linears[own_name], weight=plain)
                    weights = LayerWeights({**weights.linears, own_name: changed}, weights.gains)
                states = [layer_forward(x, layer, weights, tables) for x in states]
        normed = np.concatenate([rms_norm(x, gain, decoder.norm.eps) for x in states])
        return log_softmax(normed @ output.T)

    wanted, found = log_likely(False), log_likely(True)
    return float((np.exp(wanted) * (wanted - found)).sum(axis=1).mean())


def test_what_four_bits_cost_in_a_matrix_is_the_divergence_that_they_cause(source, asked):
    """Of every matrix alone, within a factor of three (errors of tokens and of outputs are taken as independent), and in the
    order of the divergences."""
    decoder, survey, chosen, found = asked
    parts = [(name, number) for name in found for number in range(len(found[name]))]
    assert {name for name, _ in parts} == {name for name, _ in expected_parts(decoder)}
    with open_source(source) as opened:
        measured = [divergence_of(opened, decoder, survey, chosen, *part) for part in parts]
    predicted = [found[name][number] for name, number in parts]
    for part, one, other in zip(parts, predicted, measured, strict=True):
        assert other / 3 < one < 3 * other, part
    ranks = [np.argsort(np.argsort(values)) for values in (predicted, measured)]
    assert np.corrcoef(ranks)[0, 1] > 0.9


@pytest.fixture(scope="module")
def least(source, tmp_path_factory):
    """The bytes of the layers in W4 but for what is fixed."""
    target = tmp_path_factory.mktemp("least") / "b"
    return layer_bytes(import_model(source, target=target, weights=LayerBits(W4, fixed={FIXED: INT8})))


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("bits", [6.0, 7.0, 8.0])
def test_a_bundle_keeps_what_costs_most_per_byte(source, asked, least, tmp_path, bits):
    """A part is INT8 exactly where it fits beside those that cost more per byte and are INT8."""
    decoder, _, _, found = asked
    linears = decoder.linears()
    parts = expected_parts(decoder)
    cost = {(name, number): found[name][number] if name.endswith("qkv") else sum(found[name]) for name, number in parts}
    folder = import_model(source, target=tmp_path / "b", weights=LayerBits(AUTO, bits, {FIXED: INT8}))
    schemes = schemes_of(folder)
    weights = sum(one.rows * one.columns for name, one in linears.items() if name != "output")

    def more(part):
        name, number = part
        rows = linears[name].sources[number].count if name.endswith("qkv") else linears[name].rows
        return -(-rows // 16) * (16 * linears[name].columns - panel_bytes(linears[name].columns))

    kept = {part for part in parts if schemes[part[0]].split(",")[part[1] if "," in schemes[part[0]] else 0] == INT8}
    assert schemes[FIXED] == INT8
    assert layer_bytes(folder) == least + sum(map(more, kept))
    assert 8 * layer_bytes(folder) <= bits * weights
    assert 0 < len(kept) < len(parts)
    for part in parts:
        before = sum(more(one) for one in kept if cost[one] / more(one) > cost[part] / more(part))
        assert (part in kept) == (least + before + more(part) <= bits * weights / 8)


def treatments(decoder):
    """INT8 with an overflow for every linear."""
    one = Treatment(COLD, np.empty(0, np.int32), 0.1, 0.0, 0.0)
    return dict.fromkeys(decoder.linears(), one)


def test_eight_bits_go_where_four_cost_most_per_byte(decoder):
    chosen = treatments(decoder)
    names = that_fit(decoder, chosen)
    worst = {"layers.1": 5.0, "layers.0": 2.0, "layers.2": 1.0}
    hard = {"o": 3, "qkv": 9}
    """How much harder than others; of the queries, keys and values of a layer alone the values cost anything."""

    def costs_of(linears):
        """What 4 bits cost in each matrix of ``linears``."""

        def costs(name):
            layer, _, linear = name.rpartition(".")
            cost = worst[layer] * hard.get(linear, 1)
            return [0.0, 0.0, cost] if linear == "qkv" else [cost]

        return {name: costs(name) for name in linears}

    def wide(bits, fixed=NOTHING_FIXED):
        found = allocate(decoder, chosen, bits, costs_of, fixed)
        return {name for name in names if found[name].scheme == INT8}

    def mixed(bits):
        found = allocate(decoder, chosen, bits, costs_of)
        return {name: one.scheme for name, one in found.items() if "," in one.scheme}

    assert wide(16) == set(names)
    assert wide(8.0) >= wide(6.5) >= {"layers.1.o"}
    assert wide(6.5) < set(names)
    assert mixed(6.0).items() >= {"layers.1.qkv": "w4,w4,int8", "layers.0.qkv": "w4,w4,int8"}.items()
    assert mixed(16) == {}
    assert "layers.2.gate_up" in wide(6.5, {"layers.2.gate_up": INT8})
    assert "layers.2.gate_up" not in wide(6.5)
    some = allocate(decoder, chosen, 6.5, costs_of, {"layers.2.qkv": "int8,w4,w4"})
    assert some["layers.2.qkv"].scheme == "int8,w4,w4"
    assert some["output"] is chosen["output"]
    with pytest.raises(UsageError, match=r"at least"):
        allocate(decoder, chosen, 4.0, costs_of)
    float16 = chosen | {"layers.0.o": replace(chosen["layers.0.o"], scheme=FLOAT16)}
    assert "layers.0.o" not in that_fit(decoder, float16)
