"""Qwen2-VL: its text part is `qwen2`."""

from __future__ import annotations

from typing import Any

from edge_llm.models.text_part import text_settings

ARCHITECTURE = "Qwen2VLForConditionalGeneration"


def text(raw: dict[str, Any]) -> dict[str, Any]:
    """The settings of the text model in a ``model_type: qwen2_vl`` config.json."""
    return text_settings(raw, {"qwen2_vl_text": "qwen2"}, num_key_value_heads=8, rms_norm_eps=1e-5, rope_theta=1e6)
