"""Every figure of a model's quality is of the logits that the model has: behind its last norm's factor, within its cap."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from families import family_bundle

from edge_llm.bench.held_out import OwnReader, compare_readers
from edge_llm.bench.quality import compare
from edge_llm.bench.shares import measure_shares
from edge_llm.config import RuntimeConfig
from edge_llm.convert.gradient import drawn_gradient
from edge_llm.convert.self_written import openings, write_text
from edge_llm.convert.trial import held_out_sequences
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.kernels import ThreadPool
from edge_llm.models import describe
from edge_llm.models.reference import FloatModel
from edge_llm.opening.carry_out import open_runner
from edge_llm.opening.machine import this_machine
from edge_llm.opening.resolve import resolve
from edge_llm.quant.quality import Tally, log_softmax
from edge_llm.sources import open_source

RUNTIME = RuntimeConfig(device="host", threads=2, context=256)


@pytest.fixture(scope="module", params=["gemma2", "granite", "cohere2", "olmo2"])
def bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with open_bundle(family_bundle(tmp_path_factory.mktemp("figures"), request.param)) as opened:
        yield opened


def runner_of(bundle: Bundle, **changes: Any) -> Any:
    return open_runner(resolve(replace(RUNTIME, **changes), this_machine(), bundle))


def source_of(bundle: Bundle) -> Any:
    place = bundle.float_source()
    assert place is not None
    return open_source(place)


def test_the_figures_of_bench_and_perplexity_are_the_same(bundle: Bundle) -> None:
    tokens = np.random.default_rng(4).integers(0, bundle.config.vocab_size, 384).tolist()
    wanted = compare(runner_of(bundle), runner_of(bundle, float_path=True), tokens, 128)
    readers = {"int8": OwnReader(runner_of(bundle)), "float": OwnReader(runner_of(bundle, float_path=True))}
    with source_of(bundle) as source:
        found = compare_readers(readers, source, bundle.decoder, [tokens[at : at + 128] for at in (0, 128, 256)])
    assert found["int8"].mean_kl == pytest.approx(wanted.mean_kl, rel=0.02)
    assert found["float"].mean_kl < 1e-3 * wanted.mean_kl
    shares = measure_shares(bundle.folder, RUNTIME, tokens, 128)
    assert shares.linears + shares.keys + shares.values + shares.output == pytest.approx(wanted.mean_kl, rel=0.25)


def test_what_an_import_says_of_its_bundle_is_what_the_bundle_does(bundle: Bundle) -> None:
    runner, tally = runner_of(bundle), Tally()
    with source_of(bundle) as source:
        model = FloatModel(source, source.config)
        sequences = held_out_sequences(source.tokenizer(), source.config)
    for ids in sequences:
        read, sequence = ids[:-1], runner.open()
        ours = runner.forward(sequence, read.tolist(), wanted=len(read))
        sequence.close()
        tally.add(ids[1:], log_softmax(ours), log_softmax(model.forward(read)))
    said, found = bundle.manifest["profile"]["held_out"], tally.quality()
    assert said["tokens"] == found.tokens > 500
    assert said["mean_kl"] == pytest.approx(found.mean_kl, rel=0.05)
    assert said["float_perplexity"] == pytest.approx(found.float_perplexity, rel=1e-3)


def test_a_model_writes_what_it_holds_likely(bundle: Bundle) -> None:
    """The mean log-probability of what it draws is minus its mean entropy."""
    with source_of(bundle) as source:
        tokenizer, decoder, model = source.tokenizer(), describe(source.config), FloatModel(source, source.config)
        beginnings = openings("hello world, the word in her hell. " * 20, tokenizer, source.template(tokenizer))
        written = write_text(source, decoder, 64, frozenset(), beginnings, 3000, ThreadPool(1), lambda *_: None)
    surprise, entropy = [], []
    for ids in written:
        logs = log_softmax(model.forward(ids))[8:-1]
        surprise.append(-logs[np.arange(len(logs)), ids[9:]])
        entropy.append(-(np.exp(logs) * logs).sum(axis=1))
    surprises = np.concatenate(surprise)
    assert abs(surprises.mean() - np.concatenate(entropy).mean()) < 5 * surprises.std() / len(surprises) ** 0.5


@pytest.mark.parametrize("cap", [0.0, 1.5, 30.0])
def test_a_gradient_goes_through_the_cap(cap: float) -> None:
    random = np.random.default_rng(0)
    states, output = random.standard_normal((5, 8)), random.standard_normal((19, 8))

    def log_of_first(rows: np.ndarray) -> np.ndarray:
        logits = rows @ output.T
        return log_softmax(cap * np.tanh(logits / cap) if cap else logits)[:, 0]

    draws: Any = SimpleNamespace(random=lambda count: np.zeros(count))  # the first token each time
    found = drawn_gradient(states.astype(np.float32), output.astype(np.float32), draws, cap=cap)
    for channel, step in enumerate(1e-5 * np.eye(8)):
        wanted = (log_of_first(states + step) - log_of_first(states - step)) / 2e-5
        np.testing.assert_allclose(found[:, channel], wanted, rtol=1e-3, atol=1e-4)
