"""Mistral: Llama's decoder with grouped heads and, in some versions, a sliding attention window.

Windowed attention is not implemented.  A window as long as the context changes nothing; a shorter one shortens the
context to the window, inside which the results are the same.
"""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.llama_like import decoder_config, llama_decoder, sliding_window


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: mistral`` config.json."""
    return decoder_config(raw, kv_heads=8, context=4096 * 32, window=sliding_window(raw))


decoder = llama_decoder
