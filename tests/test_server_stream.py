"""Streams as they go over the wire, played by hand: order, keep-alive, errors, and clients that leave."""

import asyncio
import json
import threading
import time
from concurrent.futures import Future

import httpx
import numpy as np
import pytest
from serving import HandService, client_of, end, hosted, serving

from edge_llm.engine.request import Delta
from edge_llm.errors import NumericError, Overloaded
from edge_llm.server import limits

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
    assert role["delta"] == {"role": "assistant", "content": ""}
    assert "".join(text["delta"]["content"] for text in texts) == "Hello"
    assert (last["delta"], last["finish_reason"]) == ({}, "stop")
    assert {choice["finish_reason"] for choice in (role, *texts)} == {None}
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 6


def test_deltas_that_nobody_had_time_for_are_sent_together(client, service):
    play(service, *[Delta("ab", (1, 2))] * 500, end(completion=1000))
    *chunks, _ = events(client.post("/v1/chat/completions", json=CHAT))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "ab" * 500
    assert len(chunks) < 300


def test_without_include_usage_no_chunk_has_a_usage(client, service):
    """HTTP | chat | No usage chunk unless `stream_options.include_usage` asks for it."""
    play(service, Delta("x", (1,)), end())
    assert not any("usage" in chunk for chunk in events(client.post("/v1/chat/completions", json=CHAT)) if chunk != "[DONE]")


def test_silence_is_filled_with_comments(client, service, monkeypatch):
    """HTTP | chat | Comments keep the connection alive while the prompt is read."""
    monkeypatch.setattr(limits, "KEEP_ALIVE_SECONDS", 0.02)

    def slow():
        stream = service.wait_for()
        time.sleep(0.15)
        stream.put(Delta("x", (1,)))
        stream.put(end())

    threading.Thread(target=slow, daemon=True).start()
    found = events(client.post("/v1/chat/completions", json=CHAT))
    comments = [at for at, item in enumerate(found) if isinstance(item, str) and item.startswith(":")]
    assert comments[:2] == [1, 2]  # behind the role, before the text
    assert found[-1] == "[DONE]"


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
    """HTTP | chat | A disconnect cancels within 250 ms, before the first token too, streamed or not."""
    with pytest.raises(httpx.ReadTimeout):
        leave(client, body)
    left = time.perf_counter()
    while not all(stream.cancelled for stream in service.streams):
        assert time.perf_counter() - left < 0.25
        time.sleep(0.002)
    assert len(service.streams) == body.get("n", 1)


def leave(client, body):
    """Ask, wait a little, and hang up."""
    wait = httpx.Timeout(5, read=0.2)
    with client.stream("POST", "/v1/chat/completions", json=body, timeout=wait) as response:
        response.read()


def test_a_client_that_does_not_read_is_given_up(client, service, monkeypatch):
    """HTTP | chat | A client that stops reading its stream is cut off, and its answer cancelled."""
    monkeypatch.setattr(limits, "READER_SECONDS", 0.2)
    with client.stream("POST", "/v1/chat/completions", json=CHAT):
        stream = service.wait_for()
        until = time.monotonic() + 5
        while not stream.cancelled:
            assert time.monotonic() < until, "the answer goes on for nobody"
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
    with pytest.raises(httpx.ReadTimeout):
        leave(client, CHAT)
    service.wait_for(3)
    wanted = [f'edge_llm_requests_total{{outcome="{outcome}"}} 1' for outcome in ("cancelled", "completed", "failed")]
    until = time.monotonic() + 2
    while not all(line in (text := client.get("/metrics").text) for line in wanted):
        assert time.monotonic() < until, text
        time.sleep(0.01)


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
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            await asyncio.gather(*(ask(client, index) for index in range(30)))

    with serving(host) as url:
        asyncio.run(all_of_them(url))
        until = time.monotonic() + 5
        while sum(outcomes := ended(host)) < len(submitted) or host.service.running:
            assert time.monotonic() < until
            time.sleep(0.01)
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
    started = time.perf_counter()
    assert client.get("/health").status_code == 200
    assert time.perf_counter() - started < 0.1
    for stream in service.streams:
        stream.put(end())
    for thread in threads:
        thread.join()


def slowest_health(client, work):
    """The result of ``work`` in a thread, and the longest time that /health took meanwhile."""
    found, slowest = [], 0.0
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    while thread.is_alive():
        started = time.perf_counter()
        assert client.get("/health").status_code == 200
        slowest = max(slowest, time.perf_counter() - started)
    return found[0], slowest


def test_long_replies_let_others_through(client, service):
    """HTTP | all | Others are served while a reply of megabytes is written, such as 2,048 embeddings."""
    vectors = np.random.default_rng(0).random((limits.INPUTS, 768), np.float32)
    future = Future()
    future.set_result(vectors)
    service.embed = lambda prompts: future
    with httpx.Client(base_url=client.base_url, timeout=60) as other:
        body = {"input": [[5]] * len(vectors), "encoding_format": "float"}
        response, slowest = slowest_health(client, lambda: other.post("/v1/embeddings", json=body))
    assert response.json()["data"][-1]["embedding"] == vectors[-1].tolist()
    assert slowest < 1.0


def test_metrics_say_how_full_memory_is():
    """HTTP | status | `/metrics` counts pages of keys and values, kept beginnings, guesses and preemptions."""
    with client_of(hosted()) as client:
        client.post("/v1/completions", json={"prompt": "one two three " * 20, "max_tokens": 4})
        lines = dict(line.rsplit(" ", 1) for line in client.get("/metrics").text.splitlines() if line[:1] != "#")
    now = {name.removeprefix("edge_llm_"): float(value) for name, value in lines.items()}
    assert 0 < now["kv_pages_free"] < now["kv_pages"]
    assert now["prefix_pages"] >= 2 and now["preemptions"] == 0
    assert now["accepted_tokens_total"] <= now["drafted_tokens_total"]
