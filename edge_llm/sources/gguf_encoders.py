"""What a GGUF file says of an encoder, as its config.json would, and which of its states become a text's vector."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.formats.gguf import GgufModel
from edge_llm.models import describe
from edge_llm.models.layer import DescribedConfig
from edge_llm.models.reading import FIRST, LAST, MEAN, Dense, Reading
from edge_llm.operations.base import Gain

ENCODERS = frozenset(("bert", "nomic-bert", "gemma-embedding"))
"""Architectures whose tokens see those behind them."""
_POOLINGS = {1: MEAN, 2: FIRST, 3: LAST}
_SCORES = 4
"""llama.cpp's number of a model that scores pairs of texts."""
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

    Raises `UnsupportedModel` for an encoder that scores pairs of texts.
    """
    kind = model.integer(f"{model.text('general.architecture')}.pooling_type", 0, 1 << 20, 0)
    decoder = describe(config)
    if kind == _SCORES and decoder.is_encoder:
        raise UnsupportedModel(f"{model.where} is a reranker, which does not run from GGUF here; import its repository")
    pooling = _POOLINGS.get(kind, MEAN if decoder.is_encoder else "")
    if not pooling:
        return config
    try:
        described = replace(decoder, reading=Reading(pooling, head=_head(model)))
    except ValueError as error:
        raise InvalidModel(f"{model.where}: {error}") from None
    return DescribedConfig.of(described, config.family, config.context)


def _head(model: GgufModel) -> tuple[Dense, ...]:
    """The steps behind the pooling, which EmbeddingGemma has."""
    shapes = {name: model.tensor(f"{name}.weight").shape for name in _DENSE if model.has_tensor(f"{name}.weight")}
    if any(len(shape) != 2 for shape in shapes.values()):
        raise InvalidModel(f"{model.where}: what stands behind the pooling must be matrices; convert the model again")
    return tuple(
        Dense(Gain(name, f"{name}.weight", int(shape[1]), rows=int(shape[0]), whole_name=True))
        for name, shape in shapes.items()
    )
