"""Conversations with tools in the shapes of all three APIs become the same prompt of a template that takes tools."""

import copy

import httpx
import pytest
from serving import builtin_engine, client_of, hosted
from test_server_stream import events

from edge_llm.text.chat import ChatTemplate

pytestmark = pytest.mark.thorough(file=5)

TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}:{{ t.function.parameters | tojson }}]{% endfor %}"
    "{% for m in messages %}{{ m.role }}={{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}|{% endfor %}"
    "{% if add_generation_prompt %}assistant={% endif %}"
)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Says the weather", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
CHAT = [
    {"role": "user", "content": "Weather in Bern?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]
PROMPT = (
    '[weather:{"type": "object", "properties": {"city": {"type": "string"}}}]user=Weather in Bern?|'
    'assistant=(weather {"city": "Bern"})|tool=rain|assistant='
)


@pytest.fixture(scope="module")
def client():
    engine = builtin_engine()
    engine.template = ChatTemplate(TEMPLATE)
    with client_of(hosted(engine=engine)) as client:
        client.tokens = len(engine.tokenizer.encode(PROMPT))
        yield client


def tokens_of(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    usage = response.json()["usage"]
    return usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)


def test_openai_messages(client):
    """HTTP | chat | Tools (`tool_choice` auto) and replayed calls and results reach the template."""
    shown = client.post("/apply-template", json={"messages": CHAT, "tools": [TOOL]}).json()["prompt"]
    assert shown == PROMPT
    body = {"messages": CHAT, "tools": [TOOL], "tool_choice": "auto", "max_tokens": 1}
    assert tokens_of(client.post("/v1/chat/completions", json=body)) == client.tokens


def test_a_choice_of_none_hides_the_tools(client):
    body = {"messages": CHAT, "tools": [TOOL], "tool_choice": "none", "max_tokens": 1}
    assert tokens_of(client.post("/v1/chat/completions", json=body)) < client.tokens


def test_responses_items(client):
    """HTTP | responses | Function tools, replayed calls, outputs and reasoning items are understood."""
    items = [
        CHAT[0],
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "rain"},
    ]
    tool = {"type": "function", "name": "weather", "description": None, "parameters": SCHEMA, "strict": True}
    body = {"input": items, "tools": [tool], "max_output_tokens": 1}
    assert tokens_of(client.post("/v1/responses", json=body)) == client.tokens


def test_anthropic_blocks(client):
    """HTTP | messages | Tools, `tool_use`, `tool_result` and `thinking` blocks are understood."""
    use = {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "rain"}]}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Bern?"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, use]},
        {"role": "user", "content": [result]},
    ]
    tool = {"name": "weather", "description": "Says the weather", "input_schema": SCHEMA}
    body = {"messages": messages, "tools": [tool], "tool_choice": {"type": "auto"}}
    assert client.post("/v1/messages/count_tokens", json=body).json() == {"input_tokens": client.tokens}
    assert tokens_of(client.post("/v1/messages", json=body | {"max_tokens": 1})) == client.tokens


@pytest.mark.parametrize("arguments", ["", "{}"])
def test_a_call_without_arguments_is_a_call(client, arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [CHAT[0], {"role": "assistant", "content": "", "tool_calls": [call]}, CHAT[2]]
    assert "(weather {})" in client.post("/apply-template", json={"messages": messages}).json()["prompt"]


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"city": "\\ud800"}', '{"city": "\ufffd"}'), ('{"\\udc00": 1}', '{"\ufffd": 1}'),
        ('{"city": "\\ud83d\\ude00"}', '{"city": "\U0001f600"}'), ('{"city": "a\nb"}', '{"city": "a\\nb"}'),
        ('{"city": 1,}', '"{\\"city\\": 1,}"'), ('{"city": "Ro', '"{\\"city\\": \\"Ro"'), ("[1]", '"[1]"'), ("5", '"5"'),
        ("null", "{}"), (None, "{}"), ('""', "{}"), (" ", "{}"), ({"city": 1}, '{"city": 1}'), ([1], '"[1]"'),
    ],
)  # fmt: skip
def test_arguments_that_a_model_wrote_are_taken_back(client, arguments, shown):
    """HTTP | all | A call in the history is taken as a model wrote it: cut off, not JSON, or without arguments."""
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    messages = [CHAT[0], {"role": "assistant", "content": "", "tool_calls": [call]}, CHAT[2]]
    shown_prompt = client.post("/apply-template", json={"messages": messages}).json()["prompt"]
    assert f"(weather {shown})" in shown_prompt
    response = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    assert response.status_code == 200, response.text


def test_words_for_the_template_travel(client):
    body = {"messages": CHAT, "chat_template_kwargs": {"enable_thinking": False}}
    assert client.post("/apply-template", json=body).status_code == 200


@pytest.mark.parametrize("name", ["messages", "tools", "begun", "params", "max_output", "tokenizer", "range"])
def test_a_client_cannot_set_what_the_server_sets(client, name):
    response = client.post("/v1/chat/completions", json={"messages": CHAT, "chat_template_kwargs": {name: 1}})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "chat_template_kwargs")


def test_a_template_that_breaks_on_the_messages_is_the_request_s_mistake(client):
    engine = builtin_engine()
    engine.template = ChatTemplate("{{ messages[0].content.nothing.at.all }}")
    with client_of(hosted(engine=engine)) as other:
        for path in ("/v1/chat/completions", "/apply-template"):
            response = other.post(path, json={"messages": CHAT[:1]})
            assert (response.status_code, response.json()["error"]["param"]) == (400, "messages"), response.text


def test_a_model_without_a_template_stops_where_it_speaks_for_the_user():
    engine = builtin_engine()
    engine.template = ChatTemplate.default()
    with client_of(hosted(engine=engine)) as client:
        shown = client.post("/apply-template", json={"messages": CHAT[:1]}).json()["prompt"]
        assert shown == "user: Weather in Bern?\nassistant:"
        assert client.get("/props").json()["chat_template_is_default"] is True
        assert client.post("/v1/chat/completions", json={"messages": CHAT[:1], "max_tokens": 2}).status_code == 200


FAMILIES = {
    "hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama": "<|python_tag|>", "plain": "", "none": None,
}  # fmt: skip


@pytest.fixture(scope="module", params=FAMILIES)
def family(request):
    """A client of a model with a family's way to write calls."""
    mark = FAMILIES[request.param]
    tools = "" if mark is None else "{% if tools %}" + mark + "{{ tools | tojson }}{% endif %}"
    engine = copy.copy(builtin_engine())
    engine.template = ChatTemplate(tools + "{% for m in messages %}{{ m.role }}={{ m.content }}|{% endfor %}")
    with client_of(hosted(engine=engine)) as client:
        yield client


@pytest.mark.thorough(keep=2)
def test_a_forced_call_that_is_cut_says_nothing(family):
    """HTTP | all | A forced call that the token limit cuts is no text: not its tags, nor its beginning."""
    now = {"type": "function", "function": {"name": "now"}}
    body = {"temperature": 0, "tool_choice": "required", "parallel_tool_calls": False, "tools": [now], "messages": CHAT[:1]}
    for most in range(1, 80):
        choice = family.post("/v1/chat/completions", json=body | {"max_tokens": most}).json()["choices"][0]
        assert not choice["message"]["content"]
        streamed = events(family.post("/v1/chat/completions", json=body | {"max_tokens": most, "stream": True}))
        assert not any(chunk["choices"][0]["delta"].get("content") for chunk in streamed if chunk != "[DONE]")
        if choice["finish_reason"] == "tool_calls":
            assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
            return
    raise AssertionError("no call is that long")


def test_a_forced_call_that_is_cut_says_nothing_in_other_apis(client):
    body = {"temperature": 0, "tool_choice": {"type": "any"}, "tools": [{"name": "now"}], "messages": CHAT[:1]}
    items = {"temperature": 0, "tool_choice": "required", "tools": [{"type": "function", "name": "now"}], "input": "hi"}
    for most in (1, 4, 9, 16):
        blocks = client.post("/v1/messages", json=body | {"max_tokens": most}).json()["content"]
        assert not any(block.get("text") for block in blocks)
        output = client.post("/v1/responses", json=items | {"max_output_tokens": most}).json()["output"]
        assert not any(part["text"] for item in output if item["type"] == "message" for part in item["content"])
