"""llama.cpp's formats beside ours: its own quantizers are called, also for rows that do not fill a block."""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from model_files import tiny_config, write_model

MISSING = [name for name in ("llama_cpp", "gguf") if find_spec(name) is None]
if MISSING:
    pytest.skip(f"the extra `peers` is not installed: {', '.join(MISSING)}", allow_module_level=True)
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import peer_formats  # noqa: E402
from peer_formats import Type, formats, medium, quantizer  # noqa: E402
from quantization import Study, Texts  # noqa: E402


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    source = write_model(tmp_path_factory.mktemp("formats") / "source", tiny_config("qwen2", intermediate_size=76))
    return Study(source, Texts("hello world, the hell is in her, a word " * 40, "the world in a word " * 20))


@pytest.mark.parametrize("columns", [64, 256, 300])
@pytest.mark.parametrize(("kind", "error"), [(Type.Q8_0, 0.01), (Type.Q6_K, 0.03), (Type.Q4_K, 0.1), (Type.IQ4_XS, 0.1)])
def test_what_the_quantizer_makes_is_near(columns, kind, error):
    weight = np.random.default_rng(columns).standard_normal((24, columns)).astype(np.float32)
    for importance in (None, np.linspace(0.1, 3, columns, dtype=np.float32)):
        found = quantizer()(weight, importance, kind)
        assert found.shape == weight.shape
        assert 0 < np.linalg.norm(found - weight) < error * np.linalg.norm(weight)


def test_a_mixture_gives_more_bits_to_values_and_down_of_some_layers(study):
    weight = study.linears["layers.0.qkv"].weight
    kinds = {name: medium(study, name, linear.weight) for name, linear in study.linears.items()}
    assert {kind for found in kinds.values() for _, kind in found} == {Type.Q4_K, Type.Q6_K}
    rows = [rows.indices(len(weight)) for rows, _ in kinds["layers.1.qkv"]]
    assert rows[-1][1] == len(weight)
    assert all(len(found) == 1 for name, found in kinds.items() if not name.endswith("qkv"))


def test_every_format_is_near_and_smaller_than_float(study):
    for name, stand_in in formats().items():
        for at, linear in study.linears.items():
            found = stand_in(study, at, linear)
            assert found.nbytes < 2 * linear.weight.size + 12 * len(linear.weight), name
            assert np.linalg.norm(found.weight - linear.weight) < 0.25 * np.linalg.norm(linear.weight), name


def test_the_table_has_a_line_for_each(study, capsys):
    found = peer_formats.rows_of(study)
    assert list(found) == list(formats())
    assert all(len(numbers) == len(peer_formats.HEAD) - 1 for numbers in found.values())
