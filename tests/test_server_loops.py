"""How a server samples where a request says nothing, and what its clients see of an answer that is in a loop."""

import copy
import typing

import anthropic
import openai
import pytest
from serving import HandService, client_of, end, hosted, serving

from edge_llm.config import GenerationParams
from edge_llm.decoding.defaults import FOR_CLIENTS, generation_defaults
from edge_llm.decoding.loops import LIMITS
from edge_llm.engine.request import Delta

ASK = [{"role": "user", "content": "Tell me a story"}]
LOOP = {"stopped_by": "repetition"}
ENDPOINTS = {
    "/v1/chat/completions": {"messages": ASK},
    "/v1/completions": {"prompt": "Once"},
    "/v1/messages": {"messages": ASK, "max_tokens": 9},
    "/v1/responses": {"input": "Hi"},
}


@pytest.fixture(scope="module")
def looping(engine):
    """Fields of a request under which the model says one word for ever."""
    (token,) = engine.tokenizer.encode(" the")
    return {"logit_bias": {str(token): 100}, "max_tokens": 2 * LIMITS.fewest}


class Kept(HandService):
    """Answers at once, and keeps what was asked."""

    def __init__(self):
        super().__init__()
        self.params = []

    def submit(self, request):
        stream = super().submit(request)
        self.params.append(request.params)
        stream.put(Delta("Hi", (1,)))
        stream.put(end())
        return stream


def asked(engine, raw, **fields):
    """The parameters that each endpoint makes of a request with ``fields``, where the author's config is ``raw``."""
    other = copy.copy(engine)
    found = generation_defaults(raw)
    other.defaults, other.served = found.params, found.served
    kept = Kept()
    with client_of(hosted(kept, other)) as client:
        for path, body in ENDPOINTS.items():
            client.post(path, json=body | fields).raise_for_status()
        props = client.get("/props").json()["default_generation_settings"]["params"]
    return [(one.temperature, one.top_p, one.top_k, one.min_p, one.loop_guard) for one in kept.params], props


def test_a_field_that_is_absent_has_openai_s_value(engine):
    """HTTP | all | A missing `temperature` or `top_p` is 1, as in OpenAI's API, where the model's author names no sampling."""
    found, props = asked(engine, {})
    assert found == [(1.0, 1.0, 0, 0.0, True)] * 4
    assert (props["temperature"], props["top_p"]) == (FOR_CLIENTS.temperature, FOR_CLIENTS.top_p) == (1.0, 1.0)
    assert asked(engine, {}, top_p=0.5)[0] == [(1.0, 0.5, 0, 0.0, True)] * 4
    assert asked(engine, {}, temperature=0)[0] == [(0.0, 1.0, 0, 0.0, True)] * 4


def test_what_the_author_names_goes_before(engine):
    """HTTP | all | The sampling that a model's author names (generation_config) holds where a request says nothing."""
    raw = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95}
    assert asked(engine, raw)[0] == [(0.6, 0.95, 20, 0.0, True)] * 4
    assert asked(engine, raw, temperature=0.2)[0] == [(0.2, 0.95, 20, 0.0, True)] * 4
    assert asked(engine, {"do_sample": False})[0] == [(0.0, 1.0, 0, 0.0, True)] * 4


def test_a_loop_is_a_length_that_says_what_stopped_it(client, looping):
    """openai | chat, completions | An answer in a loop ends: `finish_reason` length, beside it `stopped_by` repetition."""
    reply = client.chat.completions.create(model="builtin", messages=ASK, extra_body=looping)
    (choice,) = reply.choices
    assert (choice.finish_reason, choice.model_extra, reply.usage.completion_tokens) == ("length", LOOP, LIMITS.fewest)
    assert choice.finish_reason in typing.get_args(type(choice).model_fields["finish_reason"].annotation)
    text = client.completions.create(model="builtin", prompt="Once", extra_body=looping)
    assert (text.choices[0].finish_reason, text.choices[0].model_extra["stopped_by"]) == ("length", LOOP["stopped_by"])
    for stream in (
        client.chat.completions.create(model="builtin", messages=ASK, stream=True, extra_body=looping),
        client.completions.create(model="builtin", prompt="Once", stream=True, extra_body=looping),
    ):
        *before, last = [chunk.choices[0] for chunk in stream]
        assert (last.finish_reason, last.model_extra) == ("length", LOOP)
        assert not any(choice.finish_reason or choice.model_extra for choice in before)


def test_each_choice_says_what_ended_it(client, looping):
    """openai | chat | Of several choices, each says for itself whether it was in a loop."""
    body = looping | {"max_tokens": LIMITS.fewest}
    reply = client.chat.completions.create(model="builtin", messages=ASK, n=2, extra_body=body)
    assert [(choice.finish_reason, choice.model_extra) for choice in reply.choices] == [("length", {})] * 2


@pytest.mark.parametrize("off", [{"loop_guard": False}, {"ignore_eos": True}, {"regex": "( the){300}"}])
def test_the_guard_is_off_by_request(client, looping, off):
    """openai | chat | `loop_guard: false` lets an answer say the same for ever; so do `ignore_eos` and a grammar."""
    reply = client.chat.completions.create(model="builtin", messages=ASK, extra_body=looping | off)
    tokens = 300 if "regex" in off else 2 * LIMITS.fewest
    assert reply.usage.completion_tokens == tokens
    assert reply.choices[0].model_extra == {}


def test_the_guard_is_true_or_false(url):
    """HTTP | all | A `loop_guard` that is neither true nor false is a 400 that names it."""
    with client_of(hosted(Kept())) as client:
        for path, body in ENDPOINTS.items():
            refused = client.post(path, json=body | {"loop_guard": "no"})
            assert refused.status_code == 400 and "loop_guard" in refused.text


def test_a_loop_in_anthropic_s_words(engine, looping):
    """anthropic | messages | An answer in a loop ends with `stop_reason` max_tokens, beside it `stopped_by` repetition."""
    with serving(hosted(engine=engine)) as url:
        claude = anthropic.Anthropic(base_url=url, api_key="-")
        options = {"model": "builtin", "messages": ASK, "max_tokens": 400, "extra_body": looping}
        reply = claude.messages.create(**options)
        assert (reply.stop_reason, reply.usage.output_tokens) == ("max_tokens", LIMITS.fewest)
        assert reply.model_extra == LOOP
        (last,) = [one for one in claude.messages.create(stream=True, **options) if one.type == "message_delta"]
        assert (last.delta.stop_reason, last.delta.model_extra) == ("max_tokens", LOOP)
        free = claude.messages.create(**options | {"extra_body": looping | {"loop_guard": False}})
        assert (free.usage.output_tokens, free.model_extra) == (400, {})


def test_a_loop_in_the_words_of_responses(engine, looping):
    """openai | responses | An answer in a loop is incomplete, `max_output_tokens`, and says `stopped_by` repetition."""
    with serving(hosted(engine=engine)) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="-")
        reply = client.responses.create(model="builtin", input="Hi", extra_body=looping)
        assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert (reply.stopped_by, reply.usage.output_tokens) == ("repetition", LIMITS.fewest)
        *_, last = client.responses.create(model="builtin", input="Hi", stream=True, extra_body=looping)
        assert (last.type, last.response.stopped_by) == ("response.incomplete", "repetition")
        whole = client.responses.create(model="builtin", input="Hi", extra_body={"max_output_tokens": 3})
        assert not hasattr(whole, "stopped_by")


def test_a_loop_that_called_a_tool_is_not_complete(engine):
    """HTTP | chat | An answer that called a tool and then looped is cut off, not `tool_calls`."""
    kept = HandService()
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    with client_of(hosted(kept, engine)) as client:
        import threading

        def play():
            stream = kept.wait_for()
            stream.put(Delta('<tool_call>{"name": "look", "arguments": {}}</tool_call>', (1,)))
            stream.put(end("repetition"))

        threading.Thread(target=play, daemon=True).start()
        reply = client.post("/v1/chat/completions", json={"messages": ASK, "tools": [tool]}).json()["choices"][0]
    assert (reply["finish_reason"], reply["stopped_by"]) == ("length", "repetition")


def test_plain_parameters_are_greedy_and_unguarded():
    """What benchmarks ask with."""
    assert GenerationParams() == GenerationParams(temperature=0.0, loop_guard=False)
