"""A guided answer is the same with any guesses behind it, beside any others, on any threads and however slow the machine is."""

import itertools
import json
import time

import pytest

from edge_llm.config import GenerationParams, Grammar, RuntimeConfig
from edge_llm.decoding.draft import no_draft, prompt_lookup
from edge_llm.engine.generation import Generation
from edge_llm.opening.load import load_engine
from edge_llm.talk.tool_formats import HERMES, calls_grammar

TEXT = {"type": "string"}
PERSON = {
    "type": "object",
    "properties": {"name": TEXT, "age": {"type": "integer"}, "tags": {"type": "array", "items": TEXT}},
    "required": ["name", "age", "tags"],
}
DATES = {"type": "array", "items": TEXT | {"format": "date-time"}, "minItems": 2}
TOOL = {"name": "note", "parameters": PERSON}
GRAMMARS = {
    "words": Grammar("regex", "[a-z]{3,9}( [a-z]{3,9}){6}"),
    "a schema": Grammar("json_schema", json.dumps(PERSON)),
    "any object": Grammar("json_object", ""),
    "dates": Grammar("json_schema", json.dumps(DATES)),
    "GBNF": Grammar("lark", 'root ::= expr "="\nexpr ::= term ([-+*/] term)*\nterm ::= [0-9]+ | "(" expr ")"'),
    "a call": calls_grammar([TOOL], HERMES, lambda word: None, parallel=True),
}
WAYS = {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 1.3, "repetition_penalty": 1.1, "seed": 7}}
CASES = [*itertools.product(GRAMMARS, WAYS)]


@pytest.fixture(scope="module")
def engine():
    return load_engine(None, RuntimeConfig(threads=1, context=512))


@pytest.fixture(scope="module")
def plain(engine):
    """The answers of every case, each alone."""
    return {case: answers(engine, [case])[0] for case in CASES}


def answers(engine, cases, drafter=no_draft):
    """The tokens of ``cases``, all of them in one batch."""
    works = []
    for grammar, way in cases:
        params = GenerationParams(max_tokens=60, grammar=GRAMMARS[grammar], **WAYS[way])
        request = engine.text_request("one two three one two", params)
        works.append(Generation(request, engine.tokenizer, most_tokens=60, drafter=drafter))
        engine.batcher.add(works[-1])
    while not all(work.finished for work in works):
        failed = [item for _, item in engine.batcher.step() if isinstance(item, Exception)]
        assert not failed
    return [work.known[len(work.request.prompt) :] for work in works]


def guesser(engine, answer, wrong_at=None):
    """Guesses the tokens of ``answer``, one of which is another in every guess."""
    start = len(engine.text_request("one two three one two", GenerationParams()).prompt)

    def guess(known, most):
        guesses = answer[len(known) - start :][:most]
        return [token + 1 if at == wrong_at else token for at, token in enumerate(guesses)]

    return guess


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_guesses_change_no_token(engine, plain, case):
    answer = plain[case]
    for drafter in (guesser(engine, answer), guesser(engine, answer, wrong_at=2)):
        assert answers(engine, [case], drafter) == [answer]


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_a_slow_machine_changes_no_token(engine, plain, case, monkeypatch):
    ticks = itertools.count(step=0.01)
    for clock in ("thread_time", "process_time", "perf_counter"):
        monkeypatch.setattr(time, clock, lambda: next(ticks))
    assert answers(engine, [case]) == [plain[case]]


def test_a_batch_with_guesses_changes_no_token(engine, plain):
    assert answers(engine, CASES[::-1], prompt_lookup(1)) == [*plain.values()][::-1]


def test_threads_change_no_token(plain):
    assert answers(load_engine(None, RuntimeConfig(threads=2, context=512)), CASES) == [*plain.values()]
