"""Gemma 3 that sees images: its text part is `gemma3_text`."""

from __future__ import annotations

from typing import Any

from edge_llm.models.text_part import text_settings

ARCHITECTURE = "Gemma3ForConditionalGeneration"


def text(raw: dict[str, Any]) -> dict[str, Any]:
    """The settings of the text model in a ``model_type: gemma3`` config.json."""
    return text_settings(
        raw,
        {"gemma3_text": "gemma3_text"},
        vocab_size=262208,
        hidden_size=2304,
        intermediate_size=9216,
        num_hidden_layers=26,
        num_attention_heads=8,
    )
