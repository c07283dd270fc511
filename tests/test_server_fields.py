"""Fields beyond OpenAI's own: other servers' names, how a model is to think, and what is accepted without effect."""

import copy
import json
import secrets

import anthropic
import pytest
from langchain_openai import ChatOpenAI
from serving import HandService, client_of, end, hosted
from test_server_stream import events, play

from edge_llm.engine.request import Delta
from edge_llm.server import schemas
from edge_llm.server.schemas import IGNORED_HEADER, MOST_NAMED, ignored_header
from edge_llm.text.chat import ChatTemplate

ASK = [{"role": "user", "content": "Tell me a story"}]
GREEDY = {"model": "builtin", "temperature": 0}
MESSAGES = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
SWITCH = MESSAGES + "{% if enable_thinking is defined %}{{ '<think>' if enable_thinking else '<think></think>' }}{% endif %}"
LEVELS = MESSAGES + "{% if reasoning_effort is defined %}Reasoning: {{ reasoning_effort }}{% endif %}"
ON, OFF = "[user:hi]<think>", "[user:hi]<think></think>"


@pytest.fixture(scope="module")
def switched(engine):
    """A client of a model whose thoughts can be turned on and off."""
    other = copy.copy(engine)
    other.template = ChatTemplate(SWITCH)
    with client_of(hosted(engine=other)) as client:
        yield client


def ignored(response):
    return [name for name in response.headers.get(IGNORED_HEADER, "").split(", ") if name]


def ask(client, **fields):
    body = {"temperature": 0, "ignore_eos": True} | fields
    return client.chat.completions.create(model="builtin", messages=ASK, extra_body=body)


# ---- other names


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"n_predict": 3}, 3), ({"max_new_tokens": 3}, 3), ({"num_predict": 3}, 3), ({"max_output_tokens": 3}, 3),
        ({"max_tokens": 4, "n_predict": 3}, 4), ({"max_completion_tokens": 2, "max_tokens": 4}, 2),
        ({"max_tokens": -1}, None), ({"n_predict": -1}, None),
    ],
)  # fmt: skip
def test_a_token_limit_has_many_names(client, fields, count):
    """openai | chat | `n_predict`, `max_new_tokens` and the like limit the answer; -1 is as many as fit."""
    reply = ask(client, **fields)
    assert reply.choices[0].finish_reason == "length"
    whole = 1024 - reply.usage.prompt_tokens
    assert reply.usage.completion_tokens == (whole if count is None else count)


def test_completions_know_the_names_too(client):
    body = {"ignore_eos": True}
    for fields, count in (({}, 16), ({"n_predict": 3}, 3)):
        reply = client.completions.create(prompt="One", extra_body=body | fields, **GREEDY)
        assert reply.usage.completion_tokens == count


def test_a_penalty_has_two_names(client):
    """openai | chat | `repeat_penalty` is `repetition_penalty`."""
    plain, one, two = (ask(client, max_tokens=30, **more).choices[0].message.content for more in (
        {}, {"repetition_penalty": 1.8}, {"repeat_penalty": 1.8},
    ))  # fmt: skip
    assert one == two != plain


def test_a_repeat_costs_what_dry_says(client):
    """openai | chat | `dry_multiplier`, `dry_base`, `dry_allowed_length`, `dry_sequence_breakers` make repeats dear."""
    always = {"max_tokens": 8, "logit_bias": {"40": 50}}
    dry = {"dry_multiplier": 100, "dry_base": 2, "dry_allowed_length": 2}
    letters = [chr(code) for code in range(33, 97)]
    unit, plain, held, broken = (ask(client, **fields).choices[0].message.content for fields in (
        {**always, "max_tokens": 1}, always, always | dry, always | dry | {"dry_sequence_breakers": letters},
    ))  # fmt: skip
    assert plain == broken == unit * 8
    assert held.startswith(unit * 3) and unit * 4 not in held


def test_a_seed_of_minus_one_is_any(client):
    """openai | chat | `seed` -1 is a random one."""
    texts = {ask(client, max_tokens=30, seed=-1, temperature=2.0).choices[0].message.content for _ in range(3)}
    assert len(texts) > 1


@pytest.mark.parametrize("system", ["Be short.", [{"type": "text", "text": "Be short."}]])
def test_a_system_beside_the_messages_comes_first(switched, system):
    """HTTP | chat | `system` is a message before the others, or the beginning of the first one of the system."""
    prompt = switched.post("/apply-template", json={"messages": ASK, "system": system}).json()["prompt"]
    assert prompt == "[system:Be short.][user:Tell me a story]"
    messages = [{"role": "developer", "content": "Be kind."}, *ASK]
    prompt = switched.post("/apply-template", json={"messages": messages, "system": system}).json()["prompt"]
    assert prompt == "[system:Be short.\n\nBe kind.][user:Tell me a story]"
    usages = [
        switched.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1, **more}).json()["usage"]
        for more in ({}, {"system": system})
    ]
    assert usages[0]["prompt_tokens"] < usages[1]["prompt_tokens"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_usage_in_every_chunk(engine, path):
    """HTTP | chat | `continuous_usage_stats` beside `include_usage`: every chunk has the usage so far."""
    service = HandService()
    told = []
    with client_of(hosted(service, engine)) as client:
        for at, usage in enumerate((True, False), start=1):
            play(service, Delta("a", (1,)), Delta("bc", (2, 3)), end(completion=4), request=at)
            options = {"continuous_usage_stats": True, "include_usage": usage}
            body = {"messages": ASK, "prompt": "x", "stream": True, "stream_options": options}
            told.append(events(client.post(path, json=body))[:-1])
    (*chunks, last), without = told
    assert not any("usage" in chunk for chunk in without)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == last["usage"]["completion_tokens"] == 4
    assert all(chunk["choices"] for chunk in chunks) and not last["choices"]
    assert len({chunk["usage"]["total_tokens"] - chunk["usage"]["completion_tokens"] for chunk in chunks}) == 1


# ---- thinking


def prompt_of(engine, service, number):
    return engine.tokenizer.decode(service.wait_for(number).request.prompt, skip_special=False)


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    ("path", "fields", "prompt", "unheard"),
    [
        ("chat/completions", {}, "[user:hi]", []), ("chat/completions", {"reasoning_effort": "none"}, OFF, []),
        ("chat/completions", {"reasoning_effort": "medium"}, ON, []),
        ("chat/completions", {"reasoning_effort": "high"}, ON, ["reasoning_effort"]),
        ("chat/completions", {"reasoning_effort": "banana"}, "[user:hi]", ["reasoning_effort"]),
        ("chat/completions", {"think": False}, OFF, []), ("chat/completions", {"think": True}, ON, []),
        ("chat/completions", {"enable_thinking": False}, OFF, []),
        ("chat/completions", {"thinking": {"type": "disabled"}}, OFF, []),
        ("chat/completions", {"thinking": {"type": "enabled", "clear_thinking": True}}, ON, ["thinking.clear_thinking"]),
        ("chat/completions", {"reasoning": {"enabled": False}}, OFF, []),
        ("chat/completions", {"reasoning": {"effort": "none", "exclude": True}}, OFF, ["reasoning.exclude"]),
        ("chat/completions", {"reasoning": {"max_tokens": 100}}, ON, []),
        ("chat/completions", {"reasoning_effort": "none", "think": True}, OFF, ["think"]),
        ("chat/completions", {"think": True, "chat_template_kwargs": {"enable_thinking": False}}, OFF, []),
        ("responses", {"reasoning": {"effort": "none"}}, OFF, []),
        ("responses", {"reasoning": {"effort": "medium", "summary": "auto"}}, ON, ["reasoning.summary"]),
        ("messages", {"thinking": {"type": "disabled"}}, OFF, []),
        ("messages", {"thinking": {"type": "adaptive"}}, "[user:hi]", []),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 1024}}, ON, []),
        ("messages", {"output_config": {"effort": "low"}}, ON, []),
        ("messages", {"output_config": {"effort": "high"}}, ON, ["output_config.effort"]),
        ("messages", {"context_management": {"edits": []}}, "[user:hi]", ["context_management"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_turned_on_and_off_in_every_api_s_words(engine, path, fields, prompt, unheard, stream):
    """HTTP | all | `reasoning_effort`, `reasoning`, `thinking`, `think`: told to the template, else named in the header."""
    other = copy.copy(engine)
    other.template = ChatTemplate(SWITCH)
    service = HandService()
    with client_of(hosted(service, other)) as client:
        play(service, Delta("x", (1,)), end())
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9} if path != "responses" else {"input": "hi"}
        response = client.post(f"/v1/{path}", json={"stream": stream, **body, **fields})
    assert response.status_code == 200, response.text
    assert prompt_of(other, service, 1) == prompt
    assert ignored(response) == unheard


@pytest.mark.parametrize(("effort", "level"), [("minimal", "low"), ("low", "low"), ("high", "high"), ("xhigh", "high")])
def test_a_template_with_levels_is_told_the_level(engine, effort, level):
    """openai | chat | `reasoning_effort` reaches a template that knows it."""
    other = copy.copy(engine)
    other.template = ChatTemplate(LEVELS)
    with client_of(hosted(engine=other)) as client:
        response = client.post("/apply-template", json={"messages": ASK, "reasoning_effort": effort})
    assert response.json()["prompt"].endswith(f"Reasoning: {level}")
    assert ignored(response) == []


def test_what_agents_send_is_taken(url, client):
    """openai | all | What agents send by default: effort, summary, verbosity, obfuscation, caching."""
    chat = client.chat.completions.with_raw_response.create(
        messages=ASK, reasoning_effort="high", verbosity="low", prompt_cache_key="k", max_completion_tokens=2, **GREEDY
    )
    assert set(ignored(chat)) == {"verbosity", "reasoning_effort", "prompt_cache_key"}
    assert chat.parse().usage.completion_tokens == 2
    reply = client.responses.with_raw_response.create(
        input="hi", reasoning={"effort": "medium", "summary": "auto"}, text={"verbosity": "low"}, store=False,
        include=["reasoning.encrypted_content"], max_output_tokens=16, parallel_tool_calls=False, **GREEDY,
    )  # fmt: skip
    assert set(ignored(reply)) == {"reasoning", "reasoning.summary", "text.verbosity"}
    assert reply.parse().reasoning.effort == "medium"
    stream = client.responses.create(
        input="hi", stream=True, stream_options={"include_obfuscation": True}, max_output_tokens=16, **GREEDY
    )
    assert list(stream)[-1].type in ("response.completed", "response.incomplete")


def test_langchain_with_efforts(url):
    """LangChain | chat | ChatOpenAI with `reasoning_effort`, and with `reasoning` through responses."""
    shared = {"base_url": f"{url}/v1", "api_key": "x", "model": "builtin", "temperature": 0, "max_retries": 0}
    plain = ChatOpenAI(**shared).invoke("Who are you?").text
    assert plain
    assert ChatOpenAI(**shared, reasoning_effort="low").invoke("Who are you?").text == plain
    assert ChatOpenAI(**shared, reasoning={"effort": "low", "summary": "auto"}).invoke("Who are you?").text == plain


def test_claude_s_client_with_thoughts_and_a_form(url):
    """anthropic | messages | `thinking` and `effort` are taken; `output_config.format` is held to."""
    claude = anthropic.Anthropic(base_url=url, api_key="x", max_retries=0)
    good = {"good": {"type": "boolean"}}
    schema = {"type": "object", "properties": good, "required": ["good"], "additionalProperties": False}
    shared = {"model": "builtin", "messages": ASK, "max_tokens": 60}
    cold = {"temperature": 0}
    thinking = {"type": "enabled", "budget_tokens": 1024}
    reply = claude.messages.with_raw_response.create(thinking=thinking, extra_body=cold, **shared)
    assert ignored(reply) == ["thinking"]
    config = {"format": {"type": "json_schema", "schema": schema}, "effort": "low"}
    text = claude.messages.create(output_config=config, extra_body=cold, **shared).content[0].text
    assert isinstance(json.loads(text)["good"], bool)
    plain = claude.messages.create(extra_body=cold, **shared).content[0].text
    penalized = {"repeat_penalty": 1.8, "seed": -1, "ignore_eos": True}
    assert claude.messages.create(extra_body=cold | penalized, **shared).content[0].text != plain


# ---- the header


def test_the_header_names_what_has_no_effect(client, url):
    """HTTP | all | Accepted without effect: named in `x-edge-llm-ignored`, whole or streamed, on every endpoint."""
    bodies = {
        "/v1/chat/completions": {"messages": ASK, "max_tokens": 1}, "/v1/completions": {"prompt": "x", "max_tokens": 1},
        "/v1/embeddings": {"input": "x"}, "/v1/responses": {"input": "x", "max_output_tokens": 1},
        "/v1/messages": {"messages": ASK, "max_tokens": 1}, "/v1/messages/count_tokens": {"messages": ASK},
        "/tokenize": {"content": "x"}, "/detokenize": {"tokens": [5]}, "/apply-template": {"messages": ASK},
    }  # fmt: skip
    http = client._client
    for path, body in bodies.items():
        for more in ({}, {"stream": True}):
            body |= more if path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages") else {}
            assert ignored(http.post(f"{url}{path}", json=body)) == []
            response = http.post(f"{url}{path}", json=body | {"nobody_knows_this": 1, "user_tier": "5m", "nothing": None})
            assert response.status_code == 200, (path, response.text)
            assert ignored(response) == ["nobody_knows_this", "user_tier"], path


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        (
            "/v1/chat/completions", {"messages": ASK, "max_tokens": 1},
            {"user": "u", "service_tier": "flex", "metadata": {"a": "b"}, "safety_identifier": "s", "cache_prompt": False,
             "prompt_cache_key": "k", "prompt_cache_options": {"mode": "x"}, "prompt_cache_retention": "24h"},
        ),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1}, {"user": "u", "cache_prompt": False}),
        ("/v1/embeddings", {"input": "x"}, {"user": "u"}),
        (
            "/v1/responses", {"input": "x", "max_output_tokens": 1},
            {"user": "u", "service_tier": "flex", "client_metadata": {"a": "b"}, "safety_identifier": "s",
             "prompt_cache_key": "k", "prompt_cache_options": {"mode": "x"}, "prompt_cache_retention": "24h"},
        ),
        (
            "/v1/messages", {"messages": ASK, "max_tokens": 1},
            {"metadata": {"user_id": "u"}, "service_tier": "auto", "cache_control": {"type": "ephemeral"}, "betas": ["b"]},
        ),
    ],
)  # fmt: skip
def test_the_header_names_fields_of_the_api_too(switched, path, body, fields):
    """HTTP | all | What the API has and this server does nothing with (`user`, `service_tier`, ...) is named as well."""
    response = switched.post(path, json=body | fields)
    assert response.status_code == 200, response.text
    assert ignored(response) == list(fields)
    assert ignored(switched.post(path, json=body | dict.fromkeys(fields))) == []


@pytest.mark.parametrize(
    ("names", "value"),
    [
        ([], None), (["a", "b.c"], "a, b.c"), (["a\r\nset-cookie: x=y"], "1 more"), (["é", "a b", "", "a"], "a, 3 more"),
        (["x" * 64], "x" * 64), (["x" * 65], "1 more"),
        ([f"f{n}" for n in range(100)], ", ".join(f"f{n}" for n in range(MOST_NAMED)) + f", {100 - MOST_NAMED} more"),
    ],
)  # fmt: skip
def test_the_header_is_short_and_plain(names, value):
    assert ignored_header(names).get(IGNORED_HEADER) == value


def test_the_log_names_a_field_once_and_only_without_effect(switched, caplog):
    name = f"field_{secrets.token_hex(8)}"
    for _ in range(3):
        body = {"messages": ASK, "max_tokens": 1, "think": True, name: 1}
        assert switched.post("/v1/chat/completions", json=body).status_code == 200
    said = [record.getMessage() for record in caplog.records]
    assert said.count(f"the request field `{name}` has no effect here") == 1
    assert not any("think" in message for message in said)


def test_names_without_effect_are_remembered_briefly(monkeypatch):
    said = set()
    monkeypatch.setattr(schemas, "_said", said)
    for n in range(2 * schemas._MOST_SAID):
        ignored_header([f"{n}" + "x" * 100_000])
    assert sum(map(len, said)) < 1 << 20


def test_a_name_cannot_write_headers(client, url):
    names = ["x\r\nset-cookie: a=b", "\x00", "y\nz", *(f"field{n}" + "x" * 50 for n in range(1000))]
    body = {"prompt": "x", "max_tokens": 1} | dict.fromkeys(names, 1)
    response = client._client.post(f"{url}/v1/completions", json=body)
    assert response.status_code == 200
    assert "set-cookie" not in response.headers
    assert len(response.headers[IGNORED_HEADER]) < 1200
