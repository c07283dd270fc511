"""Qwen3: a head size of its own, and an RMS norm on every query and key head."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.fields import Fields
from edge_llm.models.llama_like import decoder_config, llama_decoder, sliding_window


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: qwen3`` config.json."""
    fields = Fields(raw)
    attention_bias = fields.flag("attention_bias", False)
    return decoder_config(
        raw,
        kv_heads=32,
        head_dim=128,
        context=32768,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        qk_norm=True,
        window=sliding_window(raw) if fields.flag("use_sliding_window", False) else None,
    )


decoder = llama_decoder
