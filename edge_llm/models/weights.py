"""Float weights of a decoder by their Hugging Face names, fused the way the runtime multiplies them.

q, k and v become one matrix, gate and up another.  A source is whatever knows tensor names, shapes and float32 data
(`WeightSource`); nothing is read before it is asked for, and a layer at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
OUTPUT = "lm_head.weight"

_IGNORED = ("rotary_emb.inv_freq", "self_attn.masked_bias", "self_attn.bias")
"""Buffers that old exports wrote beside the weights; the config says the same."""


class WeightSource(Protocol):
    """Named tensors: a Hugging Face folder, a GGUF file, or the float half of a bundle."""

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> np.ndarray:
        """The tensor as float32, finite."""
        ...


@dataclass(frozen=True)
class LayerWeights:
    """One layer in float32.  H hidden, Q = heads * head_dim, KV = kv heads * head_dim, F intermediate."""

    attention_norm: np.ndarray  # [H]
    qkv: np.ndarray  # [Q + 2 KV, H], rows q | k | v
    qkv_bias: np.ndarray | None  # [Q + 2 KV]
    q_norm: np.ndarray | None  # [head_dim]
    k_norm: np.ndarray | None  # [head_dim]
    o: np.ndarray  # [H, Q]
    o_bias: np.ndarray | None  # [H]
    mlp_norm: np.ndarray  # [H]
    gate_up: np.ndarray  # [2 F, H], rows gate | up
    gate_up_bias: np.ndarray | None  # [2 F]
    down: np.ndarray  # [H, F]
    down_bias: np.ndarray | None  # [H]


def layer_shapes(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    """Hugging Face names and shapes of one layer's tensors."""
    hidden, q, kv, ffn = config.hidden_size, config.q_size, config.kv_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (ffn, hidden),
        "mlp.up_proj.weight": (ffn, hidden),
        "mlp.down_proj.weight": (hidden, ffn),
    }
    if config.qkv_bias:
        shapes |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    if config.output_bias:
        shapes |= {"self_attn.o_proj.bias": (hidden,)}
    if config.mlp_bias:
        shapes |= {"mlp.gate_proj.bias": (ffn,), "mlp.up_proj.bias": (ffn,), "mlp.down_proj.bias": (hidden,)}
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}


def check_tensors(source: WeightSource, config: ModelConfig) -> list[str]:
    """Hold the source against the config before anything is read.

    Every tensor that the model needs must be there in its shape, else `InvalidModel`.  Returns the names of tensors
    that nothing uses, for a warning.
    """
    present = set(source.names())
    needed = {EMBEDDING, FINAL_NORM}
    _check(source, present, EMBEDDING, (config.vocab_size, config.hidden_size))
    for layer in range(config.num_layers):
        for name, shape in layer_shapes(config, layer).items():
            _check(source, present, name, shape)
            needed.add(name)
    _check(source, present, FINAL_NORM, (config.hidden_size,))
    if not config.tied_embeddings:
        _check(source, present, OUTPUT, (config.vocab_size, config.hidden_size))
        needed.add(OUTPUT)
    elif OUTPUT in present:
        _check_tied(source)
        needed.add(OUTPUT)
    return sorted(name for name in present - needed if not name.endswith(_IGNORED))


def _check(source: WeightSource, present: set[str], name: str, shape: tuple[int, ...]) -> None:
    if name not in present:
        hint = "; set tie_word_embeddings if the embedding serves for it" if name == OUTPUT else ""
        raise InvalidModel(f"the model lacks the tensor `{name}` {list(shape)} that its config.json asks for{hint}")
    found = tuple(source.shape(name))
    if found != shape:
        raise InvalidModel(f"tensor `{name}` has the shape `{list(found)}`, but config.json makes it {list(shape)}")


def _check_tied(source: WeightSource) -> None:
    if not np.array_equal(source.read(OUTPUT), source.read(EMBEDDING)):
        raise InvalidModel(
            f"config.json says tie_word_embeddings `true`, but `{OUTPUT}` differs from `{EMBEDDING}`; set it to false"
        )


def read_layer(source: WeightSource, config: ModelConfig, layer: int) -> LayerWeights:
    """Read layer ``layer``; the peak is this layer plus one of its matrices."""

    def read(*parts: str, when: bool = True) -> np.ndarray | None:
        if not when:
            return None
        return _stacked(source, [f"model.layers.{layer}.{part}" for part in parts])

    def need(*parts: str) -> np.ndarray:
        return _stacked(source, [f"model.layers.{layer}.{part}" for part in parts])

    qkv = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    gate_up = ("mlp.gate_proj", "mlp.up_proj")
    return LayerWeights(
        attention_norm=need("input_layernorm.weight"),
        qkv=need(*(f"{part}.weight" for part in qkv)),
        qkv_bias=read(*(f"{part}.bias" for part in qkv), when=config.qkv_bias),
        q_norm=read("self_attn.q_norm.weight", when=config.qk_norm),
        k_norm=read("self_attn.k_norm.weight", when=config.qk_norm),
        o=need("self_attn.o_proj.weight"),
        o_bias=read("self_attn.o_proj.bias", when=config.output_bias),
        mlp_norm=need("post_attention_layernorm.weight"),
        gate_up=need(*(f"{part}.weight" for part in gate_up)),
        gate_up_bias=read(*(f"{part}.bias" for part in gate_up), when=config.mlp_bias),
        down=need("mlp.down_proj.weight"),
        down_bias=read("mlp.down_proj.bias", when=config.mlp_bias),
    )


def _stacked(source: WeightSource, names: list[str]) -> np.ndarray:
    if len(names) == 1:
        return source.read(names[0])
    rows = [source.shape(name)[0] for name in names]
    out = np.empty((sum(rows), *source.shape(names[0])[1:]), np.float32)
    start = 0
    for name, count in zip(names, rows, strict=True):
        out[start : start + count] = source.read(name)
        start += count
    return out


def read_embedding(source: WeightSource, config: ModelConfig) -> np.ndarray:
    """Token embedding, float32 [vocab, hidden]."""
    return source.read(EMBEDDING)


def read_final_norm(source: WeightSource, config: ModelConfig) -> np.ndarray:
    """Gain of the norm before the output, float32 [hidden]."""
    return source.read(FINAL_NORM)


def read_output(source: WeightSource, config: ModelConfig) -> np.ndarray:
    """Output matrix, float32 [vocab, hidden]; the embedding when the two are tied."""
    return source.read(EMBEDDING if config.tied_embeddings else OUTPUT)
