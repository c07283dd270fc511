"""Samplers, processors and stop strings on values that can be checked in the head."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.config import GenerationParams
from edge_llm.decoding.edits import make_edit
from edge_llm.decoding.sampler import _best, _filters, make_sampler
from edge_llm.decoding.stop import StopStrings
from edge_llm.errors import NumericError, UsageError
from edge_llm.kernels import sampling

# probabilities 0.5, 0.25, 0.125, 0.125
LOGITS = np.log(np.array([0.125, 0.5, 0.125, 0.25], np.float32))


def filter_candidates(logits, params):
    """Tokens that the filters of ``params`` leave, most likely first, and their probabilities among themselves."""
    tokens, masses = sampling.candidates(logits, _best(logits), **_filters(params, len(logits)))
    order = np.argsort(-logits[tokens], kind="stable")
    return tokens[order], masses[order] / masses.sum()


def candidates(**params):
    return filter_candidates(LOGITS, GenerationParams(**{"temperature": 1.0, **params}))[0].tolist()


def test_greedy_takes_the_lowest_id_among_equals():
    assert make_sampler(GenerationParams())(np.array([0.0, 3.0, 3.0], np.float32)) == (1, 3.0)


def test_candidates_are_ordered_by_probability_then_id():
    assert candidates() == [1, 3, 0, 2]


@pytest.mark.parametrize(("top_k", "kept"), [(1, [1]), (2, [1, 3]), (3, [1, 3, 0]), (4, [1, 3, 0, 2]), (9, [1, 3, 0, 2])])
def test_top_k(top_k, kept):
    assert candidates(top_k=top_k) == kept


@pytest.mark.parametrize("top_k", [2**31, 2**63 - 1, 2**63, 10**30])
def test_a_top_k_of_any_size_keeps_all(top_k):
    assert candidates(top_k=top_k) == candidates()
    params = {"temperature": 1.0, "seed": 7}
    assert make_sampler(GenerationParams(top_k=top_k, **params))(LOGITS) == make_sampler(GenerationParams(**params))(LOGITS)


@pytest.mark.parametrize(("top_p", "kept"), [(0.0, [1]), (0.4, [1]), (0.6, [1, 3]), (0.8, [1, 3, 0]), (1.0, [1, 3, 0, 2])])
def test_top_p_keeps_the_token_that_crosses_the_mass(top_p, kept):
    assert candidates(top_p=top_p) == kept


@pytest.mark.parametrize(("min_p", "kept"), [(1.0, [1]), (0.49, [1, 3]), (0.24, [1, 3, 0, 2])])
def test_min_p_is_relative_to_the_best(min_p, kept):
    assert candidates(min_p=min_p) == kept


def test_top_p_is_measured_after_top_k():
    # of the two kept, the first has 2/3 of the mass
    assert candidates(top_k=2, top_p=0.6) == [1]


def test_low_temperature_is_greedy_and_high_is_flat():
    assert filter_candidates(LOGITS, GenerationParams(temperature=1e-30))[0].tolist() == [1]
    assert np.allclose(filter_candidates(LOGITS, GenerationParams(temperature=100.0))[1], 0.25, atol=0.01)


@pytest.mark.parametrize("top_k", [2**31, 2**63 - 1, 2**63, 2**64, 10**400])
def test_a_top_k_beyond_the_vocabulary_is_none_however_large(top_k):
    assert candidates(top_k=top_k) == candidates()
    plain, limited = (make_sampler(GenerationParams(temperature=1.0, seed=5, top_k=k)) for k in (0, top_k))
    assert [limited(LOGITS) for _ in range(50)] == [plain(LOGITS) for _ in range(50)]


def test_samples_follow_the_probabilities():
    sampler = make_sampler(GenerationParams(temperature=1.0, seed=7))
    counts = np.bincount([sampler(LOGITS).token for _ in range(4000)], minlength=4) / 4000
    assert np.allclose(counts, [0.125, 0.5, 0.125, 0.25], atol=0.03)


def test_a_seed_fixes_the_tokens():
    def draw(seed):
        sampler = make_sampler(GenerationParams(temperature=1.0, seed=seed))
        return [sampler(LOGITS).token for _ in range(50)]

    assert draw(3) == draw(3) != draw(4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_non_finite_logits_are_an_error_never_a_token(bad, temperature):
    with pytest.raises(NumericError):
        make_sampler(GenerationParams(temperature=temperature))(np.array([0.0, bad, 1.0], np.float32))


def test_all_tokens_forbidden_is_an_error():
    with pytest.raises(NumericError):
        make_sampler(GenerationParams())(np.full(3, -np.inf, np.float32))


def test_repetition_penalty_divides_positive_and_multiplies_negative():
    logits = np.array([4.0, -4.0, 4.0], np.float32)
    make_edit(GenerationParams(repetition_penalty=2.0), frozenset())([0, 1, 0], logits)
    assert logits.tolist() == [2.0, -8.0, 4.0]


def test_ignore_eos_forbids_the_end_tokens():
    logits = np.array([0.0, 9.0, 1.0], np.float32)
    make_edit(GenerationParams(ignore_eos=True), frozenset({1}))([], logits)
    assert make_sampler(GenerationParams())(logits).token == 2


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -0.1}, {"temperature": float("nan")}, {"top_p": 1.1}, {"top_p": -0.1}, {"top_k": -1},
        {"min_p": 2.0}, {"repetition_penalty": 0.0}, {"max_tokens": 0}, {"seed": -1}, {"seed": 2**64},
        {"stop": ("",)}, {"stop": ("x" * 257,)}, {"stop": ("x",) * 17},
    ],
)  # fmt: skip
def test_nonsense_parameters_are_refused(params):
    with pytest.raises(UsageError):
        GenerationParams(**params)


def feed(stops, pieces):
    stream = StopStrings(stops)
    shown = "".join(stream.push(piece) for piece in pieces)
    return shown + ("" if stream.stopped else stream.finish()), stream.stopped


@settings(max_examples=500)
@given(st.text("ab\n", max_size=40), st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3), st.data())
def test_text_ends_before_the_first_stop_string_however_it_is_cut(text, stops, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    # The stop string that is complete first ends the text, and of those the one that begins first.
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    shown, stopped = feed(stops, pieces)
    assert stopped == bool(ends)
    assert shown == (text[: min(ends)[1]] if ends else text)


@settings(max_examples=500)
@given(
    st.lists(st.tuples(st.text("ab", max_size=3), st.booleans()), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), max_size=3),
)
def test_hidden_text_ends_an_answer_but_is_never_shown(pieces, stops):
    """As control tokens are: a stop string may be one, or go from a text into one."""
    stream = StopStrings(stops)
    shown = "".join(stream.push(piece, hidden=hidden) for piece, hidden in pieces)
    shown += "" if stream.stopped else stream.finish()
    text = "".join(piece for piece, _ in pieces)
    seen = [(c, hidden) for piece, hidden in pieces for c in piece]
    ends = [(text.find(s) + len(s), text.find(s)) for s in stops if s in text]
    assert stream.stopped == bool(ends)
    assert shown == "".join(c for c, hidden in seen[: min(ends)[1] if ends else None] if not hidden)


@settings(max_examples=500)
@given(st.lists(st.text("ab", max_size=4), max_size=12), st.lists(st.text("ab", min_size=1, max_size=6), max_size=4))
def test_no_more_is_held_back_than_may_become_a_stop_string(pieces, stops):
    stream, text, shown = StopStrings(stops), "", ""
    for piece in pieces:
        text, shown = text + piece, shown + stream.push(piece)
        if stream.stopped:
            break
        ends = [text[at:] for at in range(len(text) + 1) if any(stop.startswith(text[at:]) for stop in (*stops, ""))]
        assert shown + ends[0] == text


def test_possible_beginnings_are_held_back():
    stream = StopStrings(["END"])
    assert [stream.push(p) for p in ["a", "E", "N", "x", "EN", "D!"]] == ["a", "", "", "ENx", "", ""]
    assert stream.stopped
