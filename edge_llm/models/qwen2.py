"""Qwen2 and Qwen2.5: Llama's decoder with a bias on q, k and v.

``use_sliding_window`` puts a window on some layers; as in `mistral` it then bounds the context.
"""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.fields import Fields
from edge_llm.models.llama_like import decoder_config, llama_decoder, sliding_window


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: qwen2`` config.json."""
    windowed = Fields(raw).flag("use_sliding_window", False)
    return decoder_config(raw, kv_heads=32, context=32768, qkv_bias=True, window=sliding_window(raw) if windowed else None)


decoder = llama_decoder
