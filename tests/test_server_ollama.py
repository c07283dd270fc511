"""Ollama's API by plain HTTP: the answers of /v1 in other shapes, streams as lines of JSON, names with tags."""

import copy
import json

import pytest
from serving import HandService, client_of, end, hosted
from test_server_stream import play
from test_server_tools import CHAT as HISTORY
from test_server_tools import PROMPT, TEMPLATE, TOOL

from edge_llm.engine.request import Delta
from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.app import OLLAMA_API
from edge_llm.server.ollama.options import Asked
from edge_llm.server.schemas import IGNORED_HEADER
from edge_llm.text.chat import ChatTemplate

pytestmark = pytest.mark.thorough(file=12)

ASK = [{"role": "user", "content": "Tell me a story"}]
GREEDY = {"temperature": 0, "num_predict": 24}
SCHEMA = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
THINKS = (
    "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
    "{% if enable_thinking is defined %}{{ '<think>' if enable_thinking else '<think></think>' }}{% endif %}"
)
TIMES = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")


@pytest.fixture(scope="module")
def http(engine):
    with client_of(hosted(engine=engine)) as client:
        yield client


@pytest.fixture(scope="module")
def tooled(engine):
    other = copy.copy(engine)
    other.template = ChatTemplate(TEMPLATE)
    service = HandService()
    with client_of(hosted(service, other)) as client:
        client.engine = other
        yield client, service


def lines(response):
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.endswith("\n")
    return [json.loads(one) for one in response.text.splitlines()]


def chat(client, messages=ASK, **fields):
    body = {"model": "builtin", "messages": messages, "stream": False, "options": GREEDY} | fields
    response = client.post("/api/chat", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def generate(client, prompt, **fields):
    body = {"model": "builtin", "prompt": prompt, "stream": False, "options": GREEDY} | fields
    response = client.post("/api/generate", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def plain(client, **fields):
    body = {"model": "builtin", "messages": ASK, "temperature": 0, "max_tokens": 24} | fields
    return client.post("/v1/chat/completions", json=body).json()


def refusal(response, status=400):
    """The text of an error in Ollama's shape."""
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    return response.json()["error"]


# ---- two ways to one answer


def test_a_chat_is_the_answer_of_chat_completions(http):
    """HTTP | ollama | `/api/chat` gives the answer of `/v1/chat/completions`, its counts, and times in nanoseconds."""
    ours, theirs = chat(http), plain(http)
    assert ours["message"] == {"role": "assistant", "content": theirs["choices"][0]["message"]["content"]}
    assert (ours["done"], ours["done_reason"]) == (True, theirs["choices"][0]["finish_reason"])
    usage = theirs["usage"]
    assert (ours["prompt_eval_count"], ours["eval_count"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert all(isinstance(ours[name], int) and ours[name] >= 0 for name in TIMES)
    assert ours["created_at"].endswith("Z") and ours["model"] == "builtin"


@pytest.mark.parametrize("fields", [{}, {"stream": None}, {"stream": True, "logprobs": True}])
def test_a_stream_is_the_whole_in_lines(http, fields):
    """HTTP | ollama | Answers are streamed, unless `stream` is false, as lines of JSON that make up the whole."""
    body = {"model": "builtin", "messages": ASK, "options": GREEDY} | fields
    *pieces, last = lines(http.post("/api/chat", json=body))
    whole = chat(http, logprobs=fields.get("logprobs"))
    assert "".join(piece["message"]["content"] for piece in pieces) == whole["message"]["content"]
    assert not any(piece["done"] for piece in pieces) and last["done"] and last["message"]["content"] == ""
    assert {name: last[name] for name in ("done_reason", "eval_count", "prompt_eval_count")} == {
        name: whole[name] for name in ("done_reason", "eval_count", "prompt_eval_count")
    }
    assert [one for piece in pieces for one in piece.get("logprobs", ())] == whole.get("logprobs", [])


def test_a_prompt_is_the_question_of_a_chat(http):
    """HTTP | ollama | `/api/generate` puts `prompt`, behind `system`, through the template; streamed or not."""
    system = {"role": "system", "content": "Be short."}
    one = generate(http, "Tell me a story", system="Be short.")
    assert one["response"] == chat(http, [system, *ASK])["message"]["content"]
    body = {"model": "builtin", "prompt": "Tell me a story", "system": "Be short.", "options": GREEDY}
    *pieces, last = lines(http.post("/api/generate", json=body))
    assert "".join(piece["response"] for piece in pieces) == one["response"]
    assert last["context"] == one["context"] and last["done_reason"] == one["done_reason"]


def test_a_raw_prompt_is_a_completion(http):
    """HTTP | ollama | `raw`: the prompt as the model reads it, as `/v1/completions` has it; without a context."""
    body = {"model": "builtin", "prompt": "One day", "temperature": 0, "max_tokens": 24}
    found = generate(http, "One day", raw=True)
    assert found["response"] == http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert "context" not in found
    response = http.post("/api/generate", json={"prompt": "One", "raw": True, "system": "Be short."})
    assert "raw" in refusal(response)


def test_a_context_goes_on(http, engine):
    """HTTP | ollama | `context` of an answer, sent back, is the conversation so far; tokens that are none are a 400."""
    first = generate(http, "Tell me a story")
    second = generate(http, "And then?", context=first["context"])
    assert second["context"][: len(first["context"])] == first["context"]
    assert second["prompt_eval_count"] > first["prompt_eval_count"] + first["eval_count"]
    assert "context" in refusal(http.post("/api/generate", json={"prompt": "x", "context": [engine.config.vocab_size]}))


def test_an_embedding_is_that_of_embeddings(http):
    """HTTP | ollama | `/api/embed` gives the vectors of `/v1/embeddings`, `/api/embeddings` that of one text."""
    texts = ["one", "two words"]
    found = http.post("/api/embed", json={"model": "builtin", "input": texts}).json()
    theirs = http.post("/v1/embeddings", json={"input": texts}).json()
    assert found["embeddings"] == [one["embedding"] for one in theirs["data"]]
    assert found["prompt_eval_count"] == theirs["usage"]["prompt_tokens"] and found["total_duration"] > 0
    assert http.post("/api/embeddings", json={"prompt": "one"}).json() == {"embedding": found["embeddings"][0]}
    assert http.post("/api/embed", json={"input": "one"}).json()["embeddings"] == found["embeddings"][:1]


def test_an_embedding_may_be_short(http):
    """HTTP | ollama | `dimensions` keeps the first numbers, made as long as 1; `truncate: false` refuses what is too long."""
    whole, short = (
        http.post("/api/embed", json={"input": "one", "dimensions": size}).json()["embeddings"][0] for size in (0, 8)
    )
    norm = sum(value * value for value in whole[:8]) ** 0.5
    assert short == pytest.approx([value / norm for value in whole[:8]])
    long = {"input": "a b c d " * 2000}
    cut = http.post("/api/embed", json=long)
    assert cut.json()["prompt_eval_count"] == 1024 and cut.headers[IGNORED_HEADER] == "input.end"
    refusal(http.post("/api/embed", json=long | {"truncate": False}))


@pytest.mark.parametrize("path, body, empty", [("embed", {"input": ""}, "embeddings"), ("embeddings", {}, "embedding")])
def test_nothing_to_embed_loads_the_model(http, path, body, empty):
    assert http.post(f"/api/{path}", json=body).json()[empty] == []


# ---- fields


def test_options_are_honoured(http):
    """HTTP | ollama | `options` choose tokens as the same fields of `/v1` do; whole numbers may be written as 4.0."""
    sampled = {"temperature": 0.9, "top_k": 5, "top_p": 0.9, "min_p": 0.05, "seed": 7, "repeat_penalty": 1.2, "stop": ["."]}
    found = chat(http, options={**sampled, "num_predict": 24.0, "seed": 7.0})
    assert found["message"]["content"] == plain(http, **sampled)["choices"][0]["message"]["content"]
    assert chat(http, options=GREEDY | {"num_predict": 4.0})["eval_count"] == 4
    off, none = chat(http, options=GREEDY | {"repeat_penalty": 1.9, "repeat_last_n": 0}), chat(http)
    assert off["message"] == none["message"]


def test_num_ctx_bounds_prompt_and_answer(http):
    """HTTP | ollama | `num_ctx` is most tokens of prompt and answer together; one above the server's context is named."""
    prompt = chat(http)["prompt_eval_count"]
    found = chat(http, options={"temperature": 0, "num_ctx": prompt + 5})
    assert (found["eval_count"], found["done_reason"]) == (5, "length")
    small = {"messages": ASK, "options": {"num_ctx": prompt}, "truncate": False}
    assert "tokens" in refusal(http.post("/api/chat", json=small))
    body = {"messages": ASK, "stream": False, "options": GREEDY | {"num_ctx": 1 << 20}}
    assert http.post("/api/chat", json=body).headers[IGNORED_HEADER] == "options.num_ctx"


def test_the_oldest_turns_are_left_out(http):
    """HTTP | ollama | What does not fit loses its oldest turns, and says so; with `truncate: false` it is a 400."""
    system = {"role": "system", "content": "Be short."}
    turns = [{"role": role, "content": f"{at} " * 60} for at in range(30) for role in ("user", "assistant")]
    body = {"messages": [system, *turns, *ASK], "stream": False, "options": GREEDY}
    response = http.post("/api/chat", json=body)
    assert response.headers[IGNORED_HEADER] == "messages.oldest"
    kept = next(at for at in range(0, len(turns), 2) if len(chat_tokens(http, [system, *turns[at:], *ASK])) < 1024)
    assert response.json()["message"] == chat(http, [system, *turns[kept:], *ASK])["message"]
    refusal(http.post("/api/chat", json=body | {"truncate": False}))


def chat_tokens(client, messages):
    response = client.post("/tokenize", json={"messages": messages})
    return response.json()["tokens"] if response.status_code == 200 else [0] * 1024


def test_a_gap_is_filled_as_in_a_completion(http, engine, monkeypatch):
    """HTTP | ollama | `suffix` is filled in the model's own tokens, as in `/v1/completions`, streamed or not."""
    marks = tuple(text for text in engine.tokenizer.special_texts if text != engine.tokenizer.bos_text)[:3]
    monkeypatch.setattr("edge_llm.text.infill._MARKS", (marks,))
    shown = http.post("/api/show", json={"model": "builtin"}).json()
    assert "insert" in shown["capabilities"] and shown["template"].startswith("{# .Suffix #}")
    assert ChatTemplate(shown["template"]).render(ASK) == ChatTemplate(engine.template.source).render(ASK)
    body = {"prompt": "Once upon", "suffix": " boat."}
    whole = generate(http, **body)
    theirs = http.post("/v1/completions", json=body | {"temperature": 0, "max_tokens": GREEDY["num_predict"]}).json()
    assert whole["response"] == theirs["choices"][0]["text"] and "context" not in whole
    assert whole["prompt_eval_count"] == theirs["usage"]["prompt_tokens"]
    streamed = lines(http.post("/api/generate", json=body | {"model": "builtin", "options": GREEDY}))
    assert "".join(piece["response"] for piece in streamed) == whole["response"] and streamed[-1]["done"]
    assert generate(http, **body | {"raw": True})["response"] == whole["response"]
    assert generate(http, "", suffix=" boat.")["prompt_eval_count"] < whole["prompt_eval_count"]


def test_hints_are_named(http):
    """HTTP | ollama | Hints about hardware have no effect and are named, as `options.num_gpu`."""
    hints = {"num_gpu": 1, "num_thread": 4, "num_batch": 2, "use_mmap": True, "numa": False, "num_keep": 4, "repeat_last_n": 64}
    response = http.post("/api/chat", json={"messages": ASK, "stream": False, "options": GREEDY | hints, "shift": True})
    named = response.headers[IGNORED_HEADER].split(", ")
    assert set(named) == {"shift", *(f"options.{name}" for name in hints)}


@pytest.mark.parametrize(
    ("path", "fields", "named"),
    [
        ("chat", {"messages": [{"role": "user", "content": "x", "images": ["aGk="]}]}, "images"),
        ("generate", {"prompt": "x", "images": ["aGk="]}, "images"),
        ("generate", {"prompt": "x", "suffix": "y"}, "fills no gaps"),
        ("generate", {"prompt": "x", "suffix": 5}, "suffix"), ("generate", {"suffix": "y", "system": "z"}, "system"),
        ("generate", {"suffix": "y", "context": [1]}, "context"),
        ("generate", {"raw": True, "prompt": "x", "system": "y"}, "raw"),
        ("generate", {"prompt": "x", "template": "{{ .Prompt }}"}, "template"), ("chat", {"format": "xml"}, "format"),
        ("chat", {"format": {"type": 5}}, "schema"), ("chat", {"options": {"mirostat": 1}}, "mirostat"),
        ("chat", {"options": {"tfs_z": 0.5}}, "tfs_z"), ("chat", {"options": {"top_p": 3}}, "options.top_p"),
        ("chat", {"keep_alive": "soon"}, "keep_alive"), ("chat", {"messages": [{"role": "robot"}]}, "role"),
        ("chat", {"top_logprobs": 21}, "top_logprobs"), ("chat", {"stream": "yes"}, "stream"),
        ("embed", {"input": [5]}, "input"), ("show", {}, "model"), ("copy", {"source": "builtin"}, "destination"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name(http, path, fields, named):
    """HTTP | ollama | Images, a `suffix` without tokens for it, `template`, mirostat and wrong values are a 400 by name."""
    body = {"messages": ASK} if path == "chat" else {}
    assert named in refusal(http.post(f"/api/{path}", json=body | fields))


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (0, 0.0), (-1, float("inf")), (1.5, 1.5), ("5m", 300.0), ("1h30m", 5400.0), ("300ms", 0.3), ("-1", float("inf")),
        ("-1m", float("inf")), ("10", 10.0), ("0", 0.0), ("-0", 0.0), (None, None),
    ],
)  # fmt: skip
def test_keep_alive_is_seconds_or_a_duration(given, seconds):
    assert Asked.parse(json.dumps({"keep_alive": given}).encode()).stays == pytest.approx(seconds)


@pytest.mark.parametrize("given", ["", "5x", "m", "1" * 60 + "x", "5m " * 30, True, [], "٣s"])
def test_a_keep_alive_that_is_none_is_refused(given):
    with pytest.raises(UsageError, match="keep_alive"):
        Asked.parse(json.dumps({"keep_alive": given}).encode())


@pytest.mark.parametrize("form", ["json", SCHEMA])
def test_an_answer_has_the_form_that_is_asked_for(http, form):
    """HTTP | ollama | `format`: `json` or a JSON schema."""
    found = json.loads(chat(http, format=form, options={"temperature": 0, "num_predict": 300})["message"]["content"])
    assert form == "json" or found["city"] in ("Rome", "Oslo")


def test_a_last_message_of_the_assistant_goes_on(http):
    """HTTP | ollama | A last message of the assistant is the beginning of the answer."""
    begun = [*ASK, {"role": "assistant", "content": "Once"}]
    theirs = plain(http, messages=begun, continue_final_message=True)
    assert chat(http, begun)["message"]["content"] == theirs["choices"][0]["message"]["content"]


def test_log_probabilities(http):
    """HTTP | ollama | `logprobs` and `top_logprobs`: each token with its alternatives."""
    ours = chat(http, logprobs=True, top_logprobs=2)["logprobs"]
    theirs = plain(http, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert ours == theirs and all(len(one["top_logprobs"]) == 2 for one in ours)


# ---- thoughts and tools


def test_thoughts_are_apart(engine):
    """HTTP | ollama | `think` turns thoughts on and off where the model can; they come as `thinking`."""
    other = copy.copy(engine)
    other.template = ChatTemplate(THINKS)
    service = HandService()
    with client_of(hosted(service, other)) as client:
        prompts = {}
        for number, think in enumerate((True, False, "high", None), 1):
            play(service, Delta("hm</think>" if think else "", (1,)), Delta("Hi", (2,)), end(completion=2), request=number)
            response = client.post("/api/chat", json={"messages": ASK, "think": think, "stream": False})
            prompts[think] = engine.tokenizer.decode(service.streams[-1].request.prompt, skip_special=False)
            message = response.json()["message"]
            assert message["content"] == "Hi" and message.get("thinking") == ("hm" if think else None)
            assert response.headers.get(IGNORED_HEADER) == ("think" if think == "high" else None)
        play(service, Delta("hm</th", (1,)), Delta("ink>Hi", (2,)), end(completion=2), request=5)
        *pieces, last = lines(client.post("/api/generate", json={"prompt": "hi", "think": True}))
    assert prompts[True].endswith("<think>") and prompts[False].endswith("</think>") and prompts[None].endswith("]")
    assert "".join(piece.get("thinking", "") for piece in pieces) == "hm"
    assert "".join(piece["response"] for piece in pieces) == "Hi" and "thinking" not in last


def test_a_history_with_tools_reaches_the_template(tooled):
    """HTTP | ollama | `tools`, `tool_calls` (arguments as objects, without ids) and results by `tool_name` are understood."""
    client, service = tooled
    call = {"function": {"index": 0, "name": "weather", "arguments": {"city": "Bern"}}}
    messages = [HISTORY[0], {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "tool_name": "weather", "content": "rain"}]  # fmt: skip
    count = len(service.streams)
    play(service, end(), request=count + 1)
    chat(client, messages, tools=[TOOL])
    shown = client.engine.tokenizer.decode(service.streams[-1].request.prompt, skip_special=False)
    assert shown == PROMPT


@pytest.mark.parametrize("stream", [True, False])
def test_calls_come_whole_with_arguments_as_objects(tooled, stream):
    """HTTP | ollama | Calls come each in one piece, `arguments` as an object; the reason of the end is `stop`."""
    client, service = tooled
    said = 'Sure.<tool_call>{"name": "weather", "arguments": {"city": "Bern"}}</tool_call>\n<tool_call>{"name": "weather", '
    deltas = [Delta(said[:30], (1,)), Delta(said[30:], (2,)), Delta('"arguments": {"city": "Rome"}}</tool_call>', (3,))]
    play(service, *deltas, end(completion=3), request=len(service.streams) + 1)
    response = client.post("/api/chat", json={"messages": HISTORY[:1], "tools": [TOOL], "stream": stream})
    found = lines(response) if stream else [response.json()]
    calls = [call for piece in found for call in piece["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [
        {"index": at, "name": "weather", "arguments": {"city": city}} for at, city in enumerate(("Bern", "Rome"))
    ]
    assert len({call["id"] for call in calls}) == 2
    assert "".join(piece["message"]["content"] for piece in found).strip() == "Sure."
    assert found[-1]["done_reason"] == "stop"


# ---- loading, names, lists


def test_nothing_to_answer_loads_the_model(http):
    """HTTP | ollama | A request without messages, or an empty prompt, loads the model; with `keep_alive` 0 it unloads it."""
    for path, fields in (("chat", {}), ("chat", {"messages": []}), ("generate", {"prompt": ""})):
        for keep, reason in ((None, "load"), ("5m", "load"), (0, "unload")):
            response = http.post(f"/api/{path}", json={"model": "builtin", "keep_alive": keep, **fields})
            assert response.headers["content-type"] == "application/json"
            assert (response.json()["done"], response.json()["done_reason"]) == (True, reason)


@pytest.mark.parametrize("name", ["builtin", "builtin:latest", "an/alias", "an/alias:latest"])
def test_a_name_may_have_a_tag(http, name):
    """HTTP | ollama | `NAME:latest` is `NAME`; answers call the model as the request did, lists with its tag."""
    assert chat(http, model=name)["model"] == name
    assert http.post("/api/show", json={"name": name}).json()["details"]["family"] == "llama"
    rows = http.get("/api/tags").json()["models"]
    assert [row["name"] for row in rows] == [row["model"] for row in rows] == ["builtin:latest", "an/alias:latest"]


def test_what_is_known_of_a_model(http, engine):
    """HTTP | ollama | `/api/tags`, `/api/ps`, `/api/show`: size, digest, details, `model_info`, capabilities."""
    row, loaded = http.get("/api/tags").json()["models"][0], http.get("/api/ps").json()["models"][0]
    shown = http.post("/api/show", json={"model": "builtin"}).json()
    assert row["digest"] == loaded["digest"] and len(row["digest"]) == 64 and row["size"] > loaded["size_vram"] == 0
    assert row["details"] == loaded["details"] == shown["details"]
    assert (loaded["context_length"], shown["template"]) == (1024, engine.template.source)
    assert shown["model_info"]["llama.context_length"] == engine.config.context
    assert shown["model_info"]["general.parameter_count"] == http.get("/v1/models").json()["data"][0]["meta"]["n_params"]
    assert shown["capabilities"] == ["completion", "tools"]


def test_who_is_there(http):
    """HTTP | ollama | `/` is the chat page for a browser, and `Ollama is running` for Ollama's clients; `/api/version`."""
    assert http.get("/", headers={"Accept": "application/json"}).text == "Ollama is running"
    assert http.head("/", headers={"Accept": "text/html"}).status_code == 200
    assert http.get("/", headers={"Accept": "text/html,*/*"}).headers["content-type"].startswith("text/html")
    major, minor, _ = http.get("/api/version").json()["version"].split(".")
    assert (int(major), int(minor)) >= (0, 6)


# ---- errors and guards


def test_an_error_after_the_first_line_is_a_line(engine):
    """HTTP | ollama | An error in mid-stream is a last line `{"error": text}`; a silence is filled with spaces."""
    service = HandService()
    with client_of(hosted(service, engine)) as client, pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "KEEP_ALIVE_SECONDS", 0.02)
        body = {"messages": ASK}
        with client.stream("POST", "/api/chat", json=body) as response:
            stream = service.wait_for(1)
            pieces = response.iter_raw()
            assert set(next(pieces)) == set(b" ")
            stream.put(Delta("Hi", (1,)))
            stream.fail(RuntimeError("broken"))
            *said, last = [json.loads(one) for one in b"".join(pieces).splitlines()]
    assert said[0]["message"]["content"] == "Hi"
    assert list(last) == ["error"] and "internal error" in last["error"]


def test_every_route_asks_for_the_key(engine):
    """HTTP | ollama | With a key set, each route below /api is 401 `{"error": text}` without it."""
    with client_of(hosted(HandService(), engine), keys=("right",)) as client:
        for route in OLLAMA_API:
            path = "/api" + route.path.replace("{digest:path}", "sha256:0")
            for method in route.methods - {"HEAD"}:
                assert "key" in refusal(client.request(method, path, json={"model": "builtin"}), 401)
        assert client.get("/api/tags", headers={"Authorization": "Bearer right"}).status_code == 200


def test_unknown_routes_and_methods_name_those_that_are_there(http):
    """HTTP | ollama | An unknown path below /api is 404, a wrong method 405, in Ollama's shape."""
    assert "generate" in refusal(http.get("/api/nonsense"), 404)
    assert "POST" in refusal(http.get("/api/chat"), 405)
    assert "JSON" in refusal(http.post("/api/chat", content="{", headers={"Content-Type": "application/json"}))
    assert http.post("/api/chat", content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415


UNTYPED = [{}, {"Content-Type": "application/x-www-form-urlencoded"}]


@pytest.mark.parametrize("headers", UNTYPED)
def test_a_program_need_not_say_that_its_body_is_json(http, headers):
    """HTTP | ollama | Below /api a body without a type, or with that of `curl -d`, is JSON."""
    answer = http.post("/api/show", content=json.dumps({"model": "builtin"}), headers=headers)
    assert answer.status_code == 200 and answer.json() == http.post("/api/show", json={"model": "builtin"}).json()


@pytest.mark.parametrize("headers", UNTYPED)
@pytest.mark.parametrize("page", ["Origin", "Referer", "Sec-Fetch-Site", "Sec-Fetch-Mode"])
def test_a_page_must_say_that_its_body_is_json(http, headers, page):
    """HTTP | ollama | What a page may have sent unasked is a 415 below /api, too."""
    here = str(http.base_url).rstrip("/")
    own = {"Origin": here, "Referer": "http://evil.com/", "Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "cors"}
    body = json.dumps({"model": "builtin"})
    assert http.post("/api/show", content=body, headers=headers | {page: own[page]}).status_code == 415


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "create"), ("POST", "push"), ("POST", "blobs/sha256:0"), ("HEAD", "blobs/sha256:0")]
)
def test_what_is_not_stored_here_is_refused_by_name(http, method, path):
    """HTTP | ollama | `create`, `push` and `blobs` are a 501 that says what there is instead."""
    response = http.request(method, f"/api/{path}", json={"model": "x"})
    assert response.status_code == (404 if method == "HEAD" else 501)
    assert method == "HEAD" or "here" in refusal(response, 501)
