"""Encoders in GGUF files: tokens, states and vectors are those of the model before it was converted."""

import numpy as np
import pytest
from encoders import ENCODERS, WORDS, encoded, encoder_folder, states_of
from gguf_files import floats, gguf_bytes, model_gguf
from model_files import random_tensors, tiny_config
from test_encoder_kinds import DOCUMENTS, made
from test_rerankers import QUERY, RERANKERS, classifier, score_of

from edge_llm.config import RuntimeConfig
from edge_llm.convert.importer import import_model
from edge_llm.engine.ranking_texts import ranking_prompts
from edge_llm.errors import UnsupportedModel
from edge_llm.formats.bundle import open_bundle
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.models.reference import FloatModel
from edge_llm.opening.load import load_engine
from edge_llm.quant.blocks import to_q8_0
from edge_llm.sources import open_source

_BERT = {
    "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm", "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm",
}  # fmt: skip
_SCORING = {"classifier.dense": "cls", "classifier.out_proj": "cls.output"}
_NOMIC = {
    "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm", "norm2": "layer_output_norm",
    "mlp.fc11": "ffn_up", "mlp.fc12": "ffn_gate", "mlp.fc2": "ffn_down",
}  # fmt: skip
_GEMMA = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
_WHOLE = {
    "embeddings.word_embeddings": "token_embd", "embeddings.token_type_embeddings": "token_types",
    "embeddings.position_embeddings": "position_embd", "embeddings.LayerNorm": "token_embd_norm", "emb_ln": "token_embd_norm",
    "embed_tokens": "token_embd", "norm": "output_norm",
}  # fmt: skip


def words(known=WORDS):
    """The tokens ``known`` as llama.cpp's converter writes them."""
    texts = [one if one.startswith("[") else one[2:] if one.startswith("##") else f"\u2581{one}" for one in known]
    return {
        "tokenizer.ggml.model": "bert", "tokenizer.ggml.tokens": texts, "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.token_type": [3] * 4 + [1] * (len(texts) - 4), "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3, "tokenizer.ggml.padding_token_id": 0,
    }  # fmt: skip


def file_of(folder, arch, names, *, blocks=False, types=slice(None), known=WORDS, tokenizer=None, **more):
    """The GGUF file of the model in ``folder``, whose layers' tensors are called as ``names`` say; ``blocks``: in Q8_0;
    ``types``: the rows of the kinds of texts that it has."""
    with open_model_folder(folder) as source:
        raw, tensors = source.config, {name: source.read(name) for name in source.names()}
    first = raw["pad_token_id"] + 1 if raw["model_type"] in ("roberta", "xlm-roberta") else 0
    found = []
    for name, values in tensors.items():
        stem, _, suffix = name.removeprefix("roberta.").rpartition(".")
        words_ = stem.split(".")
        number = next((at for at, word in enumerate(words_) if word.isdecimal()), None)
        if "pooler" in stem or (stem.startswith("classifier") and stem not in names):
            continue
        own = (_WHOLE | names)[stem] if number is None else f"blk.{words_[number]}.{names['.'.join(words_[number + 1:])]}"
        values = values[first:] if own == "position_embd" else values[types] if own == "token_types" else values
        values = values + 1 if arch == "gemma-embedding" and own.endswith("norm") else values
        if blocks and suffix == "weight" and values.ndim == 2 and own not in ("position_embd", "token_types"):
            found.append((f"{own}.{suffix}", 8, values.shape, to_q8_0(values, own).tobytes()))
        else:
            found.append(floats(f"{own}.{suffix}", values))
    said = {
        "context_length": raw["max_position_embeddings"] - first, "embedding_length": raw["hidden_size"],
        "block_count": raw["num_hidden_layers"], "feed_forward_length": raw["intermediate_size"],
        "attention.head_count": raw["num_attention_heads"], "attention.causal": False, "pooling_type": 1,
        "attention.layer_norm_epsilon": raw.get("layer_norm_eps", 1e-6), **more,
    }  # fmt: skip
    own = {f"{arch}.{key}": value for key, value in said.items()}
    pairs = {"general.architecture": arch} | own | (tokenizer or words(known))
    path = folder / "model.gguf"
    path.write_bytes(gguf_bytes(pairs, found))
    return path


def check(file, model, least):
    """The file's tokens are the folder's, its float states those of transformers, and the bundle's vectors near."""
    with open_source(file) as source:
        ours, tokenizer = FloatModel(source, source.config), source.tokenizer()
    for text in DOCUMENTS:
        begin, end = tokenizer.frame
        ids = [*begin, *tokenizer.encode(text), *end]
        assert ids == encoded(text)[0]
        theirs = states_of(model, ids)
        assert np.abs(ours.states(ids, ours.open_cache()) - theirs).max() < 3e-5 * np.abs(theirs).max()
    engine = load_engine(import_model(file, target=file.parent / "bundle"), RuntimeConfig(threads=2))
    prompts = [engine.text_tokens(text) for text in DOCUMENTS]
    wanted = [states_of(model, prompt).mean(axis=0) for prompt in prompts]
    cosines = (engine.embed(prompts) * wanted).sum(axis=1) / np.linalg.norm(wanted, axis=1)
    assert cosines.min() > least
    pair = tokenizer.pair_frame
    assert pair.two_kinds and [*pair.begin, *pair.between, *pair.end] == [2, 3, 3]


@pytest.mark.parametrize("kind", ENCODERS)
def test_bert(kind, tmp_path):
    folder, model = encoder_folder(tmp_path / "source", kind)
    check(file_of(folder, "bert", _BERT), model, 0.98)


def test_nomic_bert(tmp_path):
    model = made(tmp_path / "source", "nomic_bert")
    check(file_of(tmp_path / "source", "nomic-bert", _NOMIC, **{"rope.freq_base": 1000.0}), model, 0.98)


def test_embedding_gemma(tmp_path):
    model = made(tmp_path / "source", "gemma3_text, both ways")
    sizes = {"attention.head_count_kv": 1, "attention.key_length": 16, "attention.value_length": 16,
             "attention.sliding_window": 10, "attention.layer_norm_rms_epsilon": 1e-6, "rope.freq_base": 1e6}  # fmt: skip
    check(file_of(tmp_path / "source", "gemma-embedding", _GEMMA, **sizes), model, 0.98)


@pytest.mark.parametrize("types", [slice(1), 0])
def test_the_only_kind_of_texts_is_a_row_or_a_vector(types, tmp_path):
    """Older converters write it as a vector."""
    folder, model = encoder_folder(tmp_path / "source", "bert")
    ids = encoded(DOCUMENTS[1])[0]
    with open_source(file_of(folder, "bert", _BERT, types=types)) as source:
        ours = FloatModel(source, source.config)
    theirs = states_of(model, ids)
    assert np.abs(ours.states(ids, ours.open_cache()) - theirs).max() < 3e-5 * np.abs(theirs).max()


def test_control_tokens_without_brackets(tmp_path):
    folder, _ = encoder_folder(tmp_path / "source", "bert")
    known = ["<pad>", "<unk>", "<s>", "</s>", *WORDS[4:]]
    with open_source(file_of(folder, "bert", _BERT, known=known)) as source:
        tokenizer = source.tokenizer()
    assert tokenizer.frame == ((2,), (3,))
    assert tokenizer.encode("the \u65e5 cat") == [known.index("the"), 1, known.index("cat")]


@pytest.mark.parametrize("blocks", [False, True])
def test_a_reranker_scores_as_its_folder(blocks, tmp_path):
    """As bge-reranker: a RoBERTa with `classifier.dense` and `classifier.out_proj`, here as the converter names them."""
    model = classifier(tmp_path / "hf", "Roberta", **RERANKERS["Roberta"])
    file = file_of(tmp_path / "hf", "bert", _BERT | _SCORING, blocks=blocks, pooling_type=4)
    engine = load_engine(import_model(file, target=tmp_path / "bundle"), RuntimeConfig(threads=2, float_path=not blocks))
    asked = ranking_prompts(engine, QUERY, DOCUMENTS)
    found, wanted = asked.scores(engine.rank(asked), raw=True), [score_of(model, QUERY, one) for one in DOCUMENTS]
    assert np.abs(np.subtract(found, wanted)).max() < (0.15 if blocks else 1e-4) * np.abs(wanted).max()
    assert np.allclose(asked.scores(engine.rank(asked)), 1 / (1 + np.exp(-np.array(found))))


def test_between_the_texts_of_a_roberta_stand_two_control_tokens(tmp_path):
    """bge-reranker's are `<s> query </s> </s> document </s>`."""
    classifier(tmp_path, "Roberta", **RERANKERS["Roberta"])
    known = ["<s>", "<pad>", "</s>", "<unk>", "\u2581", "\u2581the", "\u2581cat"]
    pieces = {
        "tokenizer.ggml.model": "t5", "tokenizer.ggml.tokens": known, "tokenizer.ggml.token_type": [3, 3, 3, 2, 1, 1, 1],
        "tokenizer.ggml.scores": [0.0] * 4 + [-3.0, -1.0, -2.0], "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.seperator_token_id": 2, "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.padding_token_id": 1, "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True,
    }  # fmt: skip
    file = file_of(tmp_path, "bert", _BERT | _SCORING, tokenizer=pieces, pooling_type=4)
    with open_source(file) as source:
        tokenizer = source.tokenizer()
    pair = tokenizer.pair_frame
    assert (pair.begin, pair.between, pair.end) == ((0,), (2, 2), (2,)) and tokenizer.frame == ((0,), (2,))


@pytest.mark.parametrize("left", [{}, {"classifier.dense": "cls"}, {"classifier.out_proj": "cls.output"}])
def test_a_reranker_whose_file_lacks_a_step_is_refused(left, tmp_path):
    """As the converter writes plain BERT, whose pooler it leaves out."""
    classifier(tmp_path, "Roberta", **RERANKERS["Roberta"])
    file = file_of(tmp_path, "bert", _BERT | left, pooling_type=4)
    with pytest.raises(UnsupportedModel, match="reranker without `cls.weight` and `cls.output.weight`"), open_source(file):
        pass


def test_blocks_of_a_file_stay_as_they_are(tmp_path):
    """A file in Q8_0: what is kept of it is near the float values that its blocks stand for."""
    folder, _ = encoder_folder(tmp_path / "source", "bert")
    file = file_of(folder, "bert", _BERT, blocks=True)
    bundle = import_model(file, target=tmp_path / "bundle")
    with open_bundle(bundle) as opened:
        assert opened.decoder.layers[0].linear("o").scheme == "q8_0"
    engine, exact = (load_engine(bundle, RuntimeConfig(threads=2, float_path=one)) for one in (False, True))
    prompts = [engine.text_tokens(text) for text in DOCUMENTS]
    assert (engine.embed(prompts) * exact.embed(prompts)).sum(axis=1).min() > 0.98


def test_a_decoder_that_was_trained_to_embed(tmp_path):
    """As Qwen3-Embedding: the last token, behind the control token that ends a text."""
    raw = tiny_config("qwen3", tie_word_embeddings=True)
    file = tmp_path / "m.gguf"
    more = {"qwen3__pooling_type": 3, "tokenizer__ggml__add_eos_token": True}
    file.write_bytes(model_gguf(raw, random_tensors(raw), **more))
    with open_source(file) as source:
        reading, tokenizer = source.config.decoder.reading, source.tokenizer()
    assert reading.pooling == "lasttoken"
    assert tokenizer.frame == ((), (max(tokenizer.eos_ids & {tokenizer.frame[1][0]}),))
