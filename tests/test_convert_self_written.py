"""Calibration text that the model writes itself: its own, the same each time, and as long as it should be."""

from itertools import islice

import numpy as np
import pytest
from model_files import tiny_config, write_json, write_model

from edge_llm.config import W4
from edge_llm.convert import self_written
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.calibrate import BY_MODEL, MAX_TOKENS, MORE_TEXT, PASSAGE_BREAK, read_calibration
from edge_llm.convert.importer import import_model
from edge_llm.convert.self_written import openings, tokens_worth_writing, write_text
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import open_bundle
from edge_llm.kernels import ThreadPool
from edge_llm.models import describe
from edge_llm.models.reference import FloatModel
from edge_llm.sources import open_source

pytestmark = pytest.mark.thorough(file=3)

TEMPLATE = "{% for message in messages %}<{{ message['role'] }}> {{ message['content'] }}\n{% endfor %}<assistant>"


@pytest.fixture
def source(tmp_path):
    write_model(tmp_path / "source", tiny_config("qwen2"))
    with open_source(tmp_path / "source") as opened:
        yield opened


def written(source, tokens=2000, ends=frozenset(), threads=1):
    decoder, tokenizer = describe(source.config), source.tokenizer()
    beginnings = openings(read_calibration().text, tokenizer, source.template(tokenizer))
    steps = []
    texts = write_text(
        source, decoder, source.config.context, ends, beginnings, tokens, ThreadPool(threads), lambda *step: steps.append(step)
    )
    return texts, steps


def test_every_token_is_likely_to_follow_those_before(source):
    """The texts are drawn from the model: their mean log-probability is minus its mean entropy."""
    texts, _ = written(source, 6000)
    model = FloatModel(source, source.config)
    surprise, entropy = [], []
    for ids in texts:
        logits = model.forward(ids).astype(np.float64)
        logs = logits - logits.max(axis=1, keepdims=True)
        logs -= np.log(np.exp(logs).sum(axis=1, keepdims=True))
        drawn = slice(8, len(ids) - 1)  # behind the opening
        surprise.append(-logs[drawn][np.arange(len(logs[drawn])), ids[9:]])
        entropy.append(-(np.exp(logs) * logs).sum(axis=1)[drawn])
    surprise, entropy = np.concatenate(surprise), np.concatenate(entropy)
    assert len(surprise) > 4000
    assert abs(surprise.mean() - entropy.mean()) < 5 * surprise.std() / np.sqrt(len(surprise))


def test_a_model_writes_the_same_again(source):
    (first, steps), (second, _) = written(source), written(source, threads=3)
    assert all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))
    assert steps == [(step, 32) for step in range(33)]
    assert sum(len(ids) for ids in first) == 32 * 64
    assert len({ids.tobytes() for ids in first}) == len(first)


def test_texts_end_where_the_model_ends_them_and_at_the_context(source):
    longest = min(256, source.config.context)
    texts, _ = written(source, 64 * 2 * longest)
    assert max(len(ids) for ids in texts) == longest
    ends = frozenset(range(0, source.config.vocab_size, 3))
    texts, _ = written(source, 6000, ends)
    drawn = [ids[8:] for ids in texts if len(ids) > 8]
    assert drawn and not any(np.isin(ids[:-1], list(ends)).any() for ids in drawn)


def test_openings_are_the_models_own(source, tmp_path):
    tokenizer, text = source.tokenizer(), read_calibration().text
    plain = list(islice(openings(text, tokenizer, source.template(tokenizer)), 200))
    assert all(plain) and len({tuple(ids) for ids in plain}) > 30
    write_json(source.folder / "tokenizer_config.json", {"chat_template": TEMPLATE})
    with open_source(source.folder) as chat:
        found = list(islice(openings(text, tokenizer, chat.template(tokenizer)), 40))
    assert all(tokenizer.decode(ids).endswith("<assistant>") for ids in found[1::2])
    assert found[2] != plain[2] or found[0] == plain[0]


@pytest.mark.parametrize(
    ("parameters", "tokens"), [(10**6, 32768), (5 * 10**8, 10_000), (36 * 10**8, 10_000), (8 * 10**9, 4500), (10**12, 64)]
)
def test_it_takes_minutes_not_hours(parameters, tokens):
    class Model:
        pass

    model = Model()
    model.parameters = parameters
    assert tokens_worth_writing(model, 10_000, 32768) == tokens


def test_import_with_its_own_text(source, tmp_path, monkeypatch):
    monkeypatch.setattr(self_written, "QUICK", 4000 * describe(source.config).parameters)
    said, stages = [], []
    folder = import_model(
        source.folder, target=tmp_path / "a", calibration=BY_MODEL, weights=LayerBits(W4), notice=said.append,
        progress=lambda stage, *_: stages.append(stage),
    )  # fmt: skip
    assert "writing" in stages and any("the model writes" in line for line in said)
    with open_bundle(folder) as bundle:
        assert bundle.manifest["source"]["calibration"].startswith("self sha256:")
        assert bundle.manifest["profile"]["tokens"] <= MAX_TOKENS + 256
    again = import_model(source.folder, target=tmp_path / "b", calibration=BY_MODEL, weights=LayerBits(W4))
    for file in ("weights.bin", "manifest.json"):
        assert (folder / file).read_bytes() == (again / file).read_bytes()


def test_a_model_that_does_not_fit_into_memory_is_refused(source, tmp_path, monkeypatch):
    monkeypatch.setattr(self_written.os, "sysconf", lambda name: 1)
    with pytest.raises(UsageError, match="--calibration FILE"):
        import_model(source.folder, target=tmp_path / "a", calibration=BY_MODEL)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_codes_are_fitted_to_more_text_and_int8_is_what_it_was(source, tmp_path):
    text, coded = read_calibration(), read_calibration(coded=True)
    assert (coded.text, text.more) == (text.text, "")
    assert coded.digest != text.digest
    passages = coded.more.split(PASSAGE_BREAK)
    assert len(passages) >= 25 and 25_000 < MORE_TEXT.stat().st_size < 100_000
    assert "\ufffd" not in coded.more and "\r" not in coded.more
    assert not {passage.strip() for passage in passages} & {passage.strip() for passage in text.text.split(PASSAGE_BREAK)}
    own = tmp_path / "own.txt"
    own.write_text("hello world " * 50)
    assert read_calibration(own, coded=True) == read_calibration(own)


def test_a_text_too_short_for_the_columns_is_said(source, tmp_path):
    text, said = tmp_path / "short.txt", []
    text.write_text("one two three " * 60)
    import_model(source.folder, target=tmp_path / "a", calibration=text, weights=LayerBits(W4), notice=said.append)
    assert any("weights are fitted to" in line and "--calibration self" in line for line in said)
    said.clear()
    import_model(source.folder, target=tmp_path / "b", weights=LayerBits(W4), notice=said.append)
    assert not any("weights are fitted to" in line for line in said)


def test_what_the_model_wrote_is_kept_when_the_import_is_stopped(source, tmp_path, monkeypatch):
    monkeypatch.setattr(self_written, "QUICK", 4000 * describe(source.config).parameters)
    options = {"calibration": BY_MODEL, "weights": LayerBits(W4)}

    def stop(*step):
        if step[:2] == ("calibration", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_model(source.folder, target=tmp_path / "a", progress=stop, **options)
    stages = []
    folder = import_model(source.folder, target=tmp_path / "a", progress=lambda stage, *_: stages.append(stage), **options)
    assert "writing" not in stages
    whole = import_model(source.folder, target=tmp_path / "b", **options)
    for file in ("weights.bin", "manifest.json"):
        assert (folder / file).read_bytes() == (whole / file).read_bytes()
