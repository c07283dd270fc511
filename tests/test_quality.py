"""Quality of the INT8 path against the float path, on models that were really trained, with and without outliers."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from model_files import inject_outliers

from edge_llm.bench.quality import compare
from edge_llm.config import W4, GenerationParams, RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.importer import Outliers, import_model
from edge_llm.opening.load import load_comparison, load_engine
from edge_llm.paths import builtin_bundle

pytestmark = pytest.mark.thorough(file=2)

ASSETS = Path(__file__).resolve().parents[1] / "assets" / "builtin_model"


@pytest.fixture(scope="session")
def builtin_source(tmp_path_factory):
    """The built-in model as the Hugging Face folder that it was imported from."""
    folder = tmp_path_factory.mktemp("builtin_source")
    for path in (builtin_bundle() / "source").iterdir():
        shutil.copy(path, folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(builtin_bundle() / name, folder)
    return folder


def quality(bundle, text, tokens, shadow=True):
    tokenizer, runner, oracle = load_comparison(bundle, RuntimeConfig(threads=2, shadow=shadow))
    ids = tokenizer.encode(text[: 8 * tokens], parse_special=True)[:tokens]
    return compare(runner, oracle, ids, 512, tokenizer.bos_id)


def ratio(measured):
    return measured.perplexity / measured.float_perplexity


@pytest.fixture(scope="session")
def builtin_text():
    return (ASSETS / "heldout.txt").read_text()


@pytest.fixture(scope="session")
def stories_text(shared_folder):
    return (shared_folder / "text" / "tinystories-sample.txt").read_text()


def test_the_builtin_model_loses_nothing_in_int8(builtin_text):
    measured = quality(builtin_bundle(), builtin_text, 6000)
    assert ratio(measured) <= 1.01
    assert measured.top1_agreement >= 0.97
    assert measured.mean_kl <= 0.01


@pytest.mark.thorough
def test_the_builtin_model_in_four_bits(builtin_source, builtin_text, tmp_path):
    calibration = ASSETS / "calibration.txt"
    bundle = import_model(builtin_source, target=tmp_path / "bundle", calibration=calibration, weights=LayerBits(W4))
    measured = quality(bundle, builtin_text, 6000)
    assert measured.mean_kl <= 6e-3
    assert measured.top1_agreement >= 0.97
    assert ratio(measured) <= 1.02


def test_a_float_path_against_itself_is_perfect(builtin_text):
    tokenizer, _, oracle = load_comparison(builtin_bundle(), RuntimeConfig())
    measured = compare(oracle, oracle, tokenizer.encode(builtin_text)[:300], 128, tokenizer.bos_id)
    assert measured.perplexity == measured.float_perplexity
    assert (measured.mean_kl, measured.top1_agreement, measured.tokens) == (0.0, 1.0, 300)


@pytest.fixture(scope="module")
def stories_bundle(stories_folder, tmp_path_factory):
    return import_model(stories_folder, "stories", target=tmp_path_factory.mktemp("stories") / "bundle")


def test_stories_quality(stories_bundle, stories_text):
    measured = quality(stories_bundle, stories_text, 12000)
    assert abs(ratio(measured) - 1) <= 0.005
    assert measured.top1_agreement >= 0.97


def test_stories_text(stories_bundle):
    wanted = (
        ", there was a little girl named Lily. She loved to play outside in the park. One day, she saw a big, red ball. "
        "She wanted to play with it, but it was too high."
    )
    for float_path in (True, False):
        engine = load_engine(stories_bundle, RuntimeConfig(float_path=float_path))
        answer = engine.answer(engine.text_request("Once upon a time", GenerationParams(max_tokens=80)))
        assert answer.text.startswith(wanted)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("factor", "ruin"), [(30, 1.2), (100, 100.0)])
def test_outliers_ruin_naive_int8_and_the_shadow_restores_it(stories_folder, stories_text, tmp_path, factor, ruin):
    source = inject_outliers(stories_folder, tmp_path / "source", factor)
    bundle = import_model(source, "outliers", target=tmp_path / "bundle")
    restored = quality(bundle, stories_text, 12000)
    assert abs(ratio(restored) - 1) <= 0.005
    assert restored.top1_agreement >= 0.965
    naive = import_model(source, "naive", target=tmp_path / "naive", outliers=Outliers("naive"))
    assert ratio(quality(naive, stories_text, 3000, shadow=False)) > ruin


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("factor", "ruin"), [(100, 5.0), (300, 20.0)])
def test_outliers_in_the_builtin_model(builtin_source, builtin_text, tmp_path, factor, ruin):
    source = inject_outliers(builtin_source, tmp_path / "source", factor)
    calibration = ASSETS / "calibration.txt"
    bundle = import_model(source, "outliers", target=tmp_path / "bundle", calibration=calibration)
    assert abs(ratio(quality(bundle, builtin_text, 5000)) - 1) <= 0.01
    naive = import_model(source, "naive", target=tmp_path / "naive", calibration=calibration, outliers=Outliers("naive"))
    assert ratio(quality(naive, builtin_text, 2000, shadow=False)) > ruin


def test_injected_outliers_do_not_change_the_float_model(builtin_source, builtin_text, tmp_path):
    source = inject_outliers(builtin_source, tmp_path / "source", 100)
    bundle = import_model(source, "outliers", target=tmp_path / "bundle", outliers=Outliers("none"))  # the float path has none
    plain = load_comparison(builtin_bundle(), RuntimeConfig())
    changed = load_comparison(bundle, RuntimeConfig())
    ids = plain[0].encode(builtin_text)[:200]
    logits = [oracle.forward(oracle.open(), ids, wanted=200) for _, _, oracle in (plain, changed)]
    assert np.abs(logits[0] - logits[1]).max() <= 1e-3 * np.abs(logits[0]).max()
