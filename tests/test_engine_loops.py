"""An answer in a loop is ended: at the same token in every way to compute it, and with the tokens that it has unguarded."""

import copy
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import builtin_engine

from edge_llm.config import GenerationParams, Grammar
from edge_llm.decoding.draft import no_draft
from edge_llm.decoding.loops import LIMITS, LoopGuard
from edge_llm.engine.request import REPETITION
from edge_llm.errors import UsageError

PROMPT = "Once upon a time"
LONG = 2 * LIMITS.fewest


@pytest.fixture(scope="module")
def slow(engine):
    """The same model without guesses."""
    other = copy.copy(engine)
    other._make_drafter = lambda: no_draft
    return other


def favouring(engine, text, **params):
    """Parameters under which the model says ``text`` over and over, if that is one token."""
    (token,) = engine.tokenizer.encode(text)
    return GenerationParams(**{"max_tokens": LONG, "logit_bias": ((token, 100.0),), "loop_guard": True, **params})


def ask(engine, params):
    return engine.answer(engine.text_request(PROMPT, params))


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_loop_is_ended_and_said_to_be_one(engine, slow, temperature):
    params = favouring(engine, " the", temperature=temperature, seed=3)
    for model in (engine, slow):
        answer = ask(model, params)
        assert (answer.finish.reason, answer.finish.openai_reason) == (REPETITION, "length")
        assert len(answer.tokens) == answer.finish.usage.completion_tokens == LIMITS.fewest
        assert answer.text == " the" * LIMITS.fewest
        assert answer.as_dict()["finish_reason"] == "repetition"


@settings(max_examples=8)
@given(seed=st.integers(0, 99), bias=st.sampled_from([0.0, 8.0, 12.0, 16.0]), temperature=st.sampled_from([0.0, 0.4, 1.0]))
def test_what_comes_before_the_end_is_what_comes_without_a_guard(engine, seed, bias, temperature):
    (token,) = engine.tokenizer.encode(" the")
    params = GenerationParams(temperature=temperature, seed=seed, max_tokens=LONG, logit_bias=((token, bias),))
    free, guarded = ask(engine, params), ask(engine, replace(params, loop_guard=True))
    guard = LoopGuard()
    end = next((count for count, token in enumerate(free.tokens, 1) if guard.push(token) and count < LONG), None)
    assert guarded.tokens == free.tokens[:end]
    assert guarded.finish.reason == (free.finish.reason if end is None else REPETITION)


@pytest.mark.parametrize(
    ("more", "reason", "tokens"),
    [
        ({"loop_guard": False}, "length", LONG),
        ({"ignore_eos": True}, "length", LONG),
        ({"min_tokens": 300}, REPETITION, 300),
        ({"max_tokens": LIMITS.fewest}, "length", LIMITS.fewest),
        ({"max_tokens": LIMITS.fewest + 1}, REPETITION, LIMITS.fewest),
        ({"grammar": Grammar("regex", "( the){250}")}, "stop", 250),
    ],
)
def test_who_wants_so_many_tokens_gets_them(engine, more, reason, tokens):
    """The limit of tokens itself, a grammar, an end token that is ignored, and least tokens go before the guard."""
    answer = ask(engine, favouring(engine, " the", **more))
    assert (answer.finish.reason, len(answer.tokens)) == (reason, tokens)


def test_an_answer_that_goes_on_is_guarded_anew(engine):
    params = favouring(engine, " the", max_tokens=None)
    first = ask(engine, params)
    second = engine.answer(engine.text_request(PROMPT + first.text, params))
    assert (second.finish.reason, len(second.tokens)) == (REPETITION, LIMITS.fewest)


def test_the_guard_is_on_or_off():
    with pytest.raises(UsageError, match="loop_guard must be true or false, got `0.5`"):
        GenerationParams(loop_guard=0.5)


def test_who_names_nothing_is_not_guarded():
    """Benchmarks and perplexities ask with plain parameters; what people and clients ask for is guarded."""
    assert not GenerationParams().guarded
    engine = builtin_engine()
    assert engine.defaults.guarded and engine.served.guarded
