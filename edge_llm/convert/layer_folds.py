"""Folds: channels of one layer made even by factors that cancel, so that the float model stays what it is.

    norm's gain / f      qkv columns * f            what qkv reads becomes x / f
    norm's gain / f      gate_up columns * f        what gate_up reads
    key rows / f         query rows * f             keys, per (key head, rotation pair); rotation keeps a pair's length
    value rows / f       o columns * f              values, per (key head, channel)
    up rows / f          down columns * f           the product silu(gate) * up
    last norm's gain / f output columns * f         where the output matrix is not the embedding

Biases of divided or multiplied rows go with them.  Where queries and keys are normed per head, their gains carry the
factors, which all heads share.  All of it happens to the weights, before they are quantized; nothing is left to do at run
time.  (SmoothQuant: Xiao et al., 2022, arXiv 2211.10438, §4, folds the norms' channels.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.models.weights import LayerWeights


@dataclass(frozen=True)
class LayerFolds:
    """The factors f of one layer, all above 0, float32."""

    qkv: np.ndarray  # [H]
    gate_up: np.ndarray  # [H]
    keys: np.ndarray  # [kv heads, head_dim / 2]
    values: np.ndarray  # [kv heads, head_dim]
    products: np.ndarray  # [F]


def no_folds(config: ModelConfig) -> LayerFolds:
    """Factors of one."""
    return LayerFolds(
        qkv=np.ones(config.hidden_size, np.float32),
        gate_up=np.ones(config.hidden_size, np.float32),
        keys=np.ones((config.num_kv_heads, config.head_dim // 2), np.float32),
        values=np.ones((config.num_kv_heads, config.head_dim), np.float32),
        products=np.ones(config.intermediate_size, np.float32),
    )


def fold_layer(layer: LayerWeights, folds: LayerFolds, config: ModelConfig) -> LayerWeights:
    """``layer`` with its channels made even; ``layer`` itself is not changed."""
    key_factors = np.concatenate([folds.keys, folds.keys], axis=1)  # both halves of a rotation pair
    q_norm, k_norm = layer.q_norm, layer.k_norm
    key_rows, query_rows = 1 / key_factors.ravel(), for_query_heads(key_factors, config)
    if q_norm is not None and k_norm is not None:
        q_norm, k_norm = q_norm * key_factors[0], k_norm / key_factors[0]
        key_rows, query_rows = np.ones_like(key_rows), np.ones_like(query_rows)
    qkv_rows = np.concatenate([query_rows, key_rows, 1 / folds.values.ravel()])
    gate_up_rows = np.concatenate([np.ones_like(folds.products), 1 / folds.products])
    return replace(
        layer,
        attention_norm=layer.attention_norm / folds.qkv,
        qkv=layer.qkv * qkv_rows[:, None] * folds.qkv,
        qkv_bias=None if layer.qkv_bias is None else layer.qkv_bias * qkv_rows,
        q_norm=q_norm,
        k_norm=k_norm,
        o=layer.o * for_query_heads(folds.values, config),
        mlp_norm=layer.mlp_norm / folds.gate_up,
        gate_up=layer.gate_up * gate_up_rows[:, None] * folds.gate_up,
        gate_up_bias=None if layer.gate_up_bias is None else layer.gate_up_bias * gate_up_rows,
        down=layer.down * folds.products,
    )


def for_query_heads(factors: np.ndarray, config: ModelConfig) -> np.ndarray:
    """[kv heads, head_dim] -> [heads * head_dim]: every query head finds the factors of its key head."""
    return np.repeat(factors, config.num_heads // config.num_kv_heads, axis=0).ravel()
