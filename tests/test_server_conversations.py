"""What answers may contain, from every face: thoughts, stop strings and calls, whole and streamed, and sent back to us."""

import contextlib
import io
import itertools
import json
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_model import Scripted
from serving import client_of, hosted
from test_server_stream import events
from test_talk_templates import ASK, TOOL, made
from test_talk_templates import MARKS as CONTROLS

from edge_llm.cli.main import run
from edge_llm.llm import LLM

# ---- answers, from every face

CALL = '<tool_call>\n{"name": "look", "arguments": {"a": "b"}}\n</tool_call>'
MISTRAL = '[TOOL_CALLS][{"name": "look", "arguments": {"a": "b"}}]'
NAMED = '[TOOL_CALLS]look[ARGS]{"a": "b"}'
XML = "<tool_call>\n<function=look>\n<parameter=a>\nb\n</parameter>\n</function>\n</tool_call>"
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n"
    '```json\n{"a": "b"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
MARKS = (*CONTROLS, "<other>")
CHAT_TOOLS, FLAT = [TOOL], [{"type": "function"} | TOOL["function"]]
CLAUDE = [{"name": "look", "input_schema": TOOL["function"]["parameters"]}]


def from_chat(client, stream, tools, **more):
    """(thought, said, calls) of a chat completion."""
    body = {"messages": ASK, "stream": stream, **({"tools": CHAT_TOOLS} if tools else {}), **more}
    response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    if not stream:
        message = response.json()["choices"][0]["message"]
        calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", [])]
        return message.get("reasoning_content", ""), message["content"] or "", calls
    thought, said, calls = "", "", []
    for chunk in events(response)[:-1]:
        delta = chunk["choices"][0]["delta"]
        thought, said = thought + delta.get("reasoning_content", ""), said + (delta.get("content") or "")
        for call in delta.get("tool_calls", []):
            if "id" in call:
                calls.append((call["function"]["name"], ""))
            calls[call["index"]] = (calls[call["index"]][0], calls[call["index"]][1] + call["function"]["arguments"])
    return thought, said, calls


def from_responses(client, stream, tools, **more):
    body = {"input": ASK, "stream": stream, **({"tools": FLAT} if tools else {}), **more}
    response = client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    output = (events(response)[-1]["response"] if stream else response.json())["output"]
    text = lambda kind: "".join(item["content"][0]["text"] for item in output if item["type"] == kind)  # noqa: E731
    calls = [(item["name"], item["arguments"]) for item in output if item["type"] == "function_call"]
    return text("reasoning"), text("message"), calls


def from_messages(client, stream, tools, **more):
    body = {"messages": ASK, "max_tokens": 2000, "stream": stream, **({"tools": CLAUDE} if tools else {}), **more}
    response = client.post("/v1/messages", json=body)
    assert response.status_code == 200, response.text
    blocks = [] if stream else response.json()["content"]
    for event in events(response) if stream else []:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"] | {"json": ""})
        elif event["type"] == "content_block_delta":
            key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}[event["delta"]["type"]]
            blocks[event["index"]][key] += event["delta"].get("partial_json", event["delta"].get(key))
    whole = [
        block | {"input": json.loads(block["json"])} if stream and block["type"] == "tool_use" else block for block in blocks
    ]
    calls = [(block["name"], json.dumps(block["input"])) for block in whole if block["type"] == "tool_use"]
    text = lambda kind: "".join(block[kind] for block in whole if block["type"] == kind)  # noqa: E731
    return text("thinking"), text("text"), calls


ENDPOINTS = (from_chat, from_responses, from_messages)
ANSWERS = [
    ("<think>\nI look.\n</think>\n\nWell.", "I look.", "Well.", []),
    ("Well.", "", "Well.", []),
    ("Well, <think> is a tag.", "", "Well, <think> is a tag.", []),
    *((f"<think>hm</think>I look.{call}", "hm", "I look.", ["look"]) for call in (CALL, MISTRAL, NAMED, XML, DEEPSEEK)),
    *((call, "", "", ["look"]) for call in (CALL, MISTRAL, NAMED, XML, DEEPSEEK)),
    (f"{CALL}\n{CALL}", "", "", ["look"] * 2),
    ("<other>Well.", "", "Well.", []),
]


@pytest.mark.parametrize("controls", [(), MARKS], ids=["as text", "as control tokens"])
@pytest.mark.parametrize("template", [made(), made(tools="none"), made(calls="none", system="refused")], ids=range(3))
def test_marks_are_read_as_text_and_as_control_tokens_alike(controls, template, monkeypatch):
    """HTTP | all | Thoughts and calls are found where their marks are control tokens, whole and streamed alike."""
    scripted = Scripted(template, controls)
    for face in ("edge_llm.cli.run", "edge_llm.llm"):
        monkeypatch.setattr(f"{face}.load_engine", lambda *_: scripted.engine)
    with client_of(hosted(engine=scripted.engine)) as client:
        for text, thought, said, names in ANSWERS:
            if controls and "is a tag" in text:
                said = said.replace("<think> ", " ")  # there it is no text
            if not controls and text.startswith("<other>"):
                said = text
            scripted.says(text)
            for ask, stream in itertools.product(ENDPOINTS, (False, True)):
                found = ask(client, stream, tools=True)
                assert (found[0], found[1], [name for name, _ in found[2]]) == (thought, said, names), (ask, stream, text)
                assert all(json.loads(arguments) == {"a": "b"} for _, arguments in found[2])
            if not names:
                reply = LLM().reply(ASK)
                assert (reply.thought, reply.said) == (thought, said)
                out = io.StringIO()
                with contextlib.redirect_stdout(out), monkeypatch.context() as patched:
                    patched.setattr(sys, "stdin", None)
                    assert run(["run", "builtin", "Hi", "--json"]) == 0
                found = json.loads(out.getvalue())
                assert (found["reasoning"], found["text"]) == (thought, said)


@pytest.mark.parametrize("controls", [(), MARKS], ids=["as text", "as control tokens"])
@pytest.mark.parametrize("thoughts", ["none", "opened"])
@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ("four", "It is "),
        ("\n\n", "It is four, I say.<other>"),
        ("<think>", "It is four, I say.<other>"),
        ("I say", "It is four, "),
        ("<other>", "It is four, I say."),
        ("say.<other>", "It is four, I "),
        ("</think>", "It is four, I say.<other>"),
    ],
)
def test_stop_strings_end_the_answer_not_the_thought(controls, thoughts, stop, said):
    """HTTP | all | Stop strings begin where the answer begins, and may be control tokens."""
    scripted = Scripted(made(thoughts=thoughts), controls)
    thought = "Step four.\n\nI say four."
    scripted.says(("" if thoughts == "opened" else "<think>\n") + f"{thought}\n</think>\n\nIt is four, I say.<other>")
    said = said.replace("<other>", "") if controls else said
    with client_of(hosted(engine=scripted.engine)) as client:
        for ask, stream in itertools.product(ENDPOINTS, (False, True)):
            field = "stop_sequences" if ask is from_messages else "stop"
            assert ask(client, stream, tools=False, **{field: [stop]}) == (thought, said, []), (ask, stream)


@pytest.mark.parametrize("controls", [(), MARKS], ids=["as text", "as control tokens"])
@pytest.mark.parametrize("call", [CALL, MISTRAL, NAMED, XML, DEEPSEEK])
def test_an_answer_ends_behind_its_only_call(controls, call):
    """HTTP | all | `parallel_tool_calls` false, `disable_parallel_tool_use`: the answer ends behind its first call."""
    scripted = Scripted(made(), controls)
    scripted.says(f"<think>hm {CALL}</think>I look.{call}\n{call} and more, and more" + "." * 500)
    with client_of(hosted(engine=scripted.engine)) as client:
        for ask, stream in itertools.product(ENDPOINTS, (False, True)):
            one = {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}} if ask is from_messages else {}
            one = one or {"parallel_tool_calls": False}
            _, said, calls = ask(client, stream, tools=True, **one)
            assert (said, [(name, json.loads(given)) for name, given in calls]) == ("I look.", [("look", {"a": "b"})]), (
                ask,
                stream,
            )
        body = {"messages": ASK, "tools": CHAT_TOOLS}
        choice = client.post("/v1/chat/completions", json=body | {"parallel_tool_calls": False})
        assert choice.json()["choices"][0]["finish_reason"] == "tool_calls"
        assert choice.json()["usage"]["completion_tokens"] < 350
        assert len(from_chat(client, False, tools=True)[2]) == 2


# ---- what we send, we take back

BROKEN = [
    '{"a": "one\ntwo"}',
    '{"a": 13,}',
    '{"a": "\\ud800"}',
    '{"a": NaN}',
    '{"a": [[[[',
    "{}",
    '{"a": "\\q"}',
    '{"b": {"c": 1}}',
]


@pytest.mark.parametrize(
    "template", [made(), made(arguments="text", calls="by null"), made(arguments="items"), made(calls="none")], ids=range(4)
)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    arguments=st.sampled_from(BROKEN),
    thought=st.sampled_from(["", "<think>hm</think>"]),
    said=st.sampled_from(["", "I look."]),
    most=st.integers(1, 120),
    name=st.sampled_from(["look", "unknown", ""]),
    streamed=st.booleans(),
)
def test_what_we_send_we_take_back(client_and_script, template, arguments, thought, said, most, name, streamed):
    """HTTP | all | Any message of any reply is taken in the next request's history: cut off anywhere, whole and streamed."""
    client, scripted = client_and_script(template)
    scripted.says(f'{thought}{said}<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>')
    body = {"messages": ASK, "tools": CHAT_TOOLS, "max_tokens": most}
    message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "broken"} for call in message.get("tool_calls", [])]
    again = body | {"messages": [*ASK, message, *results, *ASK], "max_tokens": 2}
    response = client.post("/v1/chat/completions", json=again)
    assert response.status_code == 200, (message, response.text)
    assert client.post("/apply-template", json={"messages": again["messages"]}).status_code == 200

    body = {"input": ASK, "tools": FLAT, "max_output_tokens": most, "stream": streamed}
    response = client.post("/v1/responses", json=body)
    output = (events(response)[-1]["response"] if streamed else response.json())["output"]
    results = [
        {"type": "function_call_output", "call_id": item["call_id"], "output": "broken"}
        for item in output
        if item["type"] == "function_call"
    ]
    response = client.post(
        "/v1/responses", json=body | {"input": [*ASK, *output, *results], "stream": False, "max_output_tokens": 2}
    )
    assert response.status_code == 200, (output, response.text)

    body = {"messages": ASK, "tools": CLAUDE, "max_tokens": most}
    content = client.post("/v1/messages", json=body).json()["content"]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "broken"}
        for block in content
        if block["type"] == "tool_use"
    ]
    history = [
        *ASK,
        {"role": "assistant", "content": content},
        {"role": "user", "content": [*results, {"type": "text", "text": "x"}]},
    ]
    response = client.post("/v1/messages", json=body | {"messages": history, "max_tokens": 2})
    assert response.status_code == 200, (content, response.text)
    assert client.post("/v1/messages/count_tokens", json={"messages": history}).status_code == 200


@pytest.fixture(scope="module")
def client_and_script():
    """``client_and_script(template)``: a server of a scripted model, and its script."""
    with contextlib.ExitStack() as stack:
        found = {}

        def make(template):
            if template not in found:
                scripted = Scripted(template)
                found[template] = stack.enter_context(client_of(hosted(engine=scripted.engine))), scripted
            return found[template]

        yield make
