"""How answers are sampled where nobody says, and how another answer is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_llm.config import GenerationParams
from edge_llm.decoding.defaults import FOR_CLIENTS, FOR_PEOPLE, another, generation_defaults, is_greedy, with_overrides
from edge_llm.decoding.sampler import make_sampler

GREEDY = GenerationParams(loop_guard=True)


@pytest.mark.parametrize(
    ("raw", "people", "clients"),
    [
        ({}, FOR_PEOPLE, FOR_CLIENTS),
        ({"eos_token_id": 2, "do_sample": None}, FOR_PEOPLE, FOR_CLIENTS),
        ({"do_sample": "yes", "top_p": 3}, FOR_PEOPLE, FOR_CLIENTS),
        ({"repetition_penalty": 1.1}, *(replace(each, repetition_penalty=1.1) for each in (FOR_PEOPLE, FOR_CLIENTS))),
        ({"do_sample": True}, FOR_CLIENTS, FOR_CLIENTS),
        ({"top_p": 0.8}, replace(FOR_CLIENTS, top_p=0.8), replace(FOR_CLIENTS, top_p=0.8)),
        ({"temperature": 0.6}, replace(FOR_CLIENTS, temperature=0.6), replace(FOR_CLIENTS, temperature=0.6)),
        ({"do_sample": False, "temperature": 0.6}, GREEDY, GREEDY),
    ],
)
def test_where_an_author_names_no_sampling_people_and_clients_get_what_they_expect(raw, people, clients):
    """People a little warmth without the unlikely tokens, clients the 1 that OpenAI's fields have; a greedy author is heard."""
    found = generation_defaults(raw)
    assert (found.params, found.served) == (people, clients)
    assert (FOR_PEOPLE.temperature, FOR_PEOPLE.min_p, FOR_PEOPLE.dry_multiplier) == (0.7, 0.05, 0.8) and FOR_PEOPLE.loop_guard
    assert GenerationParams(temperature=1.0, loop_guard=True) == FOR_CLIENTS


@given(
    temperature=st.sampled_from([0.0, 0.1, 0.7, 2.0]), top_k=st.integers(0, 3), top_p=st.sampled_from([0.0, 0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.5, 1.0]), seed=st.none() | st.integers(0, 9), max_tokens=st.none() | st.integers(1, 9),
)  # fmt: skip
def test_another_answer_is_never_greedy_and_has_a_seed_of_its_own(**asked):
    params = GenerationParams(**asked)
    made, once_more = another(params), another(params)
    assert None not in (made.seed, once_more.seed) and len({made.seed, once_more.seed, params.seed}) == 3  # of 4 billion
    assert not is_greedy(made)
    if is_greedy(params):
        assert made.temperature >= 0.7
    else:
        assert replace(made, seed=params.seed) == params
    assert made.max_tokens == params.max_tokens
    logits = np.zeros(50, np.float32)  # all are as likely: who can choose does
    if not (0 < params.top_p < 1 or params.top_k) or is_greedy(params):
        assert len({make_sampler(another(params))(logits).token for _ in range(40)}) > 1


@pytest.mark.parametrize("greedy", [{"temperature": 0}, {"top_k": 1}, {"top_p": 0}, {"min_p": 1}], ids=str)
def test_who_asks_for_greedy_answers_gets_them_as_the_model_has_them(greedy):
    assert with_overrides(FOR_PEOPLE, **greedy).dry_multiplier == 0
    assert with_overrides(FOR_PEOPLE, **greedy, dry_multiplier=2).dry_multiplier == 2
    assert with_overrides(FOR_PEOPLE, seed=1) == replace(FOR_PEOPLE, seed=1)
