"""Guided output on every kind of tokenizer: the model's own tokens, and exactly the text that the grammar asks for."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from model_files import byte_level_tokenizer

from edge_llm.config import GenerationParams, Grammar
from edge_llm.decoding.guided import Constraint
from edge_llm.decoding.token_table import TokenTable
from edge_llm.engine.generation import Generation
from edge_llm.engine.request import Request
from edge_llm.talk.pieces import CallBegun
from edge_llm.talk.tool_calls import ToolCallParser
from edge_llm.talk.tool_formats import HERMES, calls_grammar
from edge_llm.text.tokenizer import IncrementalDecoder, SpecialTokens, Tokenizer

WORDS = (
    "▁", "a", "b", "c", "▁a", "▁b", "▁▁", "ab", "ye", "yes", "▁yes", '{"', '▁{"', '":', '"}', "é", "日", "▁[", "1", "12", "▁1",
)  # fmt: skip
MERGES = (
    "▁ a", "▁ b", "▁ ▁", "a b", "y e", "ye s", "▁ yes", '{ "', '▁ {"', '" :', '" }', "▁ [", "1 2", "▁ 1",
)  # fmt: skip
SPACES = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
]  # fmt: skip
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
PREPEND = {"type": "Sequence", "normalizers": [
    {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}  # fmt: skip


def sentencepiece(model="BPE", steps=(*SPACES, STRIP), **parts):
    """A tokenizer.json with metaspaces and byte fallback."""
    pieces = list(dict.fromkeys([*'▁yes{"}:[1 2', *WORDS]))
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *(one for one in pieces if one != " ")]
    vocab = {name: at for at, name in enumerate(names)}
    kinds = {
        "BPE": {"vocab": vocab, "merges": [merge.split(" ") for merge in MERGES], "unk_token": "<unk>", "fuse_unk": True},
        "Unigram": {"vocab": [[name, -1.0 - at / 100] for name, at in vocab.items()], "unk_id": 0},
    }
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": text, **flags} for i, text in enumerate(names[:3])],
        "decoder": {"type": "Sequence", "decoders": list(steps)},
        "model": {"type": model, "byte_fallback": True, **kinds[model]},
        **parts,
    }


def metaspace(scheme, model="BPE"):
    """The same with a Metaspace pre-tokenizer and decoder."""
    space = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": True}
    return sentencepiece(model, [{"type": "ByteFallback"}, space], pre_tokenizer=space)


def with_prefix_space():
    raw = byte_level_tokenizer()
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    return raw | {"pre_tokenizer": byte_level}


KINDS = {
    "byte-level": byte_level_tokenizer(),
    "byte-level with a prefix space": with_prefix_space(),
    "Prepend": sentencepiece(normalizer=PREPEND),
    "Prepend, no Strip": sentencepiece(steps=SPACES, normalizer=PREPEND),
    "Metaspace always": metaspace("always"),
    "Metaspace first": metaspace("first"),
    "Metaspace never": metaspace("never"),
    "Unigram": metaspace("always", "Unigram"),
    "lower case": sentencepiece(normalizer={"type": "Sequence", "normalizers": [{"type": "Lowercase"}, PREPEND]}),
}
TOKENIZERS = {}


def tokenizer_of(kind):
    if kind not in TOKENIZERS:
        backend = tokenizers.Tokenizer.from_str(json.dumps(KINDS[kind]))
        end = backend.token_to_id("</s>")
        special = SpecialTokens(eos_ids=frozenset() if end is None else frozenset((end,)))
        TOKENIZERS[kind] = Tokenizer(backend, max(backend.get_vocab().values()) + 1, special)
    return TOKENIZERS[kind]


every_kind = pytest.mark.parametrize("kind", KINDS)


def written(tokenizer, tokens):
    """The text of ``tokens`` behind another text."""
    decoder = IncrementalDecoder(tokenizer, continues=True)
    return "".join(map(decoder.push, tokens)) + decoder.finish()


def wander(grammar, tokenizer, seed):
    """A text that keeps to ``grammar``, chosen by random logits that like to come to an end."""
    random = np.random.default_rng(seed)
    constraint = Constraint(grammar, tokenizer)
    closing = [t for t in range(tokenizer.vocab_size) if tokenizer.token_bytes(t) in (b'"', b"}", b"]", b'"}')]
    tokens = []
    while not constraint.finished:
        logits = 3 * random.standard_normal(tokenizer.vocab_size, np.float32)
        logits[[*closing, *tokenizer.eos_ids]] += 9
        token = int(constraint.mask(logits).argmax())
        if token in tokenizer.eos_ids:
            break
        tokens.append(token)
        constraint.accept(token)
        assert len(tokens) < 3000, "the grammar has no end"
    return written(tokenizer, tokens)


POINT = {
    "type": "object", "properties": {"a b": {"type": "integer"}, "yes": {"enum": ["日 é", "ab"]}},
    "required": ["a b", "yes"], "additionalProperties": False,
}  # fmt: skip


@every_kind
@pytest.mark.parametrize("seed", range(2))
def test_every_form_comes_out(kind, seed):
    tokenizer = tokenizer_of(kind)
    assert isinstance(json.loads(wander(Grammar("json_object"), tokenizer, seed)), dict)
    point = json.loads(wander(Grammar("json_schema", json.dumps(POINT)), tokenizer, seed))
    assert (set(point), type(point["a b"]), point["yes"] in ("日 é", "ab")) == ({"a b", "yes"}, int, True)
    assert wander(Grammar("choice", '["yes", " a", "é\\n"]'), tokenizer, seed) in ("yes", " a", "é\n")
    assert re.fullmatch("[ab ]{3}12{1,3}é", wander(Grammar("regex", "[ab ]{3}12{1,3}é"), tokenizer, seed))
    assert re.fullmatch("a(b c)*d?", wander(Grammar("lark", 'start: "a" ("b c")* "d"?'), tokenizer, seed))
    assert re.fullmatch("a[bc]+ d", wander(Grammar("lark", 'root ::= "a" ("b" | "c")+ " d"'), tokenizer, seed))
    tools = ({"name": "find", "parameters": POINT},)
    text = wander(calls_grammar(tools, HERMES, lambda text: None, parallel=False), tokenizer, seed)
    parser = ToolCallParser(HERMES, frozenset(("find",)))
    begun, arguments = parser.push(text) + parser.finish()
    assert isinstance(begun, CallBegun)
    assert set(json.loads(arguments.text)) == {"a b", "yes"}


texts = st.text(st.sampled_from('ab1 yesc{}":[]é日\n\t▁Ā🙂A') | st.characters(exclude_categories=("Cs",)), max_size=12)


@every_kind
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_a_text_is_written_exactly(kind, text):
    """A metaspace character of the text itself is what no tokenizer of that kind can write; it writes a space."""
    tokenizer = tokenizer_of(kind)
    if "byte-level" not in kind:
        text = text.replace("▁", "")
    table = TokenTable(tokenizer)
    tokens = table(text)
    assert b"".join(table.tokens[token] for token in tokens) == text.encode()
    assert not any(tokenizer.is_special(token) for token in tokens)


@every_kind
@settings(max_examples=60, deadline=None)
@given(text=texts)
def test_a_text_is_written_as_it_is_without_guidance(kind, text):
    tokenizer = tokenizer_of(kind)
    text = text.replace("▁", "").strip()
    text = text.lower() if kind == "lower case" else text
    before, whole = tokenizer.encode("b\n"), tokenizer.encode("b\n" + text)
    if whole[: len(before)] == before and written(tokenizer, whole[len(before) :]) == text:
        assert TokenTable(tokenizer)(text) == whole[len(before) :]


@every_kind
@settings(max_examples=15, deadline=None)
@given(text=texts.filter(bool))
def test_what_is_forced_is_the_text(kind, text):
    tokenizer = tokenizer_of(kind)
    text = text.replace("▁", "_")
    constraint = Constraint(Grammar("choice", json.dumps([text])), tokenizer)
    tokens = []
    while not constraint.finished:
        token = int(constraint.mask(np.zeros(tokenizer.vocab_size, np.float32)).argmax())
        if token in tokenizer.eos_ids:
            break
        tokens.append(token)
        constraint.accept(token)
    assert tokens == TokenTable(tokenizer)(text)
    assert written(tokenizer, tokens) == text


@every_kind
@pytest.mark.parametrize("continues", [False, True])
def test_an_answer_is_what_its_grammar_says_from_its_first_character(kind, continues):
    tokenizer = tokenizer_of(kind)
    params = GenerationParams(grammar=Grammar("choice", '["  ab yes"]'))
    generation = Generation(Request((1,), params, continues=continues), tokenizer, most_tokens=40)
    generation.start(SimpleNamespace(open=lambda tokens, adapter: SimpleNamespace(length=1, truncate=lambda length: None)))
    text = ""
    while not generation.finished:
        text += "".join(delta.text for delta in generation.take(np.zeros((1, tokenizer.vocab_size), np.float32)))
    assert text == "  ab yes"


def test_a_real_tokenizer(stories_folder):
    tokenizer = Tokenizer.from_folder(stories_folder, vocab_size=512)
    for seed in range(3):
        assert set(json.loads(wander(Grammar("json_schema", json.dumps(POINT)), tokenizer, seed))) == {"a b", "yes"}
        assert wander(Grammar("choice", '["yes", "no, never"]'), tokenizer, seed) in ("yes", "no, never")
    once = TokenTable(tokenizer)("Once upon a time")
    assert [tokenizer.token_text(token) for token in once[-3:]] == [
        tokenizer.token_text(token) for token in tokenizer.encode("Once upon a time")[-3:]
    ]
