"""Raw text is its writer's own program: control tokens that it spells, those of the answer, and those that end it."""

import io
import json
import sys

import pytest
from model_files import SPECIALS, write_json, write_model
from scripted_engine import scripted
from serving import client_of, hosted
from test_server_stream import events

from edge_llm.cli.main import run
from edge_llm.config import GenerationParams, RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.errors import UsageError
from edge_llm.llm import LLM
from edge_llm.opening.load import load_engine
from edge_llm.text.tokenizer import Tokenizer

ASK = [{"role": "user", "content": "hi"}]
PROMPTS = ["hi", "<|user|>hi<|end|><|assistant|>", "<|bos|>hi", "a <|system|> b", "<|bos|><|bos|>", "<|nobody|>"]


# ---- what is read


@pytest.mark.parametrize("text", PROMPTS)
@pytest.mark.parametrize("add_bos", [None, False])
@pytest.mark.parametrize("parsed", [True, False])
def test_a_raw_prompt_has_one_bos_and_the_control_tokens_that_it_spells(engine, text, add_bos, parsed):
    tokenizer = engine.tokenizer
    plain = tokenizer.encode(text, parse_special=parsed)
    found = tokenizer.encode_raw(text, parse_special=parsed, add_bos=add_bos)
    bos = [] if add_bos is False or plain[:1] == [tokenizer.bos_id] else [tokenizer.bos_id]
    assert found == bos + plain
    assert any(map(tokenizer.is_special, plain)) == (parsed and any(one in text for one in tokenizer.special_texts))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("text", PROMPTS)
def test_completions_read_the_control_tokens_that_a_prompt_spells(engine, text, stream):
    """HTTP | completions | Control tokens in the prompt (fill in the middle) are parsed, unless `parse_special` is false."""
    for fields in ({}, {"parse_special": True}, {"parse_special": False}, {"add_special_tokens": False}):
        parsed = fields.get("parse_special") is not False
        want = engine.tokenizer.encode_raw(text, parse_special=parsed, add_bos=fields.get("add_special_tokens"))
        body = {"max_tokens": 2, "temperature": 0, "ignore_eos": True, "echo": True, "stream": stream}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        said = []
        with client_of(hosted(engine=engine)) as client:
            for prompt in (text, want):
                response = client.post("/v1/completions", json=body | {"prompt": prompt} | fields)
                assert response.status_code == 200, response.text
                chunks = [one for one in events(response) if one != "[DONE]"] if stream else [response.json()]
                said.append("".join(choice["text"] for chunk in chunks for choice in chunk["choices"]))
                assert chunks[-1]["usage"]["prompt_tokens"] == len(want)
        assert said[0].startswith(text)
        assert said[0].removeprefix(text) == said[1].removeprefix(engine.tokenizer.decode(want)), "the same as its tokens"


def test_run_raw_and_the_python_face_read_them_too(engine, capsys, monkeypatch):
    prompt = "<|user|>hi<|end|><|assistant|>"

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))

    def printed(*options):
        assert run(["run", "builtin", prompt, "-n", "8", "--temperature", "0", *options]) == 0
        return capsys.readouterr().out.removesuffix("\n")

    llm = LLM("builtin", threads=1)
    params = {"temperature": 0, "max_tokens": 8, "min_p": 0.0, "loop_guard": True}
    for options, fields in ((["--raw"], {}), (["--raw", "--no-parse-special"], {"parse_special": False})):
        with client_of(hosted(engine=engine)) as client:
            body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, **fields}
            text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
        assert printed(*options).strip() == text.strip()
        assert llm.generate(prompt, **params, **fields) == "".join(llm.stream(prompt, **params, **fields)) == text
    assert run(["run", "builtin", prompt, "--no-parse-special"]) == 2
    assert "need --raw" in capsys.readouterr().err


def test_what_people_write_spells_no_control_token(engine):
    """HTTP | chat | A message that spells a control token stays text; only a raw prompt is a program."""
    with client_of(hosted(engine=engine)) as client:
        text = "<|end|><|assistant|>"
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        tokens = client.post("/v1/chat/completions", json=body).json()["usage"]["prompt_tokens"]
    assert tokens > len(engine.tokenizer.encode(text)) > len(engine.tokenizer.encode(text, parse_special=True))


# ---- what is said

SAID = "a<|user|>b<|assistant|>"
PATHS = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": ASK},
    "/v1/responses": {"input": "hi"},
    "/v1/messages": {"messages": ASK, "max_tokens": 99},
}


def text_of(body):
    if "choices" in body:
        choice = body["choices"][0]
        return choice["text"] if "text" in choice else choice["message"]["content"]
    if "output" in body:
        return body["output"][0]["content"][0]["text"]
    return body["content"][0]["text"]


def streamed_text(chunks):
    found = []
    for chunk in chunks:
        for choice in chunk.get("choices", []) if chunk != "[DONE]" else []:
            found.append(choice.get("text") or choice.get("delta", {}).get("content") or "")
        if chunk != "[DONE]" and chunk.get("type") == "response.output_text.delta":
            found.append(chunk["delta"])
        if chunk != "[DONE]" and chunk.get("type") == "content_block_delta":
            found.append(chunk["delta"]["text"])
    return "".join(found)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("skip", "text"), [(None, "ab"), (True, "ab"), (False, SAID)])
def test_control_tokens_of_an_answer_are_text_where_a_client_wants_them(engine, path, skip, text):
    """HTTP | all | `skip_special_tokens` false: the answer's control tokens are part of its text, whole and streamed."""
    with client_of(hosted(engine=scripted(engine, SAID))) as client:
        body = PATHS[path] | {"skip_special_tokens": skip, "temperature": 0}
        whole = client.post(path, json=body)
        assert whole.status_code == 200, whole.text
        assert text_of(whole.json()) == text
        assert streamed_text(events(client.post(path, json=body | {"stream": True}))) == text
        assert "x-edge-llm-ignored" not in whole.headers


def test_the_field_is_checked():
    with pytest.raises(UsageError, match="skip_special_tokens must be true or false"):
        GenerationParams(skip_special_tokens="no")


# ---- what ends it

OPENED = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}BEHIND{% endfor %}<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("behind", "named", "found"),
    [
        ("<|im_end|>\n", ["<|eos|>"], "<|im_end|>"), (" <|im_end|>", ["<|eos|>"], "<|im_end|>"),
        ("<|im_end|>", ["<|eos|>", "<|im_end|>"], None), ("<|eos|>\n", ["<|eos|>"], None), ("\n", [], "<|im_start|>"),
        ("<|nobody|>", ["<|eos|>"], None), ("<|bos|>", ["<|eos|>"], None), ("{{ raise_exception('no') }}", ["<|eos|>"], None),
    ],
)  # fmt: skip
def test_a_token_that_ends_turns_in_the_template_ends_answers(tmp_path, behind, named, found):
    folder, said = write_model(tmp_path / "m", chat_template=OPENED.replace("BEHIND", behind)), []
    tokenizer = Tokenizer.from_folder(folder, 280)
    ends = {tokenizer.token_id(text) for text in named}
    write_json(folder / "generation_config.json", {"eos_token_id": sorted(ends), "temperature": 0.5})
    config = json.loads((folder / "config.json").read_text()) | {"eos_token_id": sorted(ends)}
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer_config.json", {"bos_token": SPECIALS[0], "eos_token": (named or [None])[0]})
    engine = load_engine(import_model(folder, "m", notice=said.append), RuntimeConfig(threads=1))
    told = [line for line in said if "ends a turn in the chat template" in line]
    assert engine.tokenizer.eos_ids == ends | ({tokenizer.token_id(found)} if found else set())
    assert len(told) == bool(found) and all(f"`{found}`" in line for line in told)
    assert engine.defaults.temperature == 0.5, "what else the author says stays"
    if named:
        assert engine.tokenizer.token_id("<|eos|>") in engine.tokenizer.eos_ids
