"""JSON schemas: what they allow is what JSON schema says, and what an answer is not held to is named."""

import contextlib
import json
import logging

import guided_answers
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.config import Grammar, RuntimeConfig
from edge_llm.decoding import guided
from edge_llm.decoding.guided import Constraint, check_grammar
from edge_llm.decoding.schemas.words import MAX_DEPTH
from edge_llm.decoding.schemas.writer import lark_of
from edge_llm.errors import UsageError
from edge_llm.opening.load import load_engine
from edge_llm.talk.formats import response_format


@pytest.fixture(scope="module")
def tokenizer():
    return load_engine(None, RuntimeConfig(threads=1, context=64)).tokenizer


def allows(grammar, tokenizer, text):
    """Whether ``text`` is a whole answer of ``grammar``."""
    grammar = grammar if isinstance(grammar, Grammar) else Grammar("json_schema", json.dumps(grammar))
    return guided_answers.allows(grammar, tokenizer, text)


PLAIN = {"type": "object", "properties": {"a": {"type": "integer"}}}
NULL = {"type": "object", "properties": {"n": {"type": "null"}}}


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        (PLAIN, ['{"a":1}', "{}"], ['{"b":1}', '{"a":1,"b":1}']),
        (PLAIN | {"additionalProperties": True}, ['{"a":1,"b":[2]}'], ['{"a":null}']),
        (PLAIN | {"additionalProperties": {"type": "null"}}, ['{"a":1,"b":null}'], ['{"b":1}']),
        ({"type": "object"}, ['{"x":1}'], ["1"]), ({"type": "object", "properties": {}}, ["{}"], ['{"x":1}']),
        (PLAIN | {"required": ["b"]}, ['{"a":1,"b":2}'], ["{}"]),
        (PLAIN | {"patternProperties": {"^x": {"type": "null"}}}, ['{"a":1,"xy":null}'], ['{"y":1}', '{"x":1}']),
        ({"anyOf": [PLAIN, NULL]}, ['{"a":1}', '{"n":null}'], ['{"b":1}']),
        ({"type": "array", "items": PLAIN}, ['[{"a":1}]'], ['[{"b":1}]']),
        ({"allOf": [PLAIN, NULL]}, ['{"a":1,"n":null}'], ['{"a":null}']),
        ({"allOf": [PLAIN]}, ['{"a":1}'], ['{"b":1}']),
        ({"$ref": "#/$defs/p", "$defs": {"p": PLAIN}}, ['{"a":1}'], ['{"b":1}']),
        ({"$ref": "#/$defs/p", **NULL, "$defs": {"p": PLAIN}}, ['{"a":1,"n":null}'], ['{"a":null}']),
        ({"allOf": [{"$ref": "#/$defs/p"}, NULL], "$defs": {"p": {"$ref": "#/$defs/q"}, "q": PLAIN}},
         ['{"a":1,"n":null}'], ['{"a":null}']),
        ({"allOf": [{"properties": {"o": PLAIN}}, {"properties": {"o": NULL}}], "type": "object"},
         ['{"o":{"a":1,"n":null}}'], ['{"o":{"a":null}}']),
        (PLAIN | {"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a":1}'], ["{}"]),
        ({"const": {"properties": {}}}, ['{"properties":{}}'], ["{}"]),
    ],
)  # fmt: skip
def test_objects_have_what_they_declare(tokenizer, schema, yes, no):
    """As llama.cpp and vLLM hold objects to their schemas; where several schemas hold for one, as JSON schema says."""
    assert [allows(schema, tokenizer, text) for text in yes + no] == [True] * len(yes) + [False] * len(no)


def test_a_form_s_objects_have_what_they_declare(tokenizer):
    for strict in (True, False, None):
        nested = {"name": "x", "schema": PLAIN, "strict": strict}
        for form in ({"type": "json_schema", "json_schema": nested}, {"type": "json_schema", **nested}):
            grammar = response_format(form, "response_format")
            assert allows(grammar, tokenizer, '{"a":1}')
            assert not allows(grammar, tokenizer, '{"b":1}')


def test_a_long_chain_of_joined_definitions_takes_no_time():
    defs = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}", "required": ["a"]} for at in range(900)}
    assert r'"{" "\"a\"" ":" T0 "}"' in lark_of({"$ref": "#/$defs/d0", "$defs": defs | {"d900": PLAIN}})[0]


@pytest.mark.parametrize(
    ("items", "more", "yes", "no"),
    [
        ({"enum": [1, "a", None]}, {}, ["[]", '["a",1]', '[null,"a",1]'], ["[1,1]", '[1,"a",1]', "[2]"]),
        ({"type": "boolean"}, {"minItems": 1}, ["[true]", "[false,true]"], ["[]", "[true,true]"]),
        ({"enum": [1, 2, 2]}, {"minItems": 2, "maxItems": 2}, ["[1,2]", "[2,1]"], ["[2,2]", "[1]"]),
        ({"const": "x"}, {}, ["[]", '["x"]'], ['["x","x"]']),
        ({"type": "integer"}, {"maxItems": 1}, ["[]", "[7]"], ["[7,7]"]),
    ],
)
def test_few_values_are_unique(tokenizer, items, more, yes, no):
    schema = {"type": "array", "items": items, "uniqueItems": True, **more}
    assert lark_of(schema)[1] == ()
    assert [allows(schema, tokenizer, text) for text in yes + no] == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize(
    ("schema", "yes", "no"),
    [
        ({"propertyNames": {"pattern": "^[ab]+$"}}, ['{"ab":1,"b":[]}', "{}"], ['{"c":1}']),
        ({"propertyNames": {"type": "string", "maxLength": 2}, "additionalProperties": {"type": "integer"}},
         ['{"é":1,"bb":2}'], ['{"abc":1}', '{"a":null}']),
        ({"propertyNames": {"minLength": 2}}, ['{"abc":1}'], ['{"a":1}']),
        ({"propertyNames": {"enum": ["x", "y"]}, "properties": {"x": {"type": "null"}, "z": {}}},
         ['{"x":null}', '{"y":4}'], ['{"z":1}', '{"x":1}', '{"q":1}']),
        ({"propertyNames": True}, ['{"a":1}'], ["[]"]), ({"propertyNames": {"type": "string"}}, ['{"a":1}'], ["1"]),
    ],
)  # fmt: skip
def test_names_of_properties_are_held_to(tokenizer, schema, yes, no):
    schema = {"type": "object", **schema}
    assert lark_of(schema)[1] == ()
    assert [allows(schema, tokenizer, text) for text in yes + no] == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize(
    ("schema", "loose", "text"),
    [
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, ("uniqueItems",), "[1,1]"),
        ({"type": "array", "uniqueItems": False}, (), "[1,1]"),
        ({"type": "string", "format": "color"}, ("format color",), '"red"'),
        ({"type": ["string", "null"], "format": "idn-email"}, ("format idn-email",), "null"),
        ({"type": "integer", "format": "int32"}, (), "5"), ({"type": "string", "format": "uuid"}, (), None),
        ({"type": "object", "propertyNames": {"format": "uri"}}, ("propertyNames",), '{"a":1}'),
        ({"type": "object", "properties": {"a": {}}, "propertyNames": {"pattern": "b"}}, (), '{"ab":1}'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "uniqueItems": True}}}, ("uniqueItems",), "[1,1]"),
        ({"const": {"format": "zzz", "uniqueItems": True}}, (), '{"format":"zzz","uniqueItems":true}'),
        ({"type": "object", "properties": {"format": {"type": "null"}, "uniqueItems": {}}}, (), '{"format":null}'),
    ],
)  # fmt: skip
def test_what_is_not_held_to_is_named(tokenizer, caplog, schema, loose, text):
    guided._said.clear()
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        assert check_grammar(Grammar("json_schema", json.dumps(schema)), tokenizer) == loose
    assert [record.getMessage() for record in caplog.records] == [
        f"answers are not held to `{keyword}` of a JSON schema" for keyword in loose
    ]
    assert text is None or allows(schema, tokenizer, text)


def test_pydantic_s_sets_and_secrets_work(tokenizer):
    import pydantic

    class Model(pydantic.BaseModel):
        tags: set[str]
        secret: pydantic.SecretStr
        few: set[bool]

    schema = Model.model_json_schema()
    assert check_grammar(Grammar("json_schema", json.dumps(schema)), tokenizer) == ("uniqueItems", "format password")
    assert not allows(schema, tokenizer, '{"tags":["a"],"secret":"x","few":[true,true]}')
    assert allows(schema, tokenizer, '{"tags":["a"],"secret":"x","few":[true,false]}')


@pytest.mark.parametrize("keyword", ["items", "not", "additionalProperties"])
def test_a_deep_schema_is_refused(keyword):
    schema = {}
    for _ in range(MAX_DEPTH + 1):
        schema = {keyword: schema}
    with pytest.raises(UsageError, match="schemas in one another"):
        lark_of(schema)


KEYWORDS = (
    "type", "properties", "patternProperties", "additionalProperties", "required", "propertyNames", "items", "prefixItems",
    "uniqueItems", "minItems", "maxItems", "enum", "const", "format", "pattern", "minLength", "maxLength", "allOf", "anyOf",
    "oneOf", "$ref", "$defs", "definitions", "a",
)  # fmt: skip
scalars = st.sampled_from([None, True, False, 0, 1, -1, 2.5, "a", "", "string", "array", "object", "date", "#", "#/$defs/a"])
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(schema=st.dictionaries(st.sampled_from(KEYWORDS), anything, max_size=5))
def test_any_json_is_rewritten(schema):
    before = json.dumps(schema)
    with contextlib.suppress(UsageError):
        assert lark_of(schema)[0].startswith("start: ")
    assert json.dumps(schema) == before


@settings(max_examples=40, deadline=None)
@given(schema=st.dictionaries(st.sampled_from(KEYWORDS), anything, max_size=5))
def test_any_json_is_followed_or_refused(tokenizer, schema):
    try:
        Constraint(Grammar("json_schema", json.dumps(schema)), tokenizer)
    except UsageError as error:
        assert len(str(error)) < 600
