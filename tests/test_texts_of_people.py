"""Texts that people write with editors of any system: a byte order mark before one is no part of it."""

import io
import json
import sys
from codecs import BOM_UTF8
from types import SimpleNamespace

import pytest
from model_files import MERGES, SPECIALS, VOCAB_SIZE, byte_level_tokenizer, tiny_config, write_model

from edge_llm.chats.attachments import read_attachment
from edge_llm.chats.prompt_library import stored_prompt
from edge_llm.cli import perplexity, piped
from edge_llm.cli.keys import read_keys
from edge_llm.cli.options import grammar_of
from edge_llm.config import RuntimeConfig
from edge_llm.convert.calibrate import read_text
from edge_llm.convert.importer import import_model
from edge_llm.errors import InvalidTokenizer
from edge_llm.opening.load import load_engine
from edge_llm.strict_json import read_object
from edge_llm.text.template_files import read_templates
from edge_llm.text.tokenizer import Tokenizer
from edge_llm.user_config import read_user_config


def piped_in(read):
    def reading(path):
        sys.stdin = SimpleNamespace(buffer=io.BytesIO(path.read_bytes()))
        return read()

    return reading


def tokenizer_of(path):
    path.rename(path.with_name("tokenizer.json"))
    return Tokenizer.from_folder(path.parent, VOCAB_SIZE).encode("hello world")


def template_of(path):
    path.rename(path.with_name("chat_template.jinja"))
    return read_templates(path.parent).usual


def prompt_of(path):
    path.rename(path.with_name("greet.md"))
    return stored_prompt(path.parent, "greet")


READERS = {
    "keys": (read_keys, "first\nsecond\n"),
    "all of a pipe": (piped_in(piped.read_all), "Grüße\n"),
    "a pipe as it stands": (piped_in(lambda: piped.read_all(exact=True)), "Grüße\n"),
    "lines of a pipe": (piped_in(lambda: list(piped.read_lines())), "one\ntwo\n"),
    "a grammar": (lambda path: grammar_of({"json_schema": None, "grammar": str(path), "regex": None}), 'start: "a"'),
    "a text to measure": (perplexity._text, "Once upon a time"),
    "a text to calibrate": (lambda path: read_text(path)[0], "Once upon a time"),
    "settings": (lambda path: dict(read_user_config(path).tables), "[defaults]\nthreads = 2\n"),
    "a prompt": (prompt_of, "Translate: {text}\n"),
    "an attachment": (lambda path: read_attachment(path).text, "some text"),
    "a template": (template_of, "{{ messages[0].content }}"),
    "JSON": (read_object, '{"a": 1}'),
    "a tokenizer": (tokenizer_of, json.dumps(byte_level_tokenizer())),
}


@pytest.mark.parametrize("name", READERS)
def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path, monkeypatch, name):
    monkeypatch.setattr(sys, "stdin", sys.stdin)
    read, text = READERS[name]
    found = []
    for folder, mark in (("plain", b""), ("marked", BOM_UTF8)):
        path = tmp_path / folder / "file"
        path.parent.mkdir()
        path.write_bytes(mark + text.encode())
        path.chmod(0o600)
        found.append(read(path))
    assert found[0] == found[1] and found[0]


def test_a_model_whose_files_have_byte_order_marks_answers_as_it_does_without(tmp_path):
    answers = []
    for name, mark in (("plain", b""), ("marked", BOM_UTF8)):
        folder = write_model(tmp_path / name)
        (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
        for path in (*folder.glob("*.json"), *folder.glob("*.jinja")):
            path.write_bytes(mark + path.read_bytes())
        engine = load_engine(import_model(folder, name), RuntimeConfig(threads=1))
        request = engine.chat_request([{"role": "user", "content": "hello world"}], engine.defaults)
        answers.append((request.prompt, engine.answer(request).tokens, engine.tokenizer.eos_ids))
    assert answers[0] == answers[1]


# ---- tokens and files that belong to no weight


ROWS = 256 + len(MERGES) + len(SPECIALS)
"""Of an embedding without a row to spare."""


def full_model(folder, *texts):
    """A model with ``texts`` as added tokens that there are no rows for."""
    write_model(folder, tiny_config(vocab_size=ROWS))
    described = byte_level_tokenizer()
    for at, text in enumerate(texts):
        described["added_tokens"].append(described["added_tokens"][-1] | {"id": ROWS + at, "content": text})
    (folder / "tokenizer.json").write_text(json.dumps(described))
    return folder


def test_added_tokens_beyond_the_embedding_are_left_out_and_said(tmp_path):
    plain, said = Tokenizer.from_folder(full_model(tmp_path / "plain"), ROWS), []
    folder = full_model(tmp_path / "m", "[PAD]", "<|more|>")
    tokenizer_config = {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1], "pad_token": "[PAD]", "add_bos_token": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    path = import_model(folder, "m", notice=said.append)
    assert any("2 added tokens beyond the embedding are left out: `[PAD]`, `<|more|>`" in line for line in said)
    for tokenizer in (Tokenizer.from_folder(folder, ROWS), Tokenizer.from_folder(path, ROWS)):
        assert tokenizer.eos_ids == plain.eos_ids and tokenizer.special_texts == plain.special_texts
        for text in ("hello [PAD] world", "<|more|><|eos|>"):
            for parsed in (False, True):
                assert tokenizer.encode(text, parse_special=parsed) == plain.encode(text, parse_special=parsed)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("special", [False, True])
def test_it_makes_no_difference_how_such_a_token_is_listed(tmp_path, listed, special):
    plain = Tokenizer.from_folder(full_model(tmp_path / "plain"), ROWS)
    described = json.loads((full_model(tmp_path / "m", "[PAD]") / "tokenizer.json").read_text())
    described["added_tokens"][-1]["special"] = special
    if listed:
        described["model"]["vocab"]["[PAD]"] = ROWS
    (tmp_path / "m" / "tokenizer.json").write_text(json.dumps(described))
    tokenizer = Tokenizer.from_folder(tmp_path / "m", ROWS)
    assert tokenizer.left_out == ("[PAD]",)
    assert tokenizer.encode("a [PAD] b") == plain.encode("a [PAD] b")


def test_an_end_token_beyond_the_embedding_ends_nothing(tmp_path):
    plain = Tokenizer.from_folder(full_model(tmp_path / "plain"), ROWS)
    folder = full_model(tmp_path / "m", "<|end|>")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    assert Tokenizer.from_folder(folder, ROWS).eos_ids == plain.eos_ids


def test_a_vocabulary_beyond_the_embedding_is_another_model_s(tmp_path):
    folder = full_model(tmp_path / "m", "[PAD]")
    with pytest.raises(InvalidTokenizer, match="take the tokenizer.json that belongs to this model"):
        Tokenizer.from_folder(folder, 256)
