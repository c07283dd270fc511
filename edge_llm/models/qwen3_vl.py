"""Qwen3-VL: its text part is `qwen3`."""

from __future__ import annotations

from typing import Any

from edge_llm.models.text_part import text_settings

ARCHITECTURE = "Qwen3VLForConditionalGeneration"


def text(raw: dict[str, Any]) -> dict[str, Any]:
    """The settings of the text model in a ``model_type: qwen3_vl`` config.json."""
    return text_settings(raw, {"qwen3_vl_text": "qwen3"}, max_position_embeddings=128000, rope_theta=5e5)
