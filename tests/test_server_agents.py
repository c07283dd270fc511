"""What coding agents send: their histories, roles, parts and tools, on every endpoint, whole and streamed."""

import copy
import json

import pytest
from agent_histories import AGENTS, SCHEMA
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import scripted
from serving import client_of, hosted
from test_server_fields import ignored
from test_server_stream import events

from edge_llm.config import GenerationParams
from edge_llm.errors import UsageError
from edge_llm.llm import LLM
from edge_llm.server.anthropic import MessagesBody
from edge_llm.server.chat import ChatBody
from edge_llm.server.customs import custom_input
from edge_llm.server.responses import ResponsesBody
from edge_llm.talk.spelled_out import spelled_out
from edge_llm.text.chat import ChatTemplate

pytestmark = pytest.mark.thorough(file=6)

HERMES = (
    "{% if tools %}{{ tools | tojson }}<tool_call>{% endif %}{% for m in messages %}[{{ m.role }}"
    "{% if m.reasoning_content %}({{ m.reasoning_content }}){% endif %}:{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>{% endfor %}]{% endfor %}"
)
TEMPLATES = {"with tools": HERMES, "without": "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"}
CALL = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
ASK = [{"role": "user", "content": "hi"}]


def says(engine, text, template=HERMES):
    """A server's host whose model says ``text``."""
    return hosted(engine=scripted(engine, text, ChatTemplate(template), context=1 << 16))


# ---- an answer of any endpoint, whole or streamed, in one form


def read_whole(path, body):
    """(text, thought, calls as (kind, name, arguments), why it ended)."""
    if path == "/v1/chat/completions":
        message = body["choices"][0]["message"]
        calls = [(c["type"], *c[c["type"]].values()) for c in message.get("tool_calls") or []]
        return message["content"] or "", message.get("reasoning_content", ""), calls, body["choices"][0]["finish_reason"]
    if path == "/v1/messages":
        parts = {kind: "".join(b[kind] for b in body["content"] if b["type"] == kind) for kind in ("text", "thinking")}
        calls = [("function", b["name"], b["input"]) for b in body["content"] if b["type"] == "tool_use"]
        return parts["text"], parts["thinking"], calls, body["stop_reason"]
    said, thought = (
        "".join(p["text"] for item in body["output"] if item["type"] == kind for p in item["content"])
        for kind in ("message", "reasoning")
    )
    calls = [("function", i["name"], i["arguments"]) for i in body["output"] if i["type"] == "function_call"]
    calls += [("custom", i["name"], i["input"]) for i in body["output"] if i["type"] == "custom_tool_call"]
    return said, thought, calls, body["status"]


def read_stream(path, chunks):
    """The same of the events of a stream."""
    assert not any("error" in chunk for chunk in chunks if chunk != "[DONE]"), chunks[-1]
    if path == "/v1/responses":
        assert chunks[-1]["type"] in ("response.completed", "response.incomplete")
        for item in chunks[-1]["response"]["output"]:
            if item["type"] in ("function_call", "custom_tool_call"):
                deltas = [c["delta"] for c in chunks if c["type"].endswith(".delta") and c["item_id"] == item["id"]]
                assert "".join(deltas) == item.get("arguments", item.get("input"))
        return read_whole(path, chunks[-1]["response"])
    if path == "/v1/messages":
        blocks = []
        for chunk in chunks:
            if chunk["type"] == "content_block_start":
                blocks.append(copy.deepcopy(chunk["content_block"]) | {"json": ""})
            elif chunk["type"] == "content_block_delta":
                key = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}[chunk["delta"]["type"]]
                blocks[-1][key] += chunk["delta"].get(key) or chunk["delta"].get("partial_json") or ""
        for block in blocks:
            if block["type"] == "tool_use":
                block["input"] = json.loads(block["json"] or "{}")
        end = next(chunk["delta"] for chunk in chunks if chunk["type"] == "message_delta")
        return read_whole(path, {"content": blocks, "stop_reason": end["stop_reason"]})
    message, reason = {"content": "", "reasoning_content": "", "tool_calls": []}, None
    for chunk in chunks[:-1]:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    message["tool_calls"].append({key: value for key, value in call.items() if key != "index"})
                else:
                    kind = message["tool_calls"][call["index"]]["type"]
                    for key, value in call[kind].items():
                        message["tool_calls"][call["index"]][kind][key] += value
            reason = choice["finish_reason"] or reason
    return read_whole(path, {"choices": [{"message": message, "finish_reason": reason}]})


def both(client, path, body):
    """The answer to ``body``, which is the same whole and streamed; and the whole response."""
    whole = client.post(path, json=body | {"stream": False})
    assert whole.status_code == 200, whole.text
    streamed = client.post(path, json=body | {"stream": True})
    assert streamed.status_code == 200, streamed.text
    assert ignored(streamed) == ignored(whole)
    found = read_whole(path, whole.json())
    assert read_stream(path, events(streamed)) == found
    return found, whole


# ---- histories


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("agent", AGENTS)
def test_forty_turns_of_an_agent_go_through(engine, agent, template):
    """agents | all | Histories of 40 turns of Claude Code, Codex, aider, Cline and OpenCode go through, tools streamed."""
    path, body, unheard = AGENTS[agent]()
    name = next((t["name"] if "name" in t else t["function"]["name"] for t in body.get("tools", [])), None)
    call = CALL % (name, '{"command": "ls"}') if name else "no call"
    with client_of(says(engine, f"I look. {call}", TEMPLATES[template])) as client:
        (said, _, calls, _), whole = both(client, path, body)
        assert set(ignored(whole)) - {"1 more"} <= unheard
        assert set(ignored(whole)) >= {one for one in unheard if "." in one and "reasoning" not in one and "effort" not in one}
        assert "I look." in said
        assert [called for _, called, _ in calls] == ([name] if name else [])
        if path == "/v1/messages":
            counted = client.post(
                f"{path}/count_tokens", json={key: value for key, value in body.items() if key != "max_tokens"}
            )
            usage = whole.json()["usage"]
            assert counted.json()["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


# ---- one conversation in all shapes

words = st.text("ab<|> \n{}\"'ü", min_size=1, max_size=12)
ids = st.integers(0, 99)


@st.composite
def conversations(draw):
    """Turns: (kind, ...), as an agent's loop makes them."""
    turns, number = [], 0
    for _ in range(draw(st.integers(1, 4))):
        turns.append(("user", draw(words), draw(st.booleans())))
        if draw(st.booleans()):
            turns.append(("system", draw(words)))
        for _ in range(draw(st.integers(0, 2))):
            calls = []
            for _ in range(draw(st.integers(1, 2))):
                number += 1
                calls.append(
                    (
                        f"c{number}",
                        draw(st.sampled_from(["run", "patch"])),
                        draw(words),
                        draw(st.lists(st.one_of(words, st.none()), max_size=2)),
                    )
                )
            turns.append(("calls", draw(st.one_of(st.just(""), words)), calls))
        turns.append(("said", draw(words)))
    turns.append(("user", "Go on.", False))
    return turns


PICTURES = {
    "chat": {"type": "image_url", "image_url": {"url": "data:x"}}, "messages": {"type": "image", "source": {}},
    "responses": {"type": "input_image", "image_url": "data:x"},
}  # fmt: skip


def result_of(api, parts):
    texts = "input_text" if api == "responses" else "text"
    return [PICTURES[api] if part is None else {"type": texts, "text": part} for part in parts]


def arguments_of(name, text):
    return {"input": text} if name == "patch" else {"command": text}


def as_chat(turns):
    messages = []
    for kind, *rest in turns:
        if kind in ("user", "system"):
            messages.append({"role": kind, "content": rest[0]})
        elif kind == "said":
            messages.append({"role": "assistant", "content": rest[0]})
        else:
            calls = [
                {"id": i, "type": "custom", "custom": {"name": name, "input": text}} if name == "patch" else
                {"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments_of(name, text))}}
                for i, name, text, _ in rest[1]
            ]  # fmt: skip
            messages.append({"role": "assistant", "content": rest[0] or None, "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": i, "content": result_of("chat", parts)} for i, _, _, parts in rest[1]]
    custom = {"type": "custom", "custom": {"name": "patch", "description": "d"}}
    return {
        "messages": messages,
        "tools": [{"type": "function", "function": {"name": "run", "description": "d", "parameters": SCHEMA}}, custom],
    }


def as_messages(turns):
    messages = []
    for kind, *rest in turns:
        if kind == "user":
            source = {"type": "text", "media_type": "text/plain", "data": rest[0]}
            messages.append({"role": "user", "content": [{"type": "document", "source": source}] if rest[1] else rest[0]})
        elif kind in ("said", "system"):
            messages.append({"role": "assistant" if kind == "said" else kind, "content": [{"type": "text", "text": rest[0]}]})
        else:
            text = [{"type": "text", "text": rest[0]}] if rest[0] else []
            uses = [
                {"type": "tool_use", "id": i, "name": name, "input": arguments_of(name, text)} for i, name, text, _ in rest[1]
            ]
            messages.append({"role": "assistant", "content": [*text, *uses]})
            results = [
                {"type": "tool_result", "tool_use_id": i, "content": result_of("messages", parts)} for i, _, _, parts in rest[1]
            ]
            messages.append({"role": "user", "content": results})
    custom = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    tools = [
        {"name": name, "description": "d", "input_schema": schema} for name, schema in (("run", SCHEMA), ("patch", custom))
    ]
    return {"messages": messages, "tools": tools, "max_tokens": 5}


def as_responses(turns):
    items = []
    for kind, *rest in turns:
        if kind != "calls":
            items.append({"role": "assistant" if kind == "said" else kind, "content": rest[0]})
            continue
        items += (
            [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": rest[0]}]}] if rest[0] else []
        )
        for i, name, text, _ in rest[1]:
            given = {"input": text} if name == "patch" else {"arguments": json.dumps(arguments_of(name, text))}
            items.append(
                {"type": "custom_tool_call" if name == "patch" else "function_call", "call_id": i, "name": name} | given
            )
        for i, name, _, parts in rest[1]:
            kind = "custom_tool_call_output" if name == "patch" else "function_call_output"
            items.append({"type": kind, "call_id": i, "output": result_of("responses", parts)})
    custom = {"type": "custom", "name": "patch", "description": "d"}
    return {"input": items, "tools": [{"type": "function", "name": "run", "description": "d", "parameters": SCHEMA}, custom]}


@pytest.fixture(scope="module")
def host(engine):
    return says(engine, "x")


@settings(max_examples=60)
@given(turns=conversations())
def test_one_conversation_is_one_prompt_on_every_endpoint(host, turns):
    bodies = {kind: kind.parse(json.dumps(body).encode()) for kind, body in (
        (ChatBody, as_chat(turns)), (MessagesBody, as_messages(turns)), (ResponsesBody, as_responses(turns)),
    )}  # fmt: skip
    prompts = [
        bodies[ChatBody].prompts(host)[0][0].prompt,
        bodies[MessagesBody].prompt_for(host, GenerationParams())[0].prompt,
        bodies[ResponsesBody].prompt_for(host)[0].prompt,
    ]
    assert prompts[0] == prompts[1] == prompts[2]
    text = host.engine.tokenizer.decode(prompts[0], skip_special=False)
    pictures = sum(part is None for kind, *rest in turns if kind == "calls" for call in rest[1] for part in call[3])
    assert text.count("[picture left out]") == pictures
    for body in bodies.values():
        assert len([name for name in body.ignored() if "image" in name]) == bool(pictures)
        assert all("image" in name for name in body.ignored())


# ---- custom tools

INPUTS = ["a", '*** Begin Patch\n"ü" \\ \t\n', "", "{}", "</tool_call", "\U0001f600\ud83d\ude00"[:1]]
CUSTOM = {"chat": {"type": "custom", "custom": {"name": "patch"}}, "responses": {"type": "custom", "name": "patch"}}


@pytest.mark.parametrize("text", INPUTS)
@pytest.mark.parametrize("api", CUSTOM)
def test_a_custom_tool_is_called_with_a_text_and_takes_it_back(engine, api, text):
    """HTTP | chat, responses | A custom tool is called with its text, whole and streamed; the call is taken back."""
    said = "So. " + CALL % ("patch", json.dumps({"input": text})) + CALL % ("run", '{"command": "ls"}')
    tools = as_chat([("user", "hi", False)])["tools"] if api == "chat" else as_responses([("user", "hi", False)])["tools"]
    path = "/v1/chat/completions" if api == "chat" else "/v1/responses"
    key = "messages" if api == "chat" else "input"
    with client_of(says(engine, said)) as client:
        (spoken, _, calls, _), whole = both(client, path, {key: ASK, "tools": tools, "temperature": 0})
        assert spoken.strip() == "So."
        assert sorted(calls) == [("custom", "patch", text), ("function", "run", '{"command": "ls"}')]
        if api == "chat":
            message = whole.json()["choices"][0]["message"]
            results = [{"role": "tool", "tool_call_id": call["id"], "content": "ok"} for call in message["tool_calls"]]
            again = client.post(path, json={"messages": [*ASK, message, *results], "tools": tools, "max_tokens": 1})
        else:
            output = whole.json()["output"]
            results = [
                {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"}
                for item in output
                if "call_id" in item
            ]
            again = client.post(path, json={"input": [*ASK, *output, *results], "tools": tools, "max_output_tokens": 1})
        assert again.status_code == 200, again.text


@given(text=st.text(max_size=20), cut=st.integers(0, 60))
def test_the_text_of_a_custom_call_is_read_as_far_as_it_came(text, cut):
    arguments = json.dumps({"input": text})
    assert custom_input(arguments) == text.encode("utf-8", "replace").decode()
    begun = custom_input(arguments[:cut])
    assert isinstance(begun, str) and begun.encode() is not None
    if len('{"input": "') <= cut < len(arguments) - 2 and text.isascii():
        assert text.startswith(begun)


# ---- choices, refusals and what is left out

CHOICES = {
    "chat allowed": ("/v1/chat/completions", {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
        {"type": "function", "function": {"name": "run"}}]}}),
    "responses allowed": ("/v1/responses", {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "run"}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_only_allowed_tools_are_shown(engine, name):
    """HTTP | chat, responses | `tool_choice` of `allowed_tools`: only those are shown; required calls one of them."""
    path, choice = CHOICES[name]
    turns = [("user", "hi", False)]
    host = says(engine, "x")
    kind, body = (ChatBody, as_chat(turns)) if "chat" in path else (ResponsesBody, as_responses(turns))

    def prompt(**more):
        parsed = kind.parse(json.dumps(body | more).encode())
        request = parsed.prompts(host)[0][0] if kind is ChatBody else parsed.prompt_for(host)[0]
        return host.engine.tokenizer.decode(request.prompt, skip_special=False), request.params.grammar

    shown, grammar = prompt(tool_choice=choice)
    assert '"run"' in shown and '"patch"' not in shown and '"patch"' in prompt()[0] and grammar is None
    inner = choice.get("allowed_tools", choice)
    forced = json.loads(json.dumps(choice).replace('"auto"', '"required"'))
    assert prompt(tool_choice=forced)[1] is not None
    with client_of(host) as client:
        for wrong in ([{"type": "function", "name": "nobody"}], "run", [5]):
            bad = choice | ({"allowed_tools": inner | {"tools": wrong}} if "allowed_tools" in choice else {"tools": wrong})
            response = client.post(path, json=body | {"tool_choice": bad})
            assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice"), response.text


def test_a_role_that_is_none_is_refused_in_the_words_that_clients_look_for(engine):
    """Claude Code | messages | A role that is not supported is refused in the words on which it falls back."""
    with client_of(says(engine, "x")) as client:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            for role in ("tool", "developer", None, 5, ["user"]):
                body = {"max_tokens": 1, "messages": [*ASK, {"role": role, "content": "x"}]}
                response = client.post(path, json=body)
                assert response.status_code == 400
                assert f"role '{role}' is not supported" in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["web_search", "namespace", "local_shell", "mcp", "image_generation", "file_search"])
def test_tools_that_are_no_functions_are_named_and_the_others_work(engine, kind):
    """Codex | responses | Tools of other types are left out and named; functions beside them work."""
    call = CALL % ("run", '{"command": "ls"}')
    bodies = {
        "/v1/responses": as_responses([("user", "hi", False)]), "/v1/chat/completions": as_chat([("user", "hi", False)]),
        "/v1/messages": as_messages([("user", "hi", False)]) | {"max_tokens": 99},
    }  # fmt: skip
    with client_of(says(engine, call)) as client:
        for path, body in bodies.items():
            tools = [{"type": kind, "name": "x"}, *body["tools"]]
            (_, _, calls, _), whole = both(client, path, body | {"tools": tools})
            assert [name for _, name, _ in calls] == ["run"], path
            assert ignored(whole) == [f"tools.{kind}"], path


def test_thoughts_behind_the_last_question_are_shown_and_earlier_ones_are_not(engine):
    """HTTP | messages, responses | Thinking blocks and reasoning items behind the last user message reach the template."""
    host = says(engine, "x")
    use = {"type": "tool_use", "id": "c", "name": "run", "input": {"command": "ls"}}
    done = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "ok"}]}

    def thinking(text):
        return {"type": "thinking", "thinking": text, "signature": ""}

    messages = [
        ASK[0], {"role": "assistant", "content": [thinking("OLD")]},
        {"role": "assistant", "content": [thinking("OLD"), use]}, done,
        {"role": "user", "content": "more"}, {"role": "assistant", "content": [thinking("NEW"), use]}, done,
    ]  # fmt: skip
    body = MessagesBody.parse(json.dumps(as_messages([]) | {"messages": messages}).encode())
    first = body.prompt_for(host, GenerationParams())[0].prompt

    def reasoning(text, **more):
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **more}

    call = [{"type": "function_call", "call_id": "c", "name": "run", "arguments": '{"command": "ls"}'},
            {"type": "function_call_output", "call_id": "c", "output": "ok"}]  # fmt: skip
    items = [
        ASK[0], reasoning("OLD"), reasoning("OLD"), *call, {"role": "user", "content": "more"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "NEW"}]}, *call,
    ]  # fmt: skip
    body = ResponsesBody.parse(json.dumps(as_responses([]) | {"input": items}).encode())
    for prompt in (first, body.prompt_for(host)[0].prompt):
        text = host.engine.tokenizer.decode(prompt, skip_special=False)
        assert "[assistant(NEW):<run " in text and "OLD" not in text


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content", "reasoning_details"])
def test_thoughts_of_a_chat_s_messages_have_many_names(engine, key):
    """HTTP | chat | `reasoning` and `reasoning_details` of a message are its `reasoning_content`."""
    thought = [{"type": "reasoning.text", "text": "HM"}] if key == "reasoning_details" else "HM"
    with client_of(says(engine, "x")) as client:
        body = {"messages": [*ASK, {"role": "assistant", "content": "y", key: thought}, *ASK]}
        shown = client.post("/apply-template", json=body)
    assert "[assistant(HM):y]" in shown.json()["prompt"]
    assert ignored(shown) == []


def test_documents_are_text_and_what_is_none_is_refused(engine):
    """HTTP | messages | `document` blocks of text and `search_result` blocks are read; other documents are a 400."""
    blocks = [
        {"type": "document", "title": "T", "context": "C", "source": {"type": "text", "data": "D"}, "citations": {"on": True}},
        {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "E"}]}},
        {"type": "search_result", "source": "S", "title": "U", "content": [{"type": "text", "text": "F"}]},
    ]  # fmt: skip
    host = says(engine, "x")
    body = MessagesBody.parse(json.dumps({"max_tokens": 1, "messages": [{"role": "user", "content": blocks}]}).encode())
    text = host.engine.tokenizer.decode(body.prompt_for(host, GenerationParams())[0].prompt)
    assert text == "[user:T\nC\nD\nE\nU\nS\nF]"
    assert body.ignored() == ["messages.content.citations"]
    with client_of(host) as client:
        for source in ({"type": "base64", "media_type": "application/pdf", "data": "x"}, {"type": "url", "url": "x"}, 5, None):
            messages = [{"role": "user", "content": [{"type": "document", "source": source}]}]
            response = client.post("/v1/messages", json={"max_tokens": 1, "messages": messages})
            assert response.status_code == 400 and "send the document's text" in response.text


# ---- what does not fit


@pytest.mark.parametrize("turns", [1, 5, 40])
def test_a_response_may_lose_its_beginning(engine, turns):
    """HTTP | responses | `truncation` auto: a conversation that is too long loses its oldest turns; else it is a 400."""
    items = []
    for at in range(turns):
        items += [
            {"role": "user", "content": f"question {at}. " + "word " * 40},
            {"role": "assistant", "content": f"answer {at}"},
        ]
    items.append({"role": "user", "content": "last"})
    body = {"instructions": "Be kind.", "input": items, "max_output_tokens": 4}
    host = hosted(engine=scripted(engine, "x", ChatTemplate(HERMES)))
    with client_of(host) as client:
        plain = client.post("/v1/responses", json=body)
        auto = client.post("/v1/responses", json=body | {"truncation": "auto"})
        assert auto.status_code == 200, auto.text
        assert auto.json()["truncation"] == "auto"
        if turns < 40:
            assert plain.json()["usage"]["input_tokens"] == auto.json()["usage"]["input_tokens"]
            return
        assert (plain.status_code, plain.json()["error"]["code"]) == (400, "context_length_exceeded")
        prompt = ResponsesBody.parse(json.dumps(body | {"truncation": "auto"}).encode()).prompt_for(host)[0].prompt
        text = host.engine.tokenizer.decode(prompt)
        assert text.startswith("[system:Be kind.][user:question ") and text.endswith("[user:last]")
        assert "question 0." not in text and 512 < len(prompt) < 1024
        long = client.post("/v1/responses", json=body | {"input": "word " * 3000, "truncation": "auto"})
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_the_python_face_reads_what_the_endpoints_read(engine):
    llm = LLM.__new__(LLM)
    llm.engine = scripted(engine, lambda prompt: prompt.rpartition("[tool:")[2], ChatTemplate(HERMES))
    messages = as_chat([("user", "hi", False), ("calls", "", [("c1", "patch", "x", ["seen", None])])])["messages"]
    assert llm.chat(messages, temperature=0).startswith("seen\n[picture left out]")
    with pytest.raises(UsageError, match="must be a list of"):
        llm.chat("hi")


def test_a_thought_stays_where_its_call_is_spelled_out():
    call = {"id": "c", "type": "function", "function": {"name": "run", "arguments": {"a": 1}}}
    message = {"role": "assistant", "content": "So.", "reasoning_content": "HM", "tool_calls": [call]}
    (plain,) = spelled_out([message])
    assert plain["reasoning_content"] == "HM" and plain["content"].startswith("So.\n<tool_call>") and "tool_calls" not in plain
