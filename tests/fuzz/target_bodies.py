"""Request bodies for every endpoint of the server, to its application itself: nothing lies between but the socket."""

import asyncio
import json
import logging

from driver import place
from grammars import guided_fields, regex, schema
from mutate import changed, changed_bytes, odd_value
from serving import builtin_engine, hosted

from edge_llm.server import limits
from edge_llm.server.app import create_app
from edge_llm.server.pool import ModelPool
from edge_llm.text.chat import ChatTemplate

TEMPLATE = (
    "{% for t in tools or [] %}<tool_call>{{ t.function.name }}:{{ t.function.parameters | tojson }}</tool_call>{% endfor %}"
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CONTEXT = 256
MOST_TOKENS = 4
MOST_BYTES = limits.MIN_BODY_BYTES + 1000
"""More is refused before it comes, by what stands between the socket and the application."""
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Says it", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
USER = {"role": "user", "content": "hi"}
CHAT = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "rain"},
]
BLOCKS = [
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Bern"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "rain"}]},
]
ITEMS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
    {"type": "reasoning", "summary": []},
    {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Bern"}'},
    {"type": "function_call_output", "call_id": "c1", "output": "rain"},
]
CLAUDE_TOOL = {"name": "weather", "description": "Says it", "input_schema": SCHEMA}
ITEM_TOOL = {"type": "function", "name": "weather", "parameters": SCHEMA}
BODIES = {
    "/v1/chat/completions": ({"messages": [USER]}, {"messages": CHAT, "tools": [TOOL]}, {"messages": CHAT[:2], "stream": True}),
    "/v1/completions": ({"prompt": "hi"}, {"prompt": ["a", "b"], "logprobs": 2, "echo": True}, {"prompt": [[1, 2]],
    "stream": True}),
    "/v1/embeddings": ({"input": "hi"}, {"input": ["a", [5, 6]], "encoding_format": "base64"}),
    "/v1/responses": ({"input": "hi"}, {"input": ITEMS, "tools": [ITEM_TOOL]}, {"input": "hi", "stream": True,
    "text": {"format": {}}}),
    "/v1/messages": ({"messages": [USER], "max_tokens": 3}, {"messages": BLOCKS, "tools": [CLAUDE_TOOL], "max_tokens": 3,
    "stream": True}),
    "/v1/messages/count_tokens": ({"messages": BLOCKS, "system": [{"type": "text", "text": "x"}]},),
    "/tokenize": ({"content": "hi", "with_pieces": True}, {"messages": CHAT}),
    "/detokenize": ({"tokens": [1, 2, 3]},),
    "/apply-template": ({"messages": CHAT, "tools": [TOOL]},),
}
WEIGHTS = (8, 4, 2, 4, 4, 1, 1, 1, 1)
SETTINGS = {
    "temperature": (0, 0.7, 2), "top_p": (0, 0.5, 1), "top_k": (-1, 0, 5), "min_p": (0, 0.1), "seed": (0, 7, -1, 2**63),
    "n": (1, 2, 3),
    "stop": ("a", ["a", "bc"], [], ""), "stop_token_ids": ([2], list(range(512)), [10**9]), "min_tokens": (0, 3),
    "ignore_eos": (True, False),
    "logprobs": (True, 3), "top_logprobs": (0, 5, 20), "logit_bias": ({"5": 1.5}, {"5": -100}, {}), "frequency_penalty": (-2,
    2),
    "presence_penalty": (1,), "repetition_penalty": (0.5, 1.2), "stream": (True, False),
    "stream_options": ({"include_usage": True},),
    "tools": ([TOOL], [], [{"type": "function", "function": {"name": "f"}}]), "parallel_tool_calls": (True, False),
    "echo": (True,),
    "tool_choice": ("auto", "none", "required", {"type": "function", "function": {"name": "weather"}}, {"type": "any"},
    {"type": "tool", "name": "weather"}),
    "chat_template_kwargs": ({"answer": 1}, {"enable_thinking": False}, {"messages": []}), "continue_final_message": (True,),
    "add_generation_prompt": (True, False), "reasoning_effort": ("low", "high"), "verbosity": ("low",), "think": (True,),
    "user": ("me",),
    "reasoning": ({"effort": "low"},), "thinking": ({"type": "enabled", "budget_tokens": 1024},), "n_predict": (2, -1),
    "suffix": ("x",),
    "max_new_tokens": (2,), "repeat_penalty": (1.1,), "system": ("Be short.", [{"type": "text", "text": "x"}], []),
    "store": (True, False),
    "instructions": ("Be short.",), "text": ({"format": {"type": "text"}}, {"format": 3}, {"format": {"type": "json_schema",
    "schema": SCHEMA}}),
    "dimensions": (4, 0), "model": ("builtin", "nobody", "../x"), "messages": ([], [USER] * 30, [{"role": "user",
    "content": []}]),
    "metadata": ({"a": "b"},), "stop_sequences": (["a"],), "max_completion_tokens": (1, 3), "best_of": (2,), "prompt": ("",
    [], [[]], [1, 10**9]),
}  # fmt: skip
WORDS = (
    *BLOCKS, *ITEMS, *CHAT, TOOL, CALL, CLAUDE_TOOL, "system", "user", "assistant", "tool", "developer", "text", "image_url",
    "input_text",
    "tool_use", "tool_result", "function_call", "thinking", "content", "name", "arguments", "input_schema",
    {"type": "image_url", "image_url": {"url": "file:///x"}},
    {"type": "text"}, {"type": "tool_use"}, {"type": "tool_result"}, {"type": "thinking", "thinking": "x", "signature": "y"},
    {"role": "assistant", "content": []},
    {"role": "assistant", "tool_calls": None}, {"role": "assistant", "tool_calls": 5}, {"role": "tool"}, "<tool_call>",
    "<think>", "<|end|>",
)  # fmt: skip


class Complaints(logging.Handler):
    """What the log has that is an error."""

    def __init__(self):
        super().__init__(logging.ERROR)
        self.said = []

    def emit(self, record):
        error = record.exc_info and record.exc_info[1]
        self.said.append(record.getMessage() if not error else f"{record.getMessage()}: {place(error)}")


class Target:
    def __init__(self):
        engine = builtin_engine(context=CONTEXT)
        engine.template = ChatTemplate(TEMPLATE)
        self.app = create_app(ModelPool(hosted(engine=engine)))
        self.loop = asyncio.new_event_loop()
        self.complaints = Complaints()
        logging.getLogger().addHandler(self.complaints)

    def make(self, random):
        path = random.choices(list(BODIES), WEIGHTS)[0]
        body = random.choice(BODIES[path])
        for name in random.sample(list(SETTINGS), random.choice((0, 0, 1, 2, 5))):
            body = {**body, name: random.choice(SETTINGS[name])}
        if random.random() < 0.15:
            body = {**body, **guided_fields(random)}
        if random.random() < 0.03:
            body = {**body, "text": {"format": {"type": "json_schema", "schema": schema(random)}}}
        if random.random() < 0.05:
            body = {**body, "tools": [changed(TOOL, random, (schema(random), regex(random)), 2)], "tool_choice": "required"}
        body = changed(body, random, WORDS, random.choice((0, 1, 1, 1, 2, 5)))
        if random.random() < 0.02 and isinstance(body, dict) and body:
            body[random.choice(list(body))] = odd_value(random) if random.random() < 0.5 else "x y " * random.choice((10**4,
            9 * 10**5))
        data = json.dumps(short(body)).encode()
        if random.random() < 0.05:
            data = changed_bytes(data, random)
        return {"path": path, "body": data[:MOST_BYTES].decode("latin-1"), "leaves": random.random() < 0.05}

    def run(self, made):
        self.complaints.said.clear()
        status, text = self.loop.run_until_complete(ask(self.app, made["path"], made["body"].encode("latin-1"), made["leaves"]))
        assert not self.complaints.said, self.complaints.said[0][:1500]
        assert 200 <= status < 500, f"{status}: {text[:1000]!r}"
        assert status >= 400 or (b"server_error" not in text and b"api_error" not in text), f"{status}: {text[-1000:]!r}"
        assert b"Traceback" not in text
        if status != 200:
            assert "error" in json.loads(text), text[:500]
        return status == 200


def short(body):
    """``body`` whose answer takes no time: what is asked for in all earnest may be long."""
    if not isinstance(body, dict):
        return body
    if isinstance(body.get("input"), list) and len(body["input"]) <= limits.INPUTS:
        body = {**body, "input": body["input"][:100]}
    asked = [body.get(name) for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")]
    if any(type(most) is int and most <= MOST_TOKENS for most in asked):
        return body
    return body | {name: MOST_TOKENS for name in ("max_tokens", "max_completion_tokens", "max_output_tokens")}


async def ask(app, path, body, leaves=False):
    """Status and body of the answer; a client that ``leaves`` does so at the first piece of it."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
        "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8080), "state": {},
    }  # fmt: skip
    sent = [{"type": "http.request", "body": body, "more_body": False}]
    gone = asyncio.Event()
    status, pieces = 0, []

    async def receive():
        if sent:
            return sent.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            pieces.append(message.get("body", b""))
            if leaves:
                gone.set()

    await app(scope, receive, send)
    return status, b"".join(pieces)
