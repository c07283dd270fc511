"""Draws, log-probabilities and masks are as their slow definitions say: random and tied logits, every instruction set."""

import functools
import threading

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_decoding_sampler import filter_candidates

from edge_llm.config import GenerationParams
from edge_llm.decoding.logprobs import token_logprobs
from edge_llm.decoding.sampler import make_sampler
from edge_llm.errors import NumericError
from edge_llm.kernels import ThreadPool, reference, sampling

VOCAB = 151_936


def logits_of(kind, vocab, seed):
    random = np.random.default_rng(seed)
    values = {
        "flat": lambda: random.standard_normal(vocab),
        "wide": lambda: 6 * random.standard_normal(vocab),
        "peaked": lambda: np.where(np.arange(vocab) == vocab // 3, 60.0, random.standard_normal(vocab)),
        "clumped": lambda: 8 + 1e-3 * random.integers(0, 7, vocab) - 30.0 * (random.random(vocab) < 0.01),
        "tied": lambda: random.integers(0, 3, vocab),
        "all equal": lambda: np.full(vocab, -2.5),
        "mostly forbidden": lambda: np.where(random.random(vocab) < 0.9, -np.inf, random.standard_normal(vocab)),
        "all but one forbidden": lambda: np.where(np.arange(vocab) == vocab // 2, 1.0, -np.inf),
        "huge": lambda: 3e38 * random.uniform(-1, 1, vocab),
        "tiny": lambda: 1e-42 * random.standard_normal(vocab),
        "a long tail": lambda: -(10.0 ** random.uniform(-30, 3, vocab)),
    }[kind]()
    values[0] = max(values[0], -100.0)  # never everything forbidden
    return values.astype(np.float32)


KINDS = (
    "flat", "wide", "peaked", "clumped", "tied", "all equal", "mostly forbidden", "all but one forbidden", "huge", "tiny",
    "a long tail",
)  # fmt: skip


@st.composite
def rows(draw):
    vocab = draw(st.sampled_from([1, 2, 3, 15, 16, 17, 100, 511, 512, 513, 2000, 9000]))
    return logits_of(draw(st.sampled_from(KINDS)), vocab, draw(st.integers(0, 2**32)))


FILTERS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([1e-310, 1e-30, 1e-3, 0.3, 0.6, 1.0, 2.5, 100.0]),
        "top_k": st.sampled_from([0, 0, 1, 2, 5, 20, 300, 8000, 10**6]),
        "top_p": st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.999999, 1.0, 1.0]),
        "min_p": st.sampled_from([0.0, 0.0, 1e-12, 0.05, 0.5, 1.0]),
    }
)
CHANCES = (0.0, 1e-12, 0.1, 0.25, 0.5, 0.75, 0.9, 0.999, 1 - 2**-53)


def assert_as_defined(logits, filters, definition, pool=None):
    """Candidates, masses, and the tokens drawn everywhere, above all where one token ends and the next begins."""
    best = logits.max()
    tokens, masses = definition
    found, weighed = sampling.candidates(logits, best, **filters, pool=pool)
    order = np.argsort(tokens)
    np.testing.assert_array_equal(found, tokens[order])
    np.testing.assert_array_equal(weighed, masses[order])
    sums = np.cumsum(masses)
    edges = sums[:: max(1, len(sums) // 4)] / sums[-1]
    for chance in (*CHANCES, *edges[edges < 1], *np.nextafter(edges, 0)):
        expected = tokens[np.searchsorted(sums, chance * float(sums[-1]), side="right")]
        assert sampling.draw(logits, best, **filters, chance=chance, pool=pool) == expected


@settings(max_examples=400, deadline=None)
@given(rows(), FILTERS)
@example(np.zeros(1, np.float32), {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0})
@example(np.arange(3, dtype=np.float32), {"temperature": 1.0, "top_k": 1, "top_p": 0.0, "min_p": 0.0})
@example(logits_of("all equal", 9000, 0), {"temperature": 1.0, "top_k": 0, "top_p": 0.0, "min_p": 0.0})
@example(logits_of("tiny", 9000, 5), {"temperature": 0.6, "top_k": 0, "top_p": 0.9, "min_p": 0.0})
def test_candidates_masses_and_draws_are_those_of_the_sorted_definition(logits, filters):
    best = logits.max()
    assert_as_defined(logits, filters, reference.sampling_candidates(logits, best, **filters))
    drawn = sampling.draw(logits, best, **filters, chance=0.5)
    assert drawn == reference.sampling_draw(logits, best, **filters, chance=0.5)


POOLS = {threads: ThreadPool(threads) for threads in (1, 2, 3, 20)}


@st.composite
def large_rows(draw):
    """Around the size from which threads share a row, and with few or many blocks that have a mass."""
    vocab = draw(st.sampled_from([32_767, 32_768, 33_000, 50_001]))
    return logits_of(draw(st.sampled_from(KINDS)), vocab, draw(st.integers(0, 2**32)))


@settings(max_examples=60, deadline=None)
@given(large_rows(), FILTERS, st.sampled_from(sorted(POOLS)), st.integers(0, 2**53 - 1))
@example(logits_of("all equal", 50_001, 0), {"temperature": 1.0, "top_k": 8000, "top_p": 0.5, "min_p": 0.0}, 2, 2**52)
@example(logits_of("tiny", 50_001, 5), {"temperature": 0.6, "top_k": 300, "top_p": 0.9, "min_p": 0.05}, 3, 2**52)
@example(logits_of("mostly forbidden", 50_001, 1), {"temperature": 1.0, "top_k": 0, "top_p": 1e-9, "min_p": 0.0}, 2, 0)
def test_any_number_of_threads_gives_what_one_gives(logits, filters, threads, number):
    best, chance, pool = logits.max(), number * 2.0**-53, POOLS[threads]
    definition = reference.sampling_candidates(logits, best, **filters)
    assert_as_defined(logits, filters, definition)
    assert_as_defined(logits, filters, definition, pool)
    drawn = sampling.draw(logits, best, **filters, chance=chance, pool=pool)
    assert drawn == sampling.draw(logits, best, **filters, chance=chance)
    assert sampling.log_sum(logits, best, pool) == sampling.log_sum(logits, best)


@settings(max_examples=60, deadline=None)
@given(st.one_of(rows(), large_rows()), st.lists(st.sampled_from([np.nan, np.inf, -np.inf, 7.0]), max_size=2), st.data())
def test_the_best_is_the_greatest_or_no_number(logits, others, data):
    for other in others:
        logits[data.draw(st.integers(0, len(logits) - 1))] = other
    np.testing.assert_array_equal(sampling.best(logits), reference.sampling_best(logits))


def test_draws_of_many_threads_share_a_pool():
    logits, filters = logits_of("wide", VOCAB, 8), LIKELY_FILTERS[0]
    best, chances = logits.max(), np.linspace(0.0, 0.99, 40)
    expected = [sampling.draw(logits, best, **filters, chance=chance) for chance in chances]
    drawn = {}

    def draw_all(name):
        drawn[name] = [sampling.draw(logits, best, **filters, chance=chance, pool=POOLS[3]) for chance in chances]

    threads = [threading.Thread(target=draw_all, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert drawn == dict.fromkeys(range(4), expected)


LIKELY_FILTERS = (
    {"temperature": 0.6, "top_k": 0, "top_p": 0.9, "min_p": 0.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.01},
)


def test_an_answer_is_chosen_with_the_threads_of_its_runner(engine, monkeypatch):
    draw, log_sum, pools = sampling.draw, sampling.log_sum, []

    def see_draw(*args, pool, **filters):
        pools.append(pool)
        return draw(*args, **filters, pool=pool)

    def see_log_sum(logits, best, pool):
        pools.append(pool)
        return log_sum(logits, best, pool)

    monkeypatch.setattr(sampling, "draw", see_draw)
    monkeypatch.setattr(sampling, "log_sum", see_log_sum)
    params = GenerationParams(temperature=1.0, seed=1, logprobs=2, max_tokens=3, ignore_eos=True)
    engine.answer(engine.text_request("a", params))
    assert pools == [engine.runner.pool] * 6


@functools.cache
def defined_in_a_real_vocabulary(kind, number):
    logits = logits_of(kind, VOCAB, 5)
    return logits, reference.sampling_candidates(logits, logits.max(), **LIKELY_FILTERS[number])


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_in_a_real_vocabulary_on_every_instruction_set_and_number_of_threads(isa, kind):
    for number, filters in enumerate(LIKELY_FILTERS):
        logits, definition = defined_in_a_real_vocabulary(kind, number)
        for pool in (None, POOLS[2], POOLS[3]):
            assert_as_defined(logits, filters, definition, pool)


def test_masses_are_those_of_the_exponential():
    gaps = -np.concatenate([np.zeros(1), np.geomspace(1e-8, 80, 20_000)]).astype(np.float32)
    for temperature in (0.1, 0.6, 1.0, 7.0):
        exact = np.exp(gaps.astype(np.float64) / temperature) * 2.0**35
        assert np.abs(reference.sampling_masses(gaps, temperature, 2.0**35) - exact).max() <= 0.52


# ---- the definition before masses were whole numbers: float64 probabilities, summed in sorted order ---------------------


def draw_as_before(logits, params, chance):
    scaled = (logits - logits.max()).astype(np.float64) / params.temperature
    weights = np.exp(scaled)
    weights /= weights.sum()
    order = np.lexsort((np.arange(len(logits)), -weights))[: params.top_k or None]
    weights = weights[order] / weights[order].sum()
    keep = len(order)
    if params.top_p < 1.0:
        keep = int(np.searchsorted(np.cumsum(weights), params.top_p, side="left")) + 1
    if params.min_p > 0.0:
        keep = min(keep, int(np.count_nonzero(weights >= params.min_p * weights[0])))
    cumulative = np.cumsum(weights[:keep])
    return int(order[np.searchsorted(cumulative, chance * cumulative[-1], side="right")])


@pytest.mark.parametrize(
    "setting",
    [
        {"temperature": 0.6, "top_p": 0.9}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 20, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.05}, {"temperature": 1.5, "top_k": 200, "top_p": 0.95, "min_p": 0.01},
    ],
)  # fmt: skip
def test_a_seed_draws_the_tokens_that_it_always_drew(setting):
    params = GenerationParams(seed=11, **setting)
    sampler = make_sampler(params)
    random = np.random.Generator(np.random.PCG64(11))
    for seed in range(60):
        logits = (3.0 * np.random.default_rng(seed).standard_normal(8192)).astype(np.float32)
        logits[seed :: 911] += 9.0
        assert sampler(logits).token == draw_as_before(logits, params, random.random())


def test_probabilities_of_candidates_add_up_to_one():
    tokens, probabilities = filter_candidates(logits_of("flat", 9000, 1), GenerationParams(temperature=1.0, top_p=0.7))
    assert len(tokens) == len(set(tokens.tolist()))
    assert np.all(np.diff(probabilities) <= 0)
    assert probabilities.sum() == pytest.approx(1.0)


# ---- log-probabilities -----------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(rows(), st.sampled_from([0, 1, 2, 5, 20, 255, 256, 257, 300, 600, 10**6]))
def test_the_most_likely_tokens_are_those_of_a_sort(logits, count):
    found = sampling.likeliest(logits, count)
    np.testing.assert_array_equal(found, reference.sampling_likeliest(logits, count))


@settings(deadline=None)
@given(rows())
def test_the_sum_of_a_softmax_is_added_in_the_order_that_is_defined(logits):
    assert sampling.log_sum(logits, logits.max()) == reference.sampling_log_sum(logits, logits.max())


@pytest.mark.thorough(keep=6)
@pytest.mark.parametrize("kind", KINDS)
def test_they_are_the_same_in_a_real_vocabulary_on_every_instruction_set(isa, kind):
    logits = logits_of(kind, VOCAB, 5)
    assert sampling.best(logits) == reference.sampling_best(logits)
    for pool in (None, POOLS[2], POOLS[3]):
        assert sampling.log_sum(logits, logits.max(), pool) == reference.sampling_log_sum(logits, logits.max())
    for count in (1, 5, 20, 256, 257, 400, 20000, VOCAB - 1, VOCAB, VOCAB + 1):
        np.testing.assert_array_equal(sampling.likeliest(logits, count), reference.sampling_likeliest(logits, count))


@pytest.mark.parametrize("kind", KINDS)
def test_log_probabilities_are_those_of_the_whole_softmax(kind):
    logits = logits_of(kind, VOCAB, 3)
    values = logits.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    (found,) = token_logprobs(logits, 77, 5)
    likely = np.lexsort((np.arange(VOCAB), -logits))[:5].tolist()
    assert [token for token, _ in found.top] == likely
    found_values = [found.logprob, *(value for _, value in found.top)]
    np.testing.assert_allclose(found_values, values[[77, *likely]], rtol=1e-14, atol=1e-14)


def test_a_forbidden_logit_takes_no_probability():
    logits = np.full(VOCAB, -np.inf, np.float32)
    logits[::1519] = 3.0
    assert token_logprobs(logits, 0, 0)[0].logprob == pytest.approx(-np.log(np.count_nonzero(logits == 3.0)), abs=1e-15)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_there_are_no_log_probabilities_of_what_is_no_number(bad):
    with pytest.raises(NumericError):
        token_logprobs(np.array([0.0, bad, 1.0], np.float32), 0, 2)


# ---- the tokens that a grammar allows --------------------------------------------------------------------------------


@pytest.mark.parametrize("vocab", [1, 7, 8, 9, 31, 32, 33, 500, VOCAB])
def test_a_mask_leaves_the_logits_of_its_bits(isa, vocab):
    logits = logits_of("wide", vocab, 2)
    some = np.random.default_rng(vocab).integers(0, 256, vocab // 8 + 9, np.uint8)
    for bits in (some, some[: (vocab + 7) // 8], np.zeros_like(some), np.full_like(some, 255)):
        masked = np.empty_like(logits)
        allowed = sampling.mask(logits, bits, masked)
        expected, count = reference.sampling_mask(logits, bits)
        np.testing.assert_array_equal(masked, expected)
        assert allowed == count


# ---- what is refused -------------------------------------------------------------------------------------------------

THREE, FOUR = np.zeros(3, np.float32), np.zeros(4, np.float32)
DRAW = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("logits", lambda: sampling.draw(np.zeros(3), 0.0, **DRAW, chance=0.5)),
        ("logits", lambda: sampling.draw(np.zeros(0, np.float32), 0.0, **DRAW, chance=0.5)),
        ("best", lambda: sampling.draw(THREE, np.nan, **DRAW, chance=0.5)),
        ("best", lambda: sampling.draw(THREE, 1.0, **DRAW, chance=0.5)),
        ("best", lambda: sampling.candidates(THREE, -1.0, **DRAW)),
        ("temperature", lambda: sampling.draw(THREE, 0.0, **{**DRAW, "temperature": 0.0}, chance=0.5)),
        ("chance", lambda: sampling.draw(THREE, 0.0, **DRAW, chance=1.0)),
        ("chance", lambda: sampling.draw(THREE, 0.0, **DRAW, chance=np.nan)),
        ("logits", lambda: sampling.log_sum(THREE[::2], 0.0)),
        ("best", lambda: sampling.log_sum(THREE, np.inf)),
        ("logits", lambda: sampling.likeliest(THREE.reshape(1, 3), 1)),
        ("count", lambda: sampling.likeliest(THREE, -1)),
        ("logits", lambda: sampling.likeliest(THREE.reshape(1, 3), 10**6)),
        ("bits", lambda: sampling.mask(THREE, np.zeros(0, np.uint8), THREE.copy())),
        ("bits", lambda: sampling.mask(THREE, np.zeros(1, np.int32), THREE.copy())),
        ("logits", lambda: sampling.mask(np.zeros(3), np.zeros(1, np.uint8), THREE.copy())),
        ("out", lambda: sampling.mask(THREE, np.zeros(1, np.uint8), np.zeros(4, np.float32))),
        ("out", lambda: sampling.mask(THREE, np.zeros(1, np.uint8), THREE)),
        ("out", lambda: sampling.mask(FOUR[:3], np.zeros(1, np.uint8), FOUR[1:])),
    ],
)
def test_wrong_arguments_are_named(name, call):
    with pytest.raises(ValueError, match=f"`{name}`"):
        call()
