"""Import to 4-bit weights: what is coded, what stays INT8 and why, and that bad wishes are refused."""

import numpy as np
import pytest
from model_files import tiny_config, write_model

from edge_llm.cli.main import run
from edge_llm.config import INT8, W4, RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.choose import Outliers
from edge_llm.convert.importer import import_model
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.runner import load_runner

pytestmark = pytest.mark.thorough(file=4)


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
    runtime = {"threads": 2, "context": 64, "activations": "static", **runtime}
    runner, _ = load_runner(open_bundle(folder), RuntimeConfig(**runtime), 40)
    return runner.forward(runner.open(), list(range(40)), wanted=40)


def test_all_layers_are_coded_and_the_output_is_not(source, tmp_path):
    folder, said = imported(source, tmp_path / "b", LayerBits(W4))
    found = schemes_of(folder)
    assert found.pop("output") == INT8
    assert set(found.values()) == {W4}
    assert any("fitted to the calibration text" in line for line in said)
    wide, _ = imported(source, tmp_path / "c", LayerBits())
    assert (folder / "weights.bin").stat().st_size < (wide / "weights.bin").stat().st_size
    near, exact = logits(folder), logits(wide)
    assert np.linalg.norm(near - exact) < 0.8 * np.linalg.norm(exact)  # random layers magnify what changes
    costs = [open_bundle(one).manifest["profile"]["held_out"]["mean_kl"] for one in (folder, wide)]
    assert costs[0] > 10 * costs[1] > 0


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("tied", [True, False])
def test_the_head_is_coded_where_it_is_asked_for(tmp_path, monkeypatch, tied):
    write_model(tmp_path / "source", tiny_config("llama", num_hidden_layers=2, tie_word_embeddings=tied))
    plain, _ = imported(tmp_path / "source", tmp_path / "plain", LayerBits(W4))
    monkeypatch.setattr("edge_llm.convert.coding._HEAD_ROWS", 32)  # several runs of rows
    folder, _ = imported(tmp_path / "source", tmp_path / "b", LayerBits(W4, head=W4))
    assert set(schemes_of(folder).values()) == {W4}
    assert (folder / "weights.bin").stat().st_size < (plain / "weights.bin").stat().st_size
    assert open_bundle(folder).manifest["source"]["weights"] == "w4, head w4"
    tables = {name for name in open_bundle(folder).tensors if name.split(".")[0] in ("embedding", "output")}
    assert {"embedding.codes"} <= tables if tied else {"embedding.tiles", "output.codes"} <= tables
    near, exact = logits(folder), logits(plain)
    assert 0 < np.linalg.norm(near - exact) < (0.8 if tied else 0.15) * np.linalg.norm(exact)
    monkeypatch.undo()
    whole, _ = imported(tmp_path / "source", tmp_path / "whole", LayerBits(W4, head=W4))
    parts = [open_bundle(one).read("embedding.codes" if tied else "output.codes") for one in (folder, whole)]
    assert np.mean(parts[0] == parts[1]) > 0.99  # sums of matrix products differ in their last bits


def test_a_head_that_cannot_be_coded_stays_int8_and_is_named(tmp_path):
    heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 24}
    config = tiny_config("llama", hidden_size=66, intermediate_size=88, **heads)
    write_model(tmp_path / "source", config)
    folder, said = imported(tmp_path / "source", tmp_path / "b", LayerBits(W4, head=W4))
    assert schemes_of(folder)["output"] == INT8
    assert any("output matrix stays INT8" in line for line in said)


@pytest.mark.parametrize(("kind", "head"), [(INT8, W4), (W4, "float16"), (W4, "int4")])
def test_heads_that_make_no_sense_are_refused(kind, head):
    with pytest.raises(UsageError, match="head"):
        LayerBits(kind, head=head)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("mode", ["auto", "full", "none"])
def test_a_model_is_shown_whatever_was_measured_for_it(source, tmp_path, mode, capsys):
    folder, _ = imported(source, tmp_path / "b", LayerBits(W4), outliers=Outliers(mode), turn=0)
    assert run(["show", str(folder)]) == 0
    shown = capsys.readouterr().out
    measured = open_bundle(folder).manifest["profile"]["held_out"]
    assert f"KL {measured['mean_kl']:.3g} over {measured['tokens']} tokens" in shown


@pytest.mark.thorough(keep=1)
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
