"""Guided decoding: whatever the model prefers, the answer keeps to its grammar."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
from guided_answers import deltas_of
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.config import GenerationParams, Grammar, RuntimeConfig
from edge_llm.decoding.draft import no_draft, prompt_lookup
from edge_llm.decoding.guided import Constraint, check_grammar
from edge_llm.engine.generation import Generation
from edge_llm.errors import UsageError
from edge_llm.opening.load import load_engine
from edge_llm.talk.pieces import CallArguments, CallBegun
from edge_llm.talk.tool_calls import ToolCallParser
from edge_llm.talk.tool_formats import (
    HERMES,
    LLAMA,
    MISTRAL,
    PLAIN,
    after_thought,
    calls_grammar,
    calls_or,
    text_or_calls_grammar,
)
from edge_llm.text.tokenizer import SpecialTokens, Tokenizer


@pytest.fixture(scope="module")
def engine():
    return load_engine(None, RuntimeConfig(threads=1, context=512))


@pytest.fixture(scope="module")
def tokenizer(engine):
    return engine.tokenizer


def schema(**keywords):
    return Grammar("json_schema", json.dumps(keywords))


def record(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def wander(grammar, tokenizer, seed, most=2000):
    """A text that keeps to ``grammar``, chosen by random logits."""
    random = np.random.default_rng(seed)
    constraint = Constraint(grammar, tokenizer)
    closing = [token for byte in b'"}]' if (token := tokenizer.token_id(chr(byte))) is not None]
    tokens = []
    while len(tokens) < most:
        logits = 3 * random.standard_normal(tokenizer.vocab_size, np.float32)
        logits[closing] += 9  # so that strings and lists come to an end
        masked = constraint.mask(logits)
        assert masked.dtype == np.float32
        token = int(masked.argmax())
        if token in tokenizer.eos_ids:
            return tokenizer.decode(tokens)
        tokens.append(token)
        constraint.accept(token)
        if constraint.finished:
            return tokenizer.decode(tokens)
    raise AssertionError("the grammar has no end")


# ---- what comes out

values = st.deferred(
    lambda: st.sampled_from(
        [
            {"type": "boolean"}, {"type": "null"}, {"type": "integer", "minimum": -5, "maximum": 300},
            {"type": "number", "minimum": 0, "maximum": 1}, {"type": "string", "maxLength": 8}, {"enum": ["a", 'b"', 3, None]},
            {"const": {"x": [1]}}, {"type": "string", "pattern": "^[A-C]{2}[0-9]$"},
            {"type": ["integer", "null"], "maximum": 9, "minimum": 0},
        ]
    )
    | st.builds(lambda items: {"type": "array", "items": items, "minItems": 1, "maxItems": 3}, values)
    | st.builds(lambda some: {"anyOf": some}, st.lists(values, min_size=1, max_size=2))
    | st.builds(lambda fields: record(**fields), st.dictionaries(st.sampled_from(["a", "b", "long name"]), values, max_size=2))
)  # fmt: skip


def valid(value, schema):
    """Whether ``value`` fits ``schema``, for the keywords of ``values``."""
    if "anyOf" in schema:
        return any(valid(value, one) for one in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    if "const" in schema:
        return value == schema["const"]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if value is None or isinstance(value, bool):
        return ("null" if value is None else "boolean") in kinds
    if isinstance(value, int | float):
        return ("number" in kinds or "integer" in kinds) and (
            schema["minimum"] <= value <= schema["maximum"] and ("number" in kinds or float(value).is_integer())
        )
    if isinstance(value, str):
        return (
            "string" in kinds and bool(re.search(schema.get("pattern", ""), value)) and len(value) <= schema.get("maxLength", 8)
        )
    if isinstance(value, list):
        return "array" in kinds and 1 <= len(value) <= 3 and all(valid(one, schema["items"]) for one in value)
    return (
        "object" in kinds
        and set(value) == set(schema["properties"])
        and all(valid(value[name], one) for name, one in schema["properties"].items())
    )


@settings(max_examples=60, deadline=None)
@given(fields=st.dictionaries(st.sampled_from(["x", "y", "é"]), values, min_size=1, max_size=2), seed=st.integers(0, 99))
def test_json_fits_its_schema_and_is_compact(tokenizer, fields, seed):
    wanted = record(**fields)
    text = wander(schema(**wanted), tokenizer, seed)
    assert valid(json.loads(text), wanted)
    assert not re.search(r"[\[{,:]\s|\s[\]}]", re.sub(r'"(?:[^"\\]|\\.)*"', "", text))


@settings(max_examples=20, deadline=None)
@given(
    pattern=st.sampled_from(
        [r"[a-c]{3}/\d+x", r"(yes|no)!", r"[a-zà-ÿ]{2,5}", r"a*b", r"[^\n]{1,9}\n", "é+", r"\d{4}-\d{2}-\d{2}"]
    ),
    seed=st.integers(0, 99),
)
def test_a_regular_expression_matches_the_whole_text(tokenizer, pattern, seed):
    assert re.fullmatch(pattern, wander(Grammar("regex", pattern), tokenizer, seed))


@pytest.mark.parametrize("seed", range(8))
def test_the_other_kinds(tokenizer, seed):
    assert isinstance(json.loads(wander(Grammar("json_object"), tokenizer, seed)), dict)
    options = ["yes", 'no "quoted"', "línea\n2", "yes, but"]
    assert wander(Grammar("choice", json.dumps(options)), tokenizer, seed) in options
    lark = Grammar("lark", 'start: pair ("," pair)*\npair: /[a-z]{1,3}/ "=" @value', (("value", schema(enum=[1, 2])),))
    assert re.fullmatch(r"([a-z]{1,3}=[12],)*[a-z]{1,3}=[12]", wander(lark, tokenizer, seed))
    gbnf = Grammar("lark", 'root ::= "a" ("b" | "c")+ "d"')
    assert re.fullmatch("a[bc]+d", wander(gbnf, tokenizer, seed))


def test_a_padded_vocabulary_and_a_model_without_an_end_token(tokenizer):
    for special in (SpecialTokens(eos_ids=tokenizer.eos_ids), SpecialTokens()):
        padded = Tokenizer(tokenizer._backend, tokenizer.vocab_size + 70, special)
        assert re.fullmatch("[ab]{5}", wander(Grammar("regex", "[ab]{5}"), padded, 0))


def test_a_finished_grammar_allows_only_the_end(tokenizer):
    constraint = Constraint(Grammar("regex", "a+"), tokenizer)
    constraint.accept(tokenizer.encode("a")[0])
    allowed = np.isfinite(constraint.mask(np.zeros(tokenizer.vocab_size, np.float32)))
    assert not constraint.finished
    assert all(allowed[sorted(tokenizer.eos_ids)])
    assert {tokenizer.token_bytes(int(token)).strip(b"a") for token in np.flatnonzero(allowed)} - {b""} <= {
        tokenizer.token_bytes(token) for token in tokenizer.eos_ids
    }


# ---- calls of tools

TOOLS = (
    {"name": "get_weather", "parameters": record(city={"enum": ["Rome", "Oslo"]})}, {"name": "now", "parameters": None},
)  # fmt: skip
CALLS = ({"city": "Rome"}, {"city": "Oslo"}), ({},)


def no_control(text):
    return None


def follow(grammar, tokenizer, text):
    """The first bytes that ``grammar`` allows behind ``text``, with "end" among them where it may end."""
    constraint = Constraint(grammar, tokenizer)
    zeros = np.zeros(tokenizer.vocab_size, np.float32)
    for token in tokenizer.encode(text):
        assert np.isfinite(constraint.mask(zeros)[token]), tokenizer.token_bytes(token)
        constraint.accept(token)
    allowed = {int(token) for token in np.flatnonzero(np.isfinite(constraint.mask(zeros)))}
    ends = {"end"} if allowed & tokenizer.eos_ids else set()
    return ends | {tokenizer.token_bytes(token)[:1].decode("latin-1") for token in allowed - tokenizer.eos_ids}


@pytest.mark.parametrize("style", [HERMES, MISTRAL, LLAMA, PLAIN])
@pytest.mark.parametrize("parallel", [False, True])
def test_forced_calls_are_calls(tokenizer, style, parallel):
    counts = set()
    for seed in range(6):
        text = wander(calls_grammar(TOOLS, style, no_control, parallel=parallel, most=3), tokenizer, seed)
        parser = ToolCallParser(style, frozenset(tool["name"] for tool in TOOLS))
        parts = parser.push(text) + parser.finish()
        assert {type(part) for part in parts} == {CallBegun, CallArguments}
        for begun, arguments in zip(parts[::2], parts[1::2], strict=True):
            assert json.loads(arguments.text) in CALLS[begun.name == "now"]
        counts.add(parser.calls)
    assert counts <= ({1, 2, 3} if parallel else {1})


def test_a_marker_that_is_a_control_token_is_that_token(tokenizer):
    user = tokenizer.token_id("<|user|>")
    grammar = calls_grammar(TOOLS, MISTRAL, {"[TOOL_CALLS]": user}.get, parallel=True)
    allowed = np.isfinite(Constraint(grammar, tokenizer).mask(np.zeros(tokenizer.vocab_size, np.float32)))
    assert list(np.flatnonzero(allowed)) == [user]
    assert wander(grammar, tokenizer, 0).startswith('[{"name": ')


def test_strict_tools_leave_the_text_free_and_hold_calls_to_their_schemas(tokenizer):
    tagged = text_or_calls_grammar(TOOLS, HERMES, no_control)
    begun = '<tool_call>\n{"name": "get_weather", "arguments": {"city":"'
    assert {"end", "a", "<", "{"} <= follow(tagged, tokenizer, "1 < 2 {")
    assert follow(tagged, tokenizer, f"I look.\n{begun}") == {"R", "O"}
    assert "end" not in follow(tagged, tokenizer, "<tool_call>")
    assert {"end", "a"} <= follow(tagged, tokenizer, f'{begun}Rome"}}}}\n</tool_call>')
    bare = text_or_calls_grammar(TOOLS, PLAIN, no_control)
    assert {"end", "{"} <= follow(bare, tokenizer, "So {")
    assert follow(bare, tokenizer, '{"name": "get_weather", "arguments": {"city":"') == {"R", "O"}


def test_calls_or_an_answer_behind_a_thought(tokenizer):
    either = calls_or(calls_grammar(TOOLS, HERMES, no_control, parallel=True), schema(enum=[7]))
    assert follow(either, tokenizer, "") == {"<", "7"}
    maybe = after_thought(either, no_control, opened=False)
    assert follow(maybe, tokenizer, "") == {"<", "7"}
    assert follow(maybe, tokenizer, "<think>so</think>\n\n") == {"<", "7"}
    opened = after_thought(either, no_control, opened=True)
    assert {"7", "a"} <= follow(opened, tokenizer, "so <b> ")
    assert follow(opened, tokenizer, "so</think>\n") == {"<", "7", "\n"}
    user = tokenizer.token_id("<|user|>")
    special = after_thought(either, {"</think>": user}.get, opened=True)
    constraint = Constraint(special, tokenizer)
    for token in (*tokenizer.encode("so"), user, *tokenizer.encode("7")):
        assert np.isfinite(constraint.mask(np.zeros(tokenizer.vocab_size, np.float32))[token])
        constraint.accept(token)
    assert constraint.finished


# ---- what is refused


@pytest.mark.parametrize(
    ("grammar", "param", "words"),
    [
        (schema(**{"not": {}}), "response_format", "unsatisfiable"),
        (schema(type="array", contains=1), "response_format", "`contains`"),
        (schema(**{"if": {}, "then": False}), "response_format", "unsatisfiable"),
        (schema(oneOf=[{}, {}]), "response_format", "unsatisfiable"),
        (schema(type="string", pattern="a("), "response_format", "unclosed group"),
        (schema(items=json.loads('{"items":' * 200 + "{}" + "}" * 200)), "response_format", "120 schemas in one another"),
        (schema(const=json.loads("[" * 900 + "]" * 900)), "response_format", "120 schemas in one another"),
        (schema(**{"$ref": "https://example.org/schema"}), "response_format", "https://example.org/schema"),
        (schema(enum=[]), "response_format", "nsatisfiable"),
        (Grammar("json_schema", "[1"), "response_format", "not JSON"),
        (Grammar("json_schema", "[" * 100_000), "response_format", "not JSON"),
        (Grammar("json_schema", "true"), "response_format", "must be a JSON object"),
        (Grammar("regex", "a("), "regex", "unclosed group"),
        (Grammar("regex", "(?=a)b"), "regex", "look-a"),
        (Grammar("lark", "start: foo"), "grammar", '"foo"'),
        (Grammar("lark", "root ::= ("), "grammar", "Expected ')'"),
        (Grammar("choice", "[]"), "choice", "one or more"),
        (Grammar("choice", '[""]'), "choice", "empty"),
        (Grammar("regex", "a" * (1 << 20) + "a"), "regex", "at most 1048576"),
    ],
)
def test_a_grammar_that_cannot_be_followed_is_refused_early(tokenizer, grammar, param, words):
    with pytest.raises(UsageError) as caught:
        check_grammar(grammar, tokenizer)
    assert (caught.value.param, words in str(caught.value)) == (param, True), str(caught.value)
    assert len(str(caught.value)) < 600


def test_text_that_the_vocabulary_cannot_write_is_an_error_of_the_request(tokenizer):
    constraint = Constraint(Grammar("regex", "ab"), tokenizer)
    with pytest.raises(UsageError, match="grammar"):
        constraint.accept(tokenizer.encode("z")[0])


# ---- in the engine


def answer(engine, drafter=no_draft, **params):
    request = engine.text_request("one two three one two three one two", GenerationParams(**{"max_tokens": 60, **params}))
    generation = Generation(request, engine.tokenizer, most_tokens=60, drafter=drafter)
    deltas = deltas_of(engine, generation)
    tokens = [token for delta in deltas for token in delta.tokens]
    return "".join(delta.text for delta in deltas), tokens, deltas


WORDS = Grammar("regex", "(one two three ){6}end")


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_guesses_change_no_token(engine, temperature):
    plain = answer(engine, grammar=WORDS, temperature=temperature, seed=1)
    drafted = answer(engine, prompt_lookup(1), grammar=WORDS, temperature=temperature, seed=1)
    assert drafted[:2] == plain[:2]
    assert drafted[2][-1].finish.timings.accepted_tokens > 0
    assert (plain[0], plain[2][-1].finish.reason) == ("one two three " * 6 + "end", "stop")


def test_the_end_of_the_grammar_ends_the_answer(engine):
    text, tokens, deltas = answer(engine, grammar=Grammar("choice", '["yes","no"]'), temperature=1.0, seed=3, logprobs=2)
    finish = deltas[-1].finish
    assert text in ("yes", "no")
    assert (finish.reason, finish.stop, finish.usage.completion_tokens) == ("stop", None, len(tokens))
    assert sum(len(delta.logprobs) for delta in deltas) == len(tokens)


def test_with_everything_else(engine):
    choice = Grammar("choice", '["yes","no"]')
    assert answer(engine, grammar=choice, min_tokens=50)[0] in ("yes", "no")  # the grammar allows no more
    assert answer(engine, grammar=choice, ignore_eos=True)[0] in ("yes", "no")
    assert answer(engine, grammar=WORDS, stop=(" three",))[0] == "one two"
    assert answer(engine, grammar=WORDS, max_tokens=3)[2][-1].finish.reason == "length"
    liked = tuple((token, 100.0) for token in engine.tokenizer.encode("zebra"))
    assert answer(engine, grammar=WORDS, logit_bias=liked, repetition_penalty=1.5, frequency_penalty=2.0)[0].endswith("end")


def test_a_forbidden_stop_token_that_alone_goes_on_is_chosen(engine):
    (end,) = engine.tokenizer.encode("q")
    _, _, deltas = answer(engine, grammar=Grammar("regex", "qx"), stop_tokens=frozenset({end}), min_tokens=9)
    assert (deltas[-1].finish.reason, deltas[-1].finish.usage.completion_tokens) == ("stop", 1)


def test_a_request_that_gets_stuck_fails_alone(engine):
    def request(grammar):
        return engine.generation(engine.text_request("a", GenerationParams(max_tokens=5, grammar=grammar)))

    stuck, other = request(Grammar("regex", "[a-z]+")), request(Grammar("regex", "[a-z]{9}"))
    stuck._constraint.accept(engine.tokenizer.encode("a")[0])
    stuck._constraint._matcher.consume_token(engine.tokenizer.encode("1")[0])  # breaks it
    for one in (stuck, other):
        engine.batcher.add(one)
    items = []
    while engine.batcher.running or engine.batcher.waiting:
        items += engine.batcher.step()
    assert [type(item) for one, item in items if one is stuck] == [UsageError]
    assert [item.finish.reason for one, item in items if one is other and item.finish] == ["length"]


def test_the_library_is_loaded_by_the_first_guided_request_only():
    code = (
        "import sys\n"
        "from edge_llm import LLM\n"
        "llm = LLM(threads=1)\n"
        "llm.generate('a', max_tokens=2)\n"
        "assert not any('llguidance' in name for name in sys.modules)\n"
        "from edge_llm.config import Grammar\n"
        "assert llm.generate('a', grammar=Grammar('choice', '[\"b\"]')) == 'b'\n"
        "assert 'llguidance' in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
