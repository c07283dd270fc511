"""Tiny random encoders, made by transformers, as folders of sentence-transformers with a WordPiece tokenizer."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_files import write_json

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "query", ":", "word", *string.ascii_lowercase,
         *(f"##{letter}" for letter in string.ascii_lowercase), *string.digits, ".", ",", "?", "!"]  # fmt: skip
SIZES = {
    "vocab_size": len(WORDS) + 5, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6,
    "num_attention_heads": 4, "max_position_embeddings": 72,
}  # fmt: skip
COMMON = {**SIZES, "max_position_embeddings": 96}
TOKENS = {"pad_token_id": 0, "cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3}
KINDS = {
    "modernbert": ("ModernBert", {"num_hidden_layers": 5, "local_attention": 8, **TOKENS}),
    "modernbert, biases": ("ModernBert", {
        "num_hidden_layers": 3, "local_attention": 8, "attention_bias": True, "mlp_bias": True, "norm_bias": True, **TOKENS,
    }),
    "nomic_bert": ("NomicBert", {"num_hidden_layers": 3}),
    "gemma3_text, both ways": ("Gemma3Text", {
        "num_hidden_layers": 7, "num_key_value_heads": 1, "head_dim": 16, "sliding_window": 10, "query_pre_attn_scalar": 16,
        "use_bidirectional_attention": True, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
    }),
}  # fmt: skip
"""Other encoders: their classes in transformers, and sizes."""
ENCODERS = {"bert": "Bert", "roberta": "Roberta", "xlm_roberta": "XLMRoberta"}


def wordpiece() -> dict[str, Any]:
    """tokenizer.json of a WordPiece tokenizer, which puts [CLS] and [SEP] around texts, and pads and cuts as old files do."""
    specials = [{"id": at, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                 "special": True} for at, text in enumerate(WORDS[:4])]  # fmt: skip
    cls, sep = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("[CLS]", "[SEP]"))
    first, second = ({"Sequence": {"id": name, "type_id": kind}} for kind, name in enumerate("AB"))
    last = {"SpecialToken": {"id": "[SEP]", "type_id": 1}}
    named = {text: {"id": text, "ids": [at], "tokens": [text]} for at, text in enumerate(WORDS[:4])}
    return {
        "version": "1.0",
        "truncation": {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {"strategy": {"Fixed": 8}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                    "pad_type_id": 0, "pad_token": "[PAD]"},
        "added_tokens": specials,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
                       "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": [cls, first, sep],
                           "pair": [cls, first, sep, second, last], "special_tokens": named},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100, "vocab": {word: at for at, word in enumerate(WORDS)}},
    }  # fmt: skip


def encoder_folder(folder: Path, kind: str, pooling: str = "mean", **settings: Any) -> tuple[Path, Any]:
    """An encoder of `ENCODERS` in ``folder``, and the model of transformers; ``settings`` are of sentence-transformers."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.set_num_threads(1)
    config = getattr(transformers, f"{ENCODERS[kind]}Config")(**SIZES, pad_token_id=1 if kind != "bert" else 0)
    model = getattr(transformers, f"{ENCODERS[kind]}Model")(config).eval().float()
    random_weights(model)
    model.save_pretrained(folder)
    write_json(folder / "tokenizer.json", wordpiece())
    write_json(folder / "tokenizer_config.json", {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]"})
    write_reading(folder, pooling, **settings)
    return folder, model


def random_weights(model: Any) -> None:
    """Draw the weights of a model of transformers, so that all of them matter."""
    torch = pytest.importorskip("torch")
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, values in model.named_parameters():
            drawn = torch.randn(values.shape, generator=random)
            if "norm" in name.lower() and name.endswith("weight"):
                values.copy_(1 + 0.2 * drawn)
            else:
                values.copy_(drawn * (0.3 if name.endswith("bias") or "embed" in name else 1.3 / values.shape[-1] ** 0.5))


def write_reading(folder: Path, pooling: str, **settings: Any) -> None:
    """The files of sentence-transformers beside a model of 64 channels."""
    modules = ("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")
    kinds = [{"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{name}"}
             for at, (path, name) in enumerate(modules)]  # fmt: skip
    write_json(folder / "modules.json", kinds)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    flags = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "lasttoken": "lasttoken"}
    modes = {f"pooling_mode_{flag}": name == pooling for name, flag in flags.items()}
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 64, **modes})
    write_json(folder / "config_sentence_transformers.json", {"prompts": {"query": "query: "}, **settings})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 64, "do_lower_case": False})


def encoded(*texts: str) -> tuple[list[int], list[int]]:
    """By the tokenizers package alone: token ids and types, of a text or of a pair."""
    import tokenizers

    backend = tokenizers.Tokenizer.from_str(json.dumps(wordpiece()))
    backend.no_padding()
    backend.no_truncation()
    found = backend.encode(*texts)
    return found.ids, found.type_ids


def states_of(model: Any, tokens: list[int]) -> np.ndarray:
    """The last hidden states of a model of transformers, float32 [T, hidden]."""
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        return np.asarray(model(torch.tensor([tokens])).last_hidden_state[0].numpy())


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)
