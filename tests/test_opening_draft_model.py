"""A draft model changes no token, whatever it guesses."""

import pytest
from model_files import tiny_config, write_model

from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.opening.load import load_engine

SIZES = (300, 512)
"""Rows of the output matrices of two models, which share a tokenizer of 289 tokens."""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Random models by the size of their vocabulary."""
    folder = tmp_path_factory.mktemp("models")
    for size in SIZES:
        write_model(folder / f"source-{size}", tiny_config("llama", vocab_size=size), seed=size)
        import_model(folder / f"source-{size}", target=folder / str(size))
    return {size: folder / str(size) for size in SIZES}


@pytest.mark.parametrize("draft", SIZES)
@pytest.mark.parametrize("target", SIZES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_may_have_another_number_of_rows_for_the_same_tokens(target, draft, temperature, models):
    params = GenerationParams(max_tokens=60, ignore_eos=True, temperature=temperature, seed=1)

    def answer(draft):
        engine = load_engine(models[target], RuntimeConfig(threads=1, draft=draft))
        return engine.answer(engine.text_request("hello world", params))

    alone, drafted = answer("none"), answer(str(models[draft]))
    assert drafted.tokens == alone.tokens
    assert drafted.finish.timings.drafted_tokens > 0 or target > draft  # which guesses no more behind a token that it has not
    assert (max(alone.tokens) >= min(SIZES)) == (target == max(SIZES))
