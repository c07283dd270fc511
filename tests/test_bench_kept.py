"""What keys and values cost apart from the weights, on models that were really trained."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from edge_llm.bench.kept import find_folds, kept_table, measure_kept
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.engine.float_assembly import float_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.paths import builtin_bundle
from edge_llm.quant.kv import kv_schemes
from edge_llm.text.tokenizer import Tokenizer
from edge_llm.weights.resident import ResidentWeights
from kernels import ThreadPool

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from plants import PLANTS, PlantedModel  # noqa: E402


@pytest.fixture(scope="module")
def tokens():
    text = (ROOT / "assets" / "builtin_model" / "heldout.txt").read_text()
    return Tokenizer.from_folder(builtin_bundle(), 1536).encode(text, parse_special=True)[:600]


@pytest.fixture(scope="module")
def loud_keys(tmp_path_factory):
    """The built-in model with a key pair of every head 30 times louder, imported with folds and without."""
    folder = tmp_path_factory.mktemp("loud")
    source = folder / "plain"
    source.mkdir()
    for path in (builtin_bundle() / "source").iterdir():
        shutil.copy(path, source)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        shutil.copy(builtin_bundle() / name, source)
    planted = PlantedModel(source).write(folder / "source", PLANTS["keys x30"])
    return {fold: import_model(planted, target=folder / f"fold-{fold}", fold=fold) for fold in (True, False)}


def divergence(bundle, schemes, tokens):
    found = measure_kept(bundle, RuntimeConfig(threads=1), kv_schemes(schemes), tokens, 256, 0)
    return {each.scheme: each.quality.mean_kl for each in found}


def test_nothing_kept_otherwise_costs_nothing(tokens):
    assert abs(divergence(builtin_bundle(), "float32", tokens)["float32"]) < 1e-9


def test_fewer_bits_cost_more(tokens):
    found = divergence(builtin_bundle(), "float16,int8,int6,int4", tokens)
    assert found["float16"] < found["int8"] < found["int6"] < found["int4"]


def test_keys_and_values_are_told_apart(tokens):
    found = divergence(builtin_bundle(), "int4/float32,float32/int4,int4", tokens)
    assert found["int4/float32"] != found["float32/int4"]
    assert found["int4"] > max(found["int4/float32"], found["float32/int4"])


def test_folds_of_the_bundle_are_found_again(loud_keys, tokens):
    with open_bundle(loud_keys[False]) as bundle:
        found = find_folds(float_model(bundle), ResidentWeights(bundle), tokens[:256], ThreadPool(1))
        assert all(np.abs(each.keys - 1).max() < 0.03 and np.abs(each.values - 1).max() < 0.03 for each in found)
    with open_bundle(loud_keys[True]) as bundle:
        found = find_folds(float_model(bundle), ResidentWeights(bundle), tokens[:256], ThreadPool(1))
        assert all(each.keys.max() / np.median(each.keys) > 10 for each in found)
        assert all((each.keys[:, :16] == each.keys[:, 16:]).all() for each in found)


def test_a_loud_pair_of_keys_costs_nothing_where_it_is_folded(loud_keys, tokens):
    plain = divergence(builtin_bundle(), "int8,int4", tokens)
    folded, uneven = (divergence(loud_keys[fold], "int8,int4", tokens) for fold in (True, False))
    assert folded["int8"] < 3 * plain["int8"]
    assert folded["int4"] < 3 * plain["int4"]
    assert uneven["int8"] > 30 * plain["int8"]


def test_table(tokens):
    found = measure_kept(builtin_bundle(), RuntimeConfig(threads=1), kv_schemes("int8/int4"), tokens[:100], 256, 0)
    head, line, where = kept_table(found).splitlines()
    assert head.split() == ["keys/values", "bits", "KL", "perplexity", "top-1"]
    assert line.split()[:2] == ["int8/int4", "8.50/4.50"]
    assert where == "against the float model, on 100 tokens"
