"""StableLM 2 (arXiv 2402.17834): layer norms, a rotation of a quarter of a head, in some attention and MLP side by side."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import UnsupportedModel
from edge_llm.models.blocks import (
    attention,
    centred_norm,
    described,
    mlp,
    output,
    qkv,
    read_activation,
    read_rope,
    read_shape,
)
from edge_llm.models.fields import Fields
from edge_llm.operations.base import Operation

ARCHITECTURE = "StableLmForCausalLM"


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: stablelm`` config.json."""
    fields = Fields(raw)
    shape = read_shape(raw, kv_heads=32, context=4096, eps=1e-5, eps_key="layer_norm_eps")
    if fields.flag("qk_layernorm", False):
        raise UnsupportedModel("config.json: a qk_layernorm of every head does not run here; models without it do")
    first = (
        centred_norm(shape, "attention_norm", "input_layernorm"),
        qkv(shape, bias=fields.flag("use_qkv_bias", False)),
    )
    attends = attention(shape, read_rope(raw, shape, partial=0.25))
    gate_up, *rest = mlp(shape, activation=read_activation(raw, "hidden_act", default="silu"))
    second = centred_norm(shape, "mlp_norm", "post_attention_layernorm")
    layer: tuple[Operation, ...] = (*first, attends, output(shape), second, gate_up, *rest)
    if fields.flag("use_parallel_residual", False):
        layer = (*first, gate_up, attends, output(shape), *rest)
    return described(shape, [layer] * shape.layers, centred_norm(shape, "final_norm", "model.norm"))
