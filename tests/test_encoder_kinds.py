"""More kinds of encoders, and what stands behind a pooling: all of them as transformers computes them."""

import json

import numpy as np
import pytest
from encoders import COMMON, KINDS, WORDS, random_weights, states_of, unit, wordpiece, write_reading
from model_files import write_json

from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.engine.ranking import COSINE
from edge_llm.engine.ranking_texts import ranking_prompts
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.models import load_config
from edge_llm.models.reference import FloatModel
from edge_llm.opening.load import load_engine
from edge_llm.sources import open_source

torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")

QUERY, DOCUMENTS = "the cat sat", ["the cat.", "a long text, that has many words: " * 2, "x", "query 1 2 3"]


def made(folder, kind, **more):
    """A random model of `KINDS` in ``folder``, with a tokenizer."""
    name, sizes = KINDS[kind]
    torch.set_num_threads(1)
    config = getattr(transformers, f"{name}Config")(**COMMON | sizes, **more)
    model = getattr(transformers, f"{name}Model")._from_config(config, attn_implementation="eager").eval().float()
    random_weights(model)
    model.save_pretrained(folder)
    write_json(folder / "tokenizer.json", wordpiece())
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [5, 60])
def test_the_float_path_is_that_of_transformers(kind, tokens, tmp_path):
    """Windows see both ways: of 60 tokens each sees a few."""
    model = made(tmp_path, kind)
    with open_source(tmp_path) as source:
        ours = FloatModel(source, source.config)
    ids = np.random.default_rng(tokens).integers(4, len(WORDS), tokens).tolist()
    theirs = states_of(model, ids)
    assert np.abs(ours.states(ids, ours.open_cache()) - theirs).max() < 3e-5 * np.abs(theirs).max()


@pytest.mark.parametrize("kind", KINDS)
def test_int8_is_near_in_any_batch(kind, tmp_path):
    model = made(tmp_path / "source", kind)
    write_reading(tmp_path / "source", "mean")
    engine = load_engine(import_model(tmp_path / "source", target=tmp_path / "bundle"), RuntimeConfig(threads=2))
    prompts = [engine.text_tokens(text) for text in DOCUMENTS]
    found = engine.embed(prompts)
    wanted = [unit(states_of(model, prompt).mean(axis=0)) for prompt in prompts]
    assert (found * wanted).sum(axis=1).min() > 0.99
    assert all(np.array_equal(engine.embed([prompt])[0], vector) for prompt, vector in zip(prompts, found, strict=True))


def test_the_authors_settings_of_nomic_bert(tmp_path):
    made(tmp_path, "nomic_bert", rope_parameters={"rope_type": "default", "rope_theta": 1000.0})
    raw = json.loads((tmp_path / "config.json").read_text())
    theirs = {
        "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "vocab_size": raw["vocab_size"], "n_embd": 64,
        "n_head": 4, "n_inner": 96, "n_layer": 3, "n_positions": 96, "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000,
        "activation_function": "swiglu", "qkv_proj_bias": False, "type_vocab_size": 2, "rotary_emb_fraction": 1.0,
    }  # fmt: skip
    assert load_config(theirs) == load_config(raw)
    with pytest.raises(UnsupportedModel, match="prenorm `True`"):
        load_config(theirs | {"prenorm": True})


def test_dense_layers_stand_behind_the_pooling(tmp_path):
    """As EmbeddingGemma: mean, two products, and the length 1."""
    from safetensors.torch import save_file

    model = made(tmp_path / "source", "gemma3_text, both ways")
    write_reading(tmp_path / "source", "mean")
    random, weights = torch.Generator().manual_seed(5), []
    modules = json.loads((tmp_path / "source" / "modules.json").read_text())
    for number, (columns, rows, activation) in ((2, (64, 96, "linear.Identity")), (3, (96, 32, "activation.Tanh"))):
        path = tmp_path / "source" / f"{number}_Dense"
        path.mkdir()
        weights.append(torch.randn(rows, columns, generator=random) / columns**0.5)
        save_file({"linear.weight": weights[-1]}, path / "model.safetensors")
        write_json(path / "config.json", {"in_features": columns, "out_features": rows, "bias": False,
                                          "activation_function": f"torch.nn.modules.{activation}"})  # fmt: skip
        modules.insert(-1, {"idx": number, "name": str(number), "path": path.name, "type": "sentence_transformers.Dense"})
    write_json(tmp_path / "source" / "modules.json", modules)
    bundle = import_model(tmp_path / "source", target=tmp_path / "bundle")
    for float_path, least in ((True, 1 - 1e-5), (False, 0.99)):
        engine = load_engine(bundle, RuntimeConfig(threads=2, float_path=float_path))
        prompts = [engine.text_tokens(text) for text in DOCUMENTS]
        pooled = [states_of(model, prompt).mean(axis=0) @ weights[0].numpy().T for prompt in prompts]
        wanted = [unit(np.tanh(one @ weights[1].numpy().T)) for one in pooled]
        found = engine.embed(prompts)
        assert engine.vector_size == found.shape[1] == 32
        assert (found * wanted).sum(axis=1).min() > least
    write_json(tmp_path / "source" / "2_Dense" / "config.json", {"in_features": 60, "out_features": 96})
    with pytest.raises(InvalidModel, match="behind the pooling"), open_source(tmp_path / "source"):
        pass
    modules[2]["path"] = ".."
    write_json(tmp_path / "source" / "modules.json", modules)
    with pytest.raises(InvalidModel, match="no folder of the module"), open_source(tmp_path / "source"):
        pass


def test_an_encoder_without_a_head_has_cosines(tmp_path):
    made(tmp_path / "source", "nomic_bert")
    engine = load_engine(import_model(tmp_path / "source", target=tmp_path / "bundle"), RuntimeConfig(threads=2))
    asked = ranking_prompts(engine, QUERY, [QUERY, *DOCUMENTS])
    scores = asked.scores(engine.rank(asked))
    assert asked.way == COSINE and scores[0] == pytest.approx(1, abs=1e-6) == max(scores)
