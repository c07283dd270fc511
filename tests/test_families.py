"""Every family: its float path is transformers', and its INT8 path gives one result in every way there is."""


import numpy as np
import pytest
from families import EVERY, TOKENS, assert_described, assert_float_path, float_model, of_each

from edge_llm.ascend.devices.card.layers import missing
from edge_llm.config import W4, RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.gradient import layer_gradient
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.opening.runner import load_runner
from edge_llm.runner.base import Segment

family, bundle = of_each(EVERY, every=6)


def test_the_float_path_is_that_of_transformers(family):
    assert_float_path(*family, TOKENS)


def test_a_bundle_carries_its_description(family, bundle):
    folder, _ = family
    assert_described(folder, bundle)


def test_gradients_are_differences(family):
    """Every layer's own way back, against the difference of two forward passes along a random direction."""
    folder, _ = family
    model, random = float_model(folder), np.random.default_rng(3)
    tables, double = RopeTables(64), {}
    for layer, weights in zip(model.decoder.layers, model.layers, strict=True):
        if layer.operations in double:
            continue
        double[layer.operations] = True
        x, seen, step = (random.standard_normal((40, model.decoder.hidden_size), np.float32) for _ in range(3))
        step *= np.float32(2e-3)
        ahead, behind = (layer_forward(x + sign * step, layer, weights, tables) for sign in (1, -1))
        wanted = float(((ahead - behind).astype(np.float64) * seen).sum() / 2)
        found = float((layer_gradient(x, layer, weights, tables, seen, lambda *_: None).astype(np.float64) * step).sum())
        assert found == pytest.approx(wanted, rel=2e-2, abs=3e-3)  # a ReLU has a kink


def logits(bundle, **runtime):
    runner, _ = load_runner(bundle, RuntimeConfig(**{"threads": 2, "context": 128, **runtime}), 100)
    return runner.forward(runner.open(), TOKENS, wanted=len(TOKENS))


def divergence(exact, found):
    shares = [np.exp(x - x.max(axis=1, keepdims=True)) for x in (exact, found)]
    p, q = (x / x.sum(axis=1, keepdims=True) for x in shares)
    return float((p * np.log(p / q)).sum(axis=1).mean())


def test_int8_is_near_float(bundle):
    assert divergence(logits(bundle, float_path=True), logits(bundle)) < 0.05


@pytest.mark.parametrize("way", [{"chunk": 16, "window": 2}, {"memory": "60%"}, {"threads": 1, "chunk": 7}])
def test_every_way_gives_the_same(bundle, way):
    assert np.array_equal(logits(bundle, **way), logits(bundle))


@pytest.mark.parametrize("placement", ["split", "card"])
def test_on_an_emulated_chip_it_gives_the_same(bundle, placement):
    chip = {"device": "emulated:310p:s8gemm", "placement": placement, "activations": "static"}
    assert np.array_equal(logits(bundle, **chip), logits(bundle, activations="static"))


def test_a_batch_is_each_alone(bundle):
    runner, _ = load_runner(bundle, RuntimeConfig(threads=2, context=128, kv_tokens=512), 100)
    texts = [TOKENS[:70], TOKENS[20:61], TOKENS[5:6]]
    alone = [runner.forward(runner.open(), text, wanted=len(text)) for text in texts]
    together = runner.run([Segment(runner.open(), text, len(text)) for text in texts])
    assert all(map(np.array_equal, together, alone))


def test_steps_are_the_prompt(bundle):
    runner, _ = load_runner(bundle, RuntimeConfig(threads=2, context=128), 100)
    whole, sequence = logits(bundle), runner.open()
    steps = [runner.forward(sequence, TOKENS[:40], wanted=1), *(runner.forward(sequence, [token]) for token in TOKENS[40:])]
    assert np.array_equal(np.concatenate(steps), whole[39:])


def test_a_card_says_what_it_cannot_do(bundle):
    """Of all these families some have Llama's layers: ERNIE's too, once the rotation pairs are sorted."""
    like_llama = bundle.config.family in ("ernie4_5", "llama", "mistral", "qwen2", "qwen3")
    relu = any(getattr(one, "activation", "") == "relu" for one in bundle.decoder.layers[0].operations)
    assert (missing(bundle.decoder) is None) == (like_llama and not relu)


@pytest.mark.thorough
def test_four_bits_are_near_float(family):
    folder, _ = family
    target = folder.parent / "w4"
    with open_bundle(import_model(folder, target=target, weights=LayerBits(W4))) as opened:
        exact, found = logits(opened, float_path=True), logits(opened)
    assert np.linalg.norm(found - exact) < 0.8 * np.linalg.norm(exact)
