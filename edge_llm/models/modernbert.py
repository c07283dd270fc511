"""ModernBERT (arXiv 2412.13663): norms before every part, rotated heads, windows in two of three layers, GeGLU."""

from __future__ import annotations

from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown
from edge_llm.models.blocks import (
    FULL,
    SLIDING,
    Shape,
    attention,
    gain,
    linear,
    read_activation,
    read_layer_types,
    read_rope,
    read_shape,
)
from edge_llm.models.encoder import has_head, is_classifier, reranker
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.models.layer import Decoder, DescribedConfig
from edge_llm.models.reading import FIRST, MEAN, Reading, dense
from edge_llm.operations.attention import Rope
from edge_llm.operations.base import HIDDEN, Gain, Operation
from edge_llm.operations.embedding import Embedding
from edge_llm.operations.glu import GLU
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.operations.norm import Norm
from edge_llm.operations.scores import Scores

ARCHITECTURES = ("ModernBertModel", "ModernBertForMaskedLM", "ModernBertForSequenceClassification")


def config(raw: dict[str, Any]) -> ModelConfig:
    """Read a ``model_type: modernbert`` config.json."""
    fields = Fields(raw)
    shape = read_shape(raw, context=8192, eps=1e-5, eps_key="norm_eps", tied=True)
    prefix, norm_bias = ("model." if has_head(raw) else ""), fields.flag("norm_bias", False)
    every = fields.integer("global_attn_every_n_layers", 1, 1024, 3)
    usual = [SLIDING if index % every else FULL for index in range(shape.layers)]
    kinds = read_layer_types(raw, shape.layers, usual)
    layers = [_layer(raw, shape, kind, first=index == 0, prefix=prefix) for index, kind in enumerate(kinds)]
    output = Linear("output", (SourceRows("lm_head", shape.vocab),), shape.hidden, reads="normed", writes="logits")
    decoder = Decoder(
        embedding=Embedding(f"{prefix}embeddings.tok_embeddings.weight", shape.vocab, shape.hidden),
        layers=tuple(Layer(f"{prefix}layers.{index}.", one) for index, one in enumerate(layers)),
        norm=_norm(shape, "final_norm", f"{prefix}final_norm", bias=norm_bias),
        output=output,
        tied=True,
        reading=_reranker(raw, shape, norm_bias) if is_classifier(raw) else Reading(),
    )
    return DescribedConfig.of(decoder, shape.family, shape.context)


def _layer(raw: dict[str, Any], shape: Shape, kind: str, *, first: bool, prefix: str) -> tuple[Operation, ...]:
    """The first one reads the norm of the embeddings, and adds to that."""
    fields = Fields(raw)
    attends, mixes, norms = (fields.flag(key, False) for key in ("attention_bias", "mlp_bias", "norm_bias"))
    # a token of a local layer sees as many on both sides
    window = fields.integer("local_attention", 2, MAX_CONTEXT, 128) // 2 + 1 if kind == SLIDING else 0
    begins = (
        _norm(shape, "embedding_norm", f"{prefix}embeddings.norm", bias=norms, whole_name=True)
        if first
        else _norm(shape, "attention_norm", "attn_norm", bias=norms)
    )
    adds = "normed" if first else HIDDEN
    activation = read_activation(raw, "hidden_activation", default="gelu")
    return (
        begins,
        linear("qkv", [SourceRows("attn.Wqkv", shape.q_size + 2 * shape.kv_size)], shape.hidden, "normed", "qkv", bias=attends),
        attention(shape, _rope(raw, shape, kind), scores=Scores(window=window, ahead=True)),
        linear("o", [SourceRows("attn.Wo", shape.hidden)], shape.q_size, "attended", HIDDEN, adds=adds, bias=attends),
        _norm(shape, "mlp_norm", "mlp_norm", bias=norms),
        linear("gate_up", [SourceRows("mlp.Wi", 2 * shape.inner)], shape.hidden, "normed", "gate_up", bias=mixes),
        GLU(shape.inner, reads="gate_up", writes="activated", activation=activation),
        linear("down", [SourceRows("mlp.Wo", shape.hidden)], shape.inner, "activated", HIDDEN, adds=HIDDEN, bias=mixes),
    )


def _rope(raw: dict[str, Any], shape: Shape, kind: str) -> Rope:
    """Layers with a window turn faster, and have a key of their own in files that name no kinds."""
    if raw.get("rope_scaling") is not None:
        raise UnsupportedModel(f"config.json: rope_scaling `{shown(raw['rope_scaling'])}` does not run here")
    key, theta = ("local_rope_theta", 10000.0) if kind == SLIDING else ("global_rope_theta", 160000.0)
    return read_rope(raw, shape, kind=kind, theta=theta, theta_key=key)


def _norm(shape: Shape, name: str, module: str, *, bias: bool, whole_name: bool = False) -> Norm:
    of = Gain(name, f"{module}.weight", shape.hidden, whole_name=whole_name)
    added = Gain(f"{name}_bias", f"{module}.bias", shape.hidden, whole_name=whole_name) if bias else None
    return Norm(of, shape.eps, HIDDEN, "normed", centred=True, bias=added)


def _reranker(raw: dict[str, Any], shape: Shape, norm_bias: bool) -> Reading:
    pooling, known = raw.get("classifier_pooling", FIRST), (FIRST, MEAN)
    if pooling not in known:
        said = f"classifier_pooling `{shown(pooling)}`"
        raise UnsupportedModel(f"config.json: {said} does not run here; these do: {', '.join(known)}")
    bias = Fields(raw).flag("classifier_bias", False)
    before = dense(
        "dense",
        "head.dense",
        shape.hidden,
        shape.hidden,
        bias=bias,
        activation=read_activation(raw, "classifier_activation", default="gelu"),
        norm=gain("dense_norm", "head.norm", shape.hidden),
        norm_bias=Gain("dense_norm_bias", "head.norm.bias", shape.hidden) if norm_bias else None,
        eps=shape.eps,
    )
    return reranker(raw, (before, dense("classifier", "classifier", shape.hidden, 1)), str(pooling))
