"""Edits of logits and log-probabilities on values that can be checked in the head."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.config import GenerationParams, Grammar
from edge_llm.decoding.edits import make_edit
from edge_llm.decoding.logprobs import token_logprobs
from edge_llm.errors import UsageError


def edited(logits, tokens, *, prompt_tokens=0, eos=frozenset(), **params):
    logits = logits.copy()
    make_edit(GenerationParams(**params), eos, prompt_tokens)(tokens, logits)
    return logits.tolist()


ZEROS = np.zeros(4, np.float32)


def test_frequency_penalty_counts_and_presence_penalty_does_not():
    assert edited(ZEROS, [1, 1, 2], frequency_penalty=0.5) == [0.0, -1.0, -0.5, 0.0]
    assert edited(ZEROS, [1, 1, 2], presence_penalty=0.5) == [0.0, -0.5, -0.5, 0.0]
    assert edited(ZEROS, [1, 1, 2], presence_penalty=0.5, frequency_penalty=-1.0) == [0.0, 1.5, 0.5, 0.0]


def test_the_answer_is_penalized_and_not_the_prompt():
    assert edited(ZEROS, [1, 1, 2], prompt_tokens=2, frequency_penalty=1.0) == [0.0, 0.0, -1.0, 0.0]
    assert edited(ZEROS, [1, 1], prompt_tokens=2, frequency_penalty=1.0) == [0.0] * 4


@settings(deadline=None)
@given(st.lists(st.integers(0, 7), max_size=6), st.lists(st.lists(st.integers(0, 7), max_size=3), min_size=1, max_size=12))
def test_penalties_of_a_growing_answer_are_those_of_its_whole_text(prompt, steps):
    params = {"repetition_penalty": 1.3, "frequency_penalty": 0.25, "presence_penalty": -0.5}
    edit = make_edit(GenerationParams(**params), frozenset(), len(prompt))
    logits = np.random.default_rng(len(prompt)).standard_normal(8).astype(np.float32)
    text = list(prompt)
    for came in steps:
        text += came
        expected = logits.copy()
        for token in set(text):
            expected[token] = expected[token] / np.float32(1.3) if expected[token] > 0 else expected[token] * np.float32(1.3)
        for token, count in Counter(text[len(prompt) :]).items():
            expected[token] -= np.float32(0.25 * count - 0.5)
        grown = logits.copy()
        edit(text, grown)
        np.testing.assert_array_equal(grown, expected)
        assert edited(logits, text, prompt_tokens=len(prompt), **params) == expected.tolist()


def test_biases_are_added():
    assert edited(ZEROS, [], logit_bias=((1, 2.5), (3, -100.0))) == [0.0, 2.5, 0.0, -100.0]


def test_an_answer_cannot_end_before_min_tokens():
    ends = {"eos": frozenset({0}), "prompt_tokens": 1, "min_tokens": 2, "stop_tokens": frozenset({3})}
    assert edited(ZEROS, [1, 1], **ends) == [-np.inf, 0.0, 0.0, -np.inf]
    assert edited(ZEROS, [1, 1, 1], **ends) == [0.0] * 4


def test_defaults_need_no_edit():
    assert make_edit(GenerationParams(), frozenset({1})) is None


@pytest.mark.parametrize(
    "params",
    [
        {"frequency_penalty": 2.1}, {"frequency_penalty": -2.1}, {"presence_penalty": float("nan")}, {"logprobs": 21},
        {"logprobs": -1}, {"min_tokens": -1}, {"logit_bias": ((0, 101.0),)}, {"logit_bias": ((0, float("inf")),)},
        {"logit_bias": tuple((n, 0.0) for n in range(1025))},
    ],
)  # fmt: skip
def test_nonsense_is_refused(params):
    with pytest.raises(UsageError):
        GenerationParams(**params)


def test_the_edges_are_allowed():
    edges = {"frequency_penalty": 2.0, "presence_penalty": -2.0, "logprobs": 20}
    assert GenerationParams(**edges, logit_bias=tuple((n, 100.0) for n in range(1024)))


def test_logprobs_are_logarithms_of_probabilities_and_best_comes_first():
    logits = np.log(np.array([0.125, 0.5, 0.125, 0.25], np.float32))
    (found,) = token_logprobs(logits, 2, 3)
    assert found.token == 2
    assert np.isclose(found.logprob, np.log(0.125))
    assert [token for token, _ in found.top] == [1, 3, 0]
    assert np.allclose([np.exp(value) for _, value in found.top], [0.5, 0.25, 0.125])


def test_logprobs_that_nobody_asked_for_are_not_computed():
    assert token_logprobs(ZEROS, 0, None) == ()
    assert token_logprobs(ZEROS, 0, 0)[0].top == ()


# -- repeats ----------------------------------------------------------------------------------------------------------


def repeats_of(answer, allowed, broken):
    """The tokens that would lengthen a repeat, and its length, as the definition has it."""
    found = {}
    for place in range(len(answer)):
        length = 0
        while length < place and answer[place - 1 - length] == answer[-1 - length] and answer[-1 - length] not in broken:
            length += 1
        if length >= allowed:
            found[answer[place]] = max(found.get(answer[place], 0), length)
    return found


@given(
    st.lists(st.integers(0, 3), max_size=5),
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(1, 4),
    st.frozensets(st.integers(0, 3), max_size=1),
    st.data(),
)
def test_what_lengthens_a_repeat_costs_what_its_length_says(prompt, answer, allowed, broken, data):
    params = GenerationParams(dry_multiplier=0.5, dry_base=1.5, dry_allowed_length=allowed, dry_sequence_breakers=("|",))
    edit = make_edit(params, frozenset(), len(prompt), lambda token: b" |" if token in broken else b"x")
    seen = 0
    while seen < len(answer):  # tokens come one by one, and several at once
        seen += data.draw(st.integers(1, len(answer) - seen))
        logits = np.zeros(4, np.float32)
        edit([*prompt, *answer[:seen]], logits)
        expected = np.zeros(4, np.float32)
        for token, length in repeats_of(answer[:seen], allowed, broken).items():
            expected[token] -= 0.5 * 1.5 ** (length - allowed)
        assert np.allclose(logits, expected, rtol=1e-5)


def test_a_long_repeat_leaves_its_token_possible():
    answer = [0, 1] * 500
    logits = edited(np.zeros(2, np.float32), answer, dry_multiplier=100, dry_base=100)
    assert np.isfinite(logits).all() and logits[0] < -1e29 and logits[1] == 0


def test_an_answer_of_a_form_may_repeat_itself():
    params = GenerationParams(dry_multiplier=1, grammar=Grammar("json_object"))
    assert make_edit(params, frozenset()) is None
