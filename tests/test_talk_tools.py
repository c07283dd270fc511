"""Calls of tools in a text: found in every family's format, and the same however the text is cut."""

import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_llm.talk.pieces import CallArguments, CallBegun, Said
from edge_llm.talk.tool_calls import ToolCallParser
from edge_llm.talk.tool_formats import DEEPSEEK, HERMES, LLAMA, MISTRAL, MISTRAL_NAMED, PLAIN, format_of
from edge_llm.text.chat import ChatTemplate

NAMES = frozenset(("get_weather", "now"))
ROME = '{"name": "get_weather", "arguments": {"city": "Rome {\\"}"}}'
NOW = '{"name": "now", "arguments": {}}'
LLAMA_ROME = '{"type": "function", "name": "get_weather", "parameters": {"city": "Rome {\\"}"}}'
CALL_ROME = ("get_weather", '{"city": "Rome {\\"}"}')
CALL_NOW = ("now", "{}")


def parse(style, pieces, **options):
    """(text, [(name, arguments)]) of an answer that comes in ``pieces``."""
    parser = ToolCallParser(style, NAMES, **options)
    said, calls, ids = "", [], []
    for found in [found for piece in pieces for found in parser.push(piece)] + parser.finish():
        if isinstance(found, Said):
            said += found.text
        elif isinstance(found, CallBegun):
            assert found.index == len(calls)
            calls.append((found.name, ""))
            ids.append(found.id)
        elif isinstance(found, CallArguments):
            name, arguments = calls[found.index]
            calls[found.index] = (name, arguments + found.text)
    assert len(set(ids)) == parser.calls == len(calls)
    return said, calls


@pytest.mark.parametrize(
    ("style", "text", "said", "calls"),
    [
        (HERMES, f"<tool_call>\n{ROME}\n</tool_call>", "", [CALL_ROME]),
        (
            HERMES,
            f"I look.\n\n<tool_call>\n{ROME}\n</tool_call>\n<tool_call>{NOW}</tool_call>\n",
            "I look.",
            [CALL_ROME, CALL_NOW],
        ),
        (HERMES, f"<tool_call>\n{NOW}\n</tool_call>\nDone.", "\nDone.", [CALL_NOW]),
        (HERMES, f"<tool_call>{NOW} then", " then", [CALL_NOW]),
        (HERMES, "1 < 2 and <tool> is no <tool_call> at all", "1 < 2 and <tool> is no <tool_call> at all", []),
        (HERMES, "<tool_call>\n{broken}\n</tool_call>", "<tool_call>\n{broken}\n</tool_call>", []),
        (HERMES, '<tool_call>\n{"name": "now"', '<tool_call>\n{"name": "now"', []),
        (HERMES, '<tool_call>\n{"name": "now", "arguments": {"a": 1', "", [("now", '{"a": 1')]),
        (HERMES, '<tool_call>{"arguments": {"a": [1]}, "name": "now"}</tool_call>', "", [("now", '{"a": [1]}')]),
        (HERMES, '<tool_call>{"name": "now", "arguments": "{\\"a\\": 1}"}</tool_call>', "", [("now", '{"a": 1}')]),
        (HERMES, '<tool_call>{"name": "now"}</tool_call>', "", [CALL_NOW]),
        (HERMES, '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', "", [("unknown", "{}")]),
        (HERMES, ROME, ROME, []),
        (MISTRAL, f"[TOOL_CALLS][{ROME}, {NOW}]", "", [CALL_ROME, CALL_NOW]),
        (MISTRAL, f"[{ROME}]", "", [CALL_ROME]),  # the marker is a control token, which text does not have
        (MISTRAL, "[1] is a footnote", "[1] is a footnote", []),
        (LLAMA, LLAMA_ROME, "", [CALL_ROME]),
        (LLAMA, f'{LLAMA_ROME}; {{"name": "now", "parameters": {{}}}}', "", [CALL_ROME, CALL_NOW]),
        (PLAIN, f"\n{ROME}\n{NOW}", "", [CALL_ROME, CALL_NOW]),
        (PLAIN, '{"name": "Ada", "arguments": {}}', '{"name": "Ada", "arguments": {}}', []),
        (PLAIN, '{"a": {"b": 1}} is JSON', '{"a": {"b": 1}} is JSON', []),
        (PLAIN, f"Like {ROME}", f"Like {ROME}", []),
        (PLAIN, "", "", []),
    ],
)
def test_calls_are_found_however_the_text_is_cut(style, text, said, calls):
    assert parse(style, [text]) == parse(style, text) == (said, calls)


PIECES = [
    ROME, NOW, LLAMA_ROME, "<tool_call>", "</tool_call>", "<tool", "_call>", "[TOOL_CALLS]", "[", "]", "{", "}", '"', "\\",
    "\n", " ",
    ", ", ";", "text", '{"name": "now", ', '"arguments": {', "é", "\\q", "\\ud800", '"name": ', "NaN", "1e999",
    "[ARGS]", "[CALL_ID]", "now", "<function=now>", "</function>", "<parameter=a>", "</parameter>", "```", "```json\n",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<|python_tag|>",
    '{"name": "\\q", "arguments": {}}', '{"name": "\\udc00", "arguments": {}}',
    '{"arguments": {"\\ud800": "\\udc00"}, "name": "now"}',
    '{"parameters": {"a": ' + "[" * 1100 + "]" * 1100 + '}, "name": "now"}',
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    style=st.sampled_from([HERMES, MISTRAL, MISTRAL_NAMED, LLAMA, PLAIN, DEEPSEEK]),
    pieces=st.lists(st.sampled_from(PIECES), max_size=12),
    cuts=st.lists(st.integers(0, 300), max_size=8),
)
def test_any_text_and_any_cutting_gives_the_same_calls(style, pieces, cuts):
    text = "".join(pieces)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    found = parse(style, [text[a:b] for a, b in itertools.pairwise(ends)])
    assert found == parse(style, [text])
    json.dumps(found, ensure_ascii=False).encode()  # it can be sent


arguments = st.dictionaries(
    st.text(max_size=5), st.recursive(st.none() | st.integers() | st.text(max_size=8), st.lists), max_size=4
)


# ---- all ways in which models write calls


def in_tags(inner, opening="<tool_call>\n", closing="\n</tool_call>"):
    """A tag for each call."""
    return lambda calls: "\n".join(opening + inner(*call) + closing for call in calls)


def as_object(name, arguments, key="arguments"):
    return json.dumps({"name": name, key: arguments}, ensure_ascii=False)


def as_list(name_and_arguments):
    return json.dumps([{"name": name, "arguments": arguments} for name, arguments in name_and_arguments])


def as_parameters(name, arguments):
    texts = "".join(f"<parameter={key}>\n{written(value)}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{texts}</function>"


def as_arguments(between):
    return lambda name, arguments: name + between + json.dumps(arguments)


def as_pairs(name, arguments):
    return name + "".join(
        f"\n<arg_key>{key}</arg_key>\n<arg_value>{written(value)}</arg_value>" for key, value in arguments.items()
    )


def written(value):
    return value if isinstance(value, str) else json.dumps(value)


def in_deepseek_s(name, arguments):
    return f"function<｜tool▁sep｜>{name}\n```json\n{json.dumps(arguments)}\n```"


DIALECTS = {
    "hermes": in_tags(as_object),
    "hermes, parameters": in_tags(lambda *call: as_object(*call, key="parameters")),
    "hermes, no space": in_tags(as_object, "<tool_call>", "</tool_call>"),
    "list in the tag": lambda calls: f"<tool_call>\n{as_list(calls)}\n</tool_call>",
    "fenced in the tag": in_tags(as_object, "<tool_call>\n```json\n", "\n```\n</tool_call>"),
    "fenced list in the tag": lambda calls: f"<tool_call>\n```json\n{as_list(calls)}\n```\n</tool_call>",
    "fenced": in_tags(as_object, "```json\n", "\n```"),
    "fenced list": lambda calls: f"```\n{as_list(calls)}\n```",
    "XML parameters": in_tags(as_parameters),
    "XML parameters alone": in_tags(as_parameters, "", ""),
    "pairs": in_tags(as_pairs, "<tool_call>", "\n</tool_call>"),
    "function": in_tags(lambda name, arguments: f"<function={name}>{json.dumps(arguments)}</function>", "", ""),
    "function_call": in_tags(as_object, "<function_call>", "</function_call>"),
    "mistral": lambda calls: f"[TOOL_CALLS]{as_list(calls)}",
    "mistral, named": in_tags(as_arguments("[ARGS]"), "[TOOL_CALLS]", ""),
    "mistral, ids": in_tags(
        lambda name, arguments: f"{name}[CALL_ID]a1b2c3d4e[ARGS]{json.dumps(arguments)}", "[TOOL_CALLS]", ""
    ),
    "python tag": lambda calls: "<|python_tag|>" + "; ".join(as_object(*call, key="parameters") for call in calls),
    "granite": lambda calls: f"<|tool_call|>{as_list(calls)}",
    "deepseek": lambda calls: f"<｜tool▁calls▁begin｜>{in_tags(in_deepseek_s, *DEEPSEEK_TAGS)(calls)}<｜tool▁calls▁end｜>",
    "deepseek, cut open": in_tags(in_deepseek_s, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
    "deepseek 3.1": in_tags(as_arguments("<｜tool▁sep｜>"), "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"),
}
DEEPSEEK_TAGS = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SCHEMAS = {name: {"properties": {key: {"type": "string"} for key in ("city", "day")}} for name in NAMES}
STYLES = [HERMES, MISTRAL, MISTRAL_NAMED, LLAMA, PLAIN, DEEPSEEK]

plain_text = st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="<"), min_size=1, max_size=8)
arguments = st.fixed_dictionaries(
    {"city": plain_text.map(lambda text: f"a{text}b")},
    optional={"n": st.integers(-9, 9) | st.booleans() | st.lists(st.integers(), max_size=2), "o": st.just({"k": ["]}"]})},
)
some_calls = st.lists(st.tuples(st.sampled_from(sorted(NAMES)), arguments), min_size=1, max_size=3)


@pytest.mark.thorough(keep=8)
@pytest.mark.parametrize("dialect", DIALECTS)
@settings(deadline=None, max_examples=40)
@given(data=st.data(), style=st.sampled_from(STYLES), calls=some_calls, before=st.sampled_from(["", "I look.", "1 < 2 [x] ` "]))
def test_every_dialect_is_read_whatever_the_template_shows(dialect, data, style, calls, before):
    """A text, then calls: the same calls however they are cut; nothing of their marks is text."""
    text = before + DIALECTS[dialect](calls)
    said, found = parse(style, [text], schemas=SCHEMAS)
    assert (said.strip(), [(name, json.loads(value)) for name, value in found]) == (before.strip(), calls)
    cuts = sorted({0, len(text), *data.draw(st.lists(st.integers(0, len(text)), max_size=6))})
    assert parse(style, [text[a:b] for a, b in itertools.pairwise(cuts)], schemas=SCHEMAS) == (said, found)
    assert parse(style, text, schemas=SCHEMAS, most=1)[1] == found[:1]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_that_is_cut_off_anywhere_gives_the_beginning_of_its_calls(dialect):
    calls = [("get_weather", {"city": "Rome {"}), ("now", {"city": "x"})]
    text = DIALECTS[dialect](calls)
    for end in range(len(text) + 1):
        said, found = parse(HERMES, [text[:end]], schemas=SCHEMAS, only_calls=True)
        assert [name for name, _ in found] == ["get_weather", "now"][: len(found)]
        assert said == ""
        for (_, value), (_, whole) in zip(found, calls, strict=False):
            assert json.dumps(whole).replace(" ", "").startswith(value.replace(" ", "")) or json.loads(value) == whole


@pytest.mark.parametrize(
    "text",
    [
        "Use <tool_call> and </tool_call> around it.", "[TOOL_CALLS] is a token of Mistral's.", "```python\nprint({})\n```",
        '```json\n{"name": "Ada", "arguments": {}}\n```', '```json\n{"city": {"name": "now"}}\n```', "<function=f> is no tool",
        "<｜tool▁call▁begin｜> too", "<|python_tag|>brave.call()", "`` ` ```", "<tool_call>now</tool_call",
        "<tool_call>{</tool_call>", "A <tool_call> is { and }",
        "<tool_call><tool_call>", "<tool_call>\n\n[1, 2]</tool_call>", '<function=unknown>{"a": 1}</function>',
    ],
)  # fmt: skip
@pytest.mark.parametrize("style", STYLES)
def test_marks_that_mark_no_call_are_text(style, text):
    assert parse(style, [text]) == parse(style, text) == (text, [])


def test_a_call_behind_a_mark_that_marks_none_is_found():
    said, found = parse(HERMES, [f"<tool_call> is a tag: <tool_call>{NOW}</tool_call>"])
    assert (said, found) == ("<tool_call> is a tag:", [CALL_NOW])
    assert parse(LLAMA, [f"<tool_call>{NOW}</tool_call>"]) == ("", [CALL_NOW])


def test_marks_that_are_control_tokens_are_never_text():
    controls = frozenset(("<tool_call>", "</tool_call>", "<|python_tag|>"))
    for text, said in [("a</tool_call> b", "a b"), ("<|python_tag|>f.call()", "f.call()"), ("<tool_call>no", "no")]:
        assert parse(HERMES, text, controls=controls) == (said, [])


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "12", "12"), ({"type": "integer"}, "12", 12), ({}, "12", 12), ({}, "Rome", "Rome"),
        ({"type": ["string", "null"]}, "null", "null"), ({"type": "boolean"}, "true", True), ({}, "null", None),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}), ({"type": "number"}, "NaN", "NaN"), (5, "x", "x"),
        ({"type": "string"}, "a\n<b>\n", "a\n<b>\n"),
    ],
)  # fmt: skip
def test_a_parameter_is_what_its_schema_says(schema, text, value):
    whole = f"<tool_call>\n<function=now>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    said, ((name, arguments),) = parse(HERMES, whole, schemas={"now": {"properties": {"a": schema}}})
    assert (said, name, json.loads(arguments)) == ("", "now", {"a": value})


arguments = st.dictionaries(
    st.text(max_size=5), st.recursive(st.none() | st.integers() | st.text(max_size=8), st.lists), max_size=4
)


def in_style(style, calls, **options):
    """``calls`` as a template of ``style`` writes them."""
    texts = [
        f"{name}{style.between}{json.dumps(value, **options)}"
        if style.between
        else json.dumps({"name": name, style.arguments: value}, **options)
        for name, value in calls
    ]
    return style.marker + style.begin + style.separator.join(style.opener + one + style.closer for one in texts) + style.end


@pytest.mark.thorough
@given(
    style=st.sampled_from(STYLES),
    calls=st.lists(st.tuples(st.sampled_from(sorted(NAMES)), arguments), min_size=1, max_size=3),
    ascii=st.booleans(),
)
def test_what_a_model_writes_is_what_a_client_gets(style, calls, ascii):
    said, found = parse(style, in_style(style, calls, ensure_ascii=ascii))
    assert said == ""
    assert [(name, json.loads(value)) for name, value in found] == calls


@pytest.mark.parametrize("style", STYLES)
def test_calls_that_are_cut_off_anywhere_say_nothing(style):
    text = in_style(style, [(name, {"city": "Rome {"}) for name in ("get_weather", "now")])
    for end in range(len(text) + 1):
        said, found = parse(style, [text[:end]], only_calls=True)
        assert said == ""
        assert [name for name, _ in found] == ["get_weather", "now"][: len(found)]


@pytest.mark.thorough(keep=6)
@pytest.mark.parametrize("style", [HERMES, MISTRAL, PLAIN])
@pytest.mark.parametrize("begun", ["", "<tool_call>", "x", NOW, f"<tool_call>{NOW}", f"<tool_call>{NOW}</tool_call>"])
def test_much_white_space_takes_time_in_proportion(style, begun):
    started = time.process_time()
    parse(style, [begun + "\n" * 100_000])
    assert time.process_time() - started < 3.0


@pytest.mark.parametrize("call", ['{"name": "now", "arguments": {"a": "%s"}}', '{"arguments": {"a": "%s"}, "name": "now"}'])
def test_long_arguments_take_time_in_proportion(call):
    started = time.process_time()
    said, found = parse(HERMES, ["<tool_call>" + call % ("x" * 200_000) + "</tool_call>"])
    assert (said, len(found)) == ("", 1)
    assert time.process_time() - started < 3.0


def test_text_and_arguments_are_shown_as_they_come():
    parser = ToolCallParser(HERMES, NAMES)
    assert parser.push("I look. <to") == [Said("I look.")]
    begun, opening = parser.push('ol_call>{"name": "now", "arguments": {"a')
    assert (begun.index, begun.name, opening) == (0, "now", CallArguments(0, '{"a'))
    assert parser.push('": 1}}</tool_') == [CallArguments(0, '": 1}')]
    assert parser.push("call>") == parser.finish() == []


TOOLS = "{% if tools %}{{ tools | tojson }}MARK{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
HISTORY = (
    "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}CALL{% endfor %}{% endfor %}"
)
OBJECT = '{ {{ \'"name": "\' + c.function.name + \'", "KEY": \' + c.function.arguments | tojson }} }'


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", HERMES), (TOOLS.replace("MARK", "<tool_call>"), HERMES),
        (TOOLS.replace("MARK", "[TOOL_CALLS]"), MISTRAL), (TOOLS.replace("MARK", "<|python_tag|>"), LLAMA),
        (TOOLS.replace("MARK", ""), PLAIN), (TOOLS.replace("MARK", "{# <tool_call> #}"), PLAIN),
        (TOOLS.replace("MARK", "{% if false %}[TOOL_CALLS]{% endif %}"), PLAIN),
        ("{# tools [TOOL_CALLS] #}{% for m in messages %}{{ m.content }}{% endfor %}", HERMES),
        (HISTORY.replace("CALL", OBJECT.replace("KEY", "parameters")), LLAMA),
        (HISTORY.replace("CALL", OBJECT.replace("KEY", "arguments")), PLAIN),
        (HISTORY.replace("CALL", "<tool_call>" + OBJECT), HERMES),
        (HISTORY.replace("CALL", "[TOOL_CALLS][" + OBJECT + "]"), MISTRAL),
        (HISTORY.replace("CALL", "[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}"), MISTRAL_NAMED),
        (HISTORY.replace("CALL", "<｜tool▁call▁begin｜>{{ c.function.name }} {{ c.function.arguments | tojson }}"), DEEPSEEK),
    ],
)  # fmt: skip
def test_a_template_shows_its_family_s_format(template, style):
    """What it writes counts, not what its source has in remarks and in code that never runs."""
    assert format_of(ChatTemplate(template).shape) == style
