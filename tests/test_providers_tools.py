"""Calls of tools as a chat gets them: of a model here and of a server, the same call, however it is cut."""

import asyncio
import copy
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import HandService, builtin_engine, end, hosted, serving
from test_server_tools import CHAT, PROMPT, TEMPLATE, TOOL

from edge_llm.engine.request import Delta
from edge_llm.providers.base import Ask, Ended, Wanted
from edge_llm.providers.chunks import MOST_CALLS, ChunkReader
from edge_llm.providers.local import LocalProvider
from edge_llm.providers.remote import RemoteCatalogue, request_body
from edge_llm.talk.pieces import CallArguments, CallBegun, Said
from edge_llm.text.chat import ChatTemplate
from edge_llm.tui.answering import with_pieces

pytestmark = pytest.mark.thorough(file=4)

LINES = "{% for m in messages %}{{ m.role }}={{ m.content }}|{% endfor %}"
ASK = Ask(tuple(CHAT), tools=(TOOL,))
SAID = 'I look. {"name": "weather", "arguments": {"city": "Bern"}}'
CALL = 'I look.<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'


@pytest.fixture(scope="module")
def engine():
    engine = copy.copy(builtin_engine())
    engine.template = ChatTemplate(TEMPLATE)
    return engine


def given_by_hand(provider, service):
    """The pieces of an answer whose text comes by hand, a few characters at a time."""

    def say():
        stream = service.wait_for(len(service.streams) or 1)
        for at in range(0, len(CALL), 3):
            stream.put(Delta(CALL[at : at + 3], (1,)))
        stream.put(end())

    async def whole():
        reply = provider.ask(ASK)
        threading.Thread(target=say).start()
        return [piece for batch in [list(pieces) async for pieces in reply] for piece in batch]

    return asyncio.run(asyncio.wait_for(whole(), 30))


def check(pieces):
    assert "".join(piece.text for piece in pieces if isinstance(piece, Said)).strip() == "I look."
    (call,) = with_pieces((), (piece for piece in pieces if isinstance(piece, CallBegun | CallArguments)))
    assert call.name == "weather" and json.loads(call.arguments) == {"city": "Bern"} and call.id
    assert isinstance(pieces[-1], Ended) and pieces[-1].reason == "stop"


def test_a_model_here_is_shown_tools_and_its_calls_come_as_calls(engine):
    service = HandService()
    provider = LocalProvider(engine)
    try:
        request, _ = provider.request(ASK)
        assert list(request.prompt) == list(engine.tokenizer.encode(PROMPT))
        provider._service.close(drain_seconds=0.0)
        provider._service = service
        check(given_by_hand(provider, service))
    finally:
        provider.close()


@pytest.mark.parametrize("strict", [False, True])
def test_an_answer_that_may_call_tools_is_ended_when_it_loops(engine, strict):
    """Also where a grammar holds its calls to their schemas: the text around them is free."""
    (token,) = engine.tokenizer.encode(" the")
    tool = {**TOOL, "function": {**TOOL["function"], "strict": strict}}
    sampling = {"temperature": 0.0, "logit_bias": ((token, 100.0),), "max_tokens": 400, "loop_guard": True}
    provider = LocalProvider(engine)

    async def whole(ask):
        return [piece for batch in [list(pieces) async for pieces in provider.ask(ask)] for piece in batch]

    try:
        for guarded, reason in ((True, "repetition"), (False, "length")):
            ask = Ask(ASK.messages, {**sampling, "loop_guard": guarded}, tools=(tool,))
            request, _ = provider.request(ask)
            assert (request.params.grammar is not None) == strict
            assert asyncio.run(asyncio.wait_for(whole(ask), 60))[-1].reason == reason
    finally:
        provider.close()


@pytest.mark.parametrize(
    ("template", "shown"),
    [
        (TEMPLATE, 'assistant=(weather {"city": "Bern"})|tool=rain|'),
        (LINES, '"arguments": {"city": "Bern"}}\n</tool_call>|user=<tool_response>\nrain\n</tool_response>|'),
    ],
)
def test_calls_of_before_are_shown_where_no_tools_are_offered(template, shown):
    """As the template shows them, or as plain text where it has none."""
    engine = copy.copy(builtin_engine())
    engine.template = ChatTemplate(template)
    provider = LocalProvider(engine)
    try:
        request, _ = provider.request(Ask(tuple(CHAT)))
        assert shown in engine.tokenizer.decode(list(request.prompt))
        assert provider.count(Ask(tuple(CHAT))) == len(request.prompt)
    finally:
        provider.close()


def test_a_server_is_told_the_tools_and_its_calls_come_as_calls(engine):
    service = HandService()
    with serving(hosted(service, engine)) as url:
        provider = RemoteCatalogue(url).open(Wanted(None), lambda *_: None)
        check(given_by_hand(provider, service))
    body = request_body("m", ASK)
    assert body["tools"] == [TOOL] and body["messages"] == CHAT
    assert "tools" not in request_body("m", Ask(tuple(CHAT)))


def events_of(*deltas):
    return [json.dumps({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]


def call(index=None, call_id=None, name=None, arguments=None):
    made = {"function": {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}}
    return made | {key: value for key, value in (("index", index), ("id", call_id)) if value is not None}


@pytest.mark.parametrize(
    "deltas",
    [
        [{"tool_calls": [call(0, "a", "f", '{"x"')]}, {"tool_calls": [call(0, None, None, ": 1}")]},
         {"tool_calls": [call(1, "b", "g", "{}")]}],
        [{"tool_calls": [call(None, "a", "f", '{"x": 1}'), call(None, "b", "g", "{}")]}],  # whole, without an index
        [{"tool_calls": [call(0, "a", "f", {"x": 1}), call(1, "b", "g", {})]}],  # arguments as an object
        [{"content": None, "tool_calls": [call(0, "a", "f", ""), call(1, "b", "g", "")]},
         {"tool_calls": [call(1, None, None, "{}"), call(0, None, None, '{"x": 1}')]}],
    ],
)  # fmt: skip
def test_servers_send_calls_in_many_ways(deltas):
    reader = ChunkReader()
    pieces = [piece for event in events_of(*deltas) for piece in reader.read(event)]
    first, second = with_pieces((), pieces)
    assert (first.id, first.name, json.loads(first.arguments)) == ("a", "f", {"x": 1})
    assert (second.id, second.name, json.loads(second.arguments or "{}")) == ("b", "g", {})


def test_a_server_that_sends_calls_without_end_is_bounded():
    reader = ChunkReader()
    many = {"tool_calls": [call(at, f"c{at}", "f", "{}") for at in range(10 * MOST_CALLS)]}
    assert len(with_pieces((), reader.read(events_of(many)[0]))) == MOST_CALLS


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["function", "name", "index", "id"]), inner),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=4))
def test_rubbish_in_the_place_of_calls_is_passed_over(said):
    reader = ChunkReader()
    for event in events_of({"tool_calls": said}, {"tool_calls": said}):
        with_pieces((), reader.read(event))
