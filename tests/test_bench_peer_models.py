"""Models made for peers are the decoder that we describe (the float reference with the same weights says so), and run."""

import dataclasses
from importlib.util import find_spec

import numpy as np
import onnxruntime
import pytest

from edge_llm.bench.measure import Test, measure
from edge_llm.bench.peer import ENGINES, GENAI, OPENVINO, PeerSettings, parse_peers, running
from edge_llm.bench.random_weights import Blocks, random_blocks, random_vector
from edge_llm.bench.synthetic_onnx import BLOCK, write_onnx
from edge_llm.bench.synthetic_openvino import GROUP, write_openvino
from edge_llm.config import LlamaConfig
from edge_llm.errors import DeviceError, UsageError
from edge_llm.models import describe
from edge_llm.models.reference import FloatModel
from edge_llm.models.weights import layer_shapes

pytestmark = pytest.mark.thorough(file=2)

CONFIG = LlamaConfig(
    family="qwen3", vocab_size=320, hidden_size=128, intermediate_size=256, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=32, context=512, norm_eps=1e-6, rope_theta=1e4, tied_embeddings=True, qk_norm=True,
)  # fmt: skip
CONFIGS = {
    "qwen3": CONFIG,
    "qwen2": dataclasses.replace(CONFIG, family="qwen2", qkv_bias=True, qk_norm=False),
    "llama": dataclasses.replace(CONFIG, family="llama", num_kv_heads=4, tied_embeddings=False, qk_norm=False),
}
TOKENS = np.random.default_rng(5).integers(0, CONFIG.vocab_size, 40)
PARTS = (30, 31, 40)
"""Where the tokens are cut: a prompt, one more token, and some more."""


def lacks(engine):
    missing = [package for package, module in engine.packages.items() if find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"the extra `peers` is not installed: {', '.join(missing)}")


class RandomSource:
    """The weights of a made model, as floats."""

    def __init__(self, config, block_of):
        decoder = describe(config)
        table = (decoder.vocab_size, decoder.hidden_size)
        self._shapes = {decoder.embedding.source: table, decoder.norm.gain.source: (decoder.hidden_size,)}
        for layer in decoder.layers:
            self._shapes |= layer_shapes(layer)
        if not decoder.tied:
            self._shapes["lm_head.weight"] = table
        self._block_of = block_of

    def names(self):
        return list(self._shapes)

    def shape(self, name):
        return self._shapes[name]

    def read(self, name):
        shape = self._shapes[name]
        if len(shape) == 1:
            return random_vector(name, *shape)
        return random_blocks(name, *shape, *self._block_of(name, shape[1])).values


def reference(config, block_of):
    """Logits after each of `PARTS`."""
    logits = FloatModel(RandomSource(config, block_of), config).forward(TOKENS)
    return [logits[end - 1] for end in PARTS]


def pieces():
    starts = (0, *PARTS[:-1])
    return [(TOKENS[start:end], start) for start, end in zip(starts, PARTS, strict=True)]


def openvino_blocks(variant):
    return lambda name, columns: (4, GROUP) if variant == "int4" and ".layers." in name else (8, columns)


def test_random_weights_are_the_same_every_time_and_keep_their_size():
    blocks = random_blocks("a.weight", 64, 256, 4, 32)
    assert (blocks.codes.min(), blocks.codes.max(), blocks.scales.shape) == (-8, 7, (64, 8))
    assert np.array_equal(blocks.values, random_blocks("a.weight", 64, 256, 4, 32).values)
    assert not np.array_equal(blocks.codes, random_blocks("b.weight", 64, 256, 4, 32).codes)
    assert np.linalg.norm(blocks.values, axis=1).mean() == pytest.approx(1, rel=0.1)
    assert np.array_equal(Blocks.stacked([blocks, blocks]).values[64:], blocks.values)


@pytest.mark.parametrize("variant", GENAI.variants)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_onnx_model_is_the_decoder_that_we_describe(config, variant, tmp_path):
    bits = int(variant.removeprefix("int"))
    write_onnx(tmp_path, config, variant, accuracy_level=0)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    heads = (1, config.num_kv_heads, 0, config.head_dim)
    past = {given.name: np.zeros(heads, np.float32) for given in session.get_inputs() if "past" in given.name}
    for (tokens, start), wanted in zip(pieces(), reference(config, lambda name, columns: (bits, BLOCK)), strict=True):
        mask = np.ones((1, start + len(tokens)), np.int64)
        logits, *present = session.run(None, {"input_ids": tokens[None], "attention_mask": mask, **past})
        past = dict(zip(past, present, strict=True))
        np.testing.assert_allclose(logits[0, 0], wanted, atol=1e-4)


@lacks(GENAI)
@pytest.mark.parametrize("variant", GENAI.variants)
def test_genai_rounds_activations_and_little_else(variant, tmp_path):
    from edge_llm.bench.peer_genai import GenAI

    write_onnx(tmp_path, CONFIG, variant)
    bits = int(variant.removeprefix("int"))
    peer = GenAI(str(tmp_path), 64, 1)
    for (tokens, _), wanted in zip(pieces(), reference(CONFIG, lambda name, columns: (bits, BLOCK)), strict=True):
        np.testing.assert_allclose(peer.logits(tokens), wanted, atol=0.2)


@lacks(OPENVINO)
@pytest.mark.parametrize("variant", ["int4", "int8"])
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_openvino_model_is_the_decoder_that_we_describe(config, variant, tmp_path):
    from edge_llm.bench.peer_openvino import EXACT, OpenVINO

    write_openvino(tmp_path, config, variant)
    peer = OpenVINO(str(tmp_path), config.vocab_size, 64, 1, EXACT)
    for piece, wanted in zip(pieces(), reference(config, openvino_blocks(variant)), strict=True):
        np.testing.assert_allclose(peer.logits(*piece), wanted, atol=1e-4)


@lacks(OPENVINO)
def test_openvino_as_it_is_measured_rounds_activations_and_little_else(tmp_path):
    from edge_llm.bench.peer_openvino import OpenVINO

    write_openvino(tmp_path, CONFIG, "int4")
    peer = OpenVINO(str(tmp_path), CONFIG.vocab_size, 64, 1)
    for piece, wanted in zip(pieces(), reference(CONFIG, openvino_blocks("int4")), strict=True):
        np.testing.assert_allclose(peer.logits(*piece), wanted, atol=0.4)


@pytest.mark.parametrize("name", [pytest.param("genai", marks=lacks(GENAI)), pytest.param("openvino", marks=lacks(OPENVINO))])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_an_engine_runs_its_model_and_a_row_says_what_it_takes(name, tied, edge_llm_home):
    config = dataclasses.replace(CONFIG, tied_embeddings=tied)
    tests = [Test(16, 0), Test(0, 3, 40), Test(8, 2, 5)]
    with running(parse_peers([f"{name}:int4", f"{name}:int8"], tests), PeerSettings(config, 64, 1)) as peers:
        for test in tests:
            assert all(min(measurement.seconds) > 0 for measurement in measure(peers, test, 2))
        peers[0].use_threads(2)
        assert measure(peers, Test(0, 2, 40), 1)
        facts = {peer.spec.variant: peer.model_facts for peer in peers}
        for peer in peers:
            counted = facts[peer.spec.variant]["bits_per_weight"] * describe(config).parameters / 8
            shared = tied and (name, peer.spec.variant) != ("genai", "int8")  # that one's embedding is in float32
            assert (peer.costs.weight_bytes == pytest.approx(counted, rel=1e-6)) is shared
            assert counted <= facts[peer.spec.variant]["model_size"] + 1
    assert 4 < facts["int4"]["bits_per_weight"] < facts["int8"]["bits_per_weight"]
    assert {path.name for path in (edge_llm_home / "synthetic").iterdir()} == {
        found["model_filename"] for found in facts.values()
    }


def test_a_model_whose_writer_fails_leaves_nothing(edge_llm_home, monkeypatch):
    from edge_llm.bench import synthetic_onnx

    monkeypatch.setattr(synthetic_onnx, "write_onnx", fail)
    with pytest.raises(DeviceError, match="no space"):
        synthetic_onnx.synthetic_onnx(CONFIG, "int4")
    assert not list((edge_llm_home / "synthetic").iterdir())


def fail(folder, config, variant):
    (folder / "model.onnx").write_bytes(b"half")
    raise DeviceError("no space")


@pytest.mark.parametrize(("name", "block"), [("genai:int4", 32), ("genai:int8", 32), ("openvino:int4", 128)])
def test_a_shape_without_whole_blocks_is_refused(name, block, edge_llm_home):
    engine, _, variant = name.partition(":")
    config = dataclasses.replace(CONFIG, intermediate_size=80)
    with pytest.raises(UsageError, match=f"80 input channels.*needs a multiple of {block}"):
        ENGINES[engine].model(config, variant)
    assert not [path for path in edge_llm_home.rglob("*") if path.is_file()]
