"""Valid bodies of every endpoint, changed here and there: each is answered or refused, and none is the server's fault."""

import copy
import inspect
import json
import logging

import pytest
from agent_histories import AGENTS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import builtin_engine, client_of, hosted

from edge_llm.engine.engine import Engine
from edge_llm.server.app import API, OLLAMA_API, ROUTES
from edge_llm.talk.conversation import conversation_request
from edge_llm.text.chat import ChatTemplate, encode_chat

TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}:{{ t.function.parameters | tojson }}]{% endfor %}"
    "{% for m in messages %}{{ m.role }}={{ m.content }}{{ m.tool_calls | tojson if m.tool_calls }}|{% endfor %}"
    "{% if add_generation_prompt %}assistant={% if enable_thinking is false %}<think></think>{% endif %}{% endif %}"
)
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Says the weather", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
SAMPLING = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "seed": 3, "stop": ["x"], "logit_bias": {"5": 1.5},
    "repetition_penalty": 1.1, "frequency_penalty": 0.1, "presence_penalty": 0.1, "stop_token_ids": [7], "min_tokens": 1,
}  # fmt: skip
CHAT = {
    "model": "builtin", "max_tokens": 2, "n": 2, "logprobs": True, "top_logprobs": 2, "stream": False,
    "messages": [
        {"role": "system", "content": "Be short."}, {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"}, {"role": "user", "content": "And now?"},
    ],
    "tools": [TOOL], "tool_choice": "auto", "parallel_tool_calls": True, "chat_template_kwargs": {"enable_thinking": False},
    "response_format": {"type": "text"}, **SAMPLING,
}  # fmt: skip
LIMITS = {"/v1/chat/completions": "max_tokens", "/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens"}
BODIES = [
    ("/v1/chat/completions", CHAT),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 2, "stream": True,
                              "stream_options": {"include_usage": True}, "reasoning_effort": "low", "verbosity": "low"}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "strict": True, "schema": SCHEMA}}}),
    ("/v1/completions", {"prompt": ["one", "two"], "max_tokens": 2, "logprobs": 1, "echo": False, "n": 1, **SAMPLING}),
    ("/v1/completions", {"prompt": [[5, 6], [7]], "max_tokens": 2, "echo": True, "stream": True}),
    ("/v1/embeddings", {"input": ["one", "two"], "encoding_format": "float", "user": "me"}),
    ("/v1/responses", {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
            {"type": "reasoning", "id": "r", "summary": []},
            {"role": "assistant", "content": "I look.", "tool_calls": [CALL]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Rome"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "rain"},
        ],
        "instructions": "Be short.", "max_output_tokens": 2, "tools": [{"type": "function", **FUNCTION, "strict": True}],
        "tool_choice": "auto", "text": {"format": {"type": "text"}, "verbosity": "low"}, "reasoning": {"effort": "low"},
        "include": ["reasoning.encrypted_content"], "store": False, "metadata": {"a": "b"},
    }),
    ("/v1/messages", {
        "max_tokens": 2, "system": [{"type": "text", "text": "Be short."}], "temperature": 0.5, "top_k": 3,
        "stop_sequences": ["x"], "tools": [{"name": "weather", "input_schema": SCHEMA}], "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "me"},
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Rome"}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "rain"}]},
        ],
    }),
    ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}], "system": "Be short."}),
    ("/v1/responses/input_tokens", {"input": "hi", "instructions": "Be short."}),
    ("/ping", {}),
    ("/v1/models/load", {"model": "builtin"}),
    ("/v1/models/unload", {"model": "builtin"}),
    ("/v1/chat/completions/input_tokens", {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}),
    ("/v1/rerank", {"query": "a cat", "documents": ["a dog", "a tree"], "top_n": 1, "return_documents": True}),
    ("/completion", {"prompt": [5, "two", 6], "n_predict": 2, "n_probs": 2, "logit_bias": [["x", False], [5, 1.5]],
                     "response_fields": ["content", "generation_settings/seed"], "return_tokens": True}),
    ("/completion", {"prompt": ["one", {"prompt_string": "two"}, [7]], "n_predict": 2, "stream": True, "return_progress": True,
                     "cache_prompt": True, "id_slot": 0, "json_schema": SCHEMA}),
    ("/completions", {"prompt": "one", "model": "builtin", "max_tokens": 2}),
    ("/infill", {"input_prefix": "def f(", "input_suffix": "return 1", "input_extra": [{"filename": "x", "text": "y"}]}),
    ("/tokenize", {"content": "one two", "add_special": True, "with_pieces": True}),
    ("/tokenize", {"messages": [{"role": "user", "content": "hi"}], "return_token_strs": True}),
    ("/detokenize", {"tokens": [5, 6, 7]}),
    ("/apply-template", {"messages": CHAT["messages"], "tools": [TOOL], "chat_template_kwargs": {"enable_thinking": True}}),
    ("/api/chat", {
        "model": "builtin:latest", "stream": False, "think": False, "format": "", "keep_alive": "5m", "truncate": True,
        "messages": [
            {"role": "system", "content": "Be short."}, {"role": "user", "content": "Weather?", "images": []},
            {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": [
                {"function": {"index": 0, "name": "weather", "arguments": {"city": "Rome"}}}]},
            {"role": "tool", "tool_name": "weather", "content": "rain"}, {"role": "user", "content": "And now?"},
        ],
        "tools": [TOOL], "logprobs": True, "top_logprobs": 2,
        "options": {"num_predict": 2, "num_ctx": 512, "temperature": 0.5, "top_k": 4, "seed": -3, "stop": ["x"],
                    "repeat_penalty": 1.1, "repeat_last_n": 64, "num_gpu": 1, "mirostat": 0, "tfs_z": 1.0},
    }),
    ("/api/chat", {"messages": [], "keep_alive": 0}),
    ("/api/generate", {"prompt": "hi", "system": "Be short.", "context": [5, 6], "format": SCHEMA, "think": "low",
                       "options": {"num_predict": 3, "temperature": 0}}),
    ("/api/generate", {"prompt": "hi", "raw": True, "stream": False, "suffix": "", "images": [],
                       "options": {"num_predict": 2}}),
    ("/api/embed", {"model": "builtin", "input": ["one", "two"], "truncate": True, "dimensions": 4, "keep_alive": -1}),
    ("/api/embeddings", {"model": "builtin", "prompt": "one", "options": {"num_ctx": 64}}),
    ("/api/show", {"model": "builtin", "verbose": False}),
    ("/api/copy", {"source": "builtin", "destination": "mine"}),
    *((path, body | {LIMITS[path]: 1}) for path, body, _ in (history(4) for history in AGENTS.values())),
]  # fmt: skip
NOT_THIS_MODEL = {"/infill"}
NOT_HERE = {"/api/create", "/api/push", "/api/blobs/{digest:path}", "/api/pull"}
"""What this server does not do, which is a 501, and what asks a hub."""
JUNK = [
    None, True, False, 0, 1, -1, 5, 2**31, 2**63, 2**64, 2**70, -(2**63), 0.5, -1e300,
    "", "x", "auto", "none", "low", "\x00", "é\U0001f600",
    [], {}, [5], [None], [[]], ["x"], [{}], {"a": 1}, {"type": "function"}, {"type": 5}, {"content": None}, {"effort": []},
]  # fmt: skip


@pytest.fixture(scope="module")
def client():
    engine = builtin_engine(context=1024)
    engine.template = ChatTemplate(TEMPLATE)
    with client_of(hosted(engine=engine)) as client:
        yield client


def places(value, way=()):
    """The way to every value inside of ``value``."""
    if way:
        yield way
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        yield from places(inner, (*way, key))


NAMES = [
    *sorted({way[-1] for _, body in BODIES for way in places(body) if isinstance(way[-1], str)}),
    "think", "n_predict", "options", "keep_alive", "images", "name", "tool_name",
    "max_new_tokens", "repeat_penalty", "system", "best_of", "regex", "choice", "ignore_eos", "x\r\ny: z",
]  # fmt: skip
VALUES = JUNK + [copy.deepcopy(value) for _, body in BODIES for value in body.values()]


@st.composite
def mutated(draw):
    """A path, and a body of it with up to three changes: a value replaced, left out or put in."""
    path, valid = draw(st.sampled_from(BODIES))
    body = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, 3))):
        ways = list(places(body))
        if not ways:
            break
        *before, last = draw(st.sampled_from(ways))
        holder = body
        for key in before:
            holder = holder[key]
        change = draw(st.sampled_from(["replace", "replace", "wrap", "leave out", "put in"]))
        if change == "replace":
            holder[last] = copy.deepcopy(draw(st.sampled_from(VALUES)))
        elif change == "wrap":
            holder[last] = draw(st.sampled_from([lambda old: [old], lambda old: {"content": old}, lambda old: [old, old]]))(
                holder[last]
            )
        elif change == "leave out":
            del holder[last]
        elif isinstance(holder, dict):
            holder[draw(st.sampled_from(NAMES))] = copy.deepcopy(draw(st.sampled_from(VALUES)))
        else:
            holder.insert(last, copy.deepcopy(draw(st.sampled_from(VALUES))))
    return path, body


def answered_or_refused(client, path, body):
    response = client.post(path, content=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    assert response.status_code < 500, (path, body, response.text)
    assert "internal_error" not in response.text, (path, body, response.text)
    return response


def test_every_endpoint_has_a_valid_body_here(client):
    posts = {"/v1" + route.path for route in API if "POST" in route.methods}
    own = [route for route in ROUTES if route not in API and "POST" in getattr(route, "methods", ())]
    posts |= {route.path for route in own if not route.param_convertors}
    posts |= {"/api" + route.path for route in OLLAMA_API if "POST" in route.methods} - NOT_HERE
    assert {path for path, _ in BODIES} == posts
    for path, body in BODIES:
        response = client.post(path, json=body)
        assert response.status_code == (400 if path in NOT_THIS_MODEL else 200), (path, response.text)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(mutated())
def test_no_body_is_the_server_s_fault(client, case):
    """HTTP | all | No body on any endpoint gives a 5xx: valid bodies, with values replaced, left out or put in."""
    answered_or_refused(client, *case)


PASSED_ON = (conversation_request, Engine.chat_request, encode_chat, ChatTemplate.render)
PARAMETERS = sorted({name for function in PASSED_ON for name in inspect.signature(function).parameters})


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_template_variable_may_have_any_name(client, name):
    """A variable that is called like a parameter of ours is no parameter."""
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1, "chat_template_kwargs": {name: 1}}
    for path in ("/v1/chat/completions", "/apply-template"):
        answered_or_refused(client, path, body)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "x", "tool_calls": 5}]}, 400),
        ("/v1/chat/completions", {"messages": [{"role": "assistant", "content": "x", "tool_calls": {"a": 1}}]}, 400),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": []}]}, 200),
        ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "x"},
         {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]}]}, 200),
        ("/v1/responses", {"input": [{"role": "assistant", "content": "x", "tool_calls": None},
         {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}], "max_output_tokens": 1}, 200),
        ("/v1/responses", {"input": "x", "text": {"format": 5}}, 400),
        ("/v1/responses", {"input": "x", "text": {"format": ["json_object"]}}, 400),
    ],
)  # fmt: skip
def test_bodies_that_were_the_server_s_fault(client, path, body, status):
    assert answered_or_refused(client, path, body).status_code == status


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.CRITICAL, logger="edge_llm.server")
