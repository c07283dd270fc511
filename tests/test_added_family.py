"""A family of another shape is one file: its layers run in every way there is, and give one result."""

from dataclasses import replace

import numpy as np
import pytest
from model_files import random_tensors, tiny_config, write_model

from edge_llm import models
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.models import llama
from edge_llm.models.llama_like import llama_decoder
from edge_llm.models.weights import layer_shapes
from edge_llm.opening.runner import load_runner
from edge_llm.operations.base import HIDDEN
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.runner.base import Segment

SPLIT, CARD = ({"device": "emulated:310p:s8gemm", "placement": placement} for placement in ("split", "card"))


class MlpFirst:
    """The MLP before the attention, and one more linear: what attention gives goes through `mix` before `o`."""

    config = staticmethod(llama.config)

    def decoder(self, config):
        return replace(llama_decoder(config), layers=tuple(map(self._layer, llama_decoder(config).layers)))

    def _layer(self, layer):
        norm, qkv, attention, o, *mlp = layer.operations
        size = attention.q_size
        mix = Linear("mix", (SourceRows("self_attn.mix_proj", size),), size, reads="attended", writes="mixed", bias=True)
        last = Linear(o.name, o.sources, size, reads="mixed", writes=HIDDEN, adds=HIDDEN)
        return Layer(layer.prefix, (*mlp, norm, qkv, attention, mix, last))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    models.add_family("mlp_first", MlpFirst())
    raw = tiny_config("llama", num_hidden_layers=4) | {"model_type": "mlp_first", "architectures": ["MlpFirstForCausalLM"]}
    decoder = models.describe(models.load_config(raw))
    random, tensors = np.random.default_rng(1), random_tensors(raw | {"model_type": "llama", "architectures": None})
    for layer in decoder.layers:
        for name, shape in layer_shapes(layer).items():
            tensors.setdefault(name, random.standard_normal(shape, np.float32) / np.float32(shape[-1] ** 0.5))
    folder = tmp_path_factory.mktemp("added")
    write_model(folder / "source", raw, tensors=tensors)
    return open_bundle(import_model(folder / "source", target=folder / "bundle"))


@pytest.fixture(scope="module")
def tokens(bundle):
    return np.random.default_rng(5).integers(0, bundle.config.vocab_size, 70).tolist()


def logits(bundle, tokens, **runtime):
    runner, _ = load_runner(bundle, RuntimeConfig(**{"threads": 2, "context": 128, "activations": "static", **runtime}), 100)
    return runner.forward(runner.open(), tokens, wanted=len(tokens))


def test_int8_is_near_float(bundle, tokens):
    exact, found = logits(bundle, tokens, float_path=True), logits(bundle, tokens)
    shares = [np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (exact, found)]
    assert (shares[0] * np.log(shares[0] / shares[1])).sum(axis=1).mean() < 0.02


@pytest.mark.parametrize("way", [
    {"chunk": 16, "window": 2}, {"memory": "300KiB"}, SPLIT, {**SPLIT, "chunk": 16}, CARD, {**CARD, "chunk": 16},
])  # fmt: skip
def test_every_way_gives_the_same(bundle, tokens, way):
    assert np.array_equal(logits(bundle, tokens, **way), logits(bundle, tokens))


@pytest.mark.parametrize("way", [{}, SPLIT, CARD])
def test_a_batch_is_each_alone(bundle, tokens, way):
    runner, _ = load_runner(bundle, RuntimeConfig(threads=2, context=128, kv_tokens=512, activations="static", **way), 100)
    parts = runner.run([Segment(runner.open(), tokens[:n], n) for n in (3, 40, 1)])
    assert all(np.array_equal(part, logits(bundle, tokens)[: len(part)]) for part in parts)
