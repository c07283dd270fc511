"""Which linears stay INT8 under a number of bits: what is measured for it, how, and that what costs most per byte stays."""

from dataclasses import replace

import numpy as np
import pytest
from model_files import tiny_config, write_model

from edge_llm.config import FLOAT16, INT8, W4
from edge_llm.convert import importer, trial
from edge_llm.convert.allocate import AUTO, NOTHING_FIXED, LayerBits, allocate, that_fit
from edge_llm.convert.calibrate import some_of
from edge_llm.convert.importer import import_model
from edge_llm.convert.parallel import workers
from edge_llm.convert.trial import Trial, losses
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.models import describe
from edge_llm.progress import ignore
from edge_llm.quant.shadow import COLD, Treatment
from edge_llm.sources import open_source
from kernels.w4 import panel_bytes

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
    """What import gives to `losses` to find out where 8 bits go, one linear being fixed, and what that found."""
    calls = []

    def note(opened, decoder, survey, choices, enough, progress):
        found = losses(opened, decoder, survey, choices, enough, progress)
        calls.append((decoder, survey, choices, found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importer, "losses", note)
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
        for number in range(3 if name.endswith("qkv") else 1)  # gate and up have one scheme: SwiGLU takes one pass then
    ]


def test_each_part_of_a_linear_is_measured_alone(asked):
    decoder, _, (none, *others), found = asked
    assert len(found) == 1 + len(others)
    assert all(one.scheme == INT8 for one in none.values())
    assert [parts_in(choice, W4) for choice in others] == [{part} for part in expected_parts(decoder)]
    for choice in others:
        assert {name: replace(one, scheme=INT8) for name, one in choice.items()} == none


def test_choices_that_go_together_give_what_each_gives_alone(source, asked):
    decoder, survey, choices, found = asked
    with open_source(source) as opened:
        alone = [losses(opened, decoder, survey, [choice], -np.inf, ignore)[0] for choice in choices]
    assert alone == found
    assert len(set(found)) == len(found)


def test_choices_have_one_state_for_the_layers_on_which_they_agree(source, asked):
    decoder, survey, choices, _ = asked
    with open_source(source) as opened, workers() as pool:
        states = Trial(decoder, survey, choices)
        different = [len({id(state) for state in states.position()})]
        for index in range(3):
            states.run_layer(index, survey.folded_layer(opened, decoder, index, pool), pool)
            different.append(len({id(state) for state in states.position()}))
    assert different == [1, 7, 12, 18]  # six parts in a layer, one of them fixed


def test_many_choices_go_through_some_of_the_text(source, asked, monkeypatch):
    decoder, survey, choices, whole = asked
    most = survey.tokens // 3
    monkeypatch.setattr(trial, "MOST_ROWS", most * len(choices))
    fewer = replace(
        survey, sequences=some_of(survey.sequences, most), embedded=some_of(survey.embedded, most),
        states=some_of(survey.states, most),
    )  # fmt: skip
    assert 0 < fewer.tokens <= most
    with open_source(source) as opened:
        found = losses(opened, decoder, survey, choices, -np.inf, ignore)
        monkeypatch.undo()
        assert found == losses(opened, decoder, fewer, choices, -np.inf, ignore)
    assert found != whole


@pytest.fixture(scope="module")
def least(source, tmp_path_factory):
    """The bytes of the layers in W4 but for what is fixed."""
    target = tmp_path_factory.mktemp("least") / "b"
    return layer_bytes(import_model(source, target=target, weights=LayerBits(W4, fixed={FIXED: INT8})))


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("bits", [6.0, 7.0, 8.0])
def test_a_bundle_keeps_what_costs_most_per_byte(source, asked, least, tmp_path, bits):
    """A part is INT8 exactly where it fits beside those that cost more per byte and are INT8."""
    decoder, _, _, (nothing, *found) = asked
    linears = decoder.linears()
    parts = expected_parts(decoder)
    cost = {part: loss - nothing for part, loss in zip(parts, found, strict=True)}
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

    def measure(stage, choices):
        """The percent that a choice costs: 10, and what each part adds that is coded."""

        def cost(name, number):
            layer, _, linear = name.rpartition(".")
            return worst[layer] * hard.get(linear, 1) if linear != "qkv" or number == 2 else 0.0

        return [10 + sum(cost(*part) for part in parts_in(choice, W4)) for choice in choices]

    def wide(bits, fixed=NOTHING_FIXED):
        found = allocate(decoder, chosen, bits, measure, fixed)
        return {name for name in names if found[name].scheme == INT8}

    def mixed(bits):
        found = allocate(decoder, chosen, bits, measure)
        return {name: one.scheme for name, one in found.items() if "," in one.scheme}

    assert wide(16) == set(names)
    assert wide(8.0) >= wide(6.5) >= {"layers.1.o"}
    assert wide(6.5) < set(names)
    assert mixed(6.0).items() >= {"layers.1.qkv": "w4,w4,int8", "layers.0.qkv": "w4,w4,int8"}.items()
    assert mixed(16) == {}
    assert "layers.2.gate_up" in wide(6.5, {"layers.2.gate_up": INT8})
    assert "layers.2.gate_up" not in wide(6.5)
    some = allocate(decoder, chosen, 6.5, measure, {"layers.2.qkv": "int8,w4,w4"})
    assert some["layers.2.qkv"].scheme == "int8,w4,w4"
    assert some["output"] is chosen["output"]
    with pytest.raises(UsageError, match=r"at least"):
        allocate(decoder, chosen, 4.0, measure)
    float16 = chosen | {"layers.0.o": replace(chosen["layers.0.o"], scheme=FLOAT16)}
    assert "layers.0.o" not in that_fit(decoder, float16)
