"""GLM-4.1V: its text part is `glm4`."""

from __future__ import annotations

from typing import Any

from edge_llm.models.text_part import text_settings

ARCHITECTURE = "Glm4vForConditionalGeneration"


def text(raw: dict[str, Any]) -> dict[str, Any]:
    """The settings of the text model in a ``model_type: glm4v`` config.json."""
    return text_settings(
        raw, {"glm4v_text": "glm4"}, head_dim=None, rms_norm_eps=1e-5, partial_rotary_factor=1.0, max_position_embeddings=32768
    )
