"""Mistral Small 3.1 and Ministral 3 that see images: their text parts are `mistral` and `ministral3`."""

from __future__ import annotations

from typing import Any

from edge_llm.models.text_part import text_settings

ARCHITECTURE = "Mistral3ForConditionalGeneration"


def text(raw: dict[str, Any]) -> dict[str, Any]:
    """The settings of the text model in a ``model_type: mistral3`` config.json."""
    return text_settings(raw, {"mistral": "mistral", "ministral3": "ministral3"})
