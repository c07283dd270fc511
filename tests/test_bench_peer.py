"""Peers: how they are named, what is missing when they are not there, and llama.cpp itself on a tiny random model."""

import dataclasses
from importlib.util import find_spec

import pytest

from edge_llm.bench import peer as peers
from edge_llm.bench.measure import Test, measure
from edge_llm.bench.peer import LLAMA_CPP, PeerSettings, PeerSpec, parse_peers, running
from edge_llm.bench.roofs import operations
from edge_llm.bench.synthetic_gguf import VARIANTS, matrices, synthetic_gguf, weight_bytes
from edge_llm.bench.worker import Worker
from edge_llm.config import LlamaConfig
from edge_llm.errors import DeviceError, UsageError
from edge_llm.models import describe

pytestmark = pytest.mark.thorough(file=3)

CONFIG = LlamaConfig(
    family="qwen3", vocab_size=320, hidden_size=64, intermediate_size=96, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=32, context=512, norm_eps=1e-6, rope_theta=1e4, tied_embeddings=True, qk_norm=True,
)  # fmt: skip
SHALLOW, DEEP = [Test(8, 0)], [Test(8, 0), Test(0, 2, 8)]


MISSING = [name for name in ("llama_cpp", "gguf") if find_spec(name) is None]
needs_packages = pytest.mark.skipif(bool(MISSING), reason=f"the extra `peers` is not installed: {', '.join(MISSING)}")


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """Naming peers does not need their packages."""
    monkeypatch.setattr(peers, "_require_packages", lambda engine: None)


def test_without_a_depth_there_is_one_way_to_run_a_peer():
    assert parse_peers(["llama.cpp"], SHALLOW) == (PeerSpec(LLAMA_CPP, "q8_0"),)
    assert parse_peers(["llama.cpp:q4_0, llama.cpp:q8_0:nofa", "llama.cpp:q4_0"], SHALLOW) == (
        PeerSpec(LLAMA_CPP, "q4_0"),
        PeerSpec(LLAMA_CPP, "q8_0", flash_attention=False),
    )


def test_at_a_depth_flash_attention_is_tried_both_ways_unless_chosen():
    both = parse_peers(["llama.cpp"], DEEP)
    assert [spec.name for spec in both] == ["llama.cpp q8_0", "llama.cpp fa=0 q8_0"]
    assert [[spec.takes_part(test) for test in DEEP] for spec in both] == [[True, True], [False, True]]
    assert parse_peers(["llama.cpp:fa"], DEEP) == (PeerSpec(LLAMA_CPP, "q8_0"),)


UNKNOWN = ["ollama", "torch:q8_0", "torch:nofa", "llama.cpp:q5_k", "llama.cpp:q8_0:q4_0", "llama.cpp:fa:nofa"]


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_unknown_peer_is_named_with_those_that_are_known(name):
    with pytest.raises(UsageError, match=f"no peer `{name}`.*llama.cpp:q4_0"):
        parse_peers([name], SHALLOW)


def test_missing_packages_are_named_with_the_extra(monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(peers, "find_spec", lambda name: None)
    with pytest.raises(DeviceError, match=r"`llama-cpp-python` and `gguf`.*`pip install '\.\[peers\]'` in the folder of"):
        parse_peers(["llama.cpp"], SHALLOW)
    assert parse_peers([], SHALLOW) == ()


def test_a_worker_that_fails_says_why():
    with Worker("edge_llm.no_such_module", {}, "nobody") as worker, pytest.raises(DeviceError, match="No module named"):
        worker.ask("run")


def test_weights_of_a_gguf_are_those_of_the_shape():
    columns = {matrix.name: matrix for matrix in matrices(CONFIG)}
    assert columns["blk.1.attn_output.weight"].columns == CONFIG.q_size
    parameters = sum(matrix.rows * max(1, matrix.columns) for matrix in matrices(CONFIG))
    assert parameters == describe(CONFIG).parameters
    eight, four = (sum(matrix.nbytes(quant) for matrix in matrices(CONFIG)) for quant in ("q8_0", "q4_0-pure"))
    assert eight / parameters == pytest.approx(34 / 32, rel=0.02)
    assert eight / four == pytest.approx(34 / 18, rel=0.02)


@needs_packages
@pytest.mark.parametrize("tied", [True, False])
def test_llama_cpp_makes_types_of_its_own_of_a_random_file(tied, edge_llm_home):
    config = dataclasses.replace(CONFIG, hidden_size=256, intermediate_size=512, tied_embeddings=tied)
    bits = {}
    for quant in VARIANTS:
        path = synthetic_gguf(config, quant)
        found = weight_bytes(path)
        bits[quant] = 8 * found.all / describe(config).parameters
        assert path.stat().st_size > found.all
        assert (found.read == found.all) is tied
        with running([PeerSpec(LLAMA_CPP, quant)], PeerSettings(config, 64, 1)) as contestants:
            (measurement,) = measure(contestants, Test(16, 2), 1)
            assert min(measurement.seconds) > 0
            assert contestants[0].model_facts["bits_per_weight"] == pytest.approx(bits[quant])
    assert 4.5 <= bits["q4_0-pure"] < bits["q4_0"] < bits["q8_0"]
    assert bits["iq4_xs"] < bits["q4_k_m"] < 7


@needs_packages
def test_what_llama_cpp_cannot_load_is_said_in_its_words(edge_llm_home):
    path = synthetic_gguf(CONFIG, "q8_0")
    path.write_bytes(path.read_bytes()[:-100])
    words = "llama.cpp cannot load .*: .*not within the file bounds"
    with pytest.raises(DeviceError, match=words), running([PeerSpec(LLAMA_CPP, "q8_0")], PeerSettings(CONFIG, 64, 1)):
        pass


@needs_packages
def test_a_shape_without_blocks_of_32_is_refused(edge_llm_home):
    with pytest.raises(UsageError, match="needs a multiple of 32"):
        synthetic_gguf(dataclasses.replace(CONFIG, intermediate_size=80), "q8_0")
    assert not [path for path in edge_llm_home.rglob("*") if path.is_file()]


@needs_packages
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_llama_cpp_runs_a_random_model_of_our_shape(family, edge_llm_home):
    special = {"llama": {}, "qwen2": {"qkv_bias": True, "head_dim": 16}, "qwen3": {"qk_norm": True}}[family]
    config = dataclasses.replace(CONFIG, **({"family": family, "qk_norm": False} | special))
    tests = [Test(16, 0), Test(0, 3, 32)]
    specs = parse_peers(["llama.cpp:q4_0-pure"] if family == "llama" else ["llama.cpp:q8_0:fa"], tests)
    for _ in range(2):  # the second time, the context of the depth comes from its file
        with running(specs, PeerSettings(config, 64, 1)) as contestants:
            for test in tests:
                ready = [contestant for contestant in contestants if contestant.spec.takes_part(test)]
                for measurement in measure(ready, test, 2):
                    assert min(measurement.seconds) > 0
                    assert measurement.peak_rss_bytes > 1 << 20
            assert contestants[0].costs.kv_bytes == 2 * 2 * 2 * 2 * config.head_dim
    assert len(list((edge_llm_home / "synthetic").glob("*.gguf"))) == 1
    assert len(list((edge_llm_home / "synthetic").glob("*.state"))) == len(specs)


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_torch_runs_a_random_model_of_our_shape():
    tests = [Test(16, 0), Test(8, 2, 32)]
    specs = parse_peers(["torch"], tests)
    with running(specs, PeerSettings(CONFIG, 64, 1)) as contestants:
        for test in tests:
            (measurement,) = measure(contestants, test, 1)
            assert measurement.seconds[0] > 0
        assert contestants[0].costs.weight_bytes == sum(operations(describe(CONFIG))) // 2


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_the_torch_peer_is_a_decoder(monkeypatch):
    """With float linears, a prompt at once and a prompt in two parts end in the same logits."""
    import torch

    from edge_llm.bench.peer_torch import TorchDecoder

    monkeypatch.setattr(torch.ao.quantization, "quantize_dynamic", lambda module, kinds, dtype: module)
    threads = torch.get_num_threads()
    try:
        decoder = TorchDecoder(dataclasses.asdict(CONFIG), 64, 1, "x86")
        tokens = decoder._tokens(24)
        whole = decoder._forward(tokens, 0)
        decoder._forward(tokens[:16], 0)
        torch.testing.assert_close(decoder._forward(tokens[16:], 16), whole, rtol=1e-3, atol=1e-3)
        tokens[0] = (tokens[0] + 1) % CONFIG.vocab_size
        assert (decoder._forward(tokens, 0) - whole).abs().max() > 0.01
    finally:
        torch.set_grad_enabled(True)
        torch.set_num_threads(threads)
