"""Families with experts: the float path is transformers', and every way gives one result."""

import json

import numpy as np
import pytest
from families import MIXTURES, family_folder, logits_of
from model_files import VOCAB_SIZE

from edge_llm.config import RuntimeConfig
from edge_llm.convert.gradient import layer_gradient
from edge_llm.convert.importer import import_model
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.description import decode_description, encode_description, model_record
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import describe, load_config
from edge_llm.models.reference import FloatModel, layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.opening.runner import load_runner
from edge_llm.runner.base import Segment

TOKENS = np.random.default_rng(1).integers(0, VOCAB_SIZE, 90).tolist()


@pytest.fixture(scope="module", params=MIXTURES)
def family(request, tmp_path_factory):
    """The folder of a family's model, and its logits by transformers."""
    folder, model = family_folder(tmp_path_factory.mktemp("mixture") / "source", request.param)
    return folder, logits_of(model, TOKENS)


@pytest.fixture(scope="module")
def bundle(family):
    folder, _ = family
    with open_bundle(import_model(folder, target=folder.parent / "bundle")) as opened:
        yield opened


def float_model(folder):
    with open_model_folder(folder) as source:
        return FloatModel(source, load_config(source.config))


def test_the_float_path_is_that_of_transformers(family):
    folder, theirs = family
    ours = float_model(folder).forward(TOKENS)
    assert np.abs(ours - theirs).max() < 2e-5 * np.abs(theirs).max()
    assert ours.argmax(-1).tolist() == theirs.argmax(-1).tolist()


def test_a_bundle_carries_its_description(family, bundle):
    folder, _ = family
    with open_model_folder(folder) as source:
        config = load_config(source.config)
    record = json.loads(json.dumps([encode_description(describe(config)), model_record(config)]))
    assert decode_description(*record, most_layers=100).decoder == describe(config) == bundle.config.decoder


def test_gradients_are_differences(family):
    """Along directions in which no row changes its experts."""
    folder, _ = family
    model, random = float_model(folder), np.random.default_rng(3)
    tables = RopeTables(64)
    for layer, weights in zip(model.decoder.layers[:2], model.layers, strict=False):
        x, seen, step = (random.standard_normal((40, model.decoder.hidden_size), np.float32) for _ in range(3))
        step *= np.float32(5e-4)
        ahead, behind = (layer_forward(x + sign * step, layer, weights, tables) for sign in (1, -1))
        same = np.abs(ahead - behind).max(axis=1) < 0.05
        seen[~same] = 0
        wanted = float(((ahead - behind).astype(np.float64) * seen).sum() / 2)
        found = float((layer_gradient(x, layer, weights, tables, seen, lambda *_: None).astype(np.float64) * step).sum())
        assert same.mean() > 0.8 and found == pytest.approx(wanted, rel=2e-2, abs=2e-3)


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
