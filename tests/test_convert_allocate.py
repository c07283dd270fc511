"""Which linears stay INT8 under a number of bits: what is measured for it, how, and that what costs most per byte stays."""

from dataclasses import replace

import numpy as np
import pytest
from model_files import tiny_config, write_model

from edge_llm.config import FLOAT16, INT8, W4
from edge_llm.convert import importer, trial
from edge_llm.convert.allocate import AUTO, LayerBits, allocate, coded, that_fit
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


def bytes_of(folder):
    """What every linear of the layers takes in a bundle."""
    with open_bundle(folder) as bundle:
        names = [name for name in bundle.decoder.linears() if name != "output"]
        ranges = bundle.tensors.values()
        return {name: sum(one.nbytes for one in ranges if one.name.startswith(f"{name}.")) for name in names}


def schemes_of(folder):
    with open_bundle(folder) as bundle:
        return {name: one.scheme for name, one in bundle.decoder.linears().items()}


def test_each_linear_is_measured_alone(asked):
    decoder, _, (none, *others), found = asked
    assert len(found) == 1 + len(others)
    assert all(one.scheme == INT8 for one in none.values())
    changed = [[name for name, one in choice.items() if one != none[name]] for choice in others]
    assert changed == [[name] for name in decoder.linears() if name not in ("output", FIXED)]
    assert all(choice[name].scheme == W4 for choice, (name,) in zip(others, changed, strict=True))


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
    assert different == [1, 5, 8, 12]  # four linears in a layer, one of them fixed


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
def sizes(source, tmp_path_factory):
    """The bytes of every linear in INT8, and in W4."""
    folder = tmp_path_factory.mktemp("sizes")
    return tuple(bytes_of(import_model(source, target=folder / kind, weights=LayerBits(kind))) for kind in (INT8, W4))


@pytest.mark.parametrize("bits", [6.0, 7.0, 8.0])
def test_a_bundle_keeps_what_costs_most_per_byte(source, asked, sizes, tmp_path, bits):
    """A linear is INT8 exactly where it fits beside those that cost more per byte and are INT8."""
    decoder, _, (none, *others), (nothing, *found) = asked
    changed = [next(name for name in none if choice[name] != none[name]) for choice in others]
    cost = {name: loss - nothing for name, loss in zip(changed, found, strict=True)}
    wide, narrow = sizes
    folder = import_model(source, target=tmp_path / "b", weights=LayerBits(AUTO, bits, {FIXED: INT8}))
    schemes, size = schemes_of(folder), bytes_of(folder)
    weights = sum(one.rows * one.columns for name, one in decoder.linears().items() if name != "output")
    room = bits * weights / 8 - sum(narrow.values()) - (wide[FIXED] - narrow[FIXED])
    more = {name: wide[name] - narrow[name] for name in cost}
    assert schemes[FIXED] == INT8
    assert 8 * sum(size.values()) <= bits * weights
    kept = {name for name in cost if schemes[name] == INT8}
    assert 0 < len(kept) < len(cost)
    for name in cost:
        before = sum(more[one] for one in kept if cost[one] / more[one] > cost[name] / more[name])
        assert (name in kept) == (before + more[name] <= room)


def treatments(decoder):
    """INT8 with an overflow for every linear."""
    one = Treatment(COLD, np.empty(0, np.int32), 0.1, 0.0, 0.0)
    return dict.fromkeys(decoder.linears(), one)


def test_eight_bits_go_where_four_cost_most_per_byte(decoder):
    chosen = treatments(decoder)
    names = that_fit(decoder, chosen)
    worst = {"layers.1": 5.0, "layers.0": 2.0, "layers.2": 1.0}

    def measure(stage, choices):
        """The percent that a choice costs: 10, and what each linear adds that is coded."""
        costs = []
        for choice in choices:
            coded_names = [name for name, one in choice.items() if one.scheme == W4]
            costs.append(10 + sum(worst[name.rpartition(".")[0]] * (3 if name.endswith(".o") else 1) for name in coded_names))
        return costs

    def wide(bits, fixed=()):
        found = allocate(decoder, chosen, bits, measure, fixed)
        return {name for name in names if found[name].scheme == INT8}

    assert wide(16) == set(names)
    assert wide(8.0) >= wide(6.5) >= {"layers.1.o"}
    assert wide(6.5) < set(names)
    assert wide(6.5, ["layers.2.gate_up"]) >= {"layers.2.gate_up"} > wide(6.5) & {"layers.2.gate_up"}
    with pytest.raises(UsageError, match=r"at least"):
        allocate(decoder, chosen, 4.0, measure)
    assert coded(chosen, names)["output"] == chosen["output"]
    float16 = chosen | {"layers.0.o": replace(chosen["layers.0.o"], scheme=FLOAT16)}
    assert "layers.0.o" not in that_fit(decoder, float16)
