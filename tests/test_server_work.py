"""Work beside the event loop: the server answers meanwhile, memory is bounded, and the JSON is the same."""

import json
import threading
import time
from concurrent.futures import CancelledError, ThreadPoolExecutor

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import HandService, client_of, hosted, serving

from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.completions import CompletionBody
from edge_llm.server.pool import ModelPool
from edge_llm.server.text import DetokenizeBody
from edge_llm.server.work import Crew, _chunks, json_pieces
from edge_llm.text.tokenizer import Tokenizer

pytestmark = pytest.mark.thorough(file=5)

LONG = {"content": "Once upon a time there was a small dog. " * 15_000}


# ---- the crew


def test_a_crew_does_all_its_work_and_never_too_much_at_once():
    crew, lock = Crew("test", 3), threading.Lock()
    at_work = most = 0

    def work(number):
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(0.001)
        with lock:
            at_work -= 1
        if number % 10 == 3:
            raise KeyError(number)
        return number

    futures = [crew.do(lambda number=number: work(number)) for number in range(100)]
    for number, future in enumerate(futures):
        if number % 10 == 3:
            with pytest.raises(KeyError):
                future.result(60)
        else:
            assert future.result(60) == number
    assert 1 <= most <= 3


def test_what_is_cancelled_before_its_turn_is_not_done():
    crew, gate, done = Crew("test", 1), threading.Event(), []
    first = crew.do(gate.wait)
    second = crew.do(lambda: done.append("second"))
    third = crew.do(lambda: done.append("third"))
    assert second.cancel()
    gate.set()
    third.result(60)
    assert first.result(5)
    assert done == ["third"]
    with pytest.raises(CancelledError):
        second.result(5)


# ---- JSON in pieces

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def with_iterators(value):
    """``value`` with every list of it as an iterator."""
    if isinstance(value, dict):
        return {key: with_iterators(item) for key, item in value.items()}
    return iter(value) if isinstance(value, list) else value


@settings(max_examples=60)
@given(values)
def test_pieces_join_to_the_same_json(value):
    """HTTP | all | Long answers are written in pieces, as the same JSON."""
    expected = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert "".join(json_pieces(value)) == expected
    assert "".join(json_pieces(with_iterators(value))) == expected


@pytest.mark.parametrize("count", [0, 1, 8, 9, 4096, 4097, 100_000])
def test_long_lists_are_written_whole(count):
    value = {"a": list(range(count)), "b": {"c": [[0.5] * 3] * (count % 1000)}}
    chunks = list(_chunks(lambda: value | {"d": iter(value["a"])}))
    assert json.loads(b"".join(chunks)) == value | {"d": value["a"]}
    assert max(map(len, chunks)) < 200_000


# ---- a server


def test_the_server_answers_while_it_tokenizes(engine):
    """HTTP | process | GET /health answers while prompts of megabytes are tokenized; a short request waits for no long one."""
    with serving(hosted(HandService(), engine)) as url:
        body = json.dumps(LONG)
        answers = []

        def tokenize():
            headers = {"Content-Type": "application/json"}
            answers.append(httpx.post(f"{url}/tokenize", content=body, headers=headers, timeout=60).status_code)

        threads = [threading.Thread(target=tokenize) for _ in range(2)]
        for thread in threads:
            thread.start()
        meanwhile = 0
        with httpx.Client(base_url=url, timeout=60) as client:
            while any(thread.is_alive() for thread in threads):
                assert client.get("/health").status_code == 200
                meanwhile += 1
    assert answers == [200, 200]
    assert meanwhile > 5, "the event loop stood still"


def test_requests_that_are_not_long_wait_for_no_tokenizer_that_is_stuck(engine, monkeypatch):
    """As many long prompts as are tokenized at once, none of which comes to its end before all others have been answered."""
    gate, encode = threading.Event(), Tokenizer.encode

    def gated(self, text, **settings):
        if text == LONG["content"]:
            assert gate.wait(240)
        return encode(self, text, **settings)

    monkeypatch.setattr(Tokenizer, "encode", gated)
    with serving(hosted(HandService(), engine)) as url, ThreadPoolExecutor(4) as clients:
        held = [clients.submit(httpx.post, f"{url}/tokenize", json=LONG, timeout=60) for _ in range(4)]
        try:
            for _ in range(20):
                assert httpx.get(f"{url}/health", timeout=240).status_code == 200
                assert httpx.post(f"{url}/tokenize", json={"content": "hi"}, timeout=240).status_code == 200
            assert not any(one.done() for one in held)
        finally:
            gate.set()
        assert {one.result().status_code for one in held} == {200}


def test_long_answers_are_the_same_as_short_ones(engine):
    """A text that is tokenized in one go and its answer, which goes out in pieces."""
    with client_of(hosted(HandService(), engine)) as client:
        answer = client.post("/tokenize", json=LONG | {"with_pieces": True, "return_token_strs": True}, timeout=60)
        assert answer.headers["content-type"] == "application/json"
        found = answer.json()
        ids = [token["id"] for token in found["tokens"]]
        assert found["count"] == len(ids)
        assert ids == engine.tokenizer.encode(LONG["content"])
        assert "".join(token["piece"] for token in found["tokens"]) == LONG["content"]
        assert found["token_strs"] == [engine.tokenizer.token_text(token) for token in ids]
        assert client.post("/tokenize", json={"content": "hi"}).json()["tokens"] == engine.tokenizer.encode("hi")


def test_bodies_that_hold_too_much_together_are_429_and_given_back(engine, monkeypatch):
    """HTTP | all | All long bodies together may hold 64 MiB; one more is 429 with Retry-After."""
    monkeypatch.setattr(limits, "held_bytes", lambda context: 300_000)
    pool = ModelPool(hosted(HandService(), engine))
    with client_of(pool) as client:
        for size, status in ((100_000, 200), (500_000, 429), (200_000, 200), (500_000, 429), (300_000, 200)):
            answer = client.post("/detokenize", json={"tokens": [], "user": "a" * size})
            assert answer.status_code == status, size
            assert ("retry-after" in answer.headers) == (status == 429)
            wait_for_nothing_held(pool)
        for broken in (b"{", b"[]", b'{"tokens": ["a"]}'):
            headers = {"Content-Type": "application/json"}
            assert client.post("/detokenize", content=broken + b" " * 200_000, headers=headers).status_code == 400
            wait_for_nothing_held(pool)


def wait_for_nothing_held(pool):
    """The ledger is settled when a request has ended, a moment after its answer is there."""
    until = time.monotonic() + 60
    while pool.workshop.held:
        assert time.monotonic() < until, "bytes are never given back"
        time.sleep(0.005)


def test_a_long_body_is_counted_until_its_answer_has_ended(engine):
    service = HandService()
    pool = ModelPool(hosted(service, engine))
    body = {"messages": [{"role": "user", "content": "hi"}], "user": "a" * 100_000}
    with client_of(pool) as client:
        thread = threading.Thread(target=lambda: client.post("/v1/chat/completions", json=body))
        thread.start()
        stream = service.wait_for()
        assert 30_000 < pool.workshop.held < 100_000
        stream.cancel()
        thread.join(60)
        wait_for_nothing_held(pool)


def test_a_client_that_leaves_takes_its_work_along(engine):
    service = HandService()
    pool = ModelPool(hosted(service, engine))
    gate = threading.Event()
    pool.workshop._long.do(gate.wait)  # what keeps the only worker busy
    with client_of(pool) as client:
        for _ in range(3):
            with pytest.raises(httpx.ReadTimeout):
                client.post("/tokenize", json=LONG, timeout=0.5)
        wait_for_nothing_held(pool)
        gate.set()
        assert client.post("/tokenize", json={"content": "a " * 50_000}).status_code == 200


# ---- bodies that are wrong a million times


@pytest.mark.parametrize("item", [b'""', b"{}", b"[{}]", b"null", b"1.5"])
@pytest.mark.parametrize(("kind", "field"), [(CompletionBody, b"prompt"), (DetokenizeBody, b"tokens")])
def test_a_list_that_is_wrong_throughout_is_refused_by_its_first_item(kind, field, item):
    data = b'{"' + field + b'": [' + b",".join([item] * 100_000) + b"]}"
    started = time.process_time()
    if field == b"prompt" and item == b'""':
        assert len(kind.parse(data).prompt) == 100_000
        return
    with pytest.raises(UsageError) as refusal:
        kind.parse(data)
    assert len(str(refusal.value)) < 300
    assert time.process_time() - started < 5


def test_too_many_biases_are_refused_before_each_is_looked_at():
    data = b'{"logit_bias": {' + b",".join(b'"%d": ""' % token for token in range(100_000)) + b"}}"
    with pytest.raises(UsageError, match="1024"):
        CompletionBody.parse(data)
