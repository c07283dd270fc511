"""An operation of another kind is one file: it is imported, described, and runs in every way there is, with one result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from model_files import random_tensors, tiny_config, write_model

from edge_llm import models
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.models import llama
from edge_llm.models.llama_like import llama_decoder
from edge_llm.opening.runner import load_runner
from edge_llm.operations.base import Gain, Op, Operation
from edge_llm.operations.kinds import add_kind
from edge_llm.operations.layer import Layer
from edge_llm.runner.base import Segment


@dataclass(frozen=True)
class Stretch(Operation):
    """``writes = reads * gain``, channel by channel."""

    KIND: ClassVar[str] = "stretch"

    gain: Gain
    reads: str
    writes: str

    @property
    def read_width(self):
        return self.gain.size

    write_width = read_width

    @property
    def gains(self):
        return (self.gain,)

    def forward(self, buffers, run):
        return buffers[self.reads] * run.weights.gains[self.gain.name]

    def forward_and_back(self, buffers, run):
        gain = run.weights.gains[self.gain.name]
        return buffers[self.reads] * gain, lambda gradient: [(self.reads, gradient * gain)]

    def host_parts(self, layer, passes):
        return [(self.gain.name, Op("stretch", (self.reads,), (self.writes,), self))]

    def op_widths(self, op):
        return {op.writes[0]: self.gain.size}

    def add_call(self, call):
        x, out, gain = call.buffers[self.reads], call.buffers[self.writes], call.gains[self.gain.name]
        call.add(lambda rows, _: np.multiply(x[:rows], gain, out=out[:rows]))


class Stretched:
    """Llama whose attention gives its channels to a `Stretch` before `o` reads them."""

    config = staticmethod(llama.config)

    def decoder(self, config):
        plain = llama_decoder(config)
        return replace(plain, layers=tuple(map(self._layer, plain.layers)))

    def _layer(self, layer):
        norm, qkv, attention, o, *mlp = layer.operations
        stretch = Stretch(Gain("stretch", "self_attn.stretch.weight", attention.q_size), "attended", "stretched")
        return Layer(layer.prefix, (norm, qkv, attention, stretch, replace(o, reads="stretched"), *mlp))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    models.add_family("stretched", Stretched())
    add_kind(Stretch)
    raw = tiny_config("llama", num_hidden_layers=4) | {"model_type": "stretched", "architectures": ["StretchedForCausalLM"]}
    tensors = random_tensors(raw | {"model_type": "llama", "architectures": None})
    random = np.random.default_rng(1)
    for layer in models.describe(models.load_config(raw)).layers:
        tensors[f"{layer.prefix}self_attn.stretch.weight"] = random.uniform(0.5, 2, layer.attention.q_size).astype(np.float32)
    folder = tmp_path_factory.mktemp("added")
    write_model(folder / "source", raw, tensors=tensors)
    with open_bundle(import_model(folder / "source", target=folder / "bundle")) as opened:
        yield opened


@pytest.fixture(scope="module")
def tokens(bundle):
    return np.random.default_rng(5).integers(0, bundle.config.vocab_size, 70).tolist()


def logits(bundle, tokens, **runtime):
    runner, _ = load_runner(bundle, RuntimeConfig(**{"threads": 2, "context": 128, "activations": "static", **runtime}), 100)
    return runner.forward(runner.open(), tokens, wanted=len(tokens))


def test_the_bundle_describes_it(bundle):
    kinds = [operation.KIND for operation in bundle.decoder.layers[0].operations]
    assert kinds == ["norm", "linear", "attention", "stretch", "linear", "norm", "linear", "glu", "linear"]
    assert bundle.manifest["description"]["kinds"]["0"][3]["kind"] == "stretch"


def test_int8_is_near_float(bundle, tokens):
    exact, found = logits(bundle, tokens, float_path=True), logits(bundle, tokens)
    shares = [np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) for x in (exact, found)]
    assert (shares[0] * np.log(shares[0] / shares[1])).sum(axis=1).mean() < 0.02


@pytest.mark.parametrize("way", [
    {"chunk": 16, "window": 2},
    {"memory": "75%"},
    *({"device": "emulated:310p:s8gemm", "placement": placement, **more}
      for placement in ("split", "card") for more in ({}, {"chunk": 16})),
])  # fmt: skip
def test_every_way_gives_the_same(bundle, tokens, way):
    assert np.array_equal(logits(bundle, tokens, **way), logits(bundle, tokens))


def test_a_batch_is_each_alone(bundle, tokens):
    runner, _ = load_runner(bundle, RuntimeConfig(threads=2, context=128, kv_tokens=512, activations="static"), 100)
    texts = [tokens, tokens[20:61], tokens[5:6]]
    alone = [runner.forward(runner.open(), text, wanted=len(text)) for text in texts]
    together = runner.run([Segment(runner.open(), text, len(text)) for text in texts])
    assert all(map(np.array_equal, together, alone))
