"""Import to 4-bit weights: what is coded, what stays INT8 and why, and that bad wishes are refused."""

from dataclasses import replace

import numpy as np
import pytest
from model_files import tiny_config, write_model

from edge_llm.config import INT8, W4, RuntimeConfig
from edge_llm.convert.allocate import LayerBits, allocate, coded, that_fit
from edge_llm.convert.importer import import_model
from edge_llm.engine.assembly import load_runner
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.models import describe
from edge_llm.quant.shadow import COLD, Treatment
from edge_llm.sources import open_source


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("w4") / "source"
    write_model(folder, tiny_config("llama", num_hidden_layers=3))
    return folder


def schemes_of(folder):
    return {name: one.scheme for name, one in open_bundle(folder).decoder.linears().items()}


def imported(source, target, weights, **more):
    said = []
    folder = import_model(source, target=target, weights=weights, notice=said.append, **more)
    return folder, said


def logits(folder, **runtime):
    runner, _ = load_runner(open_bundle(folder), RuntimeConfig(**{"threads": 2, "context": 64, **runtime}), 40)
    return runner.forward(runner.open(), list(range(40)), wanted=40)


def test_all_layers_are_coded_and_the_output_is_not(source, tmp_path):
    folder, said = imported(source, tmp_path / "b", LayerBits(W4))
    found = schemes_of(folder)
    assert found.pop("output") == INT8
    assert set(found.values()) == {W4}
    assert any("% of perplexity" in line and "fitted" in line for line in said)
    assert open_bundle(folder).manifest["profile"]["choice"]["coded"] > 0
    wide, _ = imported(source, tmp_path / "c", LayerBits())
    assert (folder / "weights.bin").stat().st_size < (wide / "weights.bin").stat().st_size
    near, exact = logits(folder), logits(wide)
    assert np.linalg.norm(near - exact) < 0.8 * np.linalg.norm(exact)  # random layers magnify what changes


@pytest.mark.parametrize("way", [{"chunk": 8}, {"memory": "200KiB"}, {"device": "emulated:910b"}])
def test_every_way_gives_the_same(source, tmp_path, way):
    folder, _ = imported(source, tmp_path / "b", LayerBits(W4))
    assert np.array_equal(logits(folder, **way), logits(folder))


def test_linears_that_cannot_be_coded_stay_int8_and_are_named(tmp_path):
    write_model(tmp_path / "source", tiny_config("llama", intermediate_size=90))
    folder, said = imported(tmp_path / "source", tmp_path / "b", LayerBits(W4))
    assert {name.rpartition(".")[2] for name, scheme in schemes_of(folder).items() if scheme == INT8} == {"down", "output"}
    assert any("stay INT8" in line for line in said)


def test_other_weights_are_another_import(source, tmp_path):
    imported(source, tmp_path / "b", LayerBits(W4))
    _, said = imported(source, tmp_path / "b", LayerBits(W4))
    assert any("already imported" in line for line in said)
    with pytest.raises(UsageError, match="--overwrite"):
        imported(source, tmp_path / "b", LayerBits())


def test_a_short_text_is_said_and_serves(source, tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("one two three")
    folder, said = imported(source, tmp_path / "b", LayerBits(W4), calibration=text)
    assert any("has only" in line for line in said)
    assert np.isfinite(logits(folder)).all()


@pytest.mark.parametrize(("kind", "bits", "named"), [("int4", 4.6, "int4"), ("auto", 0.0, "0"), ("auto", float("nan"), "nan")])
def test_weights_that_make_no_sense_are_refused(kind, bits, named):
    with pytest.raises(UsageError, match=named):
        LayerBits(kind, bits)


def treatments(decoder):
    """INT8 with an overflow for every linear."""
    one = Treatment(COLD, np.empty(0, np.int32), 0.1, 0.0, 0.0)
    return dict.fromkeys(decoder.linears(), one)


def test_eight_bits_go_where_four_cost_most_per_byte(source):
    with open_source(source) as opened:
        decoder = describe(opened.config)
    chosen = treatments(decoder)
    names = that_fit(decoder, chosen)
    worst = {"layers.1": 5.0, "layers.0": 2.0, "layers.2": 1.0}

    def measure(stage, choices):
        """The percent that a choice costs: by layers and kinds of what is coded."""
        costs = []
        for choice in choices:
            coded_names = [name for name, one in choice.items() if one.scheme == W4]
            costs.append(sum(worst[name.rpartition(".")[0]] * (3 if name.endswith(".o") else 1) for name in coded_names))
        return costs

    def wide(bits):
        found = allocate(decoder, chosen, bits, measure)
        return {name for name in names if found[name].scheme == INT8}

    assert wide(16) == set(names)
    assert wide(8.0) >= wide(6.5) >= {"layers.1.o"}
    assert wide(6.5) < set(names)
    with pytest.raises(UsageError, match=r"at least"):
        allocate(decoder, chosen, 4.0, measure)
    assert coded(chosen, names)["output"] == chosen["output"]
    float16 = chosen | {"layers.0.o": replace(chosen["layers.0.o"], scheme="float16")}
    assert "layers.0.o" not in that_fit(decoder, float16)
