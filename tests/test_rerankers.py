"""Rerankers: scores are those of transformers, at the command line and over HTTP."""

import io
import json
from types import SimpleNamespace

import numpy as np
import pytest
from encoders import SIZES, encoded, random_weights, wordpiece
from model_files import byte_alphabet, byte_level_tokenizer, tiny_config, write_json, write_model
from serving import client_of, hosted

from edge_llm.cli.main import run
from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.engine.ranking import JUDGE, PAIR
from edge_llm.engine.ranking_texts import INSTRUCTION, ranking_prompts, way_of
from edge_llm.engine.service import BatchingService
from edge_llm.errors import ContextOverflow, NumericError, UnsupportedModel, UsageError
from edge_llm.models.reference import FloatModel
from edge_llm.opening.load import load_engine
from edge_llm.sources import open_source

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

QUERY, DOCUMENTS = "the cat sat", ["the cat.", "a long text, that has many words: " * 2, "x", "query 1 2 3"]
TOKENS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
RERANKERS = {
    "Bert": {}, "Roberta": {"pad_token_id": 1, "type_vocab_size": 1}, "XLMRoberta": {"pad_token_id": 1, "type_vocab_size": 1},
    "ModernBert": {"local_attention": 8, "classifier_pooling": "mean", **TOKENS},
}  # fmt: skip


def classifier(folder, name, **more):
    """A random reranker of the class ``name`` in ``folder``."""
    torch.set_num_threads(1)
    config = getattr(transformers, f"{name}Config")(**SIZES, num_labels=1, **more)
    model = getattr(transformers, f"{name}ForSequenceClassification")._from_config(config, attn_implementation="eager")
    model = model.eval().float()
    random_weights(model)
    model.save_pretrained(folder)
    write_json(folder / "tokenizer.json", wordpiece())
    return model


def score_of(model, query, document):
    """The logit of a model of transformers for a pair."""
    ids, types = encoded(query, document)
    more = {"token_type_ids": torch.tensor([types])} if getattr(model.config, "type_vocab_size", 0) > 1 else {}
    with torch.no_grad():
        return float(model(torch.tensor([ids]), **more).logits[0, 0])


@pytest.mark.parametrize("kind", RERANKERS)
def test_a_reranker_scores_pairs_as_transformers(kind, tmp_path):
    model = classifier(tmp_path / "source", kind, **RERANKERS[kind])
    bundle = import_model(tmp_path / "source", target=tmp_path / "bundle")
    wanted = [score_of(model, QUERY, document) for document in DOCUMENTS]
    for float_path, most in ((True, 1e-4), (False, 0.15)):
        engine = load_engine(bundle, RuntimeConfig(threads=2, float_path=float_path))
        asked = ranking_prompts(engine, QUERY, DOCUMENTS)
        assert asked.way == way_of(engine) == PAIR and [*asked.prompts[0]] == encoded(QUERY, DOCUMENTS[0])[0]
        found = asked.scores(engine.rank(asked), raw=True)
        assert np.abs(np.subtract(found, wanted)).max() < most * np.abs(wanted).max()
        assert np.allclose(asked.scores(engine.rank(asked)), 1 / (1 + np.exp(-np.array(found))))


def test_a_document_is_cut_and_the_query_not(tmp_path):
    classifier(tmp_path / "source", "Bert")
    engine = load_engine(import_model(tmp_path / "source", target=tmp_path / "bundle"), RuntimeConfig(threads=2))
    asked = ranking_prompts(engine, QUERY, ["word " * 500])
    assert len(asked.prompts[0]) == engine.runner.context
    assert asked.prompts[0][: asked.second_starts[0]] == encoded(QUERY, "x")[0][: asked.second_starts[0]]
    with pytest.raises(ContextOverflow):
        ranking_prompts(engine, QUERY, ["word " * 500], truncate=False)
    with pytest.raises(ContextOverflow):
        ranking_prompts(engine, "word " * 500, ["x"])


@pytest.mark.parametrize("change", [{"id2label": {"0": "a", "1": "b"}}, {"sbert_ce_default_activation_function": "x.Softmax"}])
def test_other_classifiers_are_refused(change, tmp_path):
    classifier(tmp_path, "Bert")
    write_json(tmp_path / "config.json", json.loads((tmp_path / "config.json").read_text()) | change)
    with pytest.raises(UnsupportedModel), open_source(tmp_path):
        pass


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A bundle of a reranker."""
    folder = tmp_path_factory.mktemp("reranker")
    classifier(folder / "source", "Bert", sbert_ce_default_activation_function="torch.nn.modules.linear.Identity")
    return import_model(folder / "source", target=folder / "bundle")


@pytest.fixture(scope="module")
def engine(bert):
    return load_engine(bert, RuntimeConfig(threads=2))


def test_the_server_gives_the_models_scores(engine):
    """Cohere, Jina, TEI | rerank | A reranker's own score of each pair; `raw_scores` false makes it one from 0 to 1."""
    asked = ranking_prompts(engine, QUERY, DOCUMENTS)
    wanted = asked.scores(engine.rank(asked))  # as its author has it: the logit
    service = BatchingService(engine)
    with client_of(hosted(service, engine)) as client:
        body = {"model": "builtin", "query": QUERY}
        found = client.post("/v1/rerank", json=body | {"documents": DOCUMENTS, "return_documents": True}).json()
        assert [one["index"] for one in found["results"]] == np.argsort(-np.array(wanted)).tolist()
        assert all(one["relevance_score"] == wanted[one["index"]] for one in found["results"])
        assert found["results"][0]["document"]["text"] == DOCUMENTS[found["results"][0]["index"]]
        share = client.post("/rerank", json=body | {"texts": DOCUMENTS, "raw_scores": False}).json()
        assert all(one["score"] == pytest.approx(1 / (1 + np.exp(-wanted[one["index"]]))) for one in share)
        long = {"documents": ["word " * 500]}
        assert client.post("/v1/rerank", json=body | long).status_code == 200
        assert client.post("/v1/rerank", json=body | long | {"truncate": False}).status_code == 400
        refused = client.post("/v1/rerank", json=body | {"documents": ["x"], "instruction": "find it"})
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "instruction"
    service.close(drain_seconds=0)


def test_the_command_line_orders_lines(bert, engine, capsys):
    asked = ranking_prompts(engine, QUERY, DOCUMENTS)
    scores = asked.scores(engine.rank(asked))
    assert run(["rerank", str(bert), QUERY, *DOCUMENTS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert [one["index"] for one in found] == np.argsort(-np.array(scores)).tolist()
    assert run(["rerank", str(bert), QUERY, *DOCUMENTS, "--top", "1"]) == 0
    assert capsys.readouterr().out == f"{max(scores):.6f}\t{DOCUMENTS[int(np.argmax(scores))]}\n"
    assert run(["rerank", str(bert), QUERY, ""]) == 2


def test_a_line_ends_where_a_file_has_its_end(bert, capsys, monkeypatch):
    """A form feed and U+2028 are in a text: the results are as many as the lines."""
    piped = io.BytesIO("the\fcat\u2028sat\r\nx\n".encode())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=piped, isatty=lambda: False))
    assert run(["rerank", str(bert), QUERY, "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert sorted(one["text"] for one in results) == ["the\fcat\u2028sat", "x"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_is_a_number(engine, bad):
    asked = ranking_prompts(engine, QUERY, DOCUMENTS)
    found = engine.rank(asked)
    found[1] = bad
    for raw in (None, True, False):
        with pytest.raises(NumericError):
            asked.scores(found, raw=raw)


def test_pairs_are_alone_what_they_are_together(engine):
    asked = ranking_prompts(engine, QUERY, DOCUMENTS * 3)
    together = engine.rank(asked)
    for document, score in zip(DOCUMENTS, together, strict=False):
        assert np.array_equal(engine.rank(ranking_prompts(engine, QUERY, [document]))[0], score)
    assert np.array_equal(together[: len(DOCUMENTS)], together[-len(DOCUMENTS) :])


# -- models that are asked in words ----------------------------------------------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
)


def judge_folder(folder):
    """A tiny Qwen3 whose yes and no are tokens."""
    raw = tiny_config("qwen3", tie_word_embeddings=True, max_position_embeddings=1024)
    write_model(folder, raw, chat_template=TEMPLATE)
    tokenizer, alphabet = byte_level_tokenizer(), byte_alphabet()
    vocab, merges = tokenizer["model"]["vocab"], tokenizer["model"]["merges"]
    free = [text for text in vocab if len(text) > 1][-3:]
    assert all(char in alphabet for char in "yesno")
    for text, merge, old in zip(("ye", "yes", "no"), ("y e", "ye s", "n o"), free, strict=True):
        vocab[text] = vocab.pop(old)
        merges[:] = [one for one in merges if old not in (one.replace(" ", ""), *one.split())] + [merge]
    write_json(folder / "tokenizer.json", tokenizer)
    return folder


def test_any_other_model_is_asked_for_yes_or_no(tmp_path):
    """The prompt is that of Qwen3-Reranker, the score the share of yes in the two logits."""
    engine = load_engine(import_model(judge_folder(tmp_path / "source"), target=tmp_path / "bundle"), RuntimeConfig(threads=2))
    with open_source(tmp_path / "source") as source:
        model = FloatModel(source, source.config)
    asked = ranking_prompts(engine, QUERY, DOCUMENTS)
    assert asked.way == JUDGE
    text = engine.tokenizer.decode(asked.prompts[0], skip_special=False)
    assert text.endswith(
        f"<Instruct>: {INSTRUCTION}\n<Query>: {QUERY}\n<Document>: {DOCUMENTS[0]}<|im_end|>\n<|im_start|>assistant\n"
        "<think>\n\n</think>\n\n"
    )
    assert '"yes" or "no".<|im_end|>' in text
    yes, no = (engine.tokenizer.token_id(word) for word in ("yes", "no"))
    found = asked.scores(engine.rank(asked), raw=True)
    for tokens, score in zip(asked.prompts, found, strict=True):
        logits = model.forward(tokens, last_only=True)[0]
        assert score == pytest.approx(float(logits[yes] - logits[no]), abs=0.05 * np.abs(logits).max())
    assert asked.scores(engine.rank(asked)) == pytest.approx(1 / (1 + np.exp(-np.array(found))))
    assert ranking_prompts(engine, QUERY, ["x"], instruction="find it").prompts != ranking_prompts(engine, QUERY, ["x"]).prompts


def test_a_long_document_leaves_room_for_the_question(tmp_path):
    engine = load_engine(import_model(judge_folder(tmp_path / "source"), target=tmp_path / "bundle"), RuntimeConfig(threads=2))
    (tokens,) = ranking_prompts(engine, QUERY, ["word " * 1000]).prompts
    most = engine.runner.context
    assert most - 20 < len(tokens) <= most
    assert engine.tokenizer.decode(tokens, skip_special=False).endswith("<think>\n\n</think>\n\n")
    with pytest.raises(ContextOverflow):
        ranking_prompts(engine, QUERY, ["word " * 1000], truncate=False)
    with pytest.raises(UsageError, match="document 2 is empty"):
        ranking_prompts(engine, QUERY, ["x", ""])
