"""Random schemas against `jsonschema`: what their grammars let through is valid, and what is valid is let through."""

import json
import re

import guided_answers
import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.config import Grammar, RuntimeConfig
from edge_llm.decoding.guided import Constraint, check_grammar
from edge_llm.decoding.schemas.patterns import UnheldPattern, found_in, parsed
from edge_llm.decoding.schemas.terminals import written
from edge_llm.decoding.schemas.writer import Writer
from edge_llm.errors import UsageError
from edge_llm.opening.load import load_engine


@pytest.fixture(scope="module")
def tokenizer():
    return load_engine(None, RuntimeConfig(threads=1, context=64)).tokenizer


def form(schema):
    return Grammar("json_schema", json.dumps(schema))


def allows(schema, tokenizer, text):
    """Whether ``text`` is a whole answer of ``schema``."""
    return guided_answers.allows(schema if isinstance(schema, Grammar) else form(schema), tokenizer, text)


def wander(schema, tokenizer, seed, most=300):
    """A text that keeps to ``schema``, chosen by random logits; None where it does not end."""
    random = np.random.default_rng(seed)
    constraint = Constraint(form(schema), tokenizer)
    closing = [token for byte in b'"}],:' if (token := tokenizer.token_id(chr(byte))) is not None]
    tokens = []
    while len(tokens) < most:
        logits = 3 * random.standard_normal(tokenizer.vocab_size, np.float32)
        logits[closing] += 9
        token = int(constraint.mask(logits).argmax())
        if token in tokenizer.eos_ids:
            return tokenizer.decode(tokens)
        tokens.append(token)
        constraint.accept(token)
        if constraint.finished:
            return tokenizer.decode(tokens)
    return None


# ---- what is let through is valid

NAMES = ("a", "b", "c", "d e", "é")
leaves = st.sampled_from(
    [
        {"type": "integer"}, {"type": "number"}, {"type": "string"}, {"type": "boolean"}, {"type": "null"}, {},
        {"type": "integer", "minimum": -5, "maximum": 40}, {"type": "number", "exclusiveMinimum": 0, "maximum": 2.5},
        {"type": "integer", "multipleOf": 3}, {"type": "number", "multipleOf": 0.5, "minimum": 1},
        {"type": "string", "minLength": 1, "maxLength": 3}, {"type": "string", "pattern": "^[a-c]{2,3}$"},
        {"type": "string", "pattern": "^(?!a)[a-z]{2}$"}, {"type": "string", "pattern": r"\bx\b"},
        {"type": "string", "pattern": r"^(?=.*\d)[a-z0-9]{2,4}$"}, {"enum": [1, "a", None, [1], {"a": 1}, 2.5]},
        {"const": 2**53 + 1}, {"const": "x"}, {"const": [1, 2]}, {"type": ["integer", "null"]},
        {"type": ["string", "number"], "minLength": 1, "minimum": 3}, {"format": "date", "type": "string"},
    ]
)  # fmt: skip


def optional(**choices):
    """A dictionary that has any of ``choices``."""
    return st.fixed_dictionaries({}, optional={name.rstrip("_"): value for name, value in choices.items()})


def schemas_of(inner):
    names = st.sampled_from(NAMES)
    objects = st.builds(
        lambda fields, more: {"type": "object", "properties": fields} | more,
        st.dictionaries(names, inner, min_size=1, max_size=3),
        optional(
            required=st.lists(names, max_size=2, unique=True), additionalProperties=st.booleans() | inner,
            patternProperties=st.dictionaries(st.sampled_from(["^x", "b", "^[a-z_]$"]), inner, max_size=2),
            propertyNames=st.sampled_from([{"pattern": "^[a-z]"}, {"maxLength": 2}, {"enum": ["a", "b", "z"]}]),
            dependentRequired=st.dictionaries(names, st.lists(names, max_size=1), max_size=1),
            maxProperties=st.integers(1, 3), minProperties=st.integers(0, 3), unevaluatedProperties=st.just(False),
            dependentSchemas=st.dictionaries(names, inner, max_size=1),
        ),
    )  # fmt: skip
    arrays = st.builds(
        lambda more: {"type": "array"} | more,
        optional(
            items=inner, prefixItems=st.lists(inner, min_size=1, max_size=2), minItems=st.integers(0, 3),
            maxItems=st.integers(1, 4), contains=inner, minContains=st.integers(0, 2), maxContains=st.integers(1, 3),
        ),
    )  # fmt: skip
    combined = st.builds(
        lambda keyword, some: {keyword: some},
        st.sampled_from(["anyOf", "oneOf", "allOf"]),
        st.lists(inner, min_size=1, max_size=2),
    )
    conditional = st.builds(
        lambda base, more: base | more, objects, optional(if_=inner | objects, then=inner, else_=inner, not_=inner)
    )
    return objects | arrays | combined | conditional


schemas = st.recursive(leaves, schemas_of, max_leaves=6)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("part", range(4))
def test_what_a_grammar_lets_through_is_valid(tokenizer, part):
    ends = 0

    @settings(max_examples=120, deadline=None)
    @given(schema=schemas, seed=st.integers(4000 * part, 4000 * part + 3999))
    def holds(schema, seed):
        nonlocal ends
        try:
            loose = check_grammar(form(schema), tokenizer)
        except UsageError as error:
            assert re.search("unsatisfiable|too many choices", str(error))
            return
        text = wander(schema, tokenizer, seed)
        if text is not None:
            json.loads(text)
            assert loose or jsonschema.Draft202012Validator(schema).is_valid(json.loads(text)), text
            ends += 1

    holds()
    assert ends > 40


# ---- what is valid is let through, and nothing else

VALUES = [
    None, True, False, 0, 1, -1, 3, 12, 2.5, 0.5, -0.25, 100, "", "a", "x", "ab", "abc", "foo", "a foo b", "7a", 'q"\\\n', "é",
    [], [1], [3], [1, 3], ["a"], [1, "a"], [None, 3, 3], [[1]],
]  # fmt: skip
scalars = st.sampled_from(
    [
        {"type": "integer"}, {"type": "number"}, {"type": "string"}, {"type": "null"}, {"enum": [1, "a", 2.5]}, {"const": 3},
        {"type": "integer", "minimum": 1}, {"type": "number", "maximum": 2.5}, {"type": "number", "exclusiveMaximum": 2.5},
        {"type": "string", "maxLength": 2}, {"type": "string", "pattern": "a"}, {"type": "string", "pattern": r"\bfoo\b"},
        {"type": "string", "pattern": r"^(?=.*\d)(?!x).*$"},
        {"minLength": 2, "maximum": 1}, {"type": ["string", "null"]}, {"type": "boolean"},
    ]
)  # fmt: skip
combinations = st.recursive(
    scalars,
    lambda inner: (
        st.builds(lambda keyword, some: {keyword: some}, st.sampled_from(["anyOf", "allOf", "oneOf"]),
                  st.lists(inner, min_size=1, max_size=3))
        | st.builds(lambda one, other: {"if": one, "then": other}, inner, inner)
        | st.builds(lambda one: {"not": one}, inner)
        | st.builds(lambda one: {"type": "array", "items": one}, inner)
        | st.builds(lambda one: {"type": "array", "contains": one}, inner)
    ),
    max_leaves=4,
)  # fmt: skip


def is_partial(schema):
    """Whether some values are left out: not all for which a schema does not hold can be described."""
    writer = Writer(schema, lambda lark: False, exact=False)
    writer.text()
    return writer.schemas.opposites.partial


@settings(max_examples=60, deadline=None)
@given(schema=combinations)
def test_a_grammar_lets_through_what_is_valid_and_nothing_else(tokenizer, schema):
    valid = jsonschema.Draft202012Validator(schema).is_valid
    wanted = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in VALUES if valid(value)]
    other = [json.dumps(value, ensure_ascii=False, separators=(",", ":")) for value in VALUES if not valid(value)]
    try:
        loose = check_grammar(form(schema), tokenizer)
        refused = [text for text in wanted if not allows(schema, tokenizer, text)]
        more = [text for text in other if allows(schema, tokenizer, text)]
    except UsageError as error:
        if "too many expressions" not in str(error):  # what look-around costs has a limit
            assert "unsatisfiable" in str(error)
            assert wanted == []
        return
    assert is_partial(schema) or refused == []
    assert loose or more == []


# ---- kinds, one by one

OBJECT = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
KINDS = [
    (OBJECT | {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, ['{"a":1}', '{"b":1}'], ["{}", '{"a":1,"b":2}']),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ["1.5"], ["1", '"a"']),
    (OBJECT | {"dependentRequired": {"a": ["b"]}}, ["{}", '{"b":1}', '{"a":1,"b":2}'], ['{"a":1}']),
    (OBJECT | {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}},
     ['{"a":2}', '{"a":1,"b":2}'], ['{"a":1}']),
    (OBJECT | {"unevaluatedProperties": False}, ['{"a":1}'], ['{"c":1}']),
    ({"allOf": [OBJECT], "properties": {"c": {}}, "unevaluatedProperties": False}, ['{"a":1,"c":2}'], ['{"d":1}']),
    (OBJECT | {"required": None, "additionalProperties": None}, ["{}", '{"a":1}'], ['{"a":"x"}']),
    (OBJECT | {"not": {"required": ["a", "b"]}}, ["{}", '{"a":1}'], ['{"a":1,"b":2}']),
    (OBJECT | {"maxProperties": 1}, ["{}", '{"b":1}'], ['{"a":1,"b":2}']), (OBJECT | {"minProperties": 1}, ['{"b":1}'], ["{}"]),
    ({"type": "array", "items": {"type": "integer"}, "contains": {"const": 3}}, ["[3]", "[1,3,2]"], ["[]", "[1]"]),
    ({"type": "array", "contains": {"const": 3}, "minContains": 2, "maxContains": 2, "items": {"type": "integer"}},
     ["[3,3]", "[1,3,2,3]"], ["[3]", "[3,3,3]"]),
    ({"type": "string", "not": {"enum": ["x"]}}, ['"y"', '"xx"', '""'], ['"x"']),
    ({"type": "string", "pattern": "^(?=.*[A-Z])(?=.*\\d).{8,}$"}, ['"Abcdefg1"'], ['"abcdefg1"', '"Ab1"']),
    ({"type": "string", "pattern": "^(?!admin)[a-z]+(?<!x)$"}, ['"bob"', '"adm"'], ['"administrator"', '"box"']),
    ({"type": "array", "items": [{"type": "null"}], "additionalItems": False}, ["[null]", "[]"], ["[1]", "[null,1]"]),
    ({"type": "number", "minimum": 1, "exclusiveMinimum": True}, ["1.5", "2"], ["1", "0"]),
    ({"type": "object", "dependencies": {"a": ["b"]}}, ['{"b":1}', '{"a":1,"b":1}'], ['{"a":1}']),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "yes", "no"), KINDS)
def test_keywords_are_held_to(tokenizer, schema, yes, no):
    assert check_grammar(form(schema), tokenizer) == ()
    assert [allows(schema, tokenizer, text) for text in yes + no] == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize(
    ("schema", "loose"),
    [
        ({"type": "string", "pattern": r"^(a)\1$"}, ("pattern",)), ({"not": {"multipleOf": 3}}, ("not",)),
        ({"type": "array", "contains": {"const": 1}, "minItems": 200, "minContains": 100}, ("contains",)),
        ({"if": {"format": "uuid"}, "then": {"type": "string"}}, ("if",)), ({"not": {"enum": [[1]]}}, ("not",)),
        ({"allOf": [OBJECT | {"unevaluatedProperties": False}, {"properties": {"c": {}}}]}, ("unevaluatedProperties",)),
        ({"type": "object", "minProperties": 3}, ("minProperties",)),
    ],
)  # fmt: skip
def test_what_cannot_be_held_to_is_taken_and_named(tokenizer, schema, loose):
    assert check_grammar(form(schema), tokenizer) == loose


GREAT = [2**53 + 1, -(2**53) - 1, 2**63, 2**64 - 1, 10**20, 10**40, -(10**25), 0.1, 1e300, 12345678.9]


@pytest.mark.parametrize("value", GREAT)
def test_a_constant_comes_as_it_is(tokenizer, value):
    for schema in ({"const": value}, {"enum": [value]}, {"const": [value]}, {"type": "number", "const": value}):
        text = wander(schema, tokenizer, 0)
        assert text == (f"[{json.dumps(value)}]" if schema == {"const": [value]} else json.dumps(value))


@settings(max_examples=60, deadline=None)
@given(
    bounds=st.lists(st.integers(-(2**64), 2**64) | st.integers(-300, 300), min_size=2, max_size=2).map(sorted),
    other=st.integers(-(2**64), 2**64), open_=st.booleans(),
)  # fmt: skip
def test_bounds_of_integers_are_exact(tokenizer, bounds, other, open_):
    least, most = bounds
    words = ("exclusiveMinimum", "exclusiveMaximum") if open_ else ("minimum", "maximum")
    schema = {"type": "integer", words[0]: least - open_, words[1]: most + open_}
    for value in (least, most, least - 1, most + 1, (least + most) // 2, other):
        assert allows(schema, tokenizer, str(value)) is (least <= value <= most), value


@pytest.mark.parametrize("kind", ["integer", "number"])
@pytest.mark.parametrize("bound", [{}, {"minimum": 0}, {"maximum": 5}, {"exclusiveMinimum": -2.5}])
def test_a_number_ends(tokenizer, kind, bound):
    """16 digits before the point, and no more behind it: a small model writes zeros without end."""
    schema = {"type": kind} | bound
    assert allows(schema, tokenizer, "-1" + "0" * 15 if "maximum" in bound else "1" + "0" * 15)
    assert not allows(schema, tokenizer, "-1" + "0" * 17 if "maximum" in bound else "1" + "0" * 17)
    assert not allows(schema, tokenizer, "1." + "0" * 17)


NAMED = ["List[Item]", "with space", "Größe", "a/b~c", "100%", "x.y", '"quoted"']


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("place", ["$defs", "definitions", "components"])
def test_references_find_names_of_any_kind(tokenizer, name, place):
    from urllib.parse import quote

    pointer = name.replace("~", "~0").replace("/", "~1")
    for written_ in (quote(pointer, safe="~"), pointer.replace("%", "%25")):
        schema = {place: {name: {"type": "array", "items": {"const": 7}}}, "$ref": f"#/{place}/{written_}"}
        assert allows(schema, tokenizer, "[7,7]")
        assert not allows(schema, tokenizer, "[8]")


@pytest.mark.parametrize(
    ("reference", "words"),
    [("#/$defs/b", "there is no `b`"), ("other.json", "leads out"), ("#/$defs/a/const", "no JSON schema")],
)
def test_a_reference_that_leads_nowhere_is_named(tokenizer, reference, words):
    with pytest.raises(UsageError, match=words):
        check_grammar(form({"$ref": reference, "$defs": {"a": {"const": 1}}}), tokenizer)


@pytest.mark.parametrize(
    ("gbnf", "yes", "no"),
    [
        (r'root ::= "\u00e9\u0041" [\u0430-\u044f]+ "\U0001F600"', ["éAбв😀"], ["éA😀", "eAб😀"]),
        (r'root ::= "\"\u0022\u005c\x0a\x41"', ['""\\\nA'], ['""']),
        (r"root ::= [\u005d\u005b\U0001F600-\U0001F64F\u002d]+ # \uZZ", ["][😀-", "🙏"], ["a", "\\"]),
    ],
)
def test_gbnf_knows_characters_by_their_codes(tokenizer, gbnf, yes, no):
    grammar = Grammar("lark", gbnf)
    assert [allows(grammar, tokenizer, text) for text in yes + no] == [True] * len(yes) + [False] * len(no)


@pytest.mark.parametrize("code", [r"\UFFFFFFFF", r"\ud800"])
def test_a_code_that_is_no_character_is_named(tokenizer, code):
    with pytest.raises(UsageError, match="no character of Unicode"):
        check_grammar(Grammar("lark", f'root ::= "{code}"'), tokenizer)


PATTERNS = [
    r"^(?=.*[A-Z])(?=.*\d).{8,}$", r"\bfoo\b", r"^(?!admin)[a-z]+$", r"^[^\s@]+@[^\s@]+\.[a-z]{2,}$", r"a|^b$", r"(?<!x)y",
    r"^[\w.-]+$", r"\u00e9+", r"^\S+$", r"^(foo|bar)(?!baz)\w*$", r"^\W$", r"x(?=y)", r"^$", r"^(?:a\b|\bb) c", r"\Bo",
    r"[^a-y]",
    r"^(?<year>\d{4})-\d\d?$", r"^\/[^/]*$", r"^[\]\-\\]+$", r"^.{0,3}$",
]  # fmt: skip
TEXTS = [
    "Abcdefg1", "abcdefg1", "foo", "a foo b", "afoo", "foob", "admin", "admi", "bob", "x@y.de", "xy", "y", "ay", "a-b.c", "a b",
    "ab\n", "foobaz", "foobar", "barx", '"', "\\", "b", "a c", "b c", "oo", "a\tb", "", "\x01", "x", "co-op", "2024-5", "/a",
    "]-\\",
]  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_find_what_re_finds(tokenizer, pattern):
    schema = {"type": "string", "pattern": pattern}
    for text in TEXTS:
        json_text = '"' + "".join(written(ord(c)) for c in text) + '"'
        as_python = re.sub(r"\(\?<(?=\w)", "(?P<", pattern).replace("$", r"\Z")  # `$` is the very end in JSON schema
        expected = re.search(as_python, text) is not None
        assert allows(schema, tokenizer, json_text) is expected, text
        assert found_in(parsed(pattern), text) is expected


@settings(max_examples=200, deadline=None)
@given(text=st.text(alphabet="ab()[]{}^$|*+?\\bBdDwWsSuxpP0123,-.=!<:é", max_size=14))
def test_any_pattern_is_read_or_refused(text):
    try:
        found_in(parsed(text), "ab")
    except (UnheldPattern, UsageError) as error:
        assert len(str(error)) < 300
