"""What a token reads of a model with ReLU: predictors find what they are to find, and windows count as a plain walk does."""

from __future__ import annotations

import json

import numpy as np
import pytest
from model_files import VOCAB_SIZE, tiny_config, write_model
from relu_models import relu_folder

from edge_llm.bench import neurons as bench
from edge_llm.cli.main import run
from edge_llm.convert.importer import import_model
from edge_llm.errors import UsageError
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import load_config
from edge_llm.models.reference import FloatModel
from edge_llm.quant.predictor import Guessed, train

RANDOM = np.random.default_rng(1)


def float_model(folder):
    with open_model_folder(folder) as source:
        return FloatModel(source, load_config(source.config))


def test_a_predictor_of_full_rank_is_what_it_predicts_and_a_small_one_misses_as_few_as_it_may():
    x = RANDOM.standard_normal((600, 24), np.float32) @ RANDOM.standard_normal((24, 24), np.float32)
    weight = RANDOM.standard_normal((90, 24), np.float32)
    active = x @ weight.T - 8 > 0
    whole, small = train(x, weight, active, 99, 1.0), train(x, weight, active, 8, 0.98)
    assert Guessed.of(whole.guess(x), active) == Guessed(1.0, 1.0)
    found, none = Guessed.of(small.guess(x), active), train(x, weight, active, 0, 0.98)
    assert 0.98 <= found.recall < 1 and found.precision > Guessed.of(none.guess(x), active).precision > 0
    assert small.inward.shape == (8, 24) and small.nbytes == 2 * 8 * (24 + 90) + 4 * 90
    never = train(x, weight, np.zeros_like(active), 8, 0.98)
    assert not never.guess(x).any() and Guessed.of(never.guess(x), active & False) == Guessed(1.0, 1.0)


@pytest.mark.parametrize("window", [0, 1, 4])
def test_a_window_has_what_the_last_tokens_wanted(window):
    texts = [RANDOM.random((count, 30)) < 0.2 for count in (12, 3)]
    wanted, missed, held, tokens = 0, 0, 0, 0
    for text in texts:
        for now in range(window, len(text)):
            there = text[now - window : now].any(axis=0) if window else np.zeros(30, bool)
            wanted, missed = wanted + int(text[now].sum()), missed + int((text[now] & ~there).sum())
            held, tokens = held + int(there.sum()), tokens + 1
    found = bench.windowed(texts, window)
    assert found == pytest.approx(bench.Reads(wanted / tokens, missed / tokens, held / tokens))
    runs = bench.in_runs(texts, 7)
    assert [one.shape for one in runs] == [(12, 5), (3, 5)] and runs[0][:, 4].tolist() == texts[0][:, 28:].any(axis=1).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return relu_folder(tmp_path_factory.mktemp("relu") / "source", "opt")


def test_the_rows_of_a_model_follow_from_its_shape_and_from_each_other(folder):
    random = np.random.default_rng(2)
    texts = [random.integers(0, VOCAB_SIZE, (3, 40)).tolist() for _ in range(2)]
    rows = bench.rows(float_model(folder), *texts, [3], 48, 0.99)
    by_way = {(row["way"], row["window"]): row for row in rows}
    dense, exact, windowed = (by_way[key] for key in (("dense", 0), ("exact", 0), ("exact, window", 3)))
    assert dense["bytes_per_token"] == 2 * 2 * 1500 * 192 and exact["held_share"] == 0.5
    assert windowed["bytes_per_token"] < exact["bytes_per_token"] < 0.1 * dense["bytes_per_token"]
    apart, bundled = (by_way["predicted, window" + more, 3] for more in ("", ", bundled"))
    assert apart["bytes_per_token"] == bundled["bytes_per_token"]
    assert apart["reads_per_token"] == 2 * bundled["reads_per_token"] and bundled["bytes_per_read"] == pytest.approx(2 * 192)
    assert 0.5 < bundled["recall"] <= 1 and 0 < bundled["precision"] < 1 and 0 <= bundled["mean_kl"] < 0.1
    assert "predicted, window, bundled" in bench.markdown(rows)
    everything = bench.quality(float_model(folder), {}, texts[0])
    assert everything.mean_kl == pytest.approx(0, abs=1e-9) and everything.top1_agreement == 1


def test_a_model_without_relu_and_odd_options_are_refused_in_a_line(tmp_path, capsys):
    source = write_model(tmp_path / "silu", tiny_config("qwen2"))
    with pytest.raises(UsageError, match="no ReLU"):
        bench.watch(float_model(source), [[1, 2, 3]])
    made = import_model(source, target=tmp_path / "m")
    for more, said in (([], "no ReLU"), (["--recall", "0"], "--recall"), (["--text", str(tmp_path / "none")], "none")):
        assert run(["bench", "neurons", str(made), *more]) == 2
        assert said in capsys.readouterr().err


def test_the_command_prints_rows(folder, tmp_path, capsys):
    made = import_model(folder, target=tmp_path / "m")
    assert run(["bench", "neurons", str(made), "--tokens", "60", "--windows", "2", "--rank", "16", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["window"] for row in rows] == [0, 0, 0, 2, 2, 0, 0, 2, 2] and rows[-1]["rank"] == 16


def test_a_window_that_no_text_is_longer_than_is_refused(folder):
    with pytest.raises(UsageError, match="below the 3 tokens of the longest text, not `3`"):
        bench.rows(float_model(folder), [[1, 2], [1, 2, 3]], [[1, 2, 3]], [1, 3], 48, 0.99)
