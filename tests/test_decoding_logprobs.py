"""Log-probabilities: the tokens they name join to the text, and the most likely are those of a full sort."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import VOCAB_SIZE, byte_level_tokenizer

from edge_llm.config import GenerationParams, Grammar
from edge_llm.decoding.logprobs import token_logprobs
from edge_llm.engine.engine import Engine, collect
from edge_llm.engine.generation import Generation
from edge_llm.engine.request import Delta, Request
from edge_llm.kernels import sampling
from edge_llm.server.logprobs import TextOffsets, chat_logprobs, completion_logprobs
from edge_llm.text.tokenizer import Tokenizer

WORDS = ["▁", "▁Whisk", "ers", "▁a", "é", "▁▁"]


def word_tokenizer(decoder: dict[str, Any]) -> Tokenizer:
    """Words with metaspaces, behind the bytes."""
    vocab = {f"<0x{byte:02X}>": byte for byte in range(256)} | {word: 256 + i for i, word in enumerate(WORDS)}
    raw = {"version": "1.0", "added_tokens": [], "decoder": decoder,
           "model": {"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": True}}  # fmt: skip
    return Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(raw)), VOCAB_SIZE)


LLAMA: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
]  # fmt: skip
KINDS = {
    "sentencepiece": word_tokenizer(
        {"type": "Sequence", "decoders": [*LLAMA, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    ),
    "no-strip": word_tokenizer({"type": "Sequence", "decoders": LLAMA}),
    "metaspace": word_tokenizer({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}),
    "byte-level": Tokenizer(tokenizers.Tokenizer.from_str(json.dumps(byte_level_tokenizer())), VOCAB_SIZE),
}


class Computed:
    """A sequence that holds whatever it is said to hold."""

    length = 0

    def truncate(self, length: int) -> None:
        self.length = length


def logits_for(token: int) -> np.ndarray:
    logits = np.zeros((1, VOCAB_SIZE), np.float32)
    logits[0, token] = 9.0
    return logits


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.one_of(st.integers(256, 261), st.sampled_from([32, 97, 0xC3, 0xA9])), min_size=1, max_size=12))
def test_the_tokens_of_logprobs_join_to_the_content(kind: str, ids: list[int]) -> None:
    params = GenerationParams(temperature=0.0, logprobs=2, max_tokens=len(ids), ignore_eos=True)
    generation = Generation(Request((0,), params), KINDS[kind], most_tokens=99)
    generation.start(SimpleNamespace(open=lambda tokens, adapter: Computed()))
    deltas = [delta for token in ids for delta in generation.take(logits_for(token))]
    text = "".join(delta.text for delta in deltas)
    found = [one for delta in deltas for one in delta.logprobs]
    content = chat_logprobs(found)["content"]
    assert bytes(byte for item in content for byte in item["bytes"]).decode("utf-8", "replace") == text
    assert all(item["top_logprobs"][0]["token"] == item["token"] for item in content)
    offsets = TextOffsets()
    legacy = completion_logprobs(found, [offsets.next(one.piece) for one in found])
    before = [b"".join(one.piece for one in found[:number]) for number in range(len(found))]
    assert legacy["text_offset"] == [len(getincrementaldecoder("utf-8")("replace").decode(piece)) for piece in before]
    if "\ufffd" not in "".join(item["token"] for item in content):
        assert "".join(item["token"] for item in content) == text
        assert "".join(legacy["tokens"]) == text
        assert all(text[at:].startswith(token) for at, token in zip(legacy["text_offset"], legacy["tokens"], strict=True))


def test_the_first_word_has_no_space_that_the_content_has_not() -> None:
    generation = Generation(Request((0,), GenerationParams(logprobs=0, temperature=0.0)), KINDS["sentencepiece"], most_tokens=2)
    generation.start(SimpleNamespace(open=lambda tokens, adapter: Computed()))
    deltas = [delta for token in (257, 257) for delta in generation.take(logits_for(token))]
    assert [one.piece for delta in deltas for one in delta.logprobs] == [b"Whisk", b" Whisk"]


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(st.one_of(st.integers(-3, 3), st.floats(-30, 30, width=32), st.just(float("-inf"))), max_size=60),
    top=st.integers(0, 25),
)
def test_the_most_likely_are_those_of_a_full_sort(logits: list[float], top: int) -> None:
    row = np.array([0.0, *logits], np.float32)
    (found,) = token_logprobs(row, 0, top)
    values = row.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    order = np.lexsort((np.arange(len(row)), -row))[:top]
    assert [token for token, _ in found.top] == order.tolist()
    np.testing.assert_allclose([value for _, value in found.top], values[order], rtol=1e-14, atol=1e-14)


PLAIN = {"temperature": 1.0, "seed": 3}
WAYS = {
    "greedy": ({}, 0), "sampled": (PLAIN, 1), "filtered": (PLAIN | {"top_k": 5, "top_p": 0.9}, 1),
    "greedy, biased": ({"logit_bias": ((7, 50.0),)}, 1), "sampled, biased": (PLAIN | {"logit_bias": ((7, 50.0),)}, 2),
    "sampled, penalized": (PLAIN | {"repetition_penalty": 1.5}, 2),
}  # fmt: skip
"""Parameters, and how often the greatest logit of a row is looked for: of the model's own logits, and of those sampled from."""


@pytest.mark.parametrize("way", WAYS)
def test_they_are_of_the_models_own_logits_however_a_token_is_chosen(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    more, looks = WAYS[way]
    rows = 4 * np.random.default_rng(1).standard_normal((20, 1, VOCAB_SIZE)).astype(np.float32)
    params = GenerationParams(logprobs=3, max_tokens=20, **more)
    generation = Generation(Request((0,), params), KINDS["no-strip"], most_tokens=99)
    generation.start(SimpleNamespace(open=lambda tokens, adapter: Computed()))
    looked: list[int] = []
    real = sampling.best
    with monkeypatch.context() as patch:
        patch.setattr(sampling, "best", lambda logits: looked.append(1) or real(logits))
        found = [one for row in rows for delta in generation.take(row) for one in delta.logprobs]
    assert len(looked) == looks * len(found) and len(found) == 20
    for row, one in zip(rows, found, strict=True):
        (apart,) = token_logprobs(row[0], one.token, 3)
        assert (one.logprob, one.top) == (apart.logprob, apart.top)


EDITED = [
    {"repetition_penalty": 1.6}, {"frequency_penalty": 1.5, "presence_penalty": 0.5}, {"logit_bias": ((300, 9.0), (40, -50.0))},
    {"ignore_eos": True, "min_tokens": 9}, {"repetition_penalty": 1.3, "logit_bias": ((7, 4.0),), "ignore_eos": True},
    {"grammar": Grammar("regex", "[a-z ]{4,40}"), "presence_penalty": 1.0},
]  # fmt: skip

COPIED = [
    {"grammar": Grammar("regex", "(one two three ){6}end"), "presence_penalty": 1.0},
    {"logit_bias": ((300, 30.0),), "frequency_penalty": 2.0, "ignore_eos": True},  # a token over and over, for a while
]  # fmt: skip
"""The same for answers that copy, so that guesses are right."""


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("draft", ["guesses", "no guesses"])
def test_asking_for_them_changes_no_token_alone_or_beside_others(engine: Engine, temperature: float, draft: str) -> None:
    """The logits are edited in place where nobody needs them raw, and several rows are of one array."""
    prompt, edits = ("one two three one two three one two", COPIED) if draft == "guesses" else ("Who are you?", EDITED)
    asked = [
        engine.text_request(prompt, GenerationParams(max_tokens=24, temperature=temperature, seed=5, logprobs=top, **more))
        for more in edits
        for top in (None, 2)
    ]
    alone = [engine.answer(request) for request in asked]
    assert draft == "no guesses" or all(answer.finish.timings.accepted_tokens > 0 for answer in alone)
    for plain, told in zip(alone[::2], alone[1::2], strict=True):
        assert plain.tokens == told.tokens and [one.token for one in told.logprobs] == list(told.tokens)
    streams = [engine.stream(request) for request in asked]
    beside: list[list[Delta]] = [[next(stream)] for stream in streams]
    for deltas, stream in zip(beside, streams, strict=True):
        deltas.extend(stream)
    assert [collect(deltas).tokens for deltas in beside] == [answer.tokens for answer in alone]
    assert [collect(deltas).logprobs for deltas in beside] == [answer.logprobs for answer in alone]
