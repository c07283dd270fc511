"""A chat with an OpenAI-compatible server: the project's own, and one that sends any bytes a test wants."""

import asyncio
import contextlib
import itertools
import json
import socket
import threading
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_server import ScriptedServer
from serving import HandService, end, hosted, serving

from edge_llm.config import GenerationParams
from edge_llm.engine.request import Delta
from edge_llm.errors import EdgeLLMError, ModelNotFound, Overloaded, Unavailable, UsageError
from edge_llm.providers import events, remote
from edge_llm.providers.base import Ask, Ended, ModelRow, Wanted
from edge_llm.providers.chunks import ChunkReader, model_rows
from edge_llm.providers.endpoint import Endpoint
from edge_llm.providers.events import EventParser
from edge_llm.providers.remote import RemoteCatalogue, RemoteProvider, request_body
from edge_llm.talk.conversation import conversation_request
from edge_llm.talk.pieces import Said, Thought

pytestmark = pytest.mark.thorough(file=12)

HELLO = ({"role": "user", "content": "Tell me a story"},)
GREEDY = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True}
KEY = "sk-secret-of-mine"
NO_PROGRESS = lambda stage, done, total: None  # noqa: E731


def opened(url, key=None, model=None):
    return RemoteCatalogue(url, key).open(Wanted(model), NO_PROGRESS)


async def batches_of(reply):
    return [list(pieces) async for pieces in reply]


def pieces_of(provider, ask=Ask(HELLO)):  # noqa: B008 - frozen
    async def whole():
        return await batches_of(provider.ask(ask))

    return [piece for pieces in asyncio.run(asyncio.wait_for(whole(), 20)) for piece in pieces]


def text_of(pieces, kind=Said):
    return "".join(piece.text for piece in pieces if isinstance(piece, kind))


# ---- the project's own server


def own_answer(engine, ask):
    params = GenerationParams(**ask.sampling)
    request, syntax = conversation_request(engine, list(ask.messages), params, begun=ask.continues)
    return syntax.outcome(engine.answer(request))


def test_rows_and_facts_of_the_own_server(url):
    assert [(row.name, row.context) for row in RemoteCatalogue(url).rows()] == [("builtin", 1024), ("an/alias", 1024)]
    facts = opened(url + "/v1/", model="an/alias").facts
    assert (facts.name, facts.context, facts.notes) == ("an/alias", 1024, ())
    assert facts.site == f"server: {url}/v1"
    with pytest.raises(ModelNotFound, match="`nobody`.*it has `builtin`"):
        opened(url, model="nobody")
    with pytest.raises(UsageError, match="its own models"):
        RemoteCatalogue(url).fetch("org/model")


def test_answers_of_the_own_server_are_the_engines(url, engine):
    ask = Ask(HELLO, GREEDY)
    *pieces, ended = pieces_of(opened(url), ask)
    outcome = own_answer(engine, ask)
    assert text_of(pieces) == outcome.said != "" and ended.reason == "length"
    assert ended.figures.completion_tokens == 30
    assert ended.figures.prompt_tokens == outcome.finish.usage.prompt_tokens
    assert ended.figures.first_token_seconds > 0 and ended.figures.tokens_per_second > 0


def test_an_answer_of_the_own_server_goes_on(url, engine):
    ask = Ask((*HELLO, {"role": "assistant", "content": "Once upon a"}), GREEDY, continues=True)
    assert text_of(pieces_of(opened(url), ask)) == own_answer(engine, ask).said


def test_two_replies_at_once(url, engine):
    asks = [Ask(({"role": "user", "content": text},), GREEDY) for text in ("Who are you?", "What is 2 + 3?")]
    provider = opened(url)

    async def together():
        return await asyncio.gather(*(batches_of(provider.ask(ask)) for ask in asks))

    for ask, batches in zip(asks, asyncio.run(together()), strict=True):
        assert text_of([piece for pieces in batches for piece in pieces]) == own_answer(engine, ask).said


@pytest.mark.parametrize("by_task", [False, True])
def test_cancelling_ends_the_answer_on_the_server(by_task):
    service = HandService()

    async def stopped(provider):
        reply, came = provider.ask(Ask(HELLO)), []

        async def follow():
            async for pieces in reply:
                came.extend(pieces)

        following = asyncio.ensure_future(follow())
        stream = await asyncio.to_thread(service.wait_for)
        stream.put(Delta("Once", (1,)))
        while not came:
            await asyncio.sleep(0.002)
        following.cancel() if by_task else reply.cancel()
        await asyncio.gather(following, return_exceptions=True)
        while not stream.cancelled:
            await asyncio.sleep(0.002)
        return came

    with serving(hosted(service)) as url:
        first, *rest = asyncio.run(asyncio.wait_for(stopped(opened(url)), 20))
    assert first == Said("Once")
    assert [piece.reason for piece in rest] == ([] if by_task else ["cancelled"])


def test_cancelled_before_it_begins_and_by_closing(url):
    async def stopped():
        provider = opened(url)
        first, second, third = (provider.ask(Ask(HELLO)) for _ in range(3))
        first.cancel()
        found = [await batches_of(first)]
        await asyncio.to_thread(provider.close)
        found.append(await batches_of(second))
        with pytest.raises(Unavailable, match="closed"):
            await batches_of(provider.ask(Ask(HELLO)))
        return found, third

    found, _ = asyncio.run(stopped())
    assert [[piece.reason for pieces in batches for piece in pieces] for batches in found] == [["cancelled"]] * 2


def test_errors_of_the_own_server_are_shown(url):
    with pytest.raises(UsageError, match="maximum context length is 1024 tokens"):
        pieces_of(opened(url), Ask(({"role": "user", "content": "word " * 5000},)))
    with pytest.raises(UsageError, match="temperature"):
        pieces_of(opened(url), Ask(HELLO, {"temperature": 500.0}))


def test_a_key_is_asked_for_and_never_told():
    with serving(hosted(HandService()), keys=(KEY,)) as url:
        with pytest.raises(UsageError, match="asks for an API key"):
            RemoteCatalogue(url).rows()
        with pytest.raises(UsageError, match="refuses the API key") as refused:
            RemoteCatalogue(url, "sk-wrong").rows()
        assert "sk-wrong" not in str(refused.value)
        assert [row.name for row in RemoteCatalogue(url, f"{KEY}\n").rows()] == ["builtin", "an/alias"]


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_server_that_loads_its_model_is_waited_for(gives_up):
    """Then what it says of the model is known, and the first question is answered."""
    looks = []

    def progress(stage, done, total):
        looks.append(stage)
        if len(looks) == 2:
            server.rows["scripted"] = {"status": {"value": "loaded"}, "max_model_len": 512}
            if gives_up:
                raise Unavailable("another model was chosen")

    with ScriptedServer() as server:
        server.rows["scripted"] = {"status": {"value": "loading"}}
        catalogue = RemoteCatalogue(server.url)
        if gives_up:
            with pytest.raises(Unavailable, match="another"):
                catalogue.open(Wanted(None), progress)
        else:
            assert catalogue.open(Wanted(None), progress).facts.context == 512
    assert looks == ["the server loads it"] * 2


def test_thoughts_and_errors_in_the_middle():
    service = HandService()

    def play():
        stream = service.wait_for(1)
        stream.put(Delta("<think>", (1,)))
        stream.put(Delta("hm</think>Yes", (1,)))
        stream.put(end("length", completion=2))
        service.wait_for(2).fail(Unavailable("the card is gone"))

    with serving(hosted(service)) as url:
        threading.Thread(target=play, daemon=True).start()
        pieces = pieces_of(opened(url))
        assert (text_of(pieces, Thought), text_of(pieces), pieces[-1].reason) == ("hm", "Yes", "length")
        with pytest.raises(EdgeLLMError, match="the card is gone"):
            pieces_of(opened(url))


# ---- a server that sends what a test wants


MODELS = {"data": [{"id": "m", "context_length": 4096}]}


def reply_of(body, kind="application/json", status="200 OK", **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + data


def stream_of(*events, done=True):
    texts = [json.dumps(event, ensure_ascii=False) if isinstance(event, dict) else event for event in events]
    return "".join(f"data: {text}\n\n" for text in [*texts, *(["[DONE]"] if done else [])]).encode()


def chunk(content=None, finish=None, **delta):
    delta = delta | ({} if content is None else {"content": content})
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


@contextlib.contextmanager
def raw_server(answer, models=MODELS, *, reads=True):
    """Answers GET with ``models`` and all else with the pieces of ``answer``, then closes; yields its address and requests."""
    listener = socket.create_server(("127.0.0.1", 0))
    asked = []

    def read_request(connection):
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := connection.recv(65536)):
                return data
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")), 0
        )
        while len(body) < length:
            body += connection.recv(65536)
        asked.append((head, body))
        return data

    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    data = read_request(connection) if reads else b""
                    pieces = [models if isinstance(models, bytes) else reply_of(models)] if data.startswith(b"GET") else answer
                    for piece in pieces:
                        connection.sendall(piece)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def pieces_from(*answer, ask=Ask(HELLO)):  # noqa: B008 - frozen
    with raw_server(answer) as (url, _):
        return pieces_of(RemoteProvider(Endpoint(url), ModelRow("m")), ask)


def streamed(data, **options):
    return pieces_from(reply_of(data, "text/event-stream; charset=utf-8"), **options)


def test_figures_as_the_server_says_them():
    usage = {"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    timings = {"prompt_per_second": 70.5, "predicted_per_second": 20, "draft_n": 4, "draft_n_accepted": 1}
    events = [chunk("a"), chunk("b", finish="stop"), {"choices": [], "usage": usage, "timings": timings}]
    found = streamed(stream_of(*events))[-1].figures
    assert (found.prompt_tokens, found.cached_tokens, found.completion_tokens) == (7, 3, 2)
    assert (found.prompt_per_second, found.tokens_per_second, found.drafted_tokens, found.accepted_tokens) == (70.5, 20, 4, 1)


def test_figures_are_counted_where_the_server_says_none():
    found = streamed(stream_of(chunk("a"), chunk(reasoning="b"), chunk("c", finish="stop")))[-1].figures
    assert (found.prompt_tokens, found.completion_tokens) == (None, 3) and found.first_token_seconds > 0


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_thoughts_in_a_field_of_their_own(name):
    pieces = streamed(stream_of(chunk(**{name: "hm"}), chunk("<b>", finish="stop")))
    assert (text_of(pieces, Thought), text_of(pieces), pieces[-1].reason) == ("hm", "<b>", "stop")


def test_odd_chunks_are_passed_over():
    odd = [
        {}, {"choices": None}, {"choices": [None]}, {"choices": [{"delta": None}]}, {"choices": [{"delta": {"content": 5}}]},
        {"usage": 5, "timings": []}, {"choices": [{"delta": {"role": "assistant", "content": None}}]},
        {"usage": {"prompt_tokens": "many", "completion_tokens": -1}, "timings": {"predicted_per_second": float("inf")}},
    ]  # fmt: skip
    *pieces, ended = streamed(stream_of(*odd, chunk("yes"), *odd))
    assert text_of(pieces) == "yes" and ended.reason == "stop"


def test_a_server_that_does_not_stream():
    whole = {"choices": [{"message": {"role": "assistant", "content": "<think>hm</think>Yes"}, "finish_reason": "length"}]}
    pieces = pieces_from(reply_of(whole))
    assert (text_of(pieces, Thought), text_of(pieces), pieces[-1].reason) == ("hm", "Yes", "length")


ODD_STREAM = (
    b"\xef\xbb\xbf: hello\r\n\r\nevent: message\r\nid: 5\r\ndata: " + json.dumps(chunk("<think>h")).encode() + b"\r\n\r\n"
    b":keep-alive\n\nretry: 10\rdata:" + json.dumps(chunk("m</thi")).encode() + b"\r\r"
    b'data: {"choices":\ndata:  [{"delta": {"content":\r\ndata: "nk>' + "Grüße 🙂".encode() + b'"}}]}\r\n\n'
    b"data\n\nunknown: 1\n\n" + stream_of(chunk(" 你好", finish="stop"))
)  # fmt: skip


def read_in_pieces(data, cuts):
    parser, reader, pieces = EventParser(), ChunkReader(), []
    places = [0, *sorted(cuts), len(data)]
    for begin, stop in itertools.pairwise(places):
        for event in parser.push(data[begin:stop]):
            pieces += [] if event == "[DONE]" else reader.read(event)
    return text_of(pieces, Thought), text_of(pieces + reader.finish()), reader.reason


@given(st.sets(st.integers(0, len(ODD_STREAM)), max_size=12))
def test_the_same_bytes_cut_anywhere_give_the_same_pieces(cuts):
    assert read_in_pieces(ODD_STREAM, cuts) == ("hm", "Grüße 🙂 你好", "stop")


def test_the_same_bytes_one_by_one_on_a_connection():
    head = reply_of(b"", "text/event-stream")
    pieces = pieces_from(head, *(ODD_STREAM[at : at + 1] for at in range(len(ODD_STREAM))))
    assert (text_of(pieces, Thought), text_of(pieces), pieces[-1].reason) == ("hm", "Grüße 🙂 你好", "stop")


@given(st.lists(st.binary(max_size=40), max_size=20))
@settings(max_examples=50)
def test_any_bytes_are_pieces_or_an_error(parts):
    parser, reader = EventParser(), ChunkReader()
    with contextlib.suppress(EdgeLLMError):
        for part in parts:
            for event in parser.push(part):
                reader.read(event)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3)
                    | st.dictionaries(st.sampled_from(["choices", "delta", "content", "error", "usage", "data", "id", "meta"]),
                                      inner, max_size=4)))  # fmt: skip
def test_any_json_is_pieces_or_an_error(value):
    with contextlib.suppress(EdgeLLMError):
        ChunkReader().read(json.dumps(value))
    if isinstance(value, dict):
        assert all(isinstance(row.name, str) for row in model_rows(value))


# ---- what goes wrong


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (stream_of(chunk("a"), done=False), "closed the connection in mid-answer"),
        (stream_of({"error": {"message": "out of cards", "code": 500}}), "out of cards"),
        (stream_of({"error": "plain\x1b[31m words"}), r"plain\\x1b"),
        (stream_of("no json"), "is no JSON object"),
        (stream_of("[1]"), "is no JSON object"),
        (stream_of("[" * 5000), "is no JSON object"),
        (b"data: " + b"x" * 6000, "more than"),
        (b"data: 1\n" * 900, "more than"),
    ],
)
def test_streams_that_go_wrong(data, said, monkeypatch):
    monkeypatch.setattr(events, "MOST_CHARACTERS", 5500 if b"[[" in data else 500)
    with pytest.raises(EdgeLLMError, match=said) as refused:
        streamed(data)
    assert "\n" not in str(refused.value) and str(refused.value).isprintable()


def test_what_came_before_an_error_is_told():
    async def broken(provider):
        pieces = []
        with pytest.raises(Unavailable, match="closed the connection"):
            async for batch in provider.ask(Ask(HELLO)):
                pieces += batch
        return pieces

    with raw_server([reply_of(stream_of(chunk("a"), chunk("b"), done=False), "text/event-stream")]) as (url, _):
        assert text_of(asyncio.run(broken(opened(url)))) == "ab"


def test_an_answer_without_end_is_cut_off(monkeypatch):
    monkeypatch.setattr(remote, "MOST_ANSWER", 1000)
    with pytest.raises(EdgeLLMError, match="cut off"):
        streamed(stream_of(*[chunk("x" * 100)] * 11))


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        (
            reply_of({"error": {"message": f"bad key {KEY}"}}, status="401 No"),
            UsageError,
            r"refuses.*\(401\): bad key \[the key\]",
        ),
        (reply_of({"error": "gone"}, status="404 No"), ModelNotFound, r"\(404\): gone"),
        (reply_of({"error": {"message": "unknown field min_p"}}, status="400 No"), UsageError, "unknown field min_p"),
        (reply_of(b"", status="429 No"), Overloaded, "ask again later"),
        (reply_of(b"<html>oh</html>", "text/html", "500 No"), EdgeLLMError, r"failed \(500\); ask again"),
        (reply_of({"error": {"message": "loading"}}, status="503 No"), Unavailable, "not ready.*loading"),
        (reply_of(b"", status="301 No", Location="https://elsewhere/v1"), UsageError, "https://elsewhere/v1"),
        (reply_of(b"<html>oh</html>", "text/html"), EdgeLLMError, "<html>oh</html>.*no JSON"),
        (reply_of(b"x" * 5000), EdgeLLMError, "more than"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Unavailable, "was lost"),
        (b"", Unavailable, "was lost"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{", Unavailable, "was lost"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, Unavailable, "was lost"),
    ],
)
def test_replies_that_go_wrong(reply, kind, said, monkeypatch):
    monkeypatch.setattr(remote, "MOST_BODY", 4000)
    with raw_server([reply], models=reply) as (url, _):
        provider = RemoteProvider(Endpoint(url, KEY), ModelRow("m"))
        for attempt in (RemoteCatalogue(url, KEY).rows, partial(pieces_of, provider)):
            with pytest.raises(kind, match=said) as refused:
                attempt()
            assert KEY not in str(refused.value) and str(refused.value).isprintable()
    assert KEY not in repr(provider) + repr(Endpoint(url, KEY)) + repr(RemoteCatalogue(url, KEY))


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def test_nobody_is_there():
    with pytest.raises(Unavailable, match="cannot be reached.*is it running"):
        RemoteCatalogue(f"127.0.0.1:{free_port()}").rows()
    with pytest.raises(Unavailable, match="no machine `nowhere.invalid`"):
        RemoteCatalogue("http://nowhere.invalid:1").rows()
    with raw_server([b"no tls\r\n"], reads=False) as (url, _), pytest.raises(Unavailable, match="no safe connection"):
        RemoteCatalogue(f"https://{url}").rows()


# ---- addresses and bodies


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("localhost:8080", "http://localhost:8080/v1"),
        (" http://h/ ", "http://h/v1"),
        ("http://h/v1/", "http://h/v1"),
        ("https://h/v1/chat/completions", "https://h/v1"),
        ("https://h/openai/v1", "https://h/openai/v1"),
        ("https://h/v1beta/openai/", "https://h/v1beta/openai"),
        ("https://h/api/v4", "https://h/api/v4"),
        ("https://h/vllm", "https://h/vllm/v1"),
        ("http://[::1]:80", "http://[::1]:80/v1"),
        ("HTTP://Host", "http://host/v1"),
    ],
)
def test_addresses(url, base):
    assert Endpoint(url).base == base


@pytest.mark.parametrize(
    "url", ["", "ftp://h", "http://", "http://h:port", "http://a b", "http://[::1", "http://u:p@h", "h\x1b[1m"]
)
def test_what_is_no_address(url):
    with pytest.raises(UsageError) as refused:
        Endpoint(url)
    assert ":p@" not in str(refused.value) and str(refused.value).isprintable()


@pytest.mark.parametrize("key", ["sk\x00x", "schlüssel", "a\r\nX: y"])
def test_keys_that_are_none(key):
    with pytest.raises(UsageError, match="API key") as refused:
        Endpoint("h", key)
    assert key not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "noted"),
    [("http://10.0.0.1", True), ("http://h", True), ("https://h", False), ("http://127.0.0.1", False),
     ("http://[::1]", False), ("http://localhost", False)],
)  # fmt: skip
def test_a_key_in_the_open_is_noted(url, noted):
    assert bool(RemoteProvider(Endpoint(url, KEY), ModelRow("m")).facts.notes) == noted
    assert not RemoteProvider(Endpoint(url), ModelRow("m")).facts.notes


def test_what_is_sent():
    ask = Ask(HELLO, {"max_tokens": 5, "stop": ("a",), "seed": None, "top_k": 3}, thinking="low")
    with raw_server([reply_of(stream_of(chunk("a", finish="stop")), "text/event-stream")]) as (url, asked):
        pieces_of(opened(url, KEY), ask)
    head, body = asked[-1]
    assert head.startswith(b"POST /v1/chat/completions ") and f"authorization: bearer {KEY}".encode() in head.lower()
    assert json.loads(body) == {
        "model": "m", "messages": list(HELLO), "stream": True, "stream_options": {"include_usage": True},
        "max_tokens": 5, "stop": ["a"], "top_k": 3, "reasoning_effort": "low",
        "chat_template_kwargs": {"enable_thinking": True, "thinking": True},
    }  # fmt: skip


def told(people, clients, owner="edge-llm"):
    """A server's list of one model, with what it says of sampling."""
    entry = {"id": "m", "owned_by": owner, "sampling": {"people": people, "clients": clients}}
    return {"data": [entry]}


CLIENTS = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}


@pytest.mark.parametrize(
    ("models", "sent"),
    [
        (told({**CLIENTS, "temperature": 0.7, "min_p": 0.05}, CLIENTS), {"temperature": 0.7, "min_p": 0.05}),
        (told(author := {**CLIENTS, "temperature": 0.6, "top_p": 0.95}, author), {}),
        (
            told({**CLIENTS, "dry_multiplier": 0.8, "dry_sequence_breakers": ["|"]}, CLIENTS),
            {"dry_multiplier": 0.8, "dry_sequence_breakers": ["|"]},
        ),
        (told({"temperature": 0.7, "logprobs": 5, "nonsense": 1}, CLIENTS), {"temperature": 0.7}),
        (told({"temperature": 0.7}, CLIENTS, owner="openai"), {}),
        (told({"temperature": "hot"}, CLIENTS), {}),
        (told([], None), {}),
    ],
)
def test_answers_of_the_own_server_are_sampled_as_people_expect_and_others_get_no_field(models, sent):
    """What the person names goes over it; a server that is not ours gets nothing that nobody named."""
    answer = reply_of(stream_of(chunk("a", finish="stop")), "text/event-stream")
    for named in ({}, {"temperature": 0.25}):
        with raw_server([answer], models) as (url, asked):
            provider = opened(url)
            assert provider.facts.sampling == sent
            pieces_of(provider, Ask(HELLO, named))
        body = json.loads(asked[-1][1])
        plain = request_body("m", Ask(HELLO))
        assert {name: value for name, value in body.items() if name not in plain} == {**sent, **named}


def test_who_asks_a_server_of_ours_for_greedy_answers_gets_them_as_here():
    people = {"temperature": 0.7, "min_p": 0.05, "dry_multiplier": 0.8}
    body = request_body("m", Ask(HELLO, {"temperature": 0.0}), people)
    assert (body["temperature"], body["dry_multiplier"]) == (0.0, 0.0)
    again = request_body("m", Ask(HELLO, again=True), people)
    assert (again["temperature"], again["min_p"], again["dry_multiplier"]) == (0.7, 0.05, 0.8)


def test_bodies():
    plain = request_body("m", Ask(HELLO))
    assert "chat_template_kwargs" not in plain and "temperature" not in plain and "continue_final_message" not in plain
    assert request_body("m", Ask(HELLO, thinking=False))["chat_template_kwargs"] == {
        "enable_thinking": False,
        "thinking": False,
    }
    begun = request_body("m", Ask(HELLO, continues=True))
    assert (begun["continue_final_message"], begun["add_generation_prompt"]) == (True, False)
    for sampling in ({"nonsense": 1}, {"logprobs": 3}, {"temperature": "hot"}):
        with pytest.raises(UsageError):
            request_body("m", Ask(HELLO, sampling))


def test_no_empty_batches_and_one_end():
    async def whole(provider):
        return await batches_of(provider.ask(Ask(HELLO)))

    data = stream_of(*[chunk(c) for c in "once upon"], chunk("", finish="stop"))
    with raw_server([reply_of(data, "text/event-stream")]) as (url, _):
        batches = asyncio.run(whole(opened(url)))
    assert all(batches)
    ends = [piece for pieces in batches for piece in pieces if isinstance(piece, Ended)]
    assert len(ends) == 1 and batches[-1][-1] is ends[0]
