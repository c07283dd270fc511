"""The clients that people use, unmodified, against a real server with the built-in model."""

import asyncio
import base64
import json
import math
import struct
import threading

import anthropic
import httpx
import openai
import pytest
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from serving import HandService, hosted, serving

from edge_llm.engine.service import BatchingService
from edge_llm.errors import Overloaded
from edge_llm.server.host import ModelHost

pytestmark = pytest.mark.thorough(file=14)

ASK = [{"role": "user", "content": "Who are you?"}]
GREEDY = {"model": "builtin", "temperature": 0}
COLD = {"extra_body": {"temperature": 0}}


@pytest.fixture(scope="module")
def keys():
    return ("sk-test",)


@pytest.fixture(scope="module")
def answer(client):
    return client.chat.completions.create(messages=ASK, **GREEDY).choices[0].message.content


# ---- openai, chat


def test_chat(client):
    """openai | chat | Content, finish reason, usage with details, timings."""
    reply = client.chat.completions.create(messages=ASK, max_completion_tokens=4, **GREEDY)
    choice = reply.choices[0]
    assert (reply.object, reply.model, choice.finish_reason, choice.message.role) == (
        "chat.completion", "builtin", "length", "assistant",
    )  # fmt: skip
    assert choice.message.content
    assert choice.message.tool_calls is None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 4
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0
    assert reply.usage.completion_tokens_details.reasoning_tokens == 0
    assert reply.timings["predicted_n"] == 4


def test_a_streamed_answer_is_the_same_answer(client, answer):
    """openai | chat | A stream gives the text of the whole answer, then the usage."""
    chunks = list(client.chat.completions.create(messages=ASK, stream=True, stream_options={"include_usage": True}, **GREEDY))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == answer
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]][-1] == "stop"
    assert chunks[-1].usage.completion_tokens > 1
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_the_stream_helper(client, answer):
    """openai | chat | `client.chat.completions.stream` accumulates to the whole answer."""
    with client.chat.completions.stream(messages=ASK, **GREEDY) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].message.content == answer
    assert {"chunk", "content.delta", "content.done"} <= kinds


def test_parse_without_a_schema(client, answer):
    """openai | chat | `client.chat.completions.parse` without a schema."""
    assert client.chat.completions.parse(messages=ASK, **GREEDY).choices[0].message.content == answer


def test_async_answers_side_by_side(url, answer):
    """openai | chat | The asynchronous client, eight requests and streams at once."""

    async def one(client, stream):
        reply = await client.chat.completions.create(messages=ASK, stream=stream, **GREEDY)
        if not stream:
            return reply.choices[0].message.content
        return "".join([chunk.choices[0].delta.content or "" async for chunk in reply])

    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="sk-test") as client:
            return await asyncio.gather(*(one(client, bool(n % 2)) for n in range(8)))

    assert asyncio.run(all_of_them()) == [answer] * 8


def test_several_choices(client, answer):
    """openai | chat | `n` choices: the same when greedy, each its own with a seed, and repeatable."""
    greedy = client.chat.completions.create(messages=ASK, n=3, **GREEDY)
    assert [choice.message.content for choice in greedy.choices] == [answer] * 3
    assert [choice.index for choice in greedy.choices] == [0, 1, 2]

    def sample(seed):
        reply = client.chat.completions.create(
            model="builtin",
            messages=[{"role": "user", "content": "Tell me a story"}],
            n=3,
            seed=seed,
            temperature=1.5,
            max_tokens=20,
        )
        return [choice.message.content for choice in reply.choices]

    first = sample(7)
    assert first == sample(7) != sample(8)
    assert len(set(first)) == 3


def test_stop_strings(client, answer):
    """openai | chat | `stop` ends the text before the stop string, with the reason stop."""
    word = answer.split()[3]
    reply = client.chat.completions.create(messages=ASK, stop=[word], **GREEDY)
    assert reply.choices[0].message.content == answer[: answer.index(word)]
    assert reply.choices[0].finish_reason == "stop"


def test_logprobs(client, answer):
    """openai | chat | `logprobs` and `top_logprobs`: tokens, bytes and probabilities that make the text."""
    whole = client.chat.completions.create(messages=ASK, logprobs=True, top_logprobs=3, **GREEDY)
    items = whole.choices[0].logprobs.content
    assert b"".join(bytes(item.bytes) for item in items).decode() == answer
    for item in items:
        assert item.top_logprobs[0].token == item.token  # greedy takes the most likely
        assert [one.logprob for one in item.top_logprobs] == sorted((one.logprob for one in item.top_logprobs), reverse=True)
        assert sum(math.exp(one.logprob) for one in item.top_logprobs) <= 1.0 + 1e-6
    stream = client.chat.completions.create(messages=ASK, logprobs=True, top_logprobs=3, stream=True, **GREEDY)
    streamed = [item for chunk in stream if chunk.choices[0].logprobs for item in chunk.choices[0].logprobs.content]
    assert [(item.token, round(item.logprob, 6)) for item in streamed] == [
        (item.token, round(item.logprob, 6)) for item in items
    ]


def test_logit_bias_and_penalties(client, engine, answer):
    """openai | chat | `logit_bias`, `frequency_penalty`, `presence_penalty` change the tokens as they say."""
    first = engine.tokenizer.encode(answer)[0]
    banned = client.chat.completions.create(messages=ASK, logit_bias={str(first): -100}, **GREEDY)
    assert not banned.choices[0].message.content.startswith(engine.tokenizer.decode([first]))
    loop = {"messages": ASK, "max_tokens": 40, "extra_body": {"ignore_eos": True}, **GREEDY}
    plain = client.chat.completions.create(**loop).choices[0].message.content
    for penalty in ("frequency_penalty", "presence_penalty"):
        assert client.chat.completions.create(**loop, **{penalty: 2.0}).choices[0].message.content != plain


def test_extra_samplers(client, answer):
    """openai | chat | `min_p`, `top_k`, `min_tokens` and `ignore_eos` through extra_body."""

    def ask(**extra):
        return client.chat.completions.create(
            model="builtin", messages=ASK, temperature=1.0, seed=1, max_tokens=60, extra_body=extra
        ).choices[0]

    assert ask(top_k=1).message.content == ask(min_p=1.0).message.content == answer
    assert ask(top_k=1, ignore_eos=True).finish_reason == "length"
    assert ask(top_k=1, min_tokens=60).finish_reason == "length"
    assert len(ask(top_k=1, min_tokens=50).message.content) > len(answer)


@pytest.mark.parametrize("also", [{}, {"add_generation_prompt": False}, {"add_generation_prompt": True}])
def test_continuing_an_answer(client, answer, also):
    """openai | chat | `continue_final_message` goes on with the last message, with or without `add_generation_prompt`."""
    begun = answer[: answer.index(".") + 1]
    messages = [*ASK, {"role": "assistant", "content": begun}]
    reply = client.chat.completions.create(messages=messages, extra_body={"continue_final_message": True} | also, **GREEDY)
    assert begun + reply.choices[0].message.content == answer


def test_what_a_turn_remembers(client, answer):
    """openai | chat | `usage.prompt_tokens_details.cached_tokens` counts what the turn before computed."""
    client.chat.completions.create(messages=ASK, **GREEDY)
    messages = [*ASK, {"role": "assistant", "content": answer}, {"role": "user", "content": "And then?"}]
    usage = client.chat.completions.create(messages=messages, **GREEDY).usage
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


@pytest.mark.parametrize("field", [{"regex": "("}, {"tool_choice": "required"}, {"audio": {}}])
def test_what_cannot_be_honoured_is_a_bad_request(client, field):
    """openai | chat | What cannot be honoured raises BadRequestError with `param`."""
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(messages=ASK, extra_body=field, **GREEDY)
    assert caught.value.param == next(iter(field))


# ---- openai, errors


def test_errors_are_the_client_s_own_classes(client, url):
    """openai | errors | 400, 401, 404 raise BadRequest-, Authentication- and NotFoundError with code and param."""
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(messages=ASK, model="builtin", temperature=9)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("gpt-4o")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError) as stranger:
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).models.list()
    assert stranger.value.code == "invalid_api_key"


@pytest.mark.parametrize("stream", [False, True])
def test_context_overflow(client, stream):
    """openai | errors | A prompt that is too long is BadRequestError `context_length_exceeded`, streamed or not."""
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024 tokens") as caught:
        client.chat.completions.create(messages=[{"role": "user", "content": "word " * 5000}], stream=stream, **GREEDY)
    assert caught.value.code == "context_length_exceeded"


def test_a_full_queue_is_retried(engine):
    """openai | errors | 429 is RateLimitError, retried by the client after Retry-After."""
    service = HandService()
    service.refusal = Overloaded("full")
    host = hosted(service, engine)
    with serving(host) as url, pytest.raises(openai.RateLimitError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0).chat.completions.create(messages=ASK, **GREEDY)


def test_loading_is_503_with_progress(engine):
    """openai | errors | While the model loads: /health is 503 with progress, /v1/models answers, the rest is 503."""
    host = ModelHost(["builtin"])
    go_on = threading.Event()

    def load(progress):
        progress("load", 3, 10)
        go_on.wait(5)
        return engine, BatchingService(engine)

    loading = threading.Thread(target=host.load, args=(load,))
    loading.start()
    with serving(host) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        health = httpx.get(f"{url}/health")
        assert (health.status_code, health.json()["progress"]["fraction"]) == (503, 0.3)
        assert int(health.headers["retry-after"]) >= 1
        assert [model.id for model in client.models.list()] == ["builtin"]
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(messages=ASK, **GREEDY)
        assert (caught.value.status_code, caught.value.code) == (503, "unavailable")
        go_on.set()
        loading.join()
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        assert client.chat.completions.create(messages=ASK, max_tokens=1, **GREEDY).usage.completion_tokens == 1


# ---- openai, the other endpoints


def test_models(client):
    """openai | models | List, and one by an id with a slash; context, parameters, architecture."""
    assert [model.id for model in client.models.list()] == ["builtin", "an/alias"]
    model = client.models.retrieve("an/alias")
    assert (model.object, model.owned_by, model.max_model_len) == ("model", "edge-llm", 1024)
    assert model.meta["n_params"] > 1_000_000
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nobody")


def test_completions_in_all_four_shapes(client, engine):
    """openai | completions | A text, texts, tokens, lists of tokens; `echo`; the default of 16 tokens."""
    text = "Once upon a time"
    tokens = engine.tokenizer.encode(text, add_bos=engine.tokenizer.add_bos)
    shapes = [text, [text, text], tokens, [tokens, tokens]]
    replies = [client.completions.create(prompt=shape, **GREEDY) for shape in shapes]
    assert [len(reply.choices) for reply in replies] == [1, 2, 1, 2]
    assert len({choice.text for reply in replies for choice in reply.choices}) == 1
    assert replies[0].usage.completion_tokens <= 16
    assert replies[1].usage.prompt_tokens == 2 * replies[0].usage.prompt_tokens
    echoed = client.completions.create(prompt=text, echo=True, **GREEDY).choices[0].text
    assert echoed == text + replies[0].choices[0].text


def test_streamed_completions(client):
    """openai | completions | Streams of several prompts and choices, told apart by index."""
    wanted = {"prompt": ["Once upon", "The cat"], "n": 2, "max_tokens": 6, **GREEDY}
    whole = [choice.text for choice in client.completions.create(**wanted).choices]
    texts = [""] * 4
    for chunk in client.completions.create(stream=True, **wanted):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == whole
    assert whole[0] == whole[1] != whole[2] == whole[3]


def test_completion_logprobs(client):
    """openai | completions | Legacy `logprobs`: tokens, offsets and alternatives."""
    choice = client.completions.create(prompt="Once", logprobs=2, max_tokens=5, **GREEDY).choices[0]
    found = choice.logprobs
    assert "".join(found.tokens) == choice.text
    assert [
        choice.text[at : at + len(token)] for at, token in zip(found.text_offset, found.tokens, strict=True)
    ] == found.tokens
    assert [len(top) for top in found.top_logprobs] == [2] * len(found.tokens)
    assert all(
        top[token] == value for top, token, value in zip(found.top_logprobs, found.tokens, found.token_logprobs, strict=True)
    )


def test_embeddings(client, engine, url):
    """openai | embeddings | The client's default (base64), floats, several texts, tokens: unit vectors."""
    texts = ["a dog", "a cat and a mouse"]
    reply = client.embeddings.create(model="builtin", input=texts)
    assert [item.index for item in reply.data] == [0, 1]
    assert [len(item.embedding) for item in reply.data] == [engine.config.hidden_size] * 2
    assert sum(value * value for value in reply.data[0].embedding) == pytest.approx(1.0, abs=1e-5)
    floats = client.embeddings.create(model="builtin", input=texts, encoding_format="float")
    assert floats.data[1].embedding == pytest.approx(reply.data[1].embedding)
    tokens = engine.tokenizer.encode(texts[0], add_bos=engine.tokenizer.add_bos)
    assert client.embeddings.create(model="builtin", input=tokens).data[0].embedding == reply.data[0].embedding
    assert reply.usage.prompt_tokens > len(tokens)
    raw = httpx.post(
        f"{url}/v1/embeddings", json={"input": texts[0], "encoding_format": "base64"}, headers={"x-api-key": "sk-test"}
    ).json()["data"][0]["embedding"]
    values = struct.unpack(f"<{engine.config.hidden_size}f", base64.b64decode(raw))
    assert list(values) == pytest.approx(reply.data[0].embedding)


def test_responses(client, answer):
    """openai | responses | Stateless: text, instructions, items in; output_text and usage out."""
    reply = client.responses.create(input="Who are you?", **GREEDY)
    assert (reply.output_text, reply.status, reply.object) == (answer, "completed", "response")
    assert reply.usage.total_tokens == reply.usage.input_tokens + reply.usage.output_tokens
    items = [{"role": "user", "content": [{"type": "input_text", "text": "Who are you?"}]}]
    assert client.responses.create(input=items, **GREEDY).output_text == answer
    told = client.responses.create(input=items, instructions="Be kind.", **GREEDY)
    assert told.usage.input_tokens > reply.usage.input_tokens
    assert told.instructions == "Be kind."
    cut = client.responses.create(input=items, max_output_tokens=2, **GREEDY)
    assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


def test_streamed_responses(client, answer):
    """openai | responses | The stream's events, in order, numbered, accumulated by `client.responses.stream`."""
    events = list(client.responses.create(input="Who are you?", stream=True, **GREEDY))
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer
    with client.responses.stream(input="Who are you?", **GREEDY) as stream:
        assert stream.get_final_response().output_text == answer


# ---- anthropic


def test_anthropic_messages(claude, answer):
    """anthropic | messages | Text, stop reasons, stop sequences, system, usage."""
    reply = claude.messages.create(model="builtin", max_tokens=200, **COLD, messages=ASK)
    assert (reply.content[0].text, reply.stop_reason, reply.role) == (answer, "end_turn", "assistant")
    cut = claude.messages.create(model="builtin", max_tokens=2, **COLD, messages=ASK)
    assert (cut.stop_reason, cut.usage.output_tokens) == ("max_tokens", 2)
    word = answer.split()[2]
    stopped = claude.messages.create(model="builtin", max_tokens=99, **COLD, messages=ASK, stop_sequences=[word])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", word)
    told = claude.messages.create(model="builtin", max_tokens=2, system=[{"type": "text", "text": "Be kind."}], messages=ASK)
    assert (
        told.usage.input_tokens + told.usage.cache_read_input_tokens
        > cut.usage.input_tokens + cut.usage.cache_read_input_tokens
    )


def test_anthropic_prefill(claude, answer):
    """anthropic | messages | A last message of the assistant is gone on with."""
    begun = answer[: answer.index(".") + 1]
    messages = [*ASK, {"role": "assistant", "content": begun}]
    reply = claude.messages.create(model="builtin", max_tokens=200, **COLD, messages=messages)
    assert begun + reply.content[0].text == answer


def test_anthropic_stream(claude, answer):
    """anthropic | messages | The stream's events, and the helper that accumulates them."""
    with claude.messages.stream(model="builtin", max_tokens=200, **COLD, messages=ASK) as stream:
        assert "".join(stream.text_stream) == answer
        final = stream.get_final_message()
    assert (final.content[0].text, final.stop_reason) == (answer, "end_turn")
    assert final.usage.output_tokens > 1
    kinds = [e.type for e in claude.messages.create(model="builtin", max_tokens=2, **COLD, messages=ASK, stream=True)]
    assert [kind for kind in kinds if kind != "content_block_delta"] == [
        "message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip


def test_responses_tell_log_probabilities(client):
    """openai | responses | `include` of `message.output_text.logprobs`: each token of the text, whole and streamed alike."""
    asked = {
        "model": "builtin", "input": "Tell me a story", "max_output_tokens": 12, "temperature": 0, "top_logprobs": 2,
        "include": ["message.output_text.logprobs", "file_search_call.results"], "store": False,
    }  # fmt: skip
    raw = client.responses.with_raw_response.create(**asked)
    assert raw.headers["x-edge-llm-ignored"] == "include.file_search_call.results"
    part = raw.parse().output[0].content[0]
    assert "".join(one.token for one in part.logprobs) == part.text
    assert all(len(one.top_logprobs) == 2 and one.top_logprobs[0].token == one.token for one in part.logprobs)
    events = list(client.responses.create(**asked, stream=True))
    told = [one for event in events if event.type == "response.output_text.delta" for one in event.logprobs]
    assert [(one.token, one.logprob) for one in told] == [(one.token, one.logprob) for one in part.logprobs]
    assert events[-1].response.output[0].content[0].logprobs == part.logprobs
    assert client.responses.create(**asked | {"include": [], "top_logprobs": 0}).output[0].content[0].logprobs == []


def test_anthropic_usage_is_the_same_at_both_ends_of_a_stream(claude):
    """anthropic | messages | A stream's first event tells the input's tokens as its last does, cached ones apart."""
    told = [{"role": "user", "content": "The boat and the kite went up the hill. " * 20}]
    asked = {"model": "builtin", "max_tokens": 2, "messages": told}
    counted = claude.messages.count_tokens(model="builtin", messages=told).input_tokens
    seen = []
    for _ in range(2):
        events = list(claude.messages.create(**asked, stream=True))
        first = next(event.message.usage for event in events if event.type == "message_start")
        last = next(event.usage for event in events if event.type == "message_delta")
        seen.append((first.input_tokens, first.cache_read_input_tokens))
        assert seen[-1] == (last.input_tokens, last.cache_read_input_tokens) and sum(seen[-1]) == counted
        assert (first.output_tokens, last.output_tokens) == (0, 2)
    assert seen[1][1] > 0


def test_anthropic_count_tokens(claude):
    """anthropic | messages | `count_tokens` is what a request then uses."""
    counted = claude.messages.count_tokens(model="builtin", messages=ASK, system="Be kind.").input_tokens
    usage = claude.messages.create(model="builtin", max_tokens=1, messages=ASK, system="Be kind.").usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_anthropic_errors(claude, url):
    """anthropic | errors | BadRequest-, Authentication- and NotFoundError."""
    with pytest.raises(anthropic.BadRequestError, match="maximum context length"):
        claude.messages.create(model="builtin", max_tokens=5, messages=[{"role": "user", "content": "word " * 5000}])
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("claude-x")
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0).messages.create(
            model="builtin", max_tokens=5, messages=ASK
        )


def test_anthropic_async(url, answer):
    """anthropic | messages | The asynchronous client."""

    async def ask():
        async with anthropic.AsyncAnthropic(base_url=url, api_key="sk-test") as client:
            return await client.messages.create(model="builtin", max_tokens=200, **COLD, messages=ASK)

    assert asyncio.run(ask()).content[0].text == answer


# ---- LangChain


def test_langchain_chat(url, answer):
    """LangChain | chat | ChatOpenAI: invoke, stream with usage, batch."""
    model = ChatOpenAI(base_url=f"{url}/v1", api_key="sk-test", **GREEDY)
    reply = model.invoke("Who are you?")
    assert (reply.content, reply.response_metadata["finish_reason"]) == (answer, "stop")
    assert reply.usage_metadata["total_tokens"] > 0
    chunks = list(model.stream("Who are you?", stream_usage=True))
    assert "".join(chunk.content for chunk in chunks) == answer
    assert sum(chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata) > 0
    assert [one.content for one in model.batch(["Who are you?"] * 3)] == [answer] * 3


def test_langchain_async(url, answer):
    """LangChain | chat | ChatOpenAI: ainvoke and astream."""

    async def ask():
        model = ChatOpenAI(base_url=f"{url}/v1", api_key="sk-test", **GREEDY)
        whole = await model.ainvoke("Who are you?")
        return whole.content, "".join([chunk.content async for chunk in model.astream("Who are you?")])

    assert asyncio.run(ask()) == (answer, answer)


def test_langchain_completions(url):
    """LangChain | completions | OpenAI: invoke."""
    model = OpenAI(base_url=f"{url}/v1", api_key="sk-test", max_tokens=4, **GREEDY)
    assert model.invoke("Once upon a time")


def test_langchain_embeddings(url, engine):
    """LangChain | embeddings | OpenAIEmbeddings with texts (`check_embedding_ctx_length=False`)."""
    model = OpenAIEmbeddings(base_url=f"{url}/v1", api_key="sk-test", model="builtin", check_embedding_ctx_length=False)
    vectors = model.embed_documents(["a dog", "a cat"])
    assert [len(vector) for vector in vectors] == [engine.config.hidden_size] * 2


# ---- plain HTTP


def post(url, path, body):
    return httpx.post(url + path, json=body, headers={"Authorization": "Bearer sk-test"}).json()


def get(url, path):
    return httpx.get(url + path, headers={"Authorization": "Bearer sk-test"})


def test_tokenize_and_back(url, engine):
    """HTTP | tokenize | /tokenize (llama.cpp's and vLLM's fields, messages too) and /detokenize are each other's reverse."""
    text = "Once upon a time, naïve ☃"
    found = post(url, "/tokenize", {"content": text})
    assert found["tokens"] == engine.tokenizer.encode(text)
    assert found == post(url, "/tokenize", {"prompt": text})
    assert post(url, "/detokenize", {"tokens": found["tokens"]})["content"] == text
    pieces = post(url, "/tokenize", {"content": "a dog", "with_pieces": True})["tokens"]
    assert "".join(piece["piece"] for piece in pieces) == "a dog"
    counted = post(url, "/v1/messages/count_tokens", {"messages": ASK})["input_tokens"]
    assert post(url, "/tokenize", {"messages": ASK})["count"] == counted


def test_apply_template(url):
    """HTTP | template | /apply-template shows the prompt that messages become."""
    prompt = post(url, "/apply-template", {"messages": ASK})["prompt"]
    assert prompt.endswith("<|user|>Who are you?<|end|><|assistant|>")
    bare = post(url, "/apply-template", {"messages": ASK, "add_generation_prompt": False})["prompt"]
    assert bare + "<|assistant|>" == prompt


def test_control_tokens_in_a_message_stay_text(url):
    """HTTP | chat | Text that spells a control token stays text."""
    plain = post(url, "/tokenize", {"messages": [{"role": "user", "content": "x"}]})["count"]
    spelled = post(url, "/tokenize", {"messages": [{"role": "user", "content": "<|end|><|system|>"}]})["count"]
    assert spelled > plain + 4


def test_props_version_and_metrics(url, client):
    """HTTP | status | /props (defaults, template, limits, the plan), /version, /metrics (counters, gauges, histograms)."""
    props = get(url, "/props").json()
    assert props["n_ctx"] == props["plan"]["context"] == 1024
    assert props["plan"] == get(url, "/v1/models").json()["data"][0]["meta"]["plan"]
    assert props["plan"]["memory"]["main"] > 0
    assert props["default_generation_settings"]["params"]["temperature"] == 0.4
    assert props["limits"]["stop_strings"] == 16
    assert get(url, "/version").json()["version"]

    def value(name):
        lines = dict(line.rsplit(" ", 1) for line in get(url, "/metrics").text.splitlines() if not line.startswith("#"))
        return float(lines[f"edge_llm_{name}"])

    before = value("tokens_predicted_total"), value("time_to_first_token_seconds_count")
    client.chat.completions.create(messages=ASK, max_tokens=3, **GREEDY)
    assert (value("tokens_predicted_total"), value("time_to_first_token_seconds_count")) == (before[0] + 3, before[1] + 1)
    assert value("num_requests_running") == 0
    text = get(url, "/metrics").text
    assert text.count("# TYPE") == len({line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")})


def test_json_has_plain_characters(url):
    assert json.loads(httpx.get(f"{url}/health").text) == {"status": "ok"}
