"""Nomic BERT (arXiv 2402.01613): BERT with rotated heads, gated MLPs and no biases."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown
from edge_llm.models.blocks import attention, linear, read_activation, read_rope, read_shape
from edge_llm.models.encoder import SUM, Names, begun, has_head, post_norm
from edge_llm.models.fields import Fields
from edge_llm.models.reading import Reading
from edge_llm.operations.base import HIDDEN
from edge_llm.operations.glu import GLU
from edge_llm.operations.linear import SourceRows
from edge_llm.operations.scores import Scores

ARCHITECTURES = ("NomicBertModel", "NomicBertForMaskedLM", "NomicBertForPreTraining")
_OLD = {
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_inner": "intermediate_size", "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps", "rotary_emb_base": "rope_theta",
}  # fmt: skip
"""Its authors' keys, and those of transformers."""
_USUAL = {
    "activation_function": "swiglu", "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_scaling_factor": None, "causal": False,
    "use_rms_norm": False, "rotary_emb_scale_base": None, "parallel_block": False,
}  # fmt: skip
"""What may be set otherwise in its authors' files, and runs here like this alone."""
_NAMES = Names("emb_ln", "encoder.layers.{}.", "norm1", "norm2")
"""Its authors', which transformers writes too."""


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: nomic_bert`` config.json."""
    theirs = "n_embd" in raw
    for key, value in _USUAL.items() if theirs else ():
        if raw.get(key, value) != value:
            raise UnsupportedModel(f"config.json: {key} `{shown(raw[key])}` does not run here; `{shown(value)}` does")
    settings = {_OLD.get(key, key): value for key, value in raw.items()} if theirs else raw
    shape = read_shape(settings, context=2048, eps=1e-12, eps_key="layer_norm_eps", tied=True)
    types = Fields(settings).integer("type_vocab_size", 0, 1024, 2)
    activation = "silu" if theirs else read_activation(settings, "hidden_act", default="silu")
    attended = (
        linear("qkv", [SourceRows("attn.Wqkv", shape.q_size + 2 * shape.kv_size)], shape.hidden, HIDDEN, "qkv"),
        attention(shape, read_rope(settings, shape, theta=1000.0), scores=Scores(ahead=True)),
        linear("o", [SourceRows("attn.out_proj", shape.hidden)], shape.q_size, "attended", SUM, adds=HIDDEN),
    )
    gate_up = [SourceRows("mlp.fc12", shape.inner), SourceRows("mlp.fc11", shape.inner)]
    mixed = (
        linear("gate_up", gate_up, shape.hidden, HIDDEN, "gate_up"),
        GLU(shape.inner, reads="gate_up", writes="activated", activation=activation),
        linear("down", [SourceRows("mlp.fc2", shape.hidden)], shape.inner, "activated", SUM, adds=HIDDEN),
    )
    prefix = "bert." if has_head(raw) else ""
    begins = begun(shape, f"{prefix}embeddings.", f"{prefix}{_NAMES.embedding_norm}", types)
    return post_norm(shape, prefix, _NAMES, (begins, attended, mixed), Reading(), shape.context)
