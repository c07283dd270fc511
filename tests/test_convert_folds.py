"""Folds: the float model stays what it is, and INT8 no longer notices how uneven its channels were."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from model_files import random_tensors, tiny_config, write_model
from odd_layers import ODD, odd, random_weights

from edge_llm.bench.quality import compare
from edge_llm.bench.shares import measure_shares
from edge_llm.cli.shadow import fold_report
from edge_llm.config import RuntimeConfig
from edge_llm.convert.folds import fold_linear
from edge_llm.convert.importer import Outliers, import_model
from edge_llm.convert.layer_folds import fold_layer, places
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.kernels import reference
from edge_llm.models import describe, load_config
from edge_llm.models.reference import FloatModel, layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.opening.load import load_comparison
from edge_llm.operations.attention import KEYS
from edge_llm.operations.base import HIDDEN
from edge_llm.quant.channels import ChannelStatistics
from edge_llm.quant.folding import POWERS, channel_level, even_factors
from edge_llm.quant.profile import OutlierProfile
from edge_llm.quant.scheme import rounded_kv

pytestmark = pytest.mark.thorough(file=6)

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from plants import PLANTS, PlantedModel  # noqa: E402
from shadow import cost_share  # noqa: E402
from uneven import main as uneven  # noqa: E402

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
STRONGEST = (
    "norms, sigma 1.5",
    "a fifth of the norms' channels x20",
    "products, sigma 1.5",
    "keys x100",
    "values x100",
    "norms and products 1.0, keys and values x30",
)


def uneven_tensors(family):
    """Random tensors; the biases of qwen2's keys and queries are as large as trained models have them."""
    tensors = random_tensors(tiny_config(family))
    for name in tensors:
        if name.endswith("k_proj.bias"):
            tensors[name] *= 20
        if name.endswith("q_proj.bias"):
            tensors[name] *= 4
    return tensors


@pytest.fixture(scope="session")
def sources(tmp_path_factory):
    """Per family a tiny random model on disk."""
    folder = tmp_path_factory.mktemp("sources")
    return {
        family: write_model(folder / family, tiny_config(family), tensors=uneven_tensors(family)) for family in FAMILIES
    }


def random_folds(layer, seed):
    """Random factors for every place; where keys are normed, all heads have the same."""
    draw = np.random.default_rng(seed)
    factors = {name: np.exp(draw.standard_normal(place.shape)).astype(np.float32) for name, place in places(layer).items()}
    if layer.attention.k_norm is not None:
        factors[KEYS] = np.broadcast_to(factors[KEYS][:1], factors[KEYS].shape)
    return factors


@pytest.mark.parametrize("family", FAMILIES)
def test_folding_leaves_the_float_model_as_it_is(sources, family):
    with open_model_folder(sources[family]) as source:
        config = load_config(source.config)
        plain, folded = FloatModel(source, config), FloatModel(source, config)
    folded.layers = [
        fold_layer(weights, layer, random_folds(layer, index))
        for index, (weights, layer) in enumerate(zip(folded.layers, folded.decoder.layers, strict=True))
    ]
    ids = np.random.default_rng(0).integers(0, 250, 100)
    wanted, found = plain.forward(ids), folded.forward(ids)
    assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()
    assert not np.array_equal(plain.layers[0].linears["qkv"].weight, folded.layers[0].linears["qkv"].weight)


@pytest.mark.parametrize("name", ODD)
def test_folding_leaves_any_layer_as_it_is(name):
    layer = odd(name)
    weights, tables = random_weights(layer), RopeTables(40)
    folded = fold_layer(weights, layer, random_folds(layer, 0))
    x = np.random.default_rng(0).standard_normal((40, layer.widths[HIDDEN]), np.float32)
    wanted, found = layer_forward(x, layer, weights, tables), layer_forward(x, layer, folded, tables)
    assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max()
    assert not np.array_equal(weights.linears["qkv"].weight, folded.linears["qkv"].weight)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_layer_has_five_places(sources, family):
    with open_model_folder(sources[family]) as source:
        config = load_config(source.config)
    kv_heads, dim = config.num_kv_heads, config.head_dim
    for layer in describe(config).layers:
        assert {name: (place.shape, [linear.name for linear in place.readers]) for name, place in places(layer).items()} == {
            "qkv": ((config.hidden_size,), ["qkv"]),
            "keys": ((kv_heads, dim // 2), []),
            "values": ((kv_heads, dim), ["o"]),
            "gate_up": ((config.hidden_size,), ["gate_up"]),
            "products": ((config.intermediate_size,), ["down"]),
        }


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bundle_holds_the_folded_weights(sources, family):
    """Gains divided and columns multiplied by the same factors, read back from the bundle."""
    from test_convert_importer import dequantized

    with open_bundle(import_model(sources[family], "m", turn=0)) as bundle, open_model_folder(sources[family]) as source:
        profile = OutlierProfile.from_fields(bundle.manifest["profile"])
        assert {fold.powers != (0.0,) for fold in profile.folds.values()} >= {True}
        for layer in range(len(bundle.decoder.layers)):
            gain = source.read(f"model.layers.{layer}.post_attention_layernorm.weight")
            factors = gain / bundle.read(f"layers.{layer}.mlp_norm")
            gate = source.read(f"model.layers.{layer}.mlp.gate_proj.weight") * factors
            found = dequantized(bundle, f"layers.{layer}.gate_up")[: len(gate)]
            assert np.abs(found - gate).max() <= np.abs(gate).max() / 250


@st.composite
def channels(draw):
    """Levels and lengths of some channels, and factors to plant into them."""
    count = draw(st.integers(1, 12))
    positive = st.floats(1e-3, 1e3)
    return [draw(arrays(np.float64, count, elements=positive)) for _ in range(3)]


@given(channels(), st.sampled_from(POWERS))
def test_what_was_planted_is_folded_away(case, power):
    level, length, planted = case
    plain = even_factors(level, length, power)
    np.testing.assert_allclose(even_factors(level * planted, length / planted, power), plain * planted, rtol=1e-5)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_a_linear_is_folded_the_same_however_it_was_planted(seed):
    draw = np.random.default_rng(seed)
    x, weight = draw.standard_normal((200, 48), np.float32), draw.standard_normal((32, 48), np.float32)
    planted = np.exp(1.5 * draw.standard_normal(48)).astype(np.float32)
    results = []
    for scale in (np.ones(48, np.float32), planted):
        seen = ChannelStatistics(48)
        seen.add(x * scale)
        factors, fold = fold_linear(seen, weight / scale)
        results.append(fold.error)
        assert fold.error <= 1.1 * fold.error_unfolded
        assert (factors > 0).all() and np.isfinite(factors).all()
    assert results[1] <= 1.2 * results[0]


@pytest.mark.parametrize("name, factor", [("input_layernorm", 1e6), ("o_proj", 1e8)])
def test_a_fold_makes_no_model_refused(tmp_path, name, factor):
    """A loud channel whose folded weights are too large for a shadow in float16 is served without it."""
    raw = tiny_config(hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8, intermediate_size=16)
    tensors = random_tensors(raw, seed=1)
    for tensor in [tensor for tensor in tensors if name in tensor]:
        tensors[tensor][..., 3] *= np.float32(factor)
    source = write_model(tmp_path / "source", raw, tensors=tensors)
    (tmp_path / "text").write_text("hello world the" * 40)
    losses = []
    for fold in (True, False):
        path = import_model(source, f"m{fold}", calibration=tmp_path / "text", fold=fold, turn=0)
        with open_bundle(path) as bundle:
            losses.append(bundle.manifest["profile"]["held_out"]["mean_kl"])
    assert losses[0] <= 1.3 * losses[1]


def test_silent_channels_stay_as_they_are():
    level, length = np.array([1.0, 0.0, 4.0, 2.0]), np.array([1.0, 1.0, 1.0, 0.0])
    factors = even_factors(level, length, 0.5)
    assert factors[1] == factors[3] == 1.0
    np.testing.assert_allclose(factors[2] / factors[0], 2.0, rtol=1e-6)
    assert (even_factors(np.zeros(3), np.zeros(3), 0.75) == 1.0).all()


def test_levels_do_not_overflow():
    x = np.array([[1e38, 1e-38, 0.0], [-1e38, 1e-38, 0.0]], np.float32)
    np.testing.assert_allclose(channel_level(x, 0.75), [1e38, 1e-38, 0.0], rtol=1e-5)


@given(arrays(np.float32, (3, 2, 8), elements=st.floats(-1e6, 1e6, width=32)))
def test_rounded_keys_are_what_pages_give_back(x):
    pages = [np.zeros((1, 2, 16, 8), np.int8), np.zeros((1, 2, 16), np.float16)]
    values = [np.zeros((1, 2, 16, 8), np.int8), np.zeros((1, 2, 16), np.float16)]
    reference.append_kv(x, x, *pages, *values, np.arange(3))
    stored = reference.keys_of(pages[0])[0].astype(np.float32) * pages[1][0].astype(np.float32)[..., None]
    np.testing.assert_array_equal(rounded_kv(x), stored[:, :3].swapaxes(0, 1))


def measured(source, folder, text, tokens, mode):
    """Divergence from the float path on held-out text, and the predicted cost of the shadows, of an import of ``source``."""
    bundle = import_model(source, "planted", target=folder, outliers=Outliers(mode))
    tokenizer, runner, oracle = load_comparison(bundle, RuntimeConfig(threads=1))
    ids = tokenizer.encode(text[: 8 * tokens])[:tokens]
    assert len(ids) == tokens
    quality = compare(runner, oracle, ids, 256, tokenizer.bos_id)
    with open_bundle(bundle) as opened:
        return quality.mean_kl, cost_share(opened)


@pytest.fixture(scope="session")
def unplanted(sources, tmp_path_factory):
    text = (ROOT / "README.md").read_text()
    folder = tmp_path_factory.mktemp("unplanted")
    return {family: measured(sources[family], folder / family, text, 500, "full") for family in FAMILIES}


CASES = [(family, plant) for family in ("llama", "qwen2", "qwen3") for plant in STRONGEST] + [("mistral", STRONGEST[-1])]


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(("family", "plant"), CASES)
def test_int8_does_not_notice_a_plant(sources, unplanted, tmp_path, family, plant):
    source = PlantedModel(sources[family]).write(tmp_path / "source", PLANTS[plant])
    loss, cost = measured(source, tmp_path / "bundle", (ROOT / "README.md").read_text(), 500, "full")
    assert loss <= 1.3 * unplanted[family][0]
    assert cost == pytest.approx(unplanted[family][1], rel=0.1, abs=0.002)


def test_without_folds_int8_notices(sources, unplanted, tmp_path):
    """The plants are strong enough for the test above to mean something."""
    source = PlantedModel(sources["llama"]).write(tmp_path / "source", PLANTS[STRONGEST[-1]])
    bundle = import_model(source, "m", outliers=Outliers("full"), fold=False)
    tokenizer, runner, oracle = load_comparison(bundle, RuntimeConfig(threads=1))
    quality = compare(runner, oracle, tokenizer.encode((ROOT / "README.md").read_text())[:500], 256, tokenizer.bos_id)
    assert quality.mean_kl > 10 * unplanted["llama"][0]


@pytest.fixture(scope="session")
def stories_unplanted(stories_folder, shared_folder, tmp_path_factory):
    text = (shared_folder / "text" / "tinystories-sample.txt").read_text()
    folder = tmp_path_factory.mktemp("stories")
    return text, measured(stories_folder, folder / "plain", text, 2000, "full")


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("plant", [name for name in PLANTS if name != "nothing"])
def test_a_trained_model_does_not_notice_a_plant(stories_folder, stories_unplanted, tmp_path, plant):
    text, unplanted = stories_unplanted
    source = PlantedModel(stories_folder).write(tmp_path / "source", PLANTS[plant])
    loss, cost = measured(source, tmp_path / "bundle", text, 2000, "full")
    assert loss <= 1.3 * unplanted[0]
    assert cost == pytest.approx(unplanted[1], rel=0.1)


def test_an_import_from_before_folds_is_kept_until_it_is_overwritten(sources):
    said = []
    folder = import_model(sources["llama"], "m", fold=False)
    before = (folder / "weights.bin").read_bytes()
    assert import_model(sources["llama"], "m", notice=said.append) == folder
    assert (folder / "weights.bin").read_bytes() == before
    assert "older edge-llm" in said[-1] and "--overwrite" in said[-1]
    import_model(sources["llama"], "m", overwrite=True)
    assert (folder / "weights.bin").read_bytes() != before
    import_model(sources["llama"], "m", notice=said.append)
    assert "already imported" in said[-1]


def test_import_says_what_it_folded(sources):
    said = []
    with open_bundle(import_model(sources["llama"], "m", notice=said.append)) as bundle:
        rows = fold_report(bundle)["by_kind"].values()
    places, folded = sum(row["places"] for row in rows), sum(row["folded"] for row in rows)
    assert f"folded uneven channels in {folded} of {places} places; the float model is the same" in said
    said.clear()
    import_model(sources["llama"], "m", fold=False, overwrite=True, notice=said.append)
    assert not any("folded" in line for line in said)


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_shares_of_the_loss_add_up(sources, family):
    folder = import_model(sources[family], "m")
    runtime = RuntimeConfig(threads=1)
    tokenizer, runner, oracle = load_comparison(folder, runtime)
    ids = tokenizer.encode((ROOT / "README.md").read_text())[:400]
    whole = compare(runner, oracle, ids, 128, tokenizer.bos_id).mean_kl
    shares = measure_shares(folder, runtime, ids, 128, tokenizer.bos_id)
    assert shares.linears + shares.keys + shares.values + shares.output == pytest.approx(whole, rel=0.3)
    assert shares.linears > 0 and shares.output > 0


def test_the_benchmark_reports_a_model_as_it_is(sources, tmp_path):
    results = tmp_path / "found.md"
    arguments = [sources["llama"], "--text", ROOT / "README.md", "--tokens", 300, "--as-it-is", "--results", results]
    assert uneven([str(one) for one in arguments]) == 0
    lines = results.read_text().splitlines()
    rows = [[cell.strip() for cell in line.split("|")] for line in lines if line.startswith("| nothing")]
    assert [row[2] for row in rows] == ["no", "yes"]
    assert all(0 < float(row[3]) < 0.05 for row in rows)
    assert any(line.startswith("keys") for line in lines)
