"""BERT (arXiv 1810.04805), and the encoders of its kind: MiniLM, BGE, E5, GTE."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.encoder import encoder, pooled_head

ARCHITECTURES = ("BertModel", "BertForMaskedLM", "BertForSequenceClassification")


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: bert`` config.json."""
    return encoder(raw, "bert.", head=pooled_head)
