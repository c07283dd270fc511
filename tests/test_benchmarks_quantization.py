"""The study of methods: what a method changes in float, what it may cost, and that the table is made."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from model_files import tiny_config, write_model

from edge_llm.quant.channels import ChannelStatistics

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import quantization  # noqa: E402
from quantization import Study, Texts, measured  # noqa: E402
from quantizers import METHODS, SCHEMES, Linear, even_rotation, quantized  # noqa: E402
from sensitivity import by_layer_and_kind, rank_correlation  # noqa: E402

TEXT = "hello world, the hell is in her, a word " * 40


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("study") / "source", tiny_config("qwen2", intermediate_size=76))


@pytest.fixture(scope="module")
def study(source):
    return Study(source, Texts(TEXT, "the world in a word " * 20))


def linear(columns=44):
    """A linear with two loud channels."""
    draw = np.random.default_rng(columns)
    x = draw.standard_normal((300, columns)).astype(np.float32)
    x[:, [3, 20]] *= 30
    seen = ChannelStatistics(columns, "layers.0.o")
    seen.add(x)
    return Linear("layers.0.o", draw.standard_normal((32, columns)).astype(np.float32), seen)


@pytest.mark.parametrize("columns", [1, 2, 32, 44, 48, 172])
def test_a_rotation_of_any_size_is_orthogonal_and_mixes_evenly(columns):
    rotation = even_rotation(columns)
    assert np.allclose(rotation @ rotation.T, np.eye(columns), atol=1e-5)
    assert np.abs(rotation).max() <= np.sqrt(2 / columns) + 1e-6


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("method", METHODS)
def test_a_change_changes_nothing_in_float_and_the_stand_in_is_near(method, scheme):
    before = linear()
    x = before.seen.rows()
    wanted, after = x @ before.weight.T, before
    for change in METHODS[method].changes:
        after = change(after, scheme)
    assert np.allclose(after.turn(x) @ after.weight.T, wanted, atol=1e-3 * np.abs(wanted).max())
    assert np.allclose(after.turn(x), after.seen.rows(), atol=1e-3 * np.abs(after.seen.rows()).max())

    def error(shadow):
        found = quantized(before, METHODS[method], scheme, shadow)(x)
        return np.square(found - wanted).sum() / np.square(wanted).sum()

    assert error(True) < {"int8": 1e-3, "w4": 0.02}[scheme]
    assert error(False) < 0.02


def test_every_method_has_a_row_and_int8_is_nearer_than_w4(study):
    assert study.quality({}).mean_kl == 0
    methods = {name: METHODS[name] for name in ("round to nearest", "folds, GPTQ", "Hadamard")}
    rows = {(row.method, row.scheme, row.shadow): row for row in measured(study, "nothing", methods)}
    assert len(rows) == 3 * 2 * 2
    for method in methods:
        wide, narrow = rows[method, "int8", True], rows[method, "w4", True]
        assert 0 <= wide.kl < narrow.kl and narrow.bits < wide.bits
        assert rows[method, "int8", False].exact == 0


def test_the_script_writes_a_table_and_prints_json(source, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quantization, "METHODS", {"block Hadamard": METHODS["block Hadamard"]})
    monkeypatch.setattr(quantization, "WAYS", {"rotated": ("block Hadamard", "int8", True)})
    (tmp_path / "text.txt").write_text(TEXT)
    words = [str(source), "--calibration", str(tmp_path / "text.txt"), "--text", str(tmp_path / "text.txt")]
    assert quantization.main([*words, "--json", "--results", str(tmp_path / "made" / "table.md")]) == 0
    printed = json.loads(capsys.readouterr().out)
    rows, harms = printed["methods"], printed["linears"]
    assert {(row["scheme"], row["shadow"]) for row in rows} == {(s, on) for s in SCHEMES for on in (True, False)}
    written = (tmp_path / "made" / "table.md").read_text()
    assert written.count("| block Hadamard |") == 4 and len(rows) == 8
    assert [(len(harm["kl"]), set(map(np.isfinite, harm["foretold"].values()))) for harm in harms] == [(8, {True})] * 2
    assert all(sign in written for sign in harms[0]["foretold"])


def test_ranks_are_compared():
    assert rank_correlation([1, 20, 300], [0.1, 0.2, 0.3]) == pytest.approx(1)
    assert rank_correlation([1, 20, 300], [0.3, 0.2, 0.1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2, 2], [5, 6, 7, 8]) == pytest.approx(2 / np.sqrt(5))
    assert abs(rank_correlation([1, 2, 3, 4], [1, 2, 1, 2])) < 0.5


def test_a_linear_is_judged_by_its_layer_and_its_kind():
    cost = {"layers.0.o": 1.0, "layers.0.down": 2.0, "layers.1.o": 3.0, "layers.1.down": 5.0}
    found = by_layer_and_kind(lambda names: sum(cost[name] for name in names), list(cost))
    assert found == {"layers.0.o": 12, "layers.0.down": 21, "layers.1.o": 32, "layers.1.down": 56}


def test_the_built_in_model_is_a_source(tmp_path):
    folder = quantization.source_of("builtin", tmp_path)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    assert quantization.source_of("some/folder", tmp_path) == Path("some/folder")
