"""Answers that come to the end of their tokens: strings, lists and objects are closed where they can be."""

import json
from collections import deque

import numpy as np
import pytest
from guided_answers import deltas_of
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.config import GenerationParams, Grammar, RuntimeConfig
from edge_llm.decoding.closing import ANSWER_STEPS, Budget, Place
from edge_llm.decoding.draft import no_draft, prompt_lookup
from edge_llm.decoding.guided import Constraint
from edge_llm.engine.generation import Generation
from edge_llm.opening.load import load_engine
from edge_llm.talk.tool_formats import HERMES, after_thought, calls_grammar


@pytest.fixture(scope="module")
def engine():
    return load_engine(None, RuntimeConfig(threads=1, context=512))


def form(schema):
    return Grammar("json_schema", json.dumps(schema))


def place_of(grammar, tokenizer, text=""):
    """The ways through ``grammar`` and a place behind ``text``."""
    constraint = Constraint(grammar, tokenizer)
    for token in tokenizer.encode(text):
        constraint.accept(token)
    ways = constraint._guide.ways(constraint._compiled)
    return ways, Place(ways, constraint._matcher, constraint._tokens)


# ---- the shortest end


def slowest(ways, matcher, most):
    """The bytes of the shortest end, looked for among all texts, shorter ones first; None where it has more than ``most``."""
    todo = deque([(matcher.deep_copy(), 0)])
    while todo:
        here, length = todo.popleft()
        if here.is_accepting():
            return length
        if length == most or here.is_stopped():
            continue
        bits = np.frombuffer(here.compute_bitmask(), np.uint8)
        for token in np.flatnonzero(np.unpackbits(bits, bitorder="little")):
            after = here.deep_copy()
            if int(token) not in ways.table.end_ids and after.consume_token(int(token)):
                todo.append((after, length + 1))
    return None


TREE = {"type": "object", "properties": {"t": {"$ref": "#"}, "v": {"enum": [1, 23]}}, "required": ["v"]}
SMALL = {
    "a choice": (Grammar("choice", '["yes", "no, or yes", "maybe"]'), ["", "y", "no", "mayb"]),
    "an expression": (Grammar("regex", "(ab|cde)+(f|gg)"), ["", "a", "abcd", "abg"]),
    "GBNF": (Grammar("lark", 'root ::= "<" [ab]* ">" ("(" root ")")?'), ["", "<", "<ab", "<ab>(", "<>(<a>("]),
    "an object": (form({"type": "object", "properties": {"a": {"enum": [1, 22]}, "b": {"type": "boolean"}}, "required": ["b"]}),
                  ["", "{", '{"', '{"a":2', '{"a":22', '{"b":f']),
    "lists": (form({"type": "array", "items": {"enum": [7, None, [[]]]}, "minItems": 2}), ["", "[", "[n", "[7", "[[[", "[7,7"]),
    "a tree": (form(TREE), ["{", '{"t":', '{"t":{"v":1', '{"v":23']),
    "one of several": (form({"anyOf": [{"const": [1, 2]}, {"const": {"k": 1}}, {"const": [1]}]}), ["", "[", "[1", "{"]),
    "numbers": (form({"type": "array", "items": {"type": "integer", "minimum": 5, "maximum": 120}, "minItems": 1}),
                ["[", "[1", "[12"]),
    "a string": (form({"type": "array", "items": {"type": "string", "pattern": "^[ab]{2}c?$"}, "minItems": 1}), ["[", '["a']),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_the_shortest_end_is_that_of_a_slow_search(engine, name):
    grammar, texts = SMALL[name]
    for text in texts:
        ways, place = place_of(grammar, engine.tokenizer, text)
        here = place._place()
        found = ways.shortest(here, Budget(steps=10**7))
        assert found is not None
        assert len(found) == slowest(ways, here, len(found)), (text, b"".join(ways.bytes.tokens[one] for one in found))


@pytest.mark.parametrize("name", SMALL)
def test_a_plan_is_followed_by_the_grammar(engine, name):
    grammar, texts = SMALL[name]
    for text in texts:
        _, place = place_of(grammar, engine.tokenizer, text)
        assert place.looks(60)
        constraint = Constraint(grammar, engine.tokenizer)
        for token in (*engine.tokenizer.encode(text), *place.plan):
            if token not in engine.tokenizer.eos_ids:
                constraint.accept(token)
        ends = constraint.mask(np.zeros(engine.tokenizer.vocab_size, np.float32))[sorted(engine.tokenizer.eos_ids)]
        assert constraint.finished or np.isfinite(ends).any()


# ---- answers


def answer(engine, grammar, most, drafter=no_draft, **params):
    params = GenerationParams(**{"max_tokens": most, "grammar": grammar, "temperature": 1.0, "seed": 1, **params})
    generation = Generation(
        engine.text_request("one two three one two", params), engine.tokenizer, most_tokens=most, drafter=drafter
    )
    deltas = deltas_of(engine, generation)
    return "".join(delta.text for delta in deltas), deltas[-1].finish.reason


values = st.deferred(
    lambda: st.sampled_from(
        [{"type": "string"}, {"type": "integer"}, {"type": "number"}, {}, {"type": "array"}, {"type": "object"},
         {"type": "string", "minLength": 3}, {"enum": ["red", "green"]}]
    )
    | st.builds(lambda items: {"type": "array", "items": items}, values)
    | st.builds(lambda one, other: {"anyOf": [one, other]}, values, values)
    | st.builds(
        lambda fields: {"type": "object", "properties": fields, "required": list(fields)},
        st.dictionaries(st.sampled_from(["a", "b", "c"]), values, max_size=2),
    )
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(schema=values, more=st.integers(0, 40), seed=st.integers(0, 99), temperature=st.sampled_from([0.0, 1.5]))
def test_an_answer_is_whole_where_its_tokens_suffice(engine, schema, more, seed, temperature):
    _, place = place_of(form(schema), engine.tokenizer)
    shortest = len(place._way(place._matcher, None))
    text, reason = answer(engine, form(schema), shortest + more, seed=seed, temperature=temperature)
    json.loads(text)
    assert reason == "stop"


@pytest.mark.parametrize("most", [20, 33, 60])
@pytest.mark.parametrize("schema", [{"type": "array", "items": {"type": "string"}, "minItems": 3}, TREE, {"type": "object"}])
def test_guesses_change_no_token_of_an_end(engine, schema, most):
    plain = answer(engine, form(schema), most)
    assert answer(engine, form(schema), most, prompt_lookup(1)) == plain
    json.loads(plain[0])


def test_a_forced_call_is_closed(engine):
    tool = {"name": "note", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}
    for most in (60, 90):
        text, reason = answer(engine, calls_grammar([tool], HERMES, lambda word: None, parallel=True), most)
        assert (text.endswith("\n</tool_call>"), reason) == (True, "stop")


def test_what_cannot_be_closed_goes_on_to_the_limit(engine):
    assert answer(engine, Grammar("regex", "(one two three ){6}end"), 3)[1] == "length"
    long = {"type": "object", "properties": {"a_long_name_of_a_property": {"type": "string"}}}
    assert answer(engine, form(long | {"required": list(long["properties"])}), 4)[1] == "length"


def test_a_thought_is_not_cut_short_for_an_answer(engine):
    """What would be said behind half a thought is worth nothing; the limit says that there was no answer."""
    grammar = after_thought(form({"type": "object"}), lambda word: None, opened=True)
    text, reason = answer(engine, grammar, 30)
    assert reason == "length"
    assert "</think>" not in text


def test_a_forbidden_end_does_not_end_an_answer(engine):
    text, _ = answer(engine, form({"type": "array", "items": {"type": "integer"}}), 20, ignore_eos=True)
    assert isinstance(json.loads(text), list)


@pytest.mark.parametrize("text", ['start: a{300}\na: "x" | "y" | /[a-z]{2}/ | a a'])
def test_an_answer_whose_end_is_hard_to_find_holds_nobody_up(engine, text):
    """The search is given up, and nothing more is looked for."""
    ways, place = place_of(Grammar("lark", text), engine.tokenizer, "")
    looked = []
    monkey = ways._shortest
    ways._shortest = lambda *given: (looked.append(1), monkey(*given))[1]
    assert not any(place.looks(300) for _ in range(3))
    assert looked and (spent := ANSWER_STEPS - place._budget._steps) > 0
    assert spent <= ANSWER_STEPS + 100  # one place too many
    looked.clear()
    place._budget._steps = place._next_look = 0
    assert not place.looks(300) and not looked


AMBIGUOUS = 'start: s END\nEND: /[xyz]{800}/\ns: s s | L\nL: /[a-h]/'
"""All parts of its texts join with all others, so that a step may take a hundred times longer than one of JSON."""


def test_steps_of_many_readings_count_for_many(engine, monkeypatch):
    wide = []
    takes = Budget.takes
    monkeypatch.setattr(Budget, "takes", lambda self, *given: (wide.append(self.is_wide), takes(self, *given))[1])
    _, place = place_of(Grammar("lark", AMBIGUOUS), engine.tokenizer, "abcdefgh" * 3)
    assert not place.looks(300) and place._budget.is_spent
    assert sum(wide) <= ANSWER_STEPS / 20 + 1 < len(wide)


@pytest.mark.parametrize("count", [50, 300])
def test_an_object_of_many_optional_properties_has_an_end(engine, count):
    inner = {"type": "object", "properties": {f"property_{index}": {"type": "integer"} for index in range(count)}}
    outer = {"type": "object", "properties": {"inner": inner | {"additionalProperties": False}}, "required": ["inner"]}
    for text in ("{", '{"inner":{'):
        _, place = place_of(form(outer), engine.tokenizer, text)
        assert place.looks(64), text
