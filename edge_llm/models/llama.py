"""Llama 2 and 3: the plain decoder; biases only when the config asks for them."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.models.fields import Fields
from edge_llm.models.llama_like import decoder_config, llama_decoder


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: llama`` config.json."""
    fields = Fields(raw)
    attention_bias = fields.flag("attention_bias", False)
    return decoder_config(
        raw,
        context=2048,
        qkv_bias=attention_bias,
        output_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias", False),
    )


decoder = llama_decoder
