"""Answers of a given form over the wire: JSON that fits, calls of tools, and thoughts told apart, in every API's shapes."""

import copy
import json
import re
from typing import Literal

import anthropic
import httpx
import openai
import pytest
from pydantic import BaseModel, Field
from serving import HandService, client_of, end, hosted, serving
from test_server_stream import events, play

from edge_llm.engine.request import Delta
from edge_llm.strict_json import parse_object
from edge_llm.text.chat import ChatTemplate

pytestmark = pytest.mark.thorough(file=12)

ASK = [{"role": "user", "content": "Who are you?"}]
GREEDY = {"model": "builtin", "temperature": 0}
CITY = {
    "type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"], "additionalProperties": False,
}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": CITY}},
    {"type": "function", "function": {"name": "now"}},
]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>'
QWEN = (
    "{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}</tools><tool_call>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
    "{% if opened %}<think>\n{% endif %}{% endif %}"
)


class Verdict(BaseModel):
    good: bool
    kind: Literal["story", "fact"]
    score: int = Field(ge=0, le=10)


@pytest.fixture(scope="module")
def thinker(engine):
    """The model with a template that knows tools and thoughts."""
    other = copy.copy(engine)
    other.template = ChatTemplate(QWEN)
    return other


@pytest.fixture
def service():
    return HandService()


@pytest.fixture
def by_hand(thinker, service):
    """A client of a server whose answers the test writes."""
    with client_of(hosted(service, thinker)) as client:
        yield client


def chat(client, **fields):
    return client.chat.completions.create(messages=ASK, **GREEDY, **fields)


# ---- the form of the answer


def test_parse_gives_the_model_s_own_type(client):
    """openai | chat | `.parse()` with a pydantic model: `response_format` json_schema is held to."""
    reply = client.chat.completions.parse(messages=ASK, response_format=Verdict, **GREEDY)
    assert isinstance(reply.choices[0].message.parsed, Verdict)
    assert reply.choices[0].finish_reason == "stop"


def test_parse_of_a_stream(client):
    """openai | chat | `.stream()` with a pydantic model."""
    with client.chat.completions.stream(messages=ASK, response_format=Verdict, **GREEDY) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Verdict)


def test_responses_parse(client):
    """openai | responses | `.parse()` with a pydantic model: `text.format` json_schema is held to."""
    reply = client.responses.parse(model="builtin", temperature=0, input="Who are you?", text_format=Verdict)
    assert isinstance(reply.output_parsed, Verdict)


def test_tools_with_types(client):
    """openai | chat | `pydantic_function_tool` and `.parse()`: arguments of strict tools as types."""
    tools = [openai.pydantic_function_tool(Verdict)]
    reply = client.chat.completions.parse(
        messages=ASK, tools=tools, tool_choice="required", parallel_tool_calls=False, **GREEDY
    )
    assert isinstance(reply.choices[0].message.tool_calls[0].function.parsed_arguments, Verdict)


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_structured_output(url, method):
    """langchain | chat | `with_structured_output` by json_schema and by a forced call."""
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(base_url=f"{url}/v1", api_key="x", model="builtin", temperature=0, max_retries=0)
    assert isinstance(chat.with_structured_output(Verdict, method=method).invoke("Who are you?"), Verdict)


@pytest.mark.parametrize("seed", range(3))
def test_json_objects(client, seed):
    """openai | chat | `response_format` json_object gives an object, unless the token limit cuts it."""
    reply = client.chat.completions.create(
        model="builtin", messages=ASK, response_format={"type": "json_object"}, seed=seed, temperature=1.5, max_tokens=300
    )
    choice = reply.choices[0]
    assert choice.message.content.startswith("{")
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)


SMALL = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"regex": "[a-c]{3}-[0-9]{2}"}, "[a-c]{3}-[0-9]{2}"), ({"guided_regex": "x{3}"}, "x{3}"),
        ({"choice": ["yes", "no"]}, "yes|no"), ({"guided_choice": ["maybe"]}, "maybe"),
        ({"grammar": 'start: "a" ("b" | "c")'}, "a[bc]"), ({"guided_grammar": 'root ::= "a" "b"'}, "ab"),
        ({"json_schema": SMALL}, r'\{"a":[12]\}'), ({"guided_json": json.dumps(SMALL)}, r'\{"a":[12]\}'),
        ({"structured_outputs": {"regex": "z"}}, "z"), ({"structured_outputs": {"json": SMALL}}, r'\{"a":[12]\}'),
        ({"response_format": {"type": "json_object", "schema": SMALL}}, r'\{"a":[12]\}'),
    ],
)  # fmt: skip
def test_the_extras_of_other_servers(client, fields, pattern):
    """openai | all | `regex`, `choice`, `grammar` (Lark, GBNF), `json_schema`, `guided_*`, `structured_outputs`."""
    assert re.fullmatch(pattern, chat(client, extra_body=fields).choices[0].message.content)
    text = client.completions.create(prompt="Once", max_tokens=60, extra_body=fields, **GREEDY).choices[0].text
    assert re.fullmatch(pattern, text)


def test_several_choices_and_logprobs(client):
    reply = chat(client, extra_body={"choice": ["yes", "no"]}, n=3, logprobs=True, top_logprobs=2)
    for choice in reply.choices:
        assert "".join(item.token for item in choice.logprobs.content) == choice.message.content in ("yes", "no")


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}},
         "response_format", "unsatisfiable"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
         "response_format.json_schema.schema", "missing"),
        ({"regex": "a("}, "regex", "unclosed group"), ({"grammar": "start: foo"}, "grammar", "foo"),
        ({"choice": []}, "choice", "one or more"), ({"choice": [1]}, "choice", "string"),
        ({"guided_json": {"type": "array", "contains": 1}}, "guided_json", "`contains`"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag", "not supported"),
        ({"regex": "a", "choice": ["a"]}, "choice", "cannot be combined"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}], "tool_choice": "required"},
         "tools[0].function.parameters", "unsatisfiable"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}}, "tool_choice", "nobody"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {}}}, "tool_choice", "missing"),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ],
)  # fmt: skip
def test_a_form_that_cannot_be_held_to_is_named(client, fields, param, word):
    """openai | all | An unsupported keyword or a mistake in a grammar is BadRequestError that names it and its field."""
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, extra_body=fields)
    assert caught.value.param.split("[")[0] == param.split("[")[0]
    assert word in caught.value.message


# ---- tools that must be called


def test_a_required_call(client):
    """openai | chat | `tool_choice` required: at least one call, with arguments that fit."""
    choice = chat(client, tools=TOOLS, tool_choice="required").choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    for call in choice.message.tool_calls:
        arguments = json.loads(call.function.arguments)
        wanted = {"get_weather": ({"city": "Rome"}, {"city": "Oslo"}), "now": ({},)}
        assert arguments in wanted[call.function.name]
    assert len({call.id for call in choice.message.tool_calls}) == len(choice.message.tool_calls)


def test_a_named_call(client):
    """openai | chat | `tool_choice` of a function: exactly one call of it."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    message = chat(client, tools=TOOLS, tool_choice=named).choices[0].message
    assert [call.function.name for call in message.tool_calls] == ["get_weather"]


def test_one_call_at_a_time(client):
    """openai | chat | `parallel_tool_calls` false: exactly one call."""
    for seed in range(3):
        reply = client.chat.completions.create(
            model="builtin",
            messages=ASK,
            tools=TOOLS,
            tool_choice="required",
            parallel_tool_calls=False,
            seed=seed,
            temperature=2,
        )
        assert len(reply.choices[0].message.tool_calls) == 1


def test_a_streamed_call_is_the_same_call(client):
    """openai | chat | Streamed calls: name and id first, then pieces of the arguments; `.stream()` puts them together."""
    named = {"type": "function", "function": {"name": "get_weather"}}
    whole = chat(client, tools=TOOLS, tool_choice=named).choices[0].message.tool_calls[0].function
    with client.chat.completions.stream(messages=ASK, tools=TOOLS, tool_choice=named, **GREEDY) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.finish_reason == "tool_calls"
    assert (final.message.tool_calls[0].function.name, final.message.tool_calls[0].function.arguments) == (
        whole.name,
        whole.arguments,
    )


def test_responses_and_messages_force_calls_too(client, claude):
    """openai, anthropic | responses, messages | Forced calls: `function_call` items and `tool_use` blocks."""
    tool = {"type": "function", **TOOLS[0]["function"], "strict": True}
    reply = client.responses.create(model="builtin", temperature=0, input="Hi", tools=[tool], tool_choice="required")
    assert {item.type for item in reply.output} == {"function_call"}
    assert json.loads(reply.output[0].arguments) in ({"city": "Rome"}, {"city": "Oslo"})
    reply = claude.messages.create(
        model="builtin", max_tokens=200, messages=ASK, tools=[{"name": "get_weather", "input_schema": CITY}],
        tool_choice={"type": "tool", "name": "get_weather"},
    )  # fmt: skip
    assert reply.stop_reason == "tool_use"
    assert reply.content[0].input in ({"city": "Rome"}, {"city": "Oslo"})


def test_a_conversation_with_calls_goes_on(client):
    """openai | chat | Calls and their results in the history, for a template that knows no tools as well."""
    calls = [{"id": "1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]
    history = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "noon"},
    ]
    reply = client.chat.completions.create(messages=history, tools=TOOLS, extra_body={"choice": ["It is noon."]}, **GREEDY)
    assert reply.choices[0].message.content == "It is noon."


def test_strict_tools_keep_to_their_schema_when_they_are_called(by_hand, service):
    strict = [{"type": "function", "function": TOOLS[0]["function"] | {"strict": True}}]
    play(service, Delta("ok", (1,)), end())
    by_hand.post("/v1/chat/completions", json={"messages": ASK, "tools": strict})
    assert "arguments_0" in dict(service.streams[0].request.params.grammar.parts)


# ---- calls and thoughts as the model writes them


def test_calls_and_thoughts_in_a_chat_completion(by_hand, service):
    """HTTP | chat | `reasoning_content`, `content` and `tool_calls` in one message; `finish_reason` tool_calls."""
    tokens = tuple(service_tokens(by_hand, f"<think>\nhm\n</think>\n\nI look.\n{CALL}"))
    play(service, Delta(f"<think>\nhm\n</think>\n\nI look.\n{CALL}", tokens), end(completion=len(tokens)))
    reply = by_hand.post("/v1/chat/completions", json={"messages": ASK, "tools": TOOLS}).json()
    message = reply["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "I look.")
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": '{"city": "Rome"}'}
    assert (message["tool_calls"][0]["type"], reply["choices"][0]["finish_reason"]) == ("function", "tool_calls")
    assert 0 < reply["usage"]["completion_tokens_details"]["reasoning_tokens"] < len(tokens)


def service_tokens(client, text):
    return client.post("/tokenize", json={"content": text}).json()["tokens"]


def test_calls_and_thoughts_in_a_chat_stream(by_hand, service):
    """HTTP | chat | Streamed: reasoning_content, then content, then each call's name and arguments."""
    play(service, *[Delta(c, (1,)) for c in f"<think>hm</think>Yes.{CALL}\n{CALL}"], end())
    body = {"messages": ASK, "tools": TOOLS, "stream": True}
    *chunks, _ = events(by_hand.post("/v1/chat/completions", json=body))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "hm"
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
    calls = [call for delta in deltas for call in delta.get("tool_calls", [])]
    begun = [call for call in calls if "id" in call]
    assert [(call["index"], call["function"]) for call in begun] == [
        (at, {"name": "get_weather", "arguments": ""}) for at in (0, 1)
    ]
    for at in (0, 1):
        assert "".join(call["function"]["arguments"] for call in calls if call["index"] == at) == '{"city": "Rome"}'
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_responses_have_items_of_each_kind(by_hand, service):
    """HTTP | responses | Items reasoning, message and function_call, whole and streamed, with their events."""
    text = f"<think>hm</think>Yes.\n{CALL}"
    body = {"input": "hi", "tools": [{"type": "function", **TOOLS[0]["function"]}]}
    play(service, Delta(text, (1,)), end())
    reply = by_hand.post("/v1/responses", json=body).json()
    assert [item["type"] for item in reply["output"]] == ["reasoning", "message", "function_call"]
    assert reply["output"][0]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert (reply["output"][2]["name"], reply["output"][2]["arguments"]) == ("get_weather", '{"city": "Rome"}')
    play(service, *[Delta(c, (1,)) for c in text], end(), request=2)
    found = events(by_hand.post("/v1/responses", json=body | {"stream": True}))
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert [event["type"] for event in found if not event["type"].endswith(".delta")] == [
        "response.created", "response.in_progress",
        "response.output_item.added", "response.content_part.added", "response.reasoning_text.done",
        "response.content_part.done", "response.output_item.done",
        "response.output_item.added", "response.content_part.added", "response.output_text.done",
        "response.content_part.done", "response.output_item.done",
        "response.output_item.added", "response.function_call_arguments.done", "response.output_item.done",
        "response.completed",
    ]  # fmt: skip

    def without_ids(items):
        return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]

    assert without_ids(found[-1]["response"]["output"]) == without_ids(reply["output"])


def test_messages_have_blocks_of_each_kind(thinker, service):
    """anthropic | messages | Blocks thinking, text and tool_use, whole and streamed; `stop_reason` tool_use."""
    text = f"<think>hm</think>Yes.\n{CALL}"
    tools = [{"name": "get_weather", "input_schema": CITY}]
    with serving(hosted(service, thinker)) as url:
        client = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)
        play(service, Delta(text, (1,)), end())
        whole = client.messages.create(model="builtin", max_tokens=9, messages=ASK, tools=tools)
        play(service, *[Delta(c, (1,)) for c in text], end(), request=2)
        with client.messages.stream(model="builtin", max_tokens=9, messages=ASK, tools=tools) as stream:
            streamed = stream.get_final_message()
    for reply in (whole, streamed):
        thought, said, call = reply.content
        assert (thought.thinking, said.text, call.name, call.input) == ("hm", "Yes.", "get_weather", {"city": "Rome"})
        assert reply.stop_reason == "tool_use"


ODD_CALLS = [
    '{"name": "a\\q", "arguments": {"city": 1}}', '{"name": "a\\ud800", "arguments": {"city": 1}}',
    '{"name": "get_weather", "arguments": {"city": "\\udc00"}}', '{"arguments": {"\\ud800": 1}, "name": "get_weather"}',
    '{"name": "get_weather", "arguments": {"city": NaN}}', '{"name": "get_weather", "arguments": {"city": -1e999}}',
    '{"name": "get_weather", "arguments": {"city": %s}}' % ("9" * 5000),
    '{"name": "get_weather", "arguments": {"city": %s}}' % ("[" * 3000 + "]" * 3000),
    '{"arguments": {"city": %s}, "name": "get_weather"}' % ("[" * 3000 + "]" * 3000),
    '{"name": "get_weather", "arguments": "{\\"city\\": \\"\\ud800\\"}"}',
]  # fmt: skip


@pytest.mark.thorough(keep=6)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("call", ODD_CALLS)
def test_no_call_that_a_model_writes_is_the_server_s_fault(by_hand, service, call, stream):
    """HTTP | all | A call of a tool with a name or arguments that are no JSON, or none that can be sent, ends no answer."""
    text = f"Yes.<tool_call>\n{call}\n</tool_call>"
    function = {"name": "get_weather", "parameters": CITY}
    bodies = {
        "/v1/chat/completions": {"messages": ASK, "tools": [{"type": "function", "function": function}]},
        "/v1/responses": {"input": "hi", "tools": [{"type": "function", **function}]},
        "/v1/messages": {"messages": ASK, "max_tokens": 9, "tools": [{"name": "get_weather", "input_schema": CITY}]},
    }
    for at, (path, body) in enumerate(bodies.items()):
        play(service, Delta(text, (1,)), end(), request=at + 1)
        response = by_hand.post(path, json=body | {"stream": stream})
        assert (response.status_code, "internal" in response.text) == (200, False), response.text
        for found in events(response) if stream else [response.json()]:
            assert found == "[DONE]" or parse_object(json.dumps(found).encode(), "answer")


@pytest.mark.parametrize(
    ("arguments", "given"),
    [('{"city": "a\nb"}', {"city": "a\nb"}), ('{"city": "\\ud83d\\ude00"}', {"city": "\U0001f600"}), ('{"city": NaN}', {})],
)
def test_claude_s_arguments_are_an_object(by_hand, service, arguments, given):
    play(service, Delta(f'<tool_call>\n{{"name": "now", "arguments": {arguments}}}\n</tool_call>', (1,)), end())
    body = {"messages": ASK, "max_tokens": 9, "tools": [{"name": "now"}]}
    (block,) = by_hand.post("/v1/messages", json=body).json()["content"]
    assert (block["name"], block["input"]) == ("now", given)


@pytest.mark.parametrize(
    ("variables", "text", "thought", "said"),
    [
        ({}, "<think>a</think>b", "a", "b"), ({"opened": True}, "a</think>b", "a", "b"), ({"opened": True}, "a", "a", ""),
        ({"enable_thinking": False}, "<think>b", None, "<think>b"), ({}, "b", None, "b"),
    ],
)  # fmt: skip
def test_the_prompt_says_where_a_thought_begins(by_hand, service, variables, text, thought, said):
    """HTTP | chat | A template may open the thought itself, or rule it out."""
    play(service, Delta(text, (1,)), end())
    message = by_hand.post("/v1/chat/completions", json={"messages": ASK, "chat_template_kwargs": variables}).json()["choices"][
        0
    ]["message"]
    assert (message.get("reasoning_content"), message["content"]) == (thought, said)


def test_a_model_without_thoughts_or_tools_says_everything(client, engine):
    text = f"<think>x</think>{CALL}"
    message = client.chat.completions.create(messages=ASK, extra_body={"choice": [text]}, **GREEDY).choices[0].message
    assert (message.content, message.tool_calls) == (text, None)


@pytest.mark.parametrize("opened", [False, True])
def test_a_form_begins_behind_the_thought(thinker, opened):
    """HTTP | chat | A model that thinks may think before an answer of a given form."""
    with client_of(hosted(engine=thinker)) as client:
        body = {"messages": ASK, "regex": "[0-9]{3}", "max_tokens": 400, "temperature": 1.0, "seed": 1, "ignore_eos": True}
        bias = {str(token): 30 for token in service_tokens(client, "</think>")}
        fields = body | {"chat_template_kwargs": {"opened": opened}, "logit_bias": bias}
        choice = client.post("/v1/chat/completions", json=fields).json()["choices"][0]
    if choice["finish_reason"] == "stop":
        assert re.fullmatch("[0-9]{3}", choice["message"]["content"])
    else:
        assert choice["message"]["content"] == ""


def chain_of_definitions(count):
    defs = {f"d{at}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{at + 1}"}}} for at in range(count)}
    return {"$ref": "#/$defs/d0", "$defs": defs | {f"d{count}": {"type": "null"}}}


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": chain_of_definitions(940)}}},
        {"json_schema": chain_of_definitions(6000)},
        {"grammar": "".join(f"{f'r{at}' if at else 'start'}: r{at + 1}\n" for at in range(2700)) + 'r2700: "a"'},
        {"grammar": "root ::= r0\n" + "".join(f'r{at} ::= "a" r{at + 1}\n' for at in range(3660)) + 'r3660 ::= "a"'},
        {"regex": r"[a-z]\w\d" * 10_000},
        {"json_schema": {"allOf": [{"type": "string", "pattern": f"a{at}|b"} for at in range(40)]}},
        {"guided_json": '{"items":' * 300 + "{}" + "}" * 300},
    ],
)
def test_no_grammar_ends_the_server(by_hand_of_engine, fields):
    """HTTP | chat | A grammar that takes too much is a 400 that says so; the server goes on."""
    reply = by_hand_of_engine.post("/v1/chat/completions", json={"messages": ASK, "max_tokens": 3, **fields}, timeout=60)
    assert reply.status_code in (200, 400), reply.text[:300]
    if reply.status_code == 400:
        assert re.search("takes more than|too deeply|nests more than", reply.json()["error"]["message"])
    assert by_hand_of_engine.get("/health").status_code == 200


@pytest.fixture(scope="module")
def by_hand_of_engine(engine):
    with client_of(hosted(engine=engine)) as client:
        yield client


def test_sets_and_unknown_formats_are_taken(client):
    """openai | all | `uniqueItems`, `propertyNames` and formats are held to where possible, else taken and named in the log."""
    schema = {
        "type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
                                         "secret": {"type": "string", "format": "password", "maxLength": 3}},
        "required": ["tags", "secret"],
    }  # fmt: skip
    said = json.loads(chat(client, extra_body={"json_schema": schema}).choices[0].message.content)
    assert set(said) == {"tags", "secret"}
    assert len(set(said["tags"])) == len(said["tags"])


PLACES = {
    "type": "object", "required": ["name", "population", "tags"], "additionalProperties": False,
    "properties": {"name": {"type": "string"}, "population": {"type": "integer"},
                   "tags": {"type": "array", "items": {"type": "string"}}},
}  # fmt: skip


@pytest.mark.parametrize("most", [40, 64, 100])
def test_a_form_is_closed_before_the_tokens_run_out(client, most):
    """openai | all | A form is whole where `max_tokens` suffices for its shortest text: strings and lists are closed."""
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": PLACES}}
    for seed in range(3):
        fields = {"response_format": format_, "max_tokens": most, "seed": seed, "temperature": 1.5}
        choice = client.chat.completions.create(model="builtin", messages=ASK, **fields).choices[0]
        assert set(json.loads(choice.message.content)) == set(PLACES["properties"])
        assert choice.finish_reason == "stop"
        with client.chat.completions.create(model="builtin", messages=ASK, stream=True, **fields) as stream:
            assert "".join(one.choices[0].delta.content or "" for one in stream if one.choices) == choice.message.content


def test_schemas_of_other_servers_are_taken(client):
    """openai | all | `oneOf`, `not`, `if`, `contains`, look-around and large integers of JSON schemas are held to."""
    schema = {
        "type": "object", "required": ["id", "kind", "list"],
        "properties": {"id": {"const": 2**53 + 1}, "kind": {"type": "string", "pattern": "^(?!x)[xy]{2}$"},
                       "list": {"type": "array", "items": {"enum": [1, 2]}, "contains": {"const": 2}, "maxItems": 2}},
        "oneOf": [{"required": ["kind"]}, {"required": ["other"]}], "not": {"required": ["other"]},
    }  # fmt: skip
    said = json.loads(chat(client, extra_body={"json_schema": schema}).choices[0].message.content)
    assert (said["id"], said["kind"] in ("yx", "yy"), 2 in said["list"]) == (2**53 + 1, True, True)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("completions", {"prompt": "x"}), ("chat/completions", {"messages": ASK}), ("messages", {"messages": ASK}),
        ("responses", {"input": "x"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "form", [{"response_format": {"type": "json_schema", "json_schema": {"schema": {"const": "ab"}}}}, {"regex": '"ab"'}]
)
def test_every_endpoint_takes_a_form(url, path, asked, form):
    """HTTP | all | `response_format`, `regex`, `grammar` and the like are held to on every endpoint that answers."""
    body = {"max_tokens": 20, "temperature": 0} | asked | form
    reply = httpx.post(f"{url}/v1/{path}", json=body, timeout=60).raise_for_status().json()
    assert '"ab"' in json.dumps(reply).replace('\\"', '"')
    twice = {"response_format": {"type": "json_object"}, "grammar": 'start: "x"'}
    assert httpx.post(f"{url}/v1/{path}", json=body | twice, timeout=60).status_code == 400
