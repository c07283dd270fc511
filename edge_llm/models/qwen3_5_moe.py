"""Qwen3.5-MoE and 3.6-MoE: the text part is `qwen3_5_moe_text`."""

from __future__ import annotations

from typing import Any

from edge_llm.models.text_part import text_settings

ARCHITECTURES = ("Qwen3_5MoeForConditionalGeneration", "Qwen3_5MoeForCausalLM")


def text(raw: dict[str, Any]) -> dict[str, Any]:
    """The settings of the text model in a ``model_type: qwen3_5_moe`` config.json."""
    return text_settings(raw, {"qwen3_5_moe_text": "qwen3_5_moe_text"}, max_position_embeddings=32768)
