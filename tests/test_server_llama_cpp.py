"""llama.cpp's API as its clients use it; its own tests run by `python tests/llama_cpp_suite/run.py`."""

import json

import pytest
from serving import builtin_engine, client_of, hosted

from edge_llm.server.pool import ModelPool

pytestmark = pytest.mark.thorough(file=8)

PROMPT = "Once upon a time there was a little"
COLD = {"temperature": 0, "n_predict": 6}


@pytest.fixture(scope="module")
def engine():
    return builtin_engine()


@pytest.fixture(scope="module")
def host(engine):
    return hosted(engine=engine)


@pytest.fixture(scope="module")
def client(host):
    with client_of(host) as client:
        yield client


def completion(client, path="/completion", **fields):
    reply = client.post(path, json={"prompt": PROMPT} | COLD | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()


def pieces(client, path="/completion", **fields):
    reply = client.post(path, json={"prompt": PROMPT, "stream": True} | COLD | fields)
    assert reply.status_code == 200, reply.text
    return [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]


def test_a_completion_has_llama_cpp_s_fields(client, engine):
    """llama.cpp | completion | `content`, `tokens`, `timings`, `stop_type`, `generation_settings`, the prompt as it is read."""
    found = completion(client, return_tokens=True, ignore_eos=True)
    assert found["content"] == engine.tokenizer.decode(found["tokens"]) and len(found["tokens"]) == 6
    assert (found["stop"], found["stop_type"], found["truncated"]) == (True, "limit", False)
    assert found["timings"]["predicted_n"] == found["tokens_predicted"] == 6
    assert found["timings"]["prompt_n"] + found["timings"]["cache_n"] == found["tokens_evaluated"]
    assert found["generation_settings"]["n_predict"] == 6
    assert {bias["bias"] for bias in found["generation_settings"]["logit_bias"]} == {None}
    assert found["prompt"].endswith(PROMPT)
    assert completion(client)["tokens"] == []


def test_it_says_what_stopped_it(client):
    """llama.cpp | completion | A stop string is `stop_type: "word"` and `stopping_word`; a full context is `truncated`."""
    whole = completion(client, n_predict=12)["content"]
    word = whole[4:8]
    found = completion(client, n_predict=12, stop=[word])
    assert (found["stop_type"], found["stopping_word"], found["content"]) == ("word", word, whole[: whole.index(word)])
    full = completion(client, n_predict=-1, ignore_eos=True, loop_guard=False)
    assert (full["stop_type"], full["truncated"]) == ("limit", True)


def test_a_stream_has_the_same_text_and_ends_with_the_whole(client):
    """llama.cpp | completion | Streamed pieces join to the text; the last has `stop: true`, settings and timings."""
    *parts, last = pieces(client)
    assert "".join(part["content"] for part in [*parts, last]) == completion(client)["content"]
    assert [part["stop"] for part in parts] == [False] * len(parts) and last["stop"] is True
    assert all(part["tokens"] for part in parts)
    assert last["generation_settings"]["stream"] is True and last["timings"]["predicted_n"] == last["tokens_predicted"]


def test_prompts_may_be_texts_tokens_both_and_many(client, engine):
    """llama.cpp | completion | A prompt is a text, tokens, both in one list or an object; a list of these gives a list."""
    tokens = engine.tokenizer.encode_raw(PROMPT)
    alone = completion(client)["content"]
    mixed = [*tokens[:3], engine.tokenizer.decode(tokens[3:])]
    for prompt in (tokens, {"prompt_string": PROMPT}, [tokens], mixed):
        assert completion(client, prompt=prompt)["content"] == alone
    many = completion(client, prompt=[PROMPT, tokens, {"prompt_string": PROMPT}])
    assert [one["content"] for one in many] == [alone] * 3 and [one["index"] for one in many] == [0, 1, 2]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": {"prompt_string": "x", "multimodal_data": ["AAAA"]}}, "prompt"),
        ({"prompt": [{}]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [10**6]}, "prompt"),
        ({"logit_bias": [["x"]]}, "logit_bias"),
        ({"logit_bias": [["x", "y"]]}, "logit_bias"),
        ({"logit_bias": [[10**6, 1]]}, "logit_bias"),
        ({"mirostat": 2}, "mirostat"),
        ({"n_probs": 3, "post_sampling_probs": True, "temperature": 0.7}, "post_sampling_probs"),
        ({"n_probs": 99}, "n_probs"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(client, fields, param):
    """llama.cpp | completion | Pictures, wrong prompts or biases, and samplers that are not here are a 400 by name."""
    reply = client.post("/completion", json={"prompt": PROMPT} | COLD | fields)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text


def test_probabilities_are_told_for_each_token(client):
    """llama.cpp | completion | `n_probs`: each token's `logprob` with the likeliest, one piece each where it is streamed."""
    found = completion(client, n_probs=3)["completion_probabilities"]
    assert len(found) == 6 and all(one["id"] == one["top_logprobs"][0]["id"] and one["logprob"] <= 0 for one in found)
    parts = [part for part in pieces(client, n_probs=3) if not part["stop"]]
    assert [part["completion_probabilities"] for part in parts] == [[one] for one in found]
    plain = {"temperature": 1, "top_p": 1, "min_p": 0, "dry_multiplier": 0, "repeat_penalty": 1, "seed": 1}
    drawn = completion(client, n_probs=3, post_sampling_probs=True, **plain)["completion_probabilities"]
    assert all(0 < one["prob"] <= 1 and len(one["top_probs"]) == 3 for one in drawn)


@pytest.mark.parametrize("as_object", [True, False])
def test_biases_may_name_texts(client, as_object):
    """llama.cpp | completion | `logit_bias` takes pairs or an object of ids or texts; `false` is never."""
    first = completion(client, n_predict=1)["content"]
    biases = {first: False} if as_object else [[first, False]]
    assert completion(client, n_predict=1, logit_bias=biases)["content"] != first


def test_fields_may_be_chosen(client):
    """llama.cpp | completion | `response_fields` leaves the others out; a slash reaches inside."""
    found = completion(client, response_fields=["content", "generation_settings/n_predict", "no/such"])
    assert found.keys() == {"content", "generation_settings/n_predict"}


def test_progress_is_told_while_the_prompt_is_read(client):
    """llama.cpp | completion, chat | `return_progress`: first what was there already, at last all, with timings."""
    fields = {"return_progress": True, "prompt": f"{PROMPT} boat " * 20}
    parts = [part for part in pieces(client, **fields) if "prompt_progress" in part]
    first, last = parts[0]["prompt_progress"], parts[-1]["prompt_progress"]
    assert first["processed"] == first["cache"] and last["processed"] == last["total"] == parts[0]["tokens_evaluated"]
    assert parts[0]["timings"]["prompt_n"] == 0 < parts[-1]["timings"]["prompt_n"]
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, "return_progress": True}
    assert any("prompt_progress" in part for part in pieces(client, "/v1/chat/completions", **chat))


def test_completions_without_v1_are_llama_cpp_s_unless_the_body_is_openai_s(client):
    """llama.cpp, openai | completions | Without /v1 a body that names a `model`, as OpenAI's must, gets OpenAI's shape."""
    assert "content" in completion(client, "/completions")
    assert "content" in completion(client, "/completions", model="builtin")  # n_predict is llama.cpp's
    openai = {"model": "builtin", "prompt": PROMPT, "max_tokens": 2}
    assert "choices" in client.post("/completions", json=openai).json()
    assert "choices" in client.post("/v1/completions", json={"prompt": PROMPT} | COLD).json()


def test_a_chat_shows_its_prompt_when_asked(client, host):
    """llama.cpp | chat | `verbose: true`, or `serve --verbose`, adds `__verbose` with the prompt as the model reads it."""
    body = {"messages": [{"role": "user", "content": "Who is there?"}], "max_tokens": 2}
    assert "__verbose" not in client.post("/v1/chat/completions", json=body).json()
    shown = client.post("/v1/chat/completions", json=body | {"verbose": True}).json()["__verbose"]
    assert "Who is there?" in shown["prompt"] and shown["tokens_evaluated"] > 0
    host.verbose = True
    try:
        assert "__verbose" in client.post("/v1/chat/completions", json=body).json()
    finally:
        host.verbose = False


def test_a_prompt_that_does_not_fit_is_told_in_the_words_of_the_path(client):
    """llama.cpp | all | Without /v1 a prompt that does not fit has `type: "exceed_context_size_error"`."""
    error = client.post("/completion", json={"prompt": [5] * 5000}).json()["error"]
    assert error["type"] == "exceed_context_size_error" and "exceeds the available context size" in error["message"]
    assert error["n_prompt_tokens"] > error["n_ctx"]
    openai = client.post("/v1/completions", json={"prompt": [5] * 5000}).json()["error"]
    assert openai["type"] == "invalid_request_error"


def test_a_gap_needs_a_model_that_fills_gaps(client):
    """llama.cpp | infill | A model without tokens for gaps is a 400 that says so; wrong files are refused before."""
    reply = client.post("/infill", json={"input_prefix": "def f(", "input_suffix": "return 1"})
    assert reply.status_code == 400 and "fills no gaps" in reply.json()["error"]["message"]
    wrong = client.post("/infill", json={"input_prefix": "x", "input_extra": [{"filename": 5}]})
    assert wrong.status_code == 400 and wrong.json()["error"]["param"].startswith("input_extra[0]")


def test_gaps_are_filled_in_the_tokens_of_the_model(client, host, monkeypatch):
    """llama.cpp, openai | infill, completions | `/infill` and `suffix` have the same prompt, in the model's own tokens."""
    tokenizer = host.engine.tokenizer
    marks = tuple(text for text in tokenizer.special_texts if text != tokenizer.bos_text)[:3]
    monkeypatch.setattr("edge_llm.text.infill._MARKS", (marks,))
    gap = client.post("/infill", json=COLD | {"input_prefix": "Once upon", "prompt": " a time", "input_suffix": "boat."}).json()
    assert [gap["prompt"].count(mark) for mark in marks] == [1] * len(marks) and len(marks) == 3 and "boat." in gap["prompt"]
    body = {"prompt": "Once upon a time", "suffix": "boat.", "temperature": 0, "max_tokens": 6}
    assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == gap["content"]
    assert client.post("/v1/completions", json=body | {"prompt": [5, 6]}).status_code == 400


def test_documents_are_ordered_by_their_embeddings(client):
    """llama.cpp, Cohere | rerank | Without a reranker: the cosine of embeddings to the query's; `texts` gives TEI's list."""
    query, documents = "a little red ball", ["the sun was warm", "a little red ball", "rain"]
    found = client.post("/v1/rerank", json={"query": query, "documents": documents, "top_n": 2}).json()
    assert len(found["results"]) == 2 and found["results"][0]["index"] == 1
    assert abs(found["results"][0]["relevance_score"] - 1) < 1e-3
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] > 0
    short = client.post("/rerank", json={"query": query, "texts": documents, "return_text": True}).json()
    assert short[0]["index"] == 1 and short[0]["text"] == documents[1]
    objects = client.post("/v1/rerank", json={"query": query, "documents": [{"text": one} for one in documents]}).json()
    assert objects["results"][0] == found["results"][0]
    for wrong in ({}, {"documents": []}, {"documents": [1]}, {"documents": [{"title": "x"}]}, {"documents": [""]}):
        assert client.post("/rerank", json={"query": query} | wrong).status_code == 400


def test_embeddings_take_the_same_shapes(client, engine):
    """llama.cpp | embeddings | Texts, tokens, both in one list, objects with a text or with text parts."""
    tokens = engine.tokenizer.encode("hello world", add_bos=engine.tokenizer.add_bos)
    parts = {"content": [{"type": "text", "text": "hello "}, {"type": "text", "text": "world"}]}
    found = client.post("/v1/embeddings", json={"input": ["hello world", tokens, {"prompt_string": "hello world"}, parts]})
    first, *others = (one["embedding"] for one in found.json()["data"])
    assert all(other == first for other in others)
    assert client.post("/v1/embeddings", json={"input": [*tokens, "and more"]}).status_code == 200
    for wrong in ([], {"content": "x"}, {"content": [{"type": "image_url"}]}):
        assert client.post("/v1/embeddings", json={"input": wrong}).status_code == 400


def test_slots_models_and_metrics_have_llama_cpp_s_names(client, host):
    """llama.cpp | slots, models, metrics, props | One slot per answer at a time; one model with aliases; `llamacpp:` names."""
    completion(client)
    slots = client.get("/slots").json()
    assert len(slots) == host.engine.batcher.most_running and not any(slot["is_processing"] for slot in slots)
    refused = client.post("/slots/0?action=save", json={"filename": "x"})
    assert refused.status_code == 400 and "--prefix-cache" in refused.json()["error"]["message"]
    models = client.get("/models").json()
    assert [(one["id"], one["aliases"]) for one in models["data"]] == [("an/alias", ["an/alias"])]
    assert len(models["models"]) == 1 and len(client.get("/v1/models").json()["data"]) == 2
    metrics = client.get("/metrics")
    values = dict(line.split(" ", 1) for line in metrics.text.splitlines() if line.startswith("llamacpp:"))
    assert float(values["llamacpp:n_decode_total"]) > 0 == float(values["llamacpp:requests_processing"])
    assert metrics.headers["Process-Start-Time-Unix"]
    props = client.get("/props").json()
    assert props["modalities"] == {"vision": False, "audio": False}
    assert "n_predict" in props["default_generation_settings"]["params"]


def test_routes_may_be_left_out(engine):
    """llama.cpp | slots, metrics | `serve --without slots`, `metrics` or `page`: 501, and 404 for the page."""
    pool = ModelPool(hosted(engine=engine))
    pool.without = frozenset({"slots", "metrics", "page"})
    with client_of(pool) as client:
        paths = ("/slots", "/metrics", "/", "/health")
        found = [client.get(path, headers={"Accept": "text/html"}).status_code for path in paths]
        assert found == [501, 501, 404, 200]


def test_the_tokens_of_a_chat_are_counted(client):
    """llama.cpp | chat | `/v1/chat/completions/input_tokens` counts the prompt that the same body would have."""
    body = {"messages": [{"role": "user", "content": "Who is there?"}]}
    counted = client.post("/v1/chat/completions/input_tokens", json=body).json()["input_tokens"]
    answer = client.post("/v1/chat/completions", json=body | {"max_tokens": 1}).json()
    assert counted == answer["usage"]["prompt_tokens"]
