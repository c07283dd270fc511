"""What keys and values cost apart from the weights, on models that were really trained."""

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from families import family_folder

from edge_llm.bench.kv_quality import Seen, find_folds, key_factors, kv_quality_table, measure_kv_quality, reads
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels import ThreadPool
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.opening.float_assembly import bundle_layer, float_model
from edge_llm.operations.attention import Attention
from edge_llm.operations.rope_kinds import Rope
from edge_llm.paths import builtin_bundle
from edge_llm.quant.kv import kv_schemes
from edge_llm.text.tokenizer import Tokenizer
from edge_llm.weights.resident import ResidentWeights

pytestmark = pytest.mark.thorough(file=3)

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
    found = measure_kv_quality(bundle, RuntimeConfig(threads=1), kv_schemes(schemes), tokens, 256, 0)
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
        found = find_folds(float_model(bundle), bundle.decoder, ResidentWeights(bundle), tokens[:256], ThreadPool(1))
        assert all(np.abs(each.keys - 1).max() < 0.03 and np.abs(each.values - 1).max() < 0.03 for each in found)
    with open_bundle(loud_keys[True]) as bundle:
        found = find_folds(float_model(bundle), bundle.decoder, ResidentWeights(bundle), tokens[:256], ThreadPool(1))
        assert all(each.keys.max() / np.median(each.keys) > 10 for each in found)
        assert all((each.keys[:, :16] == each.keys[:, 16:]).all() for each in found)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_folds_are_found_again_through_biases_and_through_norms_of_keys(family, tiny_model, tmp_path):
    source = PlantedModel(tiny_model(family)).write(tmp_path / "source", PLANTS["keys x30"])
    with open_bundle(import_model(source, target=tmp_path / "bundle")) as bundle:
        model = float_model(bundle)
        ids = np.random.default_rng(3).integers(0, bundle.config.vocab_size, 200).tolist()
        found = find_folds(model, bundle.decoder, ResidentWeights(bundle), ids, ThreadPool(1))
    assert all((each.keys > 0).all() and each.keys.max() / np.median(each.keys) > 5 for each in found)


@pytest.mark.parametrize("rotated", [0, 4, 16])
def test_the_factors_of_keys_are_those_of_their_rotation_pairs(rotated):
    """However many channels of a head are rotated."""
    attention = Attention(4, 2, 16, Rope(rotated, 1e4), "qkv", "attended")
    random = np.random.default_rng(rotated)
    factors = attention.channels_of(np.exp(random.standard_normal((2, 8))).astype(np.float32))
    short = random.standard_normal((50, 2, 16)).astype(np.float32)
    np.testing.assert_allclose(key_factors(attention, short * factors, short), factors, rtol=1e-5)


@pytest.mark.parametrize("family", ["glm4", "smollm3", "cohere2"])
def test_folds_are_found_again_where_a_part_of_a_head_is_rotated_or_none(family, tmp_path):
    source, _ = family_folder(tmp_path / "source", family)
    with open_bundle(import_model(source, target=tmp_path / "bundle")) as bundle:
        rotated = {attention.rope.dim / attention.head_dim for attention in bundle.decoder.attentions}
        assert rotated & {0.0, 0.5}
        model, pool, weights = float_model(bundle), ThreadPool(1), ResidentWeights(bundle)
        ids = np.random.default_rng(3).integers(0, bundle.config.vocab_size, 200)
        found = find_folds(model, bundle.decoder, weights, ids.tolist(), pool)
        x, tables = model.embedding[ids], RopeTables(len(ids))
        for index, (layer, own) in enumerate(zip(bundle.decoder.layers, model.layers, strict=True)):
            ours, theirs = Seen(), Seen()
            bundle_layer(x, layer, weights.use(index), tables, pool, None, ours)
            x = layer_forward(x, layer, own, tables, rounding=theirs)
            off = theirs.keys - ours.keys * found[index].keys
            assert np.linalg.norm(off) < 0.05 * np.linalg.norm(theirs.keys), (index, layer.attention.rope.dim)


def test_a_loud_pair_of_keys_costs_nothing_where_it_is_folded(loud_keys, tokens):
    plain = divergence(builtin_bundle(), "int8,int4", tokens)
    folded, uneven = (divergence(loud_keys[fold], "int8,int4", tokens) for fold in (True, False))
    assert folded["int8"] < 3 * plain["int8"]
    assert folded["int4"] < 3 * plain["int4"]
    assert uneven["int8"] > 10 * plain["int8"]


def test_table(tokens):
    found = measure_kv_quality(builtin_bundle(), RuntimeConfig(threads=1), kv_schemes("int8/int4"), tokens[:100], 256, 0)
    head, line, where, _ = kv_quality_table(found).splitlines()
    assert head.split() == ["keys/values", "bits", "KL", "perplexity", "top-1", "MB", "reads"]
    assert line.split()[:2] == ["int8/int4", "8.50/4.50"]
    assert where.startswith("against the float model, on 100 tokens; MB of keys and values at a depth of 4096")


def test_int8_takes_the_bytes_of_the_pages_that_hold_it():
    with open_bundle(builtin_bundle()) as bundle:
        attentions = bundle.decoder.attentions
    (int8,), (half,) = kv_schemes("int8"), kv_schemes("float16/int8")
    assert int8.token_bytes(attentions) * PAGE_TOKENS == page_bytes(attentions)
    assert reads(int8, attentions, 1e6) == 1.0
    assert reads(half, attentions, 1e6) > reads(half, attentions, 1e7) > 1.0
