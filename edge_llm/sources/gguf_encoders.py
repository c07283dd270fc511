"""What a GGUF file says of an encoder, as its config.json would, and which of its states become a text's vector."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.formats.gguf import GgufModel
from edge_llm.models import describe
from edge_llm.models.layer import DescribedConfig
from edge_llm.models.reading import FIRST, LAST, MEAN, SIGMOID, TANH, Dense, Reading, dense
from edge_llm.operations.base import Gain

ENCODERS = frozenset(("bert", "nomic-bert", "gemma-embedding"))
"""Architectures whose tokens see those behind them."""
_POOLINGS = {1: MEAN, 2: FIRST, 3: LAST}
_SCORES = 4
"""llama.cpp's number of a model that scores pairs of texts."""
_SCORING = ("cls", "cls.output")
_DENSE = ("dense_2", "dense_3")


def bert_settings(model: GgufModel, name: str) -> dict[str, Any]:
    """Of BERT, and of RoBERTa and XLM-RoBERTa, whose tables of positions have no rows for the padding in a file."""
    positions = _rows(model, "position_embd.weight")
    own = {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "max_position_embeddings": positions}
    return _settings(model, name) | own


def nomic_settings(model: GgufModel, name: str) -> dict[str, Any]:
    """Of Nomic BERT."""
    return _settings(model, name) | {
        "model_type": "nomic_bert",
        "architectures": ["NomicBertModel"],
        "hidden_act": "silu",
        "max_position_embeddings": model.integer(f"{name}.context_length", 1, 1 << 27),
        "rope_theta": model.number(f"{name}.rope.freq_base", 1.0, 1e18, 10000.0),
    }


def _settings(model: GgufModel, name: str) -> dict[str, Any]:
    """What both say."""
    return {
        "vocab_size": _rows(model, "token_embd.weight"),
        "hidden_size": model.integer(f"{name}.embedding_length", 1, 1 << 17),
        "intermediate_size": model.integer(f"{name}.feed_forward_length", 1, 1 << 20),
        "num_hidden_layers": model.integer(f"{name}.block_count", 1, 1024),
        "num_attention_heads": model.integer(f"{name}.attention.head_count", 1, 4096),
        "layer_norm_eps": float(f"{model.number(f'{name}.attention.layer_norm_epsilon', 1e-20, 1.0):.7g}"),
        "type_vocab_size": _types(model),
    }


def _types(model: GgufModel) -> int:
    """Kinds of texts; files of older converters have a single one as a vector."""
    if not model.has_tensor("token_types.weight"):
        return 0
    return 1 if len(model.tensor("token_types.weight").shape) == 1 else _rows(model, "token_types.weight")


def _rows(model: GgufModel, name: str) -> int:
    shape = model.tensor(name).shape
    if len(shape) != 2:
        raise InvalidModel(f"{model.where}: `{name}` must have rows and columns, not {list(shape)}")
    return int(shape[0])


def with_pooling(config: ModelConfig, model: GgufModel) -> ModelConfig:
    """``config`` with the pooling of the file; the same where that names none, or scores by words as any decoder does.

    Raises `UnsupportedModel` for an encoder that scores pairs of texts and whose file lacks a step to the score.
    """
    kind = model.integer(f"{model.text('general.architecture')}.pooling_type", 0, 1 << 20, 0)
    decoder = describe(config)
    scores = kind == _SCORES and decoder.is_encoder
    pooling = FIRST if scores else _POOLINGS.get(kind, MEAN if decoder.is_encoder else "")
    if not pooling:
        return config
    try:
        reading = Reading(pooling, head=_scoring(model), score=SIGMOID) if scores else Reading(pooling, head=_head(model))
    except ValueError as error:
        raise InvalidModel(f"{model.where}: {error}") from None
    return DescribedConfig.of(replace(decoder, reading=reading), config.family, config.context)


def _scoring(model: GgufModel) -> tuple[Dense, ...]:
    """The steps from the first token's states to a score.  Files of plain BERT have the last one alone, and score wrongly."""
    if not all(model.has_tensor(f"{name}.weight") for name in _SCORING):
        raise UnsupportedModel(
            f"{model.where} is a reranker without `{'.weight` and `'.join(_SCORING)}.weight`, which its score goes through; "
            "import its repository"
        )
    shapes = {name: (_rows(model, f"{name}.weight"), int(model.tensor(f"{name}.weight").shape[1])) for name in _SCORING}
    steps = zip(_SCORING, ("classifier", "score"), (TANH, ""), strict=True)
    return tuple(
        dense(named, name, shapes[name][1], shapes[name][0], bias=model.has_tensor(f"{name}.bias"), activation=activation)
        for name, named, activation in steps
    )


def _head(model: GgufModel) -> tuple[Dense, ...]:
    """The steps behind the pooling, which EmbeddingGemma has."""
    shapes = {name: model.tensor(f"{name}.weight").shape for name in _DENSE if model.has_tensor(f"{name}.weight")}
    if any(len(shape) != 2 for shape in shapes.values()):
        raise InvalidModel(f"{model.where}: what stands behind the pooling must be matrices; convert the model again")
    return tuple(
        Dense(Gain(name, f"{name}.weight", int(shape[1]), rows=int(shape[0]), whole_name=True))
        for name, shape in shapes.items()
    )
