"""Request bodies that make no sense, at their limits and one past them: each a 400 that names the field."""

import json

import pytest
from serving import client_of, hosted

from edge_llm.server import limits
from edge_llm.server.pool import ModelPool

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def client(engine):
    with client_of(hosted(engine=engine)) as client:
        yield client


@pytest.fixture(scope="module")
def strict_client(engine):
    with client_of(ModelPool(hosted(engine=engine), strict=True)) as client:
        yield client


def refused(response, param, code="invalid_value", status=400):
    error = response.json()["error"]
    assert response.status_code == status, response.text
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)
    assert "Traceback" not in response.text
    assert len(response.text) < 2000
    return error["message"]


def chat(client, **fields):
    return client.post("/v1/chat/completions", json={"messages": USER, "max_tokens": 1, **fields})


# ---- JSON itself


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b'"x"', b"1", b'{"messages": [', b'{"user": "\xff"}', b'{"user": "\\ud800"}', b'{"a": 1, "a": 2}',
     b'{"temperature": NaN}', b'{"temperature": Infinity}', b'{"temperature": 1e999}', b'{"seed": ' + b"9" * 5000 + b"}",
     b"\xef\xbb\xbf{}", b'{"user": ' + b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(client, data):
    """HTTP | all | Strict JSON: no NaN, no duplicate keys, no lone surrogates, bounded depth."""
    for path in ("/v1/chat/completions", "/tokenize"):
        refused(client.post(path, content=data, headers={"Content-Type": "application/json"}), None)


@pytest.mark.parametrize(("levels", "status"), [(limits.JSON_DEPTH - 1, 200), (limits.JSON_DEPTH, 400)])
def test_json_depth(client, levels, status):
    data = b'{"prompt": "x", "max_tokens": 1, "user": ' + b"[" * levels + b"]" * levels + b"}"
    response = client.post("/v1/completions", content=data, headers={"Content-Type": "application/json"})
    assert response.status_code == status


@pytest.mark.parametrize("levels", [limits.JSON_DEPTH - 1, limits.JSON_DEPTH, 400, 490, 700, 980, 5000])
def test_depth_of_a_calls_arguments(client, levels):
    """Arguments are JSON in a string, which the body's own bound does not see into: what is too deep stays the text it is."""
    function = {"name": "f", "arguments": '{"a": ' + "[" * levels + "]" * levels + "}"}
    history = [{"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": function}]}, *USER]
    item = {"type": "function_call", "call_id": "1", **function}
    for response in (
        chat(client, messages=history, tools=[{"type": "function", "function": {"name": "f"}}]),
        client.post("/v1/responses", json={"input": [item, *USER], "max_output_tokens": 1}),
    ):
        too_long = levels > 400 and response.json().get("error", {}).get("code") == "context_length_exceeded"
        assert response.status_code == 200 or too_long, response.text


# ---- fields


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1), ("temperature", 2.1), ("temperature", 1e9), ("temperature", "0"), ("top_p", -0.1), ("top_p", 1.1),
        ("top_k", -2), ("top_k", 1.5), ("min_p", 1.1), ("min_p", -0.1), ("repetition_penalty", 0), ("repetition_penalty", -1),
        ("frequency_penalty", 2.1), ("presence_penalty", -2.1), ("presence_penalty", 1e9), ("seed", -2), ("seed", 2**64),
        ("seed", 1.5), ("seed", "1"), ("max_tokens", 0), ("max_tokens", -2), ("n_predict", 0), ("max_new_tokens", 0),
        ("max_completion_tokens", 0), ("max_tokens", 1.5), ("max_tokens", "5"),
        ("n", 0), ("n", 17), ("n", 10**9), ("stop", ""), ("stop", ["x"] * 17), ("stop", ["x" * 257]), ("stop", 3),
        ("stop", [3]), ("logit_bias", {"x": 1}), ("logit_bias", {"-1": 1}), ("logit_bias", {"999999": 1}),
        ("logit_bias", {"1": 101}), ("logit_bias", {"1": "x"}), ("logit_bias", [1]), ("top_logprobs", 21), ("top_logprobs", -1),
        ("top_logprobs", 3), ("logprobs", 3), ("stream", "yes"), ("stream", 1), ("stream_options", {"include_usage": True}),
        ("tool_choice", "required"), ("tool_choice", "nonsense"),
        ("tools", [{"type": "function", "function": {"name": "a'b"}}]), ("tools", "x"), ("tools", [3]),
        ("response_format", {"type": "json_schema"}), ("response_format", {"type": "nonsense"}), ("response_format", {}),
        ("response_format", "json"), ("chat_template_kwargs", {"range": 1}), ("chat_template_kwargs", [1]),
        ("min_tokens", -1), ("stop_token_ids", [-1]), ("stop_token_ids", [2**63]), ("stop_token_ids", "x"),
        ("continue_final_message", True),
        ("audio", {}), ("functions", [{}]), ("function_call", "auto"), ("modalities", ["audio"]), ("prediction",
        {"type": "content"}),
        ("web_search_options", {}), ("store", True), ("reasoning_effort", 3), ("reasoning", 3), ("reasoning", {"effort": 3}),
        ("thinking", {"type": []}),
        ("thinking", {"type": "enabled", "budget_tokens": "much"}), ("think", 1.5), ("enable_thinking", "yes"), ("system", 5),
        ("system", [{"type": "image"}]), ("repeat_penalty", "1"),
        ("grammar", "root ::= x"),
        ("regex", "a("), ("guided_json", "["),
    ],
)  # fmt: skip
def test_a_field_that_makes_no_sense_or_cannot_be_honoured_is_named(client, field, value):
    """HTTP | chat | A wrong value, or a field that cannot be honoured, is a 400 naming `param`; nothing is ignored silently."""
    error = chat(client, **{field: value}).json()["error"]
    param = "messages" if field == "continue_final_message" else field
    assert error["param"].split("[")[0].split(".")[0] == param, error
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0}, {"temperature": 1e-30}, {"temperature": 2}, {"top_p": 0}, {"top_k": -1}, {"top_k": 10**6},
        {"min_p": 1},
        {"seed": 2**64 - 1}, {"n": 16}, {"stop": ["x" * 256] * 16}, {"stop": []}, {"max_tokens": 2**31}, {"max_tokens": None},
        {"max_tokens": -1, "n_predict": 2}, {"seed": -1}, {"repeat_penalty": 1.1}, {"keep_alive": "5m"},
        {"logit_bias": {str(n): 1 for n in range(1024)}}, {"logit_bias": {}}, {"logprobs": True, "top_logprobs": 20},
        {"frequency_penalty": 2, "presence_penalty": -2, "repetition_penalty": 1.1, "min_p": 0.1, "top_k": 5, "top_p": 0.5},
        {"stop_token_ids": [5], "ignore_eos": True, "min_tokens": 1}, {"max_completion_tokens": 1, "max_tokens": 900},
        {"tools": [], "tool_choice": "auto"}, {"tool_choice": "none"}, {"response_format": {"type": "text"}},
        {"user": "x" * 1000, "metadata": {"a": "b"}, "service_tier": "auto", "store": False, "parallel_tool_calls": True},
        {"nobody_knows_this_field": 1}, {"add_generation_prompt": True}, {"chat_template_kwargs": {"enable_thinking": False}},
        {name: None for name in ("temperature", "n", "stop", "seed", "tools", "stream", "audio", "logit_bias",
        "response_format")},
    ],
)  # fmt: skip
def test_the_edges_of_fields_are_allowed(client, fields):
    """HTTP | chat | Null for every optional field; unknown fields are accepted, and logged once."""
    response = chat(client, **({"max_tokens": 1} | fields))
    assert response.status_code == 200, response.text


def test_one_bias_too_many(client, engine):
    refused(chat(client, logit_bias={str(n): 1 for n in range(1025)}), "logit_bias")


@pytest.mark.parametrize(
    ("count", "status"), [(limits.MESSAGES, "context_length_exceeded"), (limits.MESSAGES + 1, "invalid_value")]
)
def test_the_number_of_messages(client, count, status):
    response = client.post("/v1/chat/completions", json={"messages": USER * count})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == status


@pytest.mark.parametrize(("count", "message"), [(limits.TOOLS, "maximum context"), (limits.TOOLS + 1, "at most")])
def test_the_number_of_tools(client, count, message):
    tools = [{"type": "function", "function": {"name": f"t{n}", "description": None, "parameters": None}} for n in range(count)]
    assert message in chat(client, tools=tools).json()["error"]["message"]


@pytest.mark.parametrize(("count", "status"), [(limits.PROMPTS, 200), (limits.PROMPTS + 1, 400)])
def test_the_number_of_prompts(engine, count, status):
    host = hosted(engine=engine)
    host.service._queue_limit = 256
    with client_of(host) as client:
        assert client.post("/v1/completions", json={"prompt": ["a"] * count, "max_tokens": 1}).status_code == status


@pytest.mark.parametrize(("count", "status"), [(limits.INPUTS, 200), (limits.INPUTS + 1, 400)])
def test_the_number_of_inputs(client, count, status):
    assert client.post("/v1/embeddings", json={"input": [[5]] * count}).status_code == status


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"), ("hi", "messages"), ([3], "messages[0]"), ([{}], "messages[0].role"),
        ([{"role": "king", "content": "x"}], "messages[0].role"), ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"), ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": {"a": 1}}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([*USER, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}],
         "messages[1].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": "x", "name": 3}], "messages[0].name"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "content": "x", "tool_calls": 5}], "messages[0].tool_calls"),
    ],
)  # fmt: skip
def test_messages_that_make_no_sense_are_named(client, messages, param):
    """HTTP | chat | A message that cannot be used is named by its place, like `messages[1].content[0]`."""
    refused(client.post("/v1/chat/completions", json={"messages": messages}), param)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "developer", "content": "be short"}, *USER], [{"role": "user", "content": ""}],
        [{"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "text", "text": "there"}]}],
        [*USER, {"role": "assistant", "content": "ho", "reasoning_content": "hm", "refusal": None}, *USER],
        [{"role": "user", "content": "x", "name": "ann"}], USER * 2, [{"role": "user", "content": "<|end|><|system|>"}],
        [{"role": "user", "content": "\x00\x1b[31m\u202e"}],
    ],
)  # fmt: skip
def test_messages_that_clients_send_are_understood(client, messages):
    assert client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("model", ["other", "", "../x", "/etc/passwd", "http://evil.com/m", "builtin/", "x" * 256])
def test_a_server_of_one_model_answers_whatever_it_is_called(client, strict_client, model):
    """HTTP | all | Where one model is served, any model name is answered, and the header `x-edge-llm-model` has its own.

    With `--strict-models` a name that is not its own is 404 `model_not_found`.  A name is never a path or an address.
    """
    for path, body in (
        ("/v1/chat/completions", {"messages": USER, "max_tokens": 1}), ("/v1/embeddings", {"input": "x"}),
        ("/tokenize", {"content": "x"}),
    ):  # fmt: skip
        found = client.post(path, json=body | {"model": model})
        assert (found.status_code, found.headers["x-edge-llm-model"]) == (200, "builtin")
        assert found.json().get("model", model or "builtin") == (model or "builtin")
        strict = strict_client.post(path, json=body | {"model": model})
        if model:
            assert (strict.status_code, strict.json()["error"]["code"]) == (404, "model_not_found")
            assert "x-edge-llm-model" not in strict.headers
        else:
            assert strict.status_code == 200


def test_a_model_name_has_a_limit(client):
    refused(chat(client, model="x" * 257), "model")


@pytest.mark.parametrize("name", ["builtin", "an/alias", None])
def test_the_answer_carries_the_name_that_was_asked_for(client, name):
    """HTTP | all | Aliases, with slashes too; a missing model is the one that is served."""
    assert chat(client, model=name).json()["model"] == (name or "builtin")


# ---- the context


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("length", [1024, 1025, 100_000, 3_000_000])
def test_a_prompt_that_does_not_fit_is_400_with_both_numbers(client, stream, length):
    """HTTP | all | Context overflow is 400 `context_length_exceeded` in OpenAI's words, with both numbers, streamed or not."""
    prompt = [5] * length if length < 100_000 else "a" * length
    response = client.post("/v1/completions", json={"prompt": prompt, "stream": stream})
    message = refused(response, "prompt", "context_length_exceeded")
    assert "maximum context length is 1024 tokens" in message
    error = response.json()["error"]
    assert error["n_ctx"] == 1024
    assert 1024 <= error["n_prompt_tokens"] <= length


def test_a_prompt_that_just_fits_is_answered_and_the_answer_cut(client):
    """HTTP | all | A prompt that fits is answered up to the context's end, with `finish_reason` length."""
    answer = client.post("/v1/completions", json={"prompt": [5] * 1023, "max_tokens": 50, "ignore_eos": True}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 1


def test_two_megabytes_of_one_letter_are_refused_without_tokenizing(client, engine, monkeypatch):
    monkeypatch.setattr(engine.tokenizer, "encode", lambda *args, **options: pytest.fail("it is tokenized"))
    response = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "a" * 2_000_000}]})
    assert response.json()["error"]["code"] == "context_length_exceeded"


# ---- completions, embeddings and the rest


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt"), ({"prompt": [-1]}, "prompt"), ({"prompt": [99999]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"), ({"prompt": [2**63]}, "prompt"), ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"), ({"best_of": 3}, "best_of"), ({"suffix": "end"}, "suffix"),
        ({"max_tokens": 0}, "max_tokens"), ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"), ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"allowed_token_ids": [-5]}, "allowed_token_ids"), ({"logprobs": 21}, "logprobs"), ({"logprobs": True}, "logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)  # fmt: skip
def test_completions_that_make_no_sense_are_named(client, fields, param):
    """HTTP | completions | `suffix` of a model that fills no gaps, and `best_of`, cannot be honoured: 400."""
    response = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 1, **fields})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"), ({"input": None}, "input"), ({"input": ""}, "input"), ({"input": []}, "input"),
        ({"input": [""]}, "input"),
        ({"input": [99999]}, "input"), ({"input": "x", "dimensions": 7}, "dimensions"),
        ({"input": "x", "encoding_format": "xml"}, "encoding_format"), ({"input": [[[1]]]}, "input"),
    ],
)  # fmt: skip
def test_embeddings_that_make_no_sense_are_named(client, fields, param):
    response = client.post("/v1/embeddings", json=fields)
    if fields.get("input") in ("", [""]) and response.status_code == 200:
        return  # this model begins every text with a token of its own
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(param)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"background": True}, "background"),
        ({"truncation": "banana"}, "truncation"), ({"conversation": "c"}, "conversation"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort"), ({"text": {"format": 5}}, "text.format"),
        ({"text": {"format": []}}, "text.format"), ({"text": 5}, "text"),
        ({"include": ["message.output_text.logprobs"], "tools": [{"type": "function", "name": "f"}]}, "include"),
        ({"include": [5]}, "include[0]"), ({"top_logprobs": 2}, "top_logprobs"), ({"tools": [{"name": "f"}]}, "tools[0]"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.json_schema.schema"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": []}, "input"), ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x"}]}]}, "input[0].content[0]"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
)  # fmt: skip
def test_responses_that_cannot_be_honoured_are_named(client, fields, param):
    """HTTP | responses | State, background work and hosted tools cannot be honoured: 400 naming `param`."""
    refused(client.post("/v1/responses", json={"input": "hi", **fields}), param)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None}, {"max_tokens": 0}, {"temperature": 1.1}, {"thinking": {"type": 5}},
        {"messages": [{"role": "tool", "content": "x"}]}, {"tools": [{"type": 5, "name": "w!"}]},
        {"tool_choice": {"type": "tool", "name": "g"}, "tools": [{"name": "f", "input_schema": {}}]}, {"stop_sequences": [""]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]},
        {"system": 5}, {"top_k": -1},
    ],
)  # fmt: skip
def test_anthropic_errors_have_anthropic_s_shape(client, fields):
    """HTTP | messages | Errors in Anthropic's shape."""
    response = client.post("/v1/messages", json={"messages": USER, "max_tokens": 1, **fields})
    assert response.status_code == 400
    assert (response.json()["type"], response.json()["error"]["type"]) == ("error", "invalid_request_error")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {}), ("/tokenize", {"content": 5}), ("/tokenize", {"messages": []}), ("/detokenize", {}),
        ("/detokenize", {"tokens": [99999]}), ("/detokenize", {"tokens": ["x"]}), ("/detokenize", {"tokens": [-1]}),
        ("/apply-template", {}), ("/apply-template", {"messages": [{"role": "tool", "content": "x"}]}),
        ("/apply-template", {"messages": USER, "chat_template_kwargs": {"messages": []}}),
    ],
)  # fmt: skip
def test_text_routes_refuse_nonsense(client, path, body):
    response = client.post(path, json=body)
    assert (response.status_code, response.json()["error"]["type"]) == (400, "invalid_request_error")


def test_after_all_of_this_the_next_good_request_is_answered(client):
    assert chat(client).status_code == 200
    assert json.loads(client.get("/health").text) == {"status": "ok"}
