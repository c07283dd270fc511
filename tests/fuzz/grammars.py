"""JSON schemas, regular expressions and grammars that are odd, deep, wide or endless."""

import itertools
import json

from mutate import changed, changed_text, odd_value

SCHEMAS = (
    {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name"]},
    {"type": "array", "items": {"anyOf": [{"type": "null"}, {"type": "number"}]}, "minItems": 1, "maxItems": 3},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"next": {"$ref": "#/$defs/tree"}}}}},
    {"enum": ["a", 1, None, {"b": []}]}, {"const": "yes"}, {"type": "string", "pattern": "^[a-z]{2,5}$", "maxLength": 9},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "boolean"}}}, {"required": ["a"]}]}, {}, True, False,
)  # fmt: skip
SCHEMA_WORDS = (
    *SCHEMAS, {"$ref": "#"}, {"$ref": "#/$defs/tree"}, {"$ref": "http://example.org/x"}, {"$ref": "#/%"}, {"type": ["string",
    "null"]},
    {"not": {}}, {"oneOf": [{}, {}]}, {"if": {}, "then": False}, {"pattern": "(a+)+$"}, {"pattern": "(?=a)b"},
    {"minItems": 10**9},
    {"maxLength": 10**9}, {"minimum": 5, "maximum": 4}, {"multipleOf": 0}, {"multipleOf": 1e-300}, {"format": "date-time"},
    {"uniqueItems": True}, {"propertyNames": {"pattern": "^x"}}, {"additionalProperties": {"type": "string"}},
    {"patternProperties": {"^a": {}}}, {"required": ["nobody"]}, {"type": "nonsense"}, {"dependentRequired": {"a": ["b"]}},
    1e400,
)  # fmt: skip
REGEXES = ("[a-z]+", "(yes|no)", r"\d{3}-\d{4}", "a{1,1000}{1,1000}", "(a+)+b", "(?=x)y", r"\1", "(", "[^", ".{0,100000}", "",
"\\p{L}+")
GRAMMARS = (
    'start: "a" | "b" start', 'root ::= "yes" | "no"', 'root ::= [a-z]+ root?', 'start: WORD ("," WORD)*\nWORD: /[a-z]+/',
    "start: start", 'start: @tool', 'root ::= root "a" | "b"', '%ignore / +/\nstart: "x"', 'start: "a"~1..100000',
    "start: nobody",
)  # fmt: skip
GRAMMAR_WORDS = (*GRAMMARS, '"', "|", "::=", ":", "/.*/", "(", ")*", "{1,99999}", "%json {", "%llguidance {}", "[^\\n]", "\n",
"<|end|>")
MANY = (3, 40, 300, 1000, 4000)


def schema(random):
    """A JSON schema: a changed one, or one that goes on and on."""
    how = random.random()
    if how < 0.75:
        return changed(random.choice(SCHEMAS), random, SCHEMA_WORDS, random.choice((0, 1, 1, 2, 4)))
    count = random.choice(MANY)
    if how < 0.85:
        names = [f"d{number}" for number in range(count)]
        chain = {name: {"type": "array", "items": {"$ref": f"#/$defs/{after}"}} for name, after in itertools.pairwise(names)}
        return {"$ref": "#/$defs/d0", "$defs": {**chain, names[-1]: {"type": "null"}}}
    if how < 0.9:
        return {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(count)}}
    if how < 0.95:
        return {"enum": [f"{random.random()}" for _ in range(count)]}
    return {random.choice(("anyOf", "allOf", "oneOf")): [random.choice(SCHEMAS) for _ in range(count)]}


def regex(random):
    """A regular expression, most of them legal."""
    if random.random() < 0.8:
        return changed_text(random.choice(REGEXES), random, REGEXES)
    piece = random.choice(("(a|b)", "[a-z]{2}", "(", "x?", "é", "(?:a", "\\w+"))
    return piece * random.choice(MANY)


def grammar(random):
    """A grammar in Lark's or GBNF's syntax."""
    if random.random() < 0.7:
        return changed_text(random.choice(GRAMMARS), random, GRAMMAR_WORDS)
    count = random.choice(MANY)
    if random.random() < 0.5:
        rules = "\n".join(f'r{number}: "a" r{number + 1}' for number in range(count))
        return f'start: r0\n{rules}\nr{count}: "b"'
    rules = "\n".join(f'r{number} ::= "a" r{number + 1}' for number in range(count))
    return f'root ::= r0\n{rules}\nr{count} ::= "b"'


def guided_fields(random):
    """Fields of a request that say what the answer must look like."""
    named = {"name": "x", "schema": schema(random), "strict": random.choice((True, False, None))}
    choices = [str(odd_value(random))[:300] for _ in range(random.choice((1, 2, 300)))]
    return random.choice(
        (
            {"response_format": {"type": "json_schema", "json_schema": named}},
            {"response_format": {"type": random.choice(("json_object", "text", "nonsense"))}},
            {"guided_json": random.choice((json.dumps, lambda value: value))(schema(random))},
            {"structured_outputs": {random.choice(("json", "regex", "grammar", "choice", "json_object")): odd_value(random)}},
            {"json_schema": schema(random)}, {"regex": regex(random)}, {"guided_regex": regex(random)},
            {"grammar": grammar(random)},
            {"guided_grammar": grammar(random)}, {"choice": choices}, {"structured_outputs": {"grammar": grammar(random)}},
        )
    )  # fmt: skip
