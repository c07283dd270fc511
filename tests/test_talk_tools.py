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
    '{"name": "\\q", "arguments": {}}', '{"name": "\\udc00", "arguments": {}}',
    '{"arguments": {"\\ud800": "\\udc00"}, "name": "now"}',
    '{"parameters": {"a": ' + "[" * 1100 + "]" * 1100 + '}, "name": "now"}',
]  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(
    style=st.sampled_from([HERMES, MISTRAL, LLAMA, PLAIN]),
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


@pytest.mark.thorough
@given(
    style=st.sampled_from([HERMES, MISTRAL, LLAMA, PLAIN]),
    calls=st.lists(st.tuples(st.sampled_from(sorted(NAMES)), arguments), min_size=1, max_size=3),
    ascii=st.booleans(),
)
def test_what_a_model_writes_is_what_a_client_gets(style, calls, ascii):
    objects = [json.dumps({"name": name, style.arguments: value}, ensure_ascii=ascii) for name, value in calls]
    text = style.marker + style.begin + style.separator.join(style.opener + one + style.closer for one in objects) + style.end
    said, found = parse(style, text)
    assert said == ""
    assert [(name, json.loads(value)) for name, value in found] == calls


@pytest.mark.parametrize("style", [HERMES, MISTRAL, LLAMA, PLAIN])
def test_calls_that_are_cut_off_anywhere_say_nothing(style):
    objects = [json.dumps({"name": name, style.arguments: {"city": "Rome {"}}) for name in ("get_weather", "now")]
    text = style.marker + style.begin + style.separator.join(style.opener + one + style.closer for one in objects) + style.end
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
OBJECT = "{ {{ '\"name\": \"' + c.function.name + '\", \"KEY\": ' + c.function.arguments | tojson }} }"


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
