"""XLM-RoBERTa (arXiv 1911.02116): BERT over many languages, such as multilingual E5 and BGE-M3."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.encoder import classified_head, encoder

ARCHITECTURES = ("XLMRobertaModel", "XLMRobertaForMaskedLM", "XLMRobertaForSequenceClassification")


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: xlm-roberta`` config.json."""
    return encoder(raw, "roberta.", padded=True, head=classified_head)
