"""Responses that are kept: a conversation goes on by an id, within bounds, and is told and forgotten on request."""

import threading

import openai
import pytest
from serving import HandService, client_of, end, hosted
from test_server_stream import play

from edge_llm.engine.request import Delta
from edge_llm.errors import ResponseNotFound, UsageError
from edge_llm.server.stored import ResponseStore, Stored, named

COLD = {"model": "builtin", "temperature": 0, "max_output_tokens": 8}


def stored(name, previous=None, text="x"):
    output = [{"id": f"{name}-out", "type": "message", "role": "assistant", "content": text}]
    return Stored({"id": name, "output": output}, tuple(named(text)), previous)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_goes_on_with_the_one_before(client, stream):
    """openai | responses | `previous_response_id`: what is asked and answered is what the whole conversation as input gives."""

    def ask(**fields):
        found = client.responses.create(stream=stream, **COLD, **fields)
        return list(found)[-1].response if stream else found

    first = ask(input="Tell me of a cat", instructions="Be short.")
    second = ask(input="And a dog?", previous_response_id=first.id)
    third = ask(input="And?", previous_response_id=second.id)
    said = [("user", "Tell me of a cat"), ("assistant", first.output_text), ("user", "And a dog?")]
    said += [("assistant", second.output_text), ("user", "And?")]
    whole = ask(input=[{"role": role, "content": text} for role, text in said], store=False)
    assert (third.output_text, third.usage.input_tokens) == (whole.output_text, whole.usage.input_tokens)
    assert (third.previous_response_id, third.store, whole.store) == (second.id, True, False)


def test_items_are_referred_to(client):
    """openai | responses | `item_reference` stands for an item of a response that is kept: AI SDK's second turn."""
    first = client.responses.create(input="Tell me of a cat", **COLD)
    told = [{"role": "user", "content": "Tell me of a cat"}]
    asked = [{"role": "user", "content": "And a dog?"}]
    by_id = [{"type": "item_reference", "id": item.id} for item in first.output]
    whole = [{"role": "assistant", "content": first.output_text}]
    replies = [client.responses.create(input=[*told, *middle, *asked], **COLD) for middle in (by_id, whole)]
    assert replies[0].output_text == replies[1].output_text
    assert replies[0].usage.input_tokens == replies[1].usage.input_tokens


def test_what_is_kept_is_told_and_forgotten(client):
    """openai | responses | GET and DELETE of a response, its `input_items`; 404 for one that is not kept."""
    first = client.responses.create(input="Tell me of a cat", **COLD)
    second = client.responses.create(input="And a dog?", previous_response_id=first.id, metadata={"a": "b"}, **COLD)
    assert client.responses.retrieve(second.id) == second
    items = client.responses.input_items.list(second.id, order="asc").data
    texts = [item.content[0].text for item in items]
    assert texts == ["Tell me of a cat", first.output_text, "And a dog?"]
    page = client.responses.input_items.list(second.id, limit=2)
    assert page.has_more and [item.id for item in page.data] == [item.id for item in items[:0:-1]]
    assert [item.id for item in page.get_next_page().data] == [items[0].id]
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(input="And?", previous_response_id=second.id, **COLD)
    assert refused.value.param == "previous_response_id"
    unkept = client.responses.create(input="hi", store=False, **COLD)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_tokens_of_a_prompt_are_counted_without_an_answer(client):
    """openai | responses, chat | `/responses/input_tokens`, `/chat/completions/input_tokens`: tokens of the prompt."""
    first = client.responses.create(input="Tell me of a cat", **COLD)
    asked = {"input": "And a dog?", "previous_response_id": first.id}
    counted = client.responses.input_tokens.count(model="builtin", **asked).input_tokens
    assert counted == client.responses.create(**asked, **COLD).usage.input_tokens
    messages = [{"role": "user", "content": "hi"}]
    found = client.post("/chat/completions/input_tokens", body={"messages": messages}, cast_to=object)
    reply = client.chat.completions.create(model="builtin", messages=messages, max_tokens=1)
    assert found == {"object": "response.input_tokens", "input_tokens": reply.usage.prompt_tokens}


def test_calls_and_results_go_on_by_id(engine):
    """HTTP | responses | A call that was answered by `previous_response_id` needs its result alone."""
    service = HandService()
    tool = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
    with client_of(hosted(service, engine)) as client:
        call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
        play(service, Delta(call, (1,)), end())
        first = client.post("/v1/responses", json={"input": "What time?", "tools": [tool]}).json()
        (item,) = first["output"]
        play(service, Delta("noon", (1,)), end(), request=2)
        output = {"type": "function_call_output", "call_id": item["call_id"], "output": "12:00"}
        body = {"input": [output], "tools": [tool], "previous_response_id": first["id"]}
        assert client.post("/v1/responses", json=body).status_code == 200
        prompt = engine.tokenizer.decode(service.streams[1].request.prompt)
    assert prompt.index("What time?") < prompt.index("now", prompt.index("What time?")) < prompt.index("12:00")


# ---- the store


def test_the_longest_unused_go_first():
    store = ResponseStore(most=3)
    for name, previous in (("a", None), ("b", "a"), ("c", None)):
        store.put(stored(name, previous))
    store.before("b")  # a conversation that goes on keeps all of it
    store.put(stored("d"))
    assert [item["id"] for item in store.before("b")][1::2] == ["a-out", "b-out"]
    with pytest.raises(ResponseNotFound):
        store.get("c")
    with pytest.raises(UsageError):
        store.item("c-out", "input[0]")
    assert store.item("d-out", "input[0]")["id"] == "d-out"


def test_bytes_are_bounded():
    store = ResponseStore(most=1000, most_bytes=10_000)
    for number in range(200):
        store.put(stored(str(number), text="x" * (number * 7 % 400)))
        assert store.nbytes <= 10_000
    store.put(stored("large", text="x" * 10_000))
    with pytest.raises(ResponseNotFound):
        store.get("large")
    left = [name for name in map(str, range(200)) if has(store, name)]
    assert left == list(map(str, range(200 - len(left), 200)))
    for name in left:
        store.delete(name)
    assert store.nbytes == 0


def has(store, name):
    try:
        store.get(name)
    except ResponseNotFound:
        return False
    return True


def test_many_threads_leave_it_whole():
    store = ResponseStore(most=20)

    def work(own):
        for number in range(100):
            store.put(stored(f"{own}-{number}", f"{own}-{number - 1}" if number % 7 else None))
            has(store, f"{own}-{number // 2}")

    threads = [threading.Thread(target=work, args=(own,)) for own in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = [f"{own}-{number}" for own in range(4) for number in range(100) if has(store, f"{own}-{number}")]
    assert len(left) == 20 and store.nbytes == sum(store.get(name).nbytes for name in left)


def test_a_long_chain_is_refused_in_a_line(monkeypatch):
    monkeypatch.setattr("edge_llm.server.limits.MESSAGES", 5)
    store = ResponseStore()
    for number in range(6):
        store.put(stored(str(number), str(number - 1) if number else None))
    assert len(store.before("4")) == 10
    with pytest.raises(UsageError, match="more than 5 responses before"):
        store.before("5")


@pytest.mark.parametrize("odd", [["reasoning"], {}, 5, None])
@pytest.mark.parametrize("where", ["type", "id", "role", "content"])
def test_odd_items_are_refused_or_taken(client, where, odd):
    item = {"type": "message", "id": "m", "role": "user", "content": "hi"} | {where: odd}
    for asked in ([item], [{"type": "item_reference"} | item], [{"type": "item_reference", "id": odd}]):
        try:
            client.responses.create(input=asked, **COLD)
        except openai.BadRequestError as refused:
            assert refused.param.startswith("input")
