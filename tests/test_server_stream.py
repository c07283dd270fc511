"""Streams as they go over the wire, played by hand: order, keep-alive, errors, and clients that leave."""

import asyncio
import json
import re
import socket
import threading
import time
from concurrent.futures import Future
from functools import partial
from unittest import mock

import httpx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import HandService, client_of, end, hosted, serving

from edge_llm.config import GenerationParams
from edge_llm.engine.delta_stream import calls_on
from edge_llm.engine.request import Delta, PromptProgress, Request
from edge_llm.errors import NumericError, Overloaded
from edge_llm.server import limits
from edge_llm.server.answers import Answers
from edge_llm.server.anthropic import MessagesBody
from edge_llm.server.chat import ChatBody
from edge_llm.server.completions import CompletionBody
from edge_llm.server.journal import Entry
from edge_llm.server.problems import problem_of
from edge_llm.server.replies import event_groups
from edge_llm.server.responses import ResponsesBody
from edge_llm.server.stream import SSE, EventStream

pytestmark = pytest.mark.thorough(file=8)

CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture
def service():
    return HandService()


@pytest.fixture
def client(engine, service):
    with client_of(hosted(service, engine)) as client:
        yield client


def play(service, *items, request=1):
    """Fill the next stream from another thread."""

    def work():
        stream = service.wait_for(request)
        for item in items:
            stream.fail(item) if isinstance(item, Exception) else stream.put(item)

    threading.Thread(target=work, daemon=True).start()


def events(response):
    """The data of a stream's events: JSON, or the text [DONE]; comments as they are."""
    found = []
    for piece in response.text.split("\n\n")[:-1]:
        data = piece.split("data: ", 1)[-1]
        found.append(piece if piece.startswith(":") else data if data == "[DONE]" else json.loads(data))
    return found


def test_a_chat_stream_has_the_documented_order(client, service):
    """HTTP | chat | A stream is role, text, finish reason, usage chunk, [DONE], all with one id."""
    play(service, Delta("Hel", (1,)), Delta("lo", (2,)), end(completion=3))
    response = client.post("/v1/chat/completions", json=CHAT | {"stream_options": {"include_usage": True}})
    assert response.headers["content-type"].startswith("text/event-stream")
    *chunks, done = events(response)
    assert done == "[DONE]"
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    role, *texts, last = [chunk["choices"][0] for chunk in chunks[:-1]]
    assert role["delta"] == {"role": "assistant"}
    assert "".join(text["delta"]["content"] for text in texts) == "Hello"
    assert (last["delta"], last["finish_reason"]) == ({}, "stop")
    assert {choice["finish_reason"] for choice in (role, *texts)} == {None}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 6


def test_deltas_that_nobody_had_time_for_are_sent_together(client, service):
    submit = service.submit

    def filled(request):
        stream = submit(request)
        for item in [*[Delta("ab", (1, 2))] * 500, end(completion=1000)]:
            stream.put(item)
        return stream

    service.submit = filled
    *chunks, _ = events(client.post("/v1/chat/completions", json=CHAT))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "ab" * 500
    assert len(chunks) < 10


def test_without_include_usage_no_chunk_has_a_usage(client, service):
    """HTTP | chat | No usage chunk unless `stream_options.include_usage` asks for it."""
    play(service, Delta("x", (1,)), end())
    assert not any("usage" in chunk for chunk in events(client.post("/v1/chat/completions", json=CHAT)) if chunk != "[DONE]")


def test_silence_is_filled_with_comments(client, service, monkeypatch):
    """HTTP | chat | Comments keep the connection alive while the prompt is read."""
    monkeypatch.setattr(limits, "KEEP_ALIVE_SECONDS", 0.02)
    comments = 0
    with client.stream("POST", "/v1/chat/completions", json=CHAT) as response:
        for line in (lines := response.iter_lines()):
            comments += line.startswith(":")
            if comments == 2:
                break
            assert "content" not in line or '"content":""' in line, "behind the role, before the text"
        service.streams[0].put(Delta("x", (1,)))
        service.streams[0].put(end())
        rest = [line for line in lines if line.startswith("data: ")]
    assert '"content":"x"' in rest[0] and rest[-1] == "data: [DONE]"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
def test_an_error_in_mid_stream_is_told_in_the_stream(client, service, path):
    """HTTP | all | An error after the first bytes is an error event of the endpoint's own shape."""
    play(service, Delta("x", (1,)), NumericError("the logits hold `nan`"))
    bodies = {"/v1/completions": {"prompt": "hi"}, "/v1/responses": {"input": "hi"}}
    body = {"stream": True} | bodies.get(path, {"messages": CHAT["messages"], "max_tokens": 5})
    response = client.post(path, json=body)
    assert response.status_code == 200
    found = [item for item in events(response) if item != "[DONE]"]
    last = found[-1].get("error") or found[-1]["response"]["error"]
    assert "the logits hold `nan`" in last["message"]


def test_an_unexpected_error_tells_nothing_of_the_inside(client, service):
    play(service, ZeroDivisionError("secret detail"))
    response = client.post("/v1/chat/completions", json=CHAT | {"stream": False})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text


@pytest.mark.parametrize("body", [CHAT, CHAT | {"stream": False}, CHAT | {"n": 3}])
def test_a_client_that_leaves_cancels_its_answer(client, service, body):
    """HTTP | chat | A disconnect cancels at once, before the first token too, streamed or not."""
    leave(client, service, body)
    until(lambda: all(stream.cancelled for stream in service.streams))
    assert len(service.streams) == body.get("n", 1)


def leave(client, service, body):
    """Ask, and hang up when all of its answers have begun."""
    count = len(service.streams) + body.get("n", 1)
    with socket.create_connection((client.base_url.host, client.base_url.port)) as connection:
        sent = json.dumps(body).encode()
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(sent)}\r\n\r\n".encode() + sent)
        service.wait_for(count)


def until(holds, saying=lambda: ""):
    """Wait until ``holds``."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, saying()
        time.sleep(0.005)


def test_a_client_that_does_not_read_is_given_up(client, service, monkeypatch):
    """HTTP | chat | A client that stops reading its stream is cut off, and its answer cancelled."""
    monkeypatch.setattr(limits, "READER_SECONDS", 0.2)
    with client.stream("POST", "/v1/chat/completions", json=CHAT):
        stream = service.wait_for()
        end = time.monotonic() + 60
        while not stream.cancelled:
            assert time.monotonic() < end, "the answer goes on for nobody"
            stream.put(Delta("x" * 100_000, (1,)))
            time.sleep(0.002)


def test_a_full_queue_is_429_with_retry_after(client, service):
    """HTTP | all | A full queue is 429 `rate_limit_error` with Retry-After, before any bytes of a stream."""
    service.refusal = Overloaded("`256` requests are waiting already")
    response = client.post("/v1/chat/completions", json=CHAT)
    assert (response.status_code, response.json()["error"]["type"]) == (429, "rate_limit_error")
    assert int(response.headers["retry-after"]) >= 1


def test_choices_that_cannot_all_be_queued_are_all_taken_back(client, service):
    submit = service.submit

    def second_refused(request):
        if service.streams:
            raise Overloaded("full")
        return submit(request)

    service.submit = second_refused
    assert client.post("/v1/chat/completions", json=CHAT | {"n": 2}).status_code == 429
    assert [stream.cancelled for stream in service.streams] == [True]


def test_choices_of_one_request_are_told_apart(client, service):
    """HTTP | chat | `n` choices stream side by side, each with its index and its own end."""
    play(service, Delta("a", (1,)), end("length"), request=1)
    play(service, Delta("b", (1,)), end("stop"), request=2)
    *chunks, _ = events(client.post("/v1/chat/completions", json=CHAT | {"n": 2}))
    texts, reasons = {0: "", 1: ""}, {}
    for chunk in chunks:
        choice = chunk["choices"][0]
        texts[choice["index"]] += choice["delta"].get("content", "")
        reasons[choice["index"]] = choice["finish_reason"] or reasons.get(choice["index"])
    assert (texts, reasons) == ({0: "a", 1: "b"}, {0: "length", 1: "stop"})


def test_every_request_ends_once_in_the_metrics(client, service):
    play(service, end(), request=1)
    client.post("/v1/chat/completions", json=CHAT)
    play(service, NumericError("x"), request=2)
    client.post("/v1/chat/completions", json=CHAT)
    leave(client, service, CHAT)
    wanted = [f'edge_llm_requests_total{{outcome="{outcome}"}} 1' for outcome in ("cancelled", "completed", "failed")]
    told = lambda: client.get("/metrics").text  # noqa: E731
    until(lambda: {*wanted} <= {*told().splitlines()}, told)


def test_rude_clients_leave_nothing_behind(engine):
    """HTTP | chat | Of many requests, a third of them left early, every one ends exactly once, and the rest is whole."""
    host = hosted(engine=engine)
    submitted, submit = [], host.service.submit
    host.service.submit = lambda request: submitted.append(request) or submit(request)
    body = CHAT | {"max_tokens": 200, "ignore_eos": True, "temperature": 0}
    whole = []

    async def ask(client, index):
        if index % 3:
            whole.append((await client.post("/v1/chat/completions", json=body)).text)
            return
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            async for _ in response.aiter_text():
                break

    async def all_of_them(url):
        async with httpx.AsyncClient(base_url=url, timeout=120) as client:
            await asyncio.gather(*(ask(client, index) for index in range(30)))

    with serving(host) as url:
        asyncio.run(all_of_them(url))
        until(lambda: sum(ended(host)) >= len(submitted) and not host.service.running, lambda: ended(host))
        outcomes = ended(host)
    assert len(submitted) == sum(outcomes) == 30
    assert outcomes[2] == 0
    assert len(whole) == 20
    assert all('"finish_reason":"length"' in text and text.endswith("[DONE]\n\n") for text in whole)


def ended(host):
    """Requests that were completed, cancelled, failed."""
    names = ("completed", "cancelled", "failed")
    return [host.metrics.value("requests_total", f'outcome="{name}"') for name in names]


def test_a_shutdown_tells_the_streams_that_it_cuts_short(engine, service):
    """HTTP | chat | A shutdown lets answers end for a while; those it cuts short say so in the stream."""
    found = []
    with serving(hosted(service, engine)) as url:
        reader = threading.Thread(target=lambda: found.append(httpx.post(f"{url}/v1/chat/completions", json=CHAT)))
        reader.start()
        service.wait_for()
        time.sleep(0.05)
    reader.join()
    assert "shutting down" in found[0].text


def test_health_answers_while_requests_run(client, service):
    threads = [
        threading.Thread(target=lambda: client.post("/v1/chat/completions", json=CHAT | {"stream": False})) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    service.wait_for(8)
    assert client.get("/health").status_code == 200
    for stream in service.streams:
        stream.put(end())
    for thread in threads:
        thread.join()


def healthy_during(client, work):
    """The result of ``work`` in a thread, and how often /health answered meanwhile."""
    found, answers = [], 0
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    while thread.is_alive():
        assert client.get("/health").status_code == 200
        answers += 1
    return found[0], answers


def test_long_replies_let_others_through(client, service):
    """HTTP | all | Others are served while a reply of megabytes is written, such as 2,048 embeddings."""
    vectors = np.random.default_rng(0).random((limits.INPUTS, 768), np.float32)
    future = Future()
    future.set_result(vectors)
    service.embed = lambda prompts: future
    with httpx.Client(base_url=client.base_url, timeout=60) as other:
        body = {"input": [[5]] * len(vectors), "encoding_format": "float"}
        response, answers = healthy_during(client, lambda: other.post("/v1/embeddings", json=body))
    assert response.json()["data"][-1]["embedding"] == vectors[-1].tolist()
    assert answers > 5, "it is written piece by piece"


def test_metrics_say_how_full_memory_is():
    """HTTP | status | `/metrics` counts pages of keys and values, kept beginnings, guesses and preemptions."""
    with client_of(hosted()) as client:
        client.post("/v1/completions", json={"prompt": "one two three " * 20, "max_tokens": 4})
        lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[:1] != "#")
    now = {name.removeprefix("edge_llm_"): float(value) for name, value in lines.items()}
    assert 0 < now["kv_pages_free"] < now["kv_pages"]
    assert now["prefix_pages"] >= 2 and now["preemptions"] == 0
    assert now["accepted_tokens_total"] <= now["drafted_tokens_total"]


# -- what comes together goes out together ----------------------------------------------------------------------------

ENDPOINTS = {
    ChatBody: {"messages": [{"role": "user", "content": "hi"}], "n": 2, "stream_options": {"include_usage": True}},
    CompletionBody: {
        "prompt": ["a", "b"], "echo": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    },
    ResponsesBody: {"input": "hi"},
    MessagesBody: {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9},
}  # fmt: skip


class PlayedAnswers:
    """Answers whose looks are a script: lists of what is found, or an error."""

    def __init__(self, looks):
        self.looks = list(looks)
        self.entry = Entry("POST", "/")
        self.progress = PromptProgress(3)

    @property
    def ended(self):
        return not self.looks

    async def look(self):
        found = self.looks.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


def one_by_one(events, looks):
    """Every event of a reply alone, in order: what `event_groups` joins."""
    yield from events.opening()
    for found in looks:
        if isinstance(found, Exception):
            yield from events.failed(problem_of(found))
            return
        for index, delta in found:
            yield from events.grow(index, delta)
        yield from [] if found else [SSE.keep_alive]
    yield from events.closing()


@st.composite
def looks_of(draw, answers):
    """Any script of looks at so many answers, to their ends or to an error."""
    pieces = st.text(st.sampled_from("ab <>/{}\n\u2028é𝄞"), max_size=6)
    script = [
        [(index, Delta(draw(pieces), (1,) * draw(st.integers(0, 3)))) for index in range(answers) if draw(st.booleans())]
        for _ in range(draw(st.integers(0, 5)))
    ]
    last = draw(st.sampled_from(["together", "apart", "error"]))
    ends = [(index, end("length", completion=7)) for index in range(answers)]
    return [*script, *{"together": [ends], "apart": [[one] for one in ends], "error": [NumericError("nan")]}[last]]


@pytest.mark.parametrize("kind", ENDPOINTS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_events_of_a_moment_are_one_write_of_the_same_bytes(engine, kind, data):
    """HTTP | all | Events that are there at a time are written at once, with the bytes that they have one by one."""
    host = hosted(HandService(), engine)
    with mock.patch("secrets.token_hex", lambda length: "0" * 2 * length):
        reply = kind.parse(json.dumps(ENDPOINTS[kind] | {"stream": True}).encode()).reply(host, "builtin")
        looks = data.draw(looks_of(len(reply.requests)))

        async def groups():
            return [text async for text in event_groups(reply.events(), PlayedAnswers(looks))]

        written = asyncio.run(groups())
        expected = "".join(one_by_one(reply.events(), looks))
    assert "".join(written) == expected
    assert len(written) <= 1 + len(looks)


@pytest.mark.parametrize("kind", [ChatBody, CompletionBody])
@given(
    text=st.text(min_size=1).filter(lambda text: not "<think>".startswith(text.strip())),  # it waits: a thought may begin so
    model=st.sampled_from(["builtin", "an/alias"]),
    index=st.integers(0, 1),
)
@settings(max_examples=60, deadline=None)
def test_a_text_is_written_as_the_whole_event_would_be(engine, kind, text, model, index):
    """Whatever the text: quotes, escapes, any script."""
    body = {name: value for name, value in ENDPOINTS[kind].items() if name != "stream_options"}
    reply = kind.parse(json.dumps(body).encode()).reply(hosted(HandService(), engine), model)
    data = reply.chunk(index, {"content": text} if kind is ChatBody else text)
    written = list(reply.events().grow(index, Delta(text, (1,))))
    assert written == [f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"]


@given(steps=st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=12), fails=st.booleans())
@settings(max_examples=60, deadline=None)
def test_looks_find_everything_in_order_however_late(engine, steps, fails):
    """Whatever comes between two looks: no text, token or log-probability is lost, and an error comes behind all of it."""
    service = HandService()
    last = NumericError("nan") if fails else end("length")

    async def looked_at():
        answers = Answers(hosted(service, engine), [Request((1,), GenerationParams())] * 3)
        found, error = {0: [], 1: [], 2: []}, None
        for number, step in enumerate(steps):
            for index in step:
                service.streams[index].put(Delta(f"{number},", (number,), logprobs=(number,)))
            await asyncio.sleep(0)
            for index, delta in await answers.look() if step else ():
                found[index].append(delta)
        for stream in service.streams:
            stream.put(Delta("z", (99,), logprobs=(99,)))
            stream.fail(last) if fails else stream.put(last)
        try:
            while not answers.ended:
                for index, delta in await answers.look():
                    found[index].append(delta)
        except NumericError as raised:
            error = raised
        answers.cancel()
        return found, error

    found, error = asyncio.run(looked_at())
    for index, deltas in found.items():
        tokens = [number for number, step in enumerate(steps) for one in step if one == index] + [99]
        if error is not None and index > 0:  # the first error ends the reply
            tokens = [token for delta in deltas for token in delta.tokens]
        assert [token for delta in deltas for token in delta.tokens] == tokens
        assert [one for delta in deltas for one in delta.logprobs] == tokens
        texts = ["z" if token == 99 else f"{token}," for token in tokens]
        assert "".join(delta.text for delta in deltas) == "".join(texts)
    assert (error is last) is fails


def test_tokens_of_one_step_take_one_write(engine, service):
    """HTTP | all | The tokens that one step gives a stream, and the end behind them, are one write."""
    writes = []

    async def answered_stream():
        reply = ChatBody.parse(json.dumps(CHAT).encode()).reply(hosted(service, engine), "builtin")
        answers = Answers(hosted(service, engine), reply.requests)
        stream = EventStream(event_groups(reply.events(), answers), answers.cancel, {})

        async def send(message):
            writes.append(message.get("body"))
            if len(writes) == 2:  # behind the headers and the role
                for item in (Delta("one", (1,)), Delta(" two", (2,)), Delta(" three", (3,)), end(completion=3)):
                    service.streams[0].put(item)

        await stream({}, asyncio.Event().wait, send)

    asyncio.run(answered_stream())
    _, role, step, nothing = writes
    assert (role.count(b"data: "), nothing) == (1, b"")
    assert step.count(b'"content":"one two three"') == step.count(b'"finish_reason":"stop"') == 1
    assert step.endswith(b"data: [DONE]\n\n")


def test_a_slow_reader_loses_nothing(client, service):
    """HTTP | chat | A client that reads slowly gets every character in order, in fewer and longer events."""
    words = [f"{number} " * 50 for number in range(3000)]
    port, body = client.base_url.port, json.dumps(CHAT).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.connect(("127.0.0.1", port))
        reader.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        stream = service.wait_for()
        for word in words:
            stream.put(Delta(word, (1,)))
        stream.put(end(completion=len(words)))
        received = b""
        while part := reader.recv(2048):
            received += part
    chunks = re.findall(rb'"content":"([^"]*)"', received)
    assert b"".join(chunks).decode() == "".join(words)
    assert len(chunks) < len(words)
    assert received.count(b"[DONE]") == 1


def test_calls_from_many_threads_all_come_and_wake_the_loop_seldom():
    """Of calls that are asked for while the loop is busy, each runs once, and the loop is woken once."""
    wakes, ran = [], []

    async def busy():
        loop = asyncio.get_running_loop()
        calls, call_soon = calls_on(loop), loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *given: (wakes.append(1), call_soon(*given))
        works = [partial(ran.append, number) for number in range(400)]
        threads = [threading.Thread(target=lambda part=works[n::8]: [calls.soon(work) for work in part * 2]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()  # the loop does nothing meanwhile
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(busy())
    assert sorted(ran) == list(range(400))
    assert len(wakes) == 1


def test_a_loop_that_has_ended_is_not_called():
    ended = asyncio.new_event_loop()
    calls = calls_on(ended)
    ended.close()
    calls.soon(pytest.fail)
