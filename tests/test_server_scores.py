"""What evaluations ask: how likely a prompt's own tokens are, and which tokens went in and came out."""

import contextlib

import numpy as np
import pytest
from serving import builtin_engine, client_of, hosted
from test_server_stream import events

from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.engine import prompt_scores
from edge_llm.errors import UsageError
from edge_llm.opening.load import load_engine

TEXT = "Once upon a time there was a little girl who had a red ball. "
COLD = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}


@pytest.fixture(scope="module")
def engine():
    return builtin_engine()


@pytest.fixture(scope="module")
def client(engine):
    with client_of(hosted(engine=engine)) as client:
        yield client


def forward(engine, tokens):
    """Log-probabilities of the tokens behind the first one, from one pass over all of them."""
    with contextlib.closing(engine.runner.open()) as sequence:
        logits = engine.runner.forward(sequence, tokens, wanted=len(tokens)).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def choice(client, **fields):
    reply = client.post("/v1/completions", json=COLD | fields)
    assert reply.status_code == 200, reply.text
    return reply.json()["choices"][0]


def test_an_echo_has_the_log_probabilities_of_one_pass_over_all(engine, client):
    """HTTP | completions | `echo` with `logprobs`: those of the prompt's tokens too, as one pass over it gives them."""
    tokens = engine.tokenizer.encode_raw(TEXT * 3)
    found = choice(client, prompt=[tokens], max_tokens=1, logprobs=1, echo=True, seed=1234)["logprobs"]
    expected = forward(engine, tokens)
    assert found["token_logprobs"][0] is found["top_logprobs"][0] is None
    assert len(found["tokens"]) == len(tokens) + 1
    for at, (value, top) in enumerate(zip(found["token_logprobs"][1:-1], found["top_logprobs"][1:-1], strict=True)):
        assert abs(value - expected[at, tokens[at + 1]]) < 1e-6
        assert abs(max(top.values()) - expected[at].max()) < 1e-6
        assert (value == max(top.values())) == (tokens[at + 1] == expected[at].argmax())


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("stepwise", [False, True])
def test_scores_depend_on_nothing_else(engine, monkeypatch, rows, stepwise):
    params = GenerationParams(max_tokens=3, prompt_logprobs=2, logprobs=1)
    tokens = engine.tokenizer.encode_raw(TEXT)
    alone = engine.answer(engine.token_request(tokens, params))
    monkeypatch.setattr(prompt_scores, "_LOGIT_BYTES", rows * 4 * engine.config.vocab_size)
    other = load_engine(None, RuntimeConfig(threads=1, chunk=16)) if stepwise else engine
    again = other.answer(other.token_request(tokens, params))
    assert (again.prompt_logprobs, again.logprobs, again.tokens) == (alone.prompt_logprobs, alone.logprobs, alone.tokens)
    assert again.tokens == engine.answer(engine.token_request(tokens, GenerationParams(max_tokens=3))).tokens


def test_an_answer_of_no_tokens_needs_something_to_tell(engine):
    with pytest.raises(UsageError, match="max_tokens must be at least 1"):
        GenerationParams(max_tokens=0)
    answer = engine.answer(engine.text_request(TEXT, GenerationParams(max_tokens=0, prompt_logprobs=0)))
    assert (answer.text, answer.tokens, answer.finish.reason) == ("", (), "length")
    assert b"".join(one.piece for one in answer.prompt_logprobs[1:]).decode() == TEXT


def test_scores_survive_that_others_take_the_pages():
    params = GenerationParams(max_tokens=40, prompt_logprobs=0, ignore_eos=True)
    small = builtin_engine(context=256, kv_tokens=256, parallel=3)
    requests = [small.text_request(TEXT * n, params) for n in (1, 2, 3)]
    alone = [small.answer(request) for request in requests]
    pairs = [small.prepare(request) for request in requests]
    for generation, stream in pairs:
        small.driver.add(generation, stream)
    small.driver.run_until(lambda: not small.driver.busy)
    for (_, stream), answer in zip(pairs, alone, strict=True):
        deltas = list(stream)
        assert [one for delta in deltas for one in delta.prompt_logprobs] == list(answer.prompt_logprobs)
        assert tuple(token for delta in deltas for token in delta.tokens) == answer.tokens


def test_an_echo_without_an_answer(client):
    """HTTP | completions | `max_tokens` 0 with `echo` tells of the prompt alone, with and without `logprobs`."""
    scored = choice(client, prompt=TEXT, max_tokens=0, echo=True, logprobs=0)
    assert scored["text"] == TEXT and scored["finish_reason"] == "length"
    assert [len(top) for top in scored["logprobs"]["top_logprobs"][1:]] == [1] * (len(scored["logprobs"]["tokens"]) - 1)
    plain = choice(client, prompt=TEXT, max_tokens=0, echo=True)
    assert (plain["text"], plain["logprobs"]) == (TEXT, None)


@pytest.mark.parametrize("prompt", [TEXT, "caf\u00e9 \U0001f600 ol\u00e9", [5, 6, 7, 8]])
def test_offsets_of_an_echo_are_places_in_its_text(client, prompt):
    whole = choice(client, prompt=prompt, echo=True, logprobs=1)
    body = COLD | {"prompt": prompt, "echo": True, "logprobs": 1, "stream": True}
    *chunks, _ = events(client.post("/v1/completions", json=body))
    streamed = [chunk["choices"][0] for chunk in chunks]
    text, logprobs = whole["text"], whole["logprobs"]
    assert "".join(one["text"] for one in streamed) == text
    for name, values in logprobs.items():
        assert [value for one in streamed for value in (one["logprobs"] or {}).get(name, [])] == values
    for token, place in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith(("bytes:", "<|")) or text.startswith(token, place)


def test_prompt_logprobs_of_vllm(engine, client):
    """HTTP | completions, chat | vLLM's `prompt_logprobs`: by token ids, with ranks and texts; null for the first token."""
    tokens = engine.tokenizer.encode_raw(TEXT)
    expected = forward(engine, tokens)
    first, *found = choice(client, prompt=TEXT, prompt_logprobs=2)["prompt_logprobs"]
    assert first is None
    for at, entries in enumerate(found):
        own = entries[str(tokens[at + 1])]
        assert own["rank"] == 1 + (expected[at] > expected[at, tokens[at + 1]]).sum()
        assert sorted(entry["rank"] for entry in entries.values())[:2] == [1, 2] and len(entries) == 2 + (own["rank"] > 2)
    body = {"messages": [{"role": "user", "content": "hi"}], "prompt_logprobs": 0, "return_token_ids": True} | COLD
    reply = client.post("/v1/chat/completions", json=body).json()
    assert [list(one) for one in reply["prompt_logprobs"][1:]] == [[str(one)] for one in reply["prompt_token_ids"][1:]]
    assert choice(client, prompt=TEXT).get("prompt_logprobs") is None


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_token_ids_of_vllm(engine, client, path):
    """HTTP | completions, chat | `return_token_ids`, `return_tokens_as_token_ids`: what went in and came out, in tokens."""
    chat = path.startswith("chat")
    body = {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": True if chat else 1} | COLD
    body |= {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": TEXT}
    whole = client.post(f"/v1/{path}", json=body).json()
    found = whole["choices"][0]
    text = found["message"]["content"] if chat else found["text"]
    assert engine.tokenizer.decode([*found["token_ids"]]).strip() == text.strip()
    names = [one["token"] for one in found["logprobs"]["content"]] if chat else found["logprobs"]["tokens"]
    assert names == [f"token_id:{token}" for token in found["token_ids"]]
    *chunks, _ = events(client.post(f"/v1/{path}", json=body | {"stream": True}))
    streamed = [token for chunk in chunks for one in chunk["choices"] for token in one.get("token_ids", [])]
    assert streamed == found["token_ids"]
    prompts = [(chunk if chat else chunk["choices"][0]).get("prompt_token_ids") for chunk in chunks]
    assert prompts[0] == (whole if chat else found)["prompt_token_ids"] and not any(prompts[1:])


def test_the_token_that_ends_an_answer_is_among_its_ids(engine, client):
    end = min(engine.tokenizer.eos_ids)
    body = {"prompt": TEXT, "logit_bias": {str(end): 100}, "return_token_ids": True}
    found = choice(client, **body, ignore_eos=False)
    assert (found["token_ids"], found["text"], found["finish_reason"]) == ([end], "", "stop")


def test_a_prompt_is_cut_where_the_client_says(client):
    """HTTP | completions | `truncate_prompt_tokens` keeps the last tokens of a prompt, `truncation_side` right the first."""
    ids = list(range(5, 25))

    def kept(**fields):
        return choice(client, prompt=ids, return_token_ids=True, **fields)["prompt_token_ids"]

    assert kept(truncate_prompt_tokens=4) == kept(truncate_prompt_tokens=4, truncation_side="left") == ids[-4:]
    assert kept(truncate_prompt_tokens=4, truncation_side="right") == ids[:4]
    assert kept(truncate_prompt_tokens=99) == kept(truncate_prompt_tokens=-1) == ids
    long = choice(client, prompt=TEXT * 200, truncate_prompt_tokens=-1, return_token_ids=True)
    assert len(long["prompt_token_ids"]) == 1024 - COLD["max_tokens"]


def test_a_client_learns_what_it_needs_of_the_tokenizer(engine, client):
    """lm-eval | tokenizer_info | The control tokens that begin and end texts, and the longest text, for a remote tokenizer."""
    found = client.get("/tokenizer_info").json()
    tokenizer = engine.tokenizer
    assert (found["bos_token"], found["eos_token"]) == (tokenizer.bos_text, tokenizer.eos_text)
    assert found["model_max_length"] == engine.runner.context


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_of_tokens_that_the_client_names(client, stream):
    """HTTP | completions, chat | vLLM's `allowed_token_ids` alone are written, `logprob_token_ids` are told of."""
    fields = {"allowed_token_ids": [42], "logprob_token_ids": [50, 42, 60], "return_tokens_as_token_ids": True, **COLD}
    body = fields | {"prompt": TEXT, "logprobs": 5, "stream": stream}
    reply = client.post("/v1/completions", json=body)
    chunks = events(reply)[:-1] if stream else [reply.json()]
    found = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert [token for one in found for token in one["tokens"]] == ["token_id:42"] * 4
    assert all(set(top) == {"token_id:42", "token_id:50", "token_id:60"} for one in found for top in one["top_logprobs"])
    chat = fields | {"messages": [{"role": "user", "content": "hi"}], "logprobs": True}
    (first, *_) = client.post("/v1/chat/completions", json=chat).json()["choices"][0]["logprobs"]["content"]
    assert {one["token"] for one in first["top_logprobs"]} == {"token_id:42", "token_id:50", "token_id:60"}


def test_allowed_tokens_leave_something_to_choose(engine, client):
    for allowed in ([], [10**6], [min(engine.tokenizer.eos_ids)]):
        reply = client.post("/v1/completions", json=COLD | {"prompt": "x", "allowed_token_ids": allowed})
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "allowed_token_ids"
    two = choice(client, prompt=TEXT, allowed_token_ids=[42, 43], temperature=2.0, max_tokens=30, return_token_ids=True)
    assert {*two["token_ids"]} <= {42, 43}


def test_all_wrong_keys_of_a_bias_are_named(client):
    reply = client.post("/v1/completions", json={"prompt": "x", "logit_bias": {"bad1": 1, "5": 1, "bad2": 1, "-3": 1}})
    assert all(f"`{key}`" in reply.json()["error"]["message"] for key in ("bad1", "bad2", "-3"))


def test_messages_are_tokenized_as_they_would_be_read(engine, client):
    """HTTP | tokenize | `messages` with `add_generation_prompt`, `continue_final_message`, `tools`: that prompt's tokens."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Once"}]
    tool = {"type": "function", "function": {"name": "now"}}

    def tokens(**fields):
        return client.post("/tokenize", json={"messages": messages, **fields}).json()["tokens"]

    goes_on = {"continue_final_message": True, "add_generation_prompt": False}
    body = COLD | {"messages": messages, "return_token_ids": True}
    for fields in ({}, goes_on, {"tools": [tool]}):
        reply = client.post("/v1/chat/completions", json=body | fields).json()
        assert tokens(**fields) == reply["prompt_token_ids"]
    text = client.post("/apply-template", json={"messages": messages, "add_generation_prompt": False}).json()["prompt"]
    assert tokens(add_generation_prompt=False) == engine.tokenizer.encode_raw(text)
