"""Thoughts end at their budget, and the answer follows, in every API's words."""

import json

import pytest
from serving import builtin_engine, client_of, hosted
from test_server_stream import events

from edge_llm.config import GenerationParams
from edge_llm.engine.thought_budget import ThoughtBudget
from edge_llm.errors import UsageError
from edge_llm.server.schemas import IGNORED_HEADER
from edge_llm.talk.conversation import conversation_request
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.reasoning import Thinking

OPENS = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% else %}<think>{% endif %}"
)
ASK = {"messages": [{"role": "user", "content": "Tell me a story"}], "temperature": 0, "ignore_eos": True, "max_tokens": 60}
MARKER = 8
"""Most tokens that the closing mark takes, which are counted as thought."""


@pytest.fixture(scope="module")
def engine():
    engine = builtin_engine()
    engine.template = ChatTemplate(OPENS)
    return engine


@pytest.fixture(scope="module")
def client(engine):
    with client_of(hosted(engine=engine)) as client:
        yield client


def thought_of(path, reply):
    """(thought, text, tokens of the thought where they are told) of a whole reply."""
    if path == "messages":
        blocks = {block["type"]: block for block in reply["content"]}
        return blocks["thinking"]["thinking"], blocks["text"]["text"], None
    if path == "responses":
        items = {item["type"]: item["content"][0]["text"] for item in reply["output"]}
        return items["reasoning"], items["message"], reply["usage"]["output_tokens_details"]["reasoning_tokens"]
    message = reply["choices"][0]["message"]
    return message["reasoning_content"], message["content"], reply["usage"]["completion_tokens_details"]["reasoning_tokens"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"thinking": {"type": "enabled", "budget_tokens": 12}}),
        ("chat/completions", {"reasoning": {"max_tokens": 12}}),
        ("chat/completions", {"thinking_token_budget": 12}),
        ("chat/completions", {"thinking_budget": 12}), ("chat/completions", {"reasoning_budget": 12}),
        ("responses", {"reasoning": {"max_tokens": 12}}),
        ("messages", {"thinking": {"type": "enabled", "budget_tokens": 12}}),
    ],
)  # fmt: skip
def test_a_thought_ends_at_its_budget(engine, client, path, fields):
    """HTTP | chat, responses, messages | A thought is closed at its budget of tokens, and the answer follows."""
    body = ASK | fields if path != "responses" else {**ASK, **fields, "input": "Tell me a story"}
    response = client.post(f"/v1/{path}", json=body)
    thought, said, counted = thought_of(path, response.raise_for_status().json())
    assert len(engine.tokenizer.encode(thought)) <= 12 + 1 and said
    assert counted is None or 12 < counted <= 12 + MARKER
    assert not set(fields) & {*response.headers.get(IGNORED_HEADER, "").split(", ")}


def test_a_stream_has_the_same_thought(client):
    body = ASK | {"thinking_token_budget": 9}
    whole = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    *chunks, _ = events(client.post("/v1/chat/completions", json=body | {"stream": True}))
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == whole["reasoning_content"]
    assert "".join(delta.get("content", "") for delta in deltas) == whole["content"]


@pytest.mark.parametrize("budget", [0, 1, 5, 30])
def test_the_tokens_of_a_thought_are_counted_exactly(engine, budget):
    params = GenerationParams(max_tokens=60, think_tokens=budget, ignore_eos=True)
    request, _ = conversation_request(engine, ASK["messages"], params)
    free = engine.answer(conversation_request(engine, ASK["messages"], GenerationParams(max_tokens=60, ignore_eos=True))[0])
    answer = engine.answer(request)
    marker = engine.tokenizer.encode("</think>")
    assert answer.tokens[:budget] == free.tokens[:budget]
    assert list(answer.tokens[budget : budget + len(marker)]) == marker
    assert "</think>" not in answer.text.replace("</think>", "", 1) and len(answer.tokens) == 60


def test_a_form_follows_the_closed_thought(client):
    """HTTP | chat | With a form for the answer, the thought ends at its budget, and the answer has that form."""
    good = {"good": {"type": "boolean"}}
    schema = {"type": "object", "properties": good, "required": ["good"], "additionalProperties": False}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = ASK | {"thinking_token_budget": 10, "response_format": form, "ignore_eos": False}
    message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert message["reasoning_content"] and isinstance(json.loads(message["content"])["good"], bool)


def test_low_efforts_are_budgets_where_the_template_knows_no_levels(engine):
    """HTTP | chat | `reasoning_effort` low and medium are budgets of 1024 and 4096 tokens where the template has no levels."""
    from edge_llm.server.chat import ChatBody

    def budget(template=OPENS, **fields):
        return ChatBody.parse(json.dumps(ASK | fields).encode()).think_tokens(template)

    assert [budget(reasoning_effort=effort) for effort in ("low", "medium", "high", "none")] == [1024, 4096, None, None]
    assert budget(reasoning_effort="low", thinking_token_budget=7) == 7
    assert budget(reasoning_effort="low", thinking_budget=-1) is None
    assert budget("{{ reasoning_effort }}", reasoning_effort="low") is None


@pytest.mark.parametrize("close", [["</think>"], ["</", "think", ">"], [" </", "think>"]])
@pytest.mark.parametrize("opened", [True, False])
def test_the_marker_is_written_whole_and_once(close, opened):
    texts = dict(enumerate([*close, "<think>", "a", "</"]))

    class Words:
        token_id = staticmethod(lambda text: next((token for token, word in texts.items() if word == text), None))
        encode = staticmethod(lambda text: list(range(len(close))))
        token_string = staticmethod(texts.__getitem__)

    begun, letter, tease = len(close), len(close) + 1, len(close) + 2
    budget = ThoughtBudget(3, Words, Thinking.OPEN if opened else Thinking.FREE)
    for token in ([] if opened else [begun]) + [letter, tease, letter]:
        assert budget.due is None
        budget.push(token)
    for token in range(len(close)):
        assert budget.due == token
        budget.push(token)
    for token in (letter, begun, letter, letter, letter, letter):
        assert budget.due is None
        budget.push(token)


def test_a_budget_below_nothing_is_refused(client):
    with pytest.raises(UsageError, match="think_tokens must be 0 or more"):
        GenerationParams(think_tokens=-1)
    response = client.post("/v1/chat/completions", json=ASK | {"thinking_token_budget": -2})
    assert response.status_code == 400 and response.json()["error"]["param"] == "thinking_token_budget"
