"""Encoders: states are those of transformers, vectors those of sentence-transformers, whatever they are computed beside."""

import contextlib
import itertools
import json
import threading
import time
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from encoders import ENCODERS, WORDS, encoder_folder, states_of, unit, wordpiece, write_reading
from model_files import byte_level_tokenizer, random_tensors, tiny_config, write_json, write_model
from serving import builtin_engine, client_of, hosted

from edge_llm.ascend.devices.card.layers import missing
from edge_llm.cli.main import run
from edge_llm.config import W4, RuntimeConfig
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.gradient import layer_gradient
from edge_llm.convert.importer import import_model
from edge_llm.convert.trial import held_out_texts
from edge_llm.engine.ranking_texts import ranking_prompts
from edge_llm.engine.service import BatchingService
from edge_llm.errors import ContextOverflow, DeviceError, InvalidModel, UnsupportedModel, UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.description import decode_decoder, encode_description
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models import load_config
from edge_llm.models.reference import FloatModel, layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.opening.load import load_engine
from edge_llm.opening.runner import load_runner
from edge_llm.runner.base import Segment
from edge_llm.sources import open_source
from edge_llm.text.tokenizer import Tokenizer

pytestmark = pytest.mark.thorough(file=10)

TEXTS = ["the cat sat.", "x", "a long text, that has many words: " * 2, "query 1 2 3", "the cat sat on the mat?"]
LONG = "word " * 90


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return encoder_folder(tmp_path_factory.mktemp("encoder") / "source", "bert")


@pytest.fixture(scope="module")
def bundle(folder):
    return import_model(folder[0], target=folder[0].parent / "bundle")


@pytest.fixture(scope="module")
def engine(bundle):
    return load_engine(bundle, RuntimeConfig(threads=2))


def tokens_of(text):
    """By the tokenizers package alone, neither cut nor padded."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(json.dumps(wordpiece()))
    backend.no_padding()
    backend.no_truncation()
    return backend.encode(text).ids


@pytest.mark.parametrize("kind", ENCODERS)
def test_the_float_path_is_that_of_transformers(kind, tmp_path):
    folder, model = encoder_folder(tmp_path / kind, kind)
    with open_model_folder(folder) as source:
        ours = FloatModel(source, load_config(source.config))
    for text in TEXTS:
        tokens, theirs = tokens_of(text), states_of(model, tokens_of(text))
        found = ours.states(tokens, ours.open_cache())
        assert np.abs(found - theirs).max() < 2e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("pooling", ["mean", "cls", "lasttoken"])
def test_vectors_are_those_of_sentence_transformers(pooling, tmp_path):
    folder, model = encoder_folder(tmp_path / "source", "bert", pooling)
    engine = load_engine(import_model(folder, target=tmp_path / "bundle"), RuntimeConfig(threads=2))
    exact = load_engine(tmp_path / "bundle", RuntimeConfig(threads=2, float_path=True))
    pooled = {"mean": lambda x: x.mean(axis=0), "cls": lambda x: x[0], "lasttoken": lambda x: x[-1]}
    wanted = [unit(pooled[pooling](states_of(model, tokens_of(text)))) for text in TEXTS]
    for one, least in ((exact, 1 - 1e-6), (engine, 0.995)):
        found = one.embed([one.text_tokens(text) for text in TEXTS])
        assert np.allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
        assert (found * wanted).sum(axis=1).min() > least


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_pools_its_last_token(tied, tmp_path):
    """As Qwen3-Embedding: the tokenizer ends texts with a control token, and tensors lack the name of the whole model.

    Its last norm is what it is, whatever would make the output matrix even.
    """
    raw = tiny_config("qwen3", tie_word_embeddings=tied)
    found = random_tensors(raw)
    found["model.norm.weight"][::5] *= 8
    tensors = {name.removeprefix("model."): values for name, values in found.items()} if tied else found
    write_model(tmp_path / "source", raw, tensors=tensors)
    write_reading(tmp_path / "source", "lasttoken")
    text, end = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|eos|>", "type_id": 0}}
    tokenizer = byte_level_tokenizer() | {
        "post_processor": {"type": "TemplateProcessing", "single": [text, end], "pair": [],
                           "special_tokens": {"<|eos|>": {"id": "<|eos|>", "ids": [raw["eos_token_id"]], "tokens": ["x"]}}},
    }  # fmt: skip
    write_json(tmp_path / "source" / "tokenizer.json", tokenizer)
    with open_source(tmp_path / "source") as source:
        model = FloatModel(source, source.config)
    engine = load_engine(import_model(tmp_path / "source", target=tmp_path / "bundle"), RuntimeConfig(threads=2))
    prompts = [engine.text_tokens(text, "query") for text in TEXTS * 3]
    assert all(prompt[-1] == raw["eos_token_id"] for prompt in prompts)
    found = engine.embed(prompts)
    wanted = [unit(model.states(prompt, model.open_cache())[-1]) for prompt in prompts]
    assert (found * wanted).sum(axis=1).min() > 0.99
    assert engine.answer(engine.text_request("the cat", engine.defaults)).finish.usage.completion_tokens


def test_import_says_how_near_its_vectors_are(folder, bundle, engine, capsys):
    """The worst and the median cosine of short texts with the float model's, which `show` repeats."""
    said = open_bundle(bundle).manifest["profile"]["held_out"]
    exact = load_engine(bundle, RuntimeConfig(threads=2, float_path=True))
    texts = [ids.tolist() for ids in held_out_texts(engine.tokenizer, engine.config)]
    cosines = (engine.embed(texts) * exact.embed(texts)).sum(axis=1)
    assert said["texts"] == len(texts) > 10
    assert said["worst_cosine"] == pytest.approx(cosines.min(), abs=1e-5)
    assert said["median_cosine"] == pytest.approx(np.median(cosines), abs=1e-5)
    assert run(["import", str(folder[0]), "--name", "near", "--fast"]) == 0
    assert "on held-out text: cosine with the float model's vectors 0.9" in capsys.readouterr().err
    assert run(["show", "near"]) == 0
    assert f"in the median of {len(texts)} texts, on held-out text" in capsys.readouterr().out


def test_four_bits_are_near(folder, engine, tmp_path):
    other = load_engine(import_model(folder[0], target=tmp_path / "w4", weights=LayerBits(W4)), RuntimeConfig(threads=2))
    prompts = [engine.text_tokens(text) for text in TEXTS]
    assert (other.embed(prompts) * engine.embed(prompts)).sum(axis=1).min() > 0.8


def test_tokens_are_those_of_the_package(engine):
    for text in TEXTS:
        assert engine.text_tokens(text) == tokens_of(text)
    assert engine.text_tokens("1 2", "query") == tokens_of("query: 1 2")


def test_a_text_is_cut_before_its_end_or_refused(engine):
    cut = engine.text_tokens(LONG, truncate=True)
    assert len(cut) == engine.runner.context == 64
    assert cut == [*tokens_of(LONG)[:63], WORDS.index("[SEP]")]
    with pytest.raises(ContextOverflow, match="64 tokens"):
        engine.text_tokens(LONG)


def test_a_batch_is_each_alone_in_any_order(engine):
    prompts = [engine.text_tokens(text) for text in TEXTS] * 7
    alone = {text: engine.embed([tokens])[0] for text, tokens in zip(TEXTS, prompts, strict=False)}
    for order in (prompts, prompts[::-1]):
        found = engine.embed(order)
        assert all(np.array_equal(vector, alone[TEXTS[prompts.index(p)]]) for vector, p in zip(found, order, strict=True))


def test_no_text_is_cut_by_a_chunk(engine):
    """Texts of 40 tokens side by side: two never fit into a chunk of 64."""
    runner, random = engine.runner, np.random.default_rng(1)
    texts = [random.integers(0, len(WORDS), 40).tolist() for _ in range(5)]

    def states(*texts):
        segments = [Segment(runner.open(), text, len(text), states=True) for text in texts]
        found = runner.run(segments)
        for segment in segments:
            segment.sequence.close()
        return found

    assert all(map(np.array_equal, states(*texts), itertools.chain(*map(states, texts))))


@pytest.mark.parametrize("way", [{"memory": "80%"}, {"threads": 1}, {"chunk": 16, "window": 2}])
def test_every_way_gives_the_same(engine, bundle, way):
    other = load_engine(bundle, RuntimeConfig(**{"threads": 2, **way}))
    prompts = [engine.text_tokens(text) for text in TEXTS]
    assert np.array_equal(other.embed(prompts), engine.embed(prompts))


def test_an_encoder_writes_nothing(engine, bundle, capsys, monkeypatch):
    with pytest.raises(UsageError, match="is an encoder"):
        engine.text_request("the cat", engine.defaults)
    monkeypatch.setattr("sys.stdin", None)
    assert run(["run", str(bundle), "Hi"]) == 2
    assert "is an encoder" in capsys.readouterr().err
    with open_bundle(bundle) as opened, pytest.raises(UsageError, match="writes no text"):
        load_runner(opened, RuntimeConfig(), 8)


def test_a_card_refuses_it(bundle):
    with pytest.raises(DeviceError, match="cannot do attention to the tokens behind one"):
        load_engine(bundle, RuntimeConfig(device="emulated:310p"))
    with open_bundle(bundle) as opened:
        assert missing(opened.decoder)


def test_a_bundle_carries_its_description(folder, bundle):
    with open_source(folder[0]) as source, open_bundle(bundle) as opened:
        plain = source.config.decoder
        assert decode_decoder(json.loads(json.dumps(encode_description(plain)))) == plain
        assert opened.config.decoder == plain and opened.config.context == 64
        assert plain.reading.prompt("query") == "query: "


def test_gradients_are_differences(folder):
    with open_model_folder(folder[0]) as source:
        model = FloatModel(source, load_config(source.config))
    random, tables = np.random.default_rng(3), RopeTables(64)
    for layer, weights in zip(model.decoder.layers, model.layers, strict=True):
        x, seen, step = (random.standard_normal((20, 64), np.float32) for _ in range(3))
        step *= np.float32(2e-3)
        ahead, behind = (layer_forward(x + sign * step, layer, weights, tables) for sign in (1, -1))
        wanted = float(((ahead - behind).astype(np.float64) * seen).sum() / 2)
        found = float((layer_gradient(x, layer, weights, tables, seen, lambda *_: None).astype(np.float64) * step).sum())
        assert found == pytest.approx(wanted, rel=2e-2, abs=2e-3)


def test_a_tokenizer_writes_its_words():
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(json.dumps(wordpiece()))
    ours = Tokenizer(backend, len(WORDS))
    for text in ("the cat sat.", "a, b? word 1!"):
        assert ours.decode(ours.encode(text)) == backend.decode(ours.encode(text)) == text


@pytest.mark.parametrize(
    ("file", "value", "error"),
    [
        ("modules.json", {}, InvalidModel),
        ("modules.json", [{"type": "x.Transformer", "path": ""}, {"type": "x.CNN", "path": "1_CNN"}], UnsupportedModel),
        ("modules.json", [{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "../.."}], InvalidModel),
        ("modules.json", [{"type": "x.Pooling", "path": "1_Pooling"}], UnsupportedModel),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, UnsupportedModel),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, UnsupportedModel),
        ("1_Pooling/config.json", {"pooling_mode_mean_tokens": True, "word_embedding_dimension": 7}, InvalidModel),
        ("1_Pooling/config.json", {"pooling_mode": "mean", "include_prompt": False}, UnsupportedModel),
        ("config_sentence_transformers.json", {"prompts": {"query": 1}}, InvalidModel),
        ("config_sentence_transformers.json", {"default_prompt_name": "none"}, InvalidModel),
        ("sentence_bert_config.json", {"max_seq_length": "64"}, InvalidModel),
        ("config.json", {"position_embedding_type": "relative_key"}, UnsupportedModel),
        ("config.json", {"is_decoder": True}, UnsupportedModel),
        ("config.json", {"architectures": ["BertLMHeadModel"]}, UnsupportedModel),
    ],
)
def test_what_does_not_run_is_refused(folder, tmp_path, file, value, error):
    for name in ("config.json", "modules.json", "model.safetensors", "config_sentence_transformers.json", "tokenizer.json"):
        (tmp_path / name).write_bytes((folder[0] / name).read_bytes())
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_bytes((folder[0] / "1_Pooling" / "config.json").read_bytes())
    if file == "config.json":
        value = json.loads((tmp_path / file).read_text()) | value
    write_json(tmp_path / file, value)
    with pytest.raises(error), open_source(tmp_path):
        pass


# -- faces -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def http(engine):
    service = BatchingService(engine)
    with client_of(hosted(service, engine)) as client:
        yield client
    service.close(drain_seconds=0)


def embedded(http, path="/v1/embeddings", **body):
    response = http.post(path, json={"model": "builtin", **body})
    assert response.status_code == 200, response.text
    return response.json()


def refused(http, path, **body):
    response = http.post(path, json={"model": "builtin", **body})
    assert response.status_code == 400
    return response.json()["error"]


def test_the_server_gives_the_same_vectors(http, engine):
    wanted = engine.embed([engine.text_tokens(text) for text in TEXTS])
    found = embedded(http, input=TEXTS)
    assert np.array_equal([one["embedding"] for one in found["data"]], wanted)
    assert np.array_equal(embedded(http, "/api/embed", input=TEXTS)["embeddings"], wanted)
    query = embedded(http, input="1 2", prompt_name="query")["data"][0]["embedding"]
    assert np.array_equal(query, engine.embed([engine.text_tokens("1 2", "query")])[0])


def test_dimensions_cut_vectors(http, engine):
    (whole,) = engine.embed([engine.text_tokens("the cat")])
    short = embedded(http, input="the cat", dimensions=8)["data"][0]["embedding"]
    assert np.allclose(short, unit(whole[:8]), atol=1e-6)
    assert "from 1 to 64" in refused(http, "/v1/embeddings", input="the cat", dimensions=65)["message"]
    assert "from 1 to 64" in refused(http, "/v1/embeddings", input="the cat", dimensions=0)["message"]


def test_long_texts_are_cut_where_the_client_says_so(http):
    assert "maximum context length is 64" in refused(http, "/v1/embeddings", input=LONG)["message"]
    assert embedded(http, input=LONG, truncate=True)["usage"]["prompt_tokens"] == 64
    assert embedded(http, "/api/embed", input=LONG)["prompt_eval_count"] == 64
    assert http.post("/api/embed", json={"model": "builtin", "input": LONG, "truncate": False}).status_code == 400
    unknown = refused(http, "/v1/embeddings", input="a", prompt_name="passage")
    assert "no prompt `passage`; there are: `query`" in unknown["message"]


def test_documents_are_ordered_by_their_cosines(http, engine):
    found = embedded(http, "/v1/rerank", query="the cat", documents=TEXTS)["results"]
    query = engine.embed([engine.text_tokens("the cat", "query")])[0]
    scores = engine.embed([engine.text_tokens(text) for text in TEXTS]) @ query
    assert [one["index"] for one in found] == np.argsort(-scores).tolist()


def test_texts_to_order_without_a_word_are_named(http, engine):
    error = refused(http, "/v1/rerank", query="x", documents=["y", " "])
    assert (error["param"], error["message"]) == ("documents", "documents is empty; give at least one character")
    plain = SimpleNamespace(tokenizer=engine.tokenizer, reading=None, is_encoder=True, runner=engine.runner)  # without a prompt
    with pytest.raises(UsageError, match="query is empty") as caught:
        ranking_prompts(plain, "   ", ["x"])
    assert caught.value.param == "query"


def test_a_chat_is_refused(http):
    ask = {"messages": [{"role": "user", "content": "Hi"}]}
    assert "is an encoder" in refused(http, "/v1/chat/completions", **ask)["message"]
    assert "is an encoder" in refused(http, "/v1/completions", prompt="Hi")["message"]
    entry = http.get("/v1/models").json()["data"][0]
    assert entry["capabilities"]["embeddings"] and not entry["capabilities"]["chat"]


def test_the_command_line_prints_vectors(bundle, engine, capsys):
    wanted = engine.embed([engine.text_tokens("the cat"), engine.text_tokens("x")])
    assert run(["embed", str(bundle), "the cat", "x"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert np.array_equal(np.array([line.split() for line in lines], np.float32), wanted)
    assert run(["embed", str(bundle), "the cat", "--dimensions", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert np.allclose(found["embeddings"], [unit(wanted[0][:8])], atol=1e-6) and found["tokens"] == 4
    assert run(["embed", str(bundle), "a", LONG, "--no-truncate"]) == 2
    assert "text 2: this model's maximum context" in capsys.readouterr().err
    assert run(["embed", str(bundle), "a", "--prompt", "passage"]) == 2


CHAT = {
    "model": "builtin", "messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 20, "ignore_eos": True,
}  # fmt: skip


def done_meanwhile(client, done):
    """Whether a job was ``done`` when each piece of a chat's answer came."""
    with client.stream("POST", "/v1/chat/completions", json=CHAT) as reply:
        return [done() for line in reply.iter_lines() if '"content"' in line]


def test_a_long_job_beside_another_model_holds_up_no_answer(engine):
    lines = [engine.text_tokens(TEXTS[at % len(TEXTS)]) for at in range(10_000)]
    embedding, other = BatchingService(engine), builtin_engine()
    job, chatting = embedding.embed(lines), BatchingService(other)
    with client_of(hosted(chatting, other)) as client:
        came = done_meanwhile(client, job.done)
    assert came and not any(came)
    job.cancel()
    for service in (embedding, chatting):
        service.close(drain_seconds=0)


def test_a_long_job_of_the_same_model_holds_up_no_answer():
    """OpenAI | embeddings, chat | 10,000 lines to embed in a few requests: the words of a chat keep coming meanwhile."""
    engine = builtin_engine()
    service, ended = BatchingService(engine), []

    def embed(url):
        with contextlib.suppress(httpx.HTTPError):  # the server goes before the job is through
            lines = {"model": "builtin", "input": ["once upon a time " * 10] * 2000}
            httpx.post(f"{url}/v1/embeddings", json=lines, timeout=300)
        ended.append(1)

    with client_of(hosted(service, engine)) as client:
        jobs = [threading.Thread(target=embed, args=(client.base_url,)) for _ in range(5)]
        for job in jobs:
            job.start()
        while engine.batcher.steps < 3:
            time.sleep(0.001)
        came = done_meanwhile(client, lambda: bool(ended))
    assert came and not any(came)
    service.close(drain_seconds=0)
    for job in jobs:
        job.join()
