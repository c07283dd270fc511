"""RoBERTa (arXiv 1907.11692), which is BERT with other tokens."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.encoder import classified_head, encoder

ARCHITECTURES = ("RobertaModel", "RobertaForMaskedLM", "RobertaForSequenceClassification")


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: roberta`` config.json."""
    return encoder(raw, "roberta.", padded=True, head=classified_head)
