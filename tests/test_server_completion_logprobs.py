"""The log-probabilities of a legacy completion: where its tokens begin, whole and streamed, and what they are called."""

import json

import pytest
from serving import client_of, hosted

CASES = {
    "a stop string is held back": {"prompt": "time", "stop": ["once qqq"]},
    "characters of several tokens": {"prompt": "x", "guided_choice": ["é漢b😀c"]},
}


@pytest.fixture(scope="module")
def client():
    with client_of(hosted()) as client:
        yield client


def placed(logprobs):
    return list(zip(logprobs["tokens"], logprobs["text_offset"], strict=True)) if logprobs else []


@pytest.mark.parametrize("case", CASES)
def test_streamed_offsets_are_those_of_the_whole_reply_and_of_the_text(client, case):
    body = {"temperature": 0, "max_tokens": 12, "logprobs": 1, **CASES[case]}
    whole = client.post("/v1/completions", json=body).json()["choices"][0]
    text, tokens = "", []
    with client.stream("POST", "/v1/completions", json={**body, "stream": True}) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                text += choice["text"]
                tokens += placed(choice["logprobs"])
    assert text == whole["text"]
    assert tokens == placed(whole["logprobs"])
    assert len(tokens) > 4
    assert all(text.startswith(token, at) for token, at in tokens if not token.startswith("bytes:"))


def test_parts_of_a_character_have_names_of_their_own(client):
    body = {"temperature": 0, "max_tokens": 12, "logprobs": 20, "prompt": "x", "guided_choice": ["é漢b😀c"]}
    logprobs = client.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert "bytes:\\xf0" in "".join(logprobs["tokens"])
    for token, value, top in zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True):
        assert 20 <= len(top) <= 21
        assert next(iter(top.items())) == (token, value)
