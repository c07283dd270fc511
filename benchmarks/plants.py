"""Unevenness planted into a model without changing what it computes: what real models have and small trained ones lack.

Every plant multiplies some channels of an activation and divides the weights that read them (or the other way round), so
the float model is the same to rounding.  INT8 is not: it rounds every channel of a tensor with the same step.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_llm.config import LlamaConfig
from edge_llm.formats.model_folder import open_model_folder
from edge_llm.formats.safetensors import safetensors_header
from edge_llm.models import load_config

Tensors = dict[str, np.ndarray]
Plant = Callable[[Tensors, LlamaConfig, np.random.Generator], None]
"""Changes the tensors of a model in place; the generator draws what is random."""


def norms(sigma: float) -> Plant:
    """Every channel of the norms' outputs times exp(sigma z), z normal."""
    return _norms(lambda channels, draw: np.exp(sigma * draw.standard_normal(channels)))


def loud_fifth(factor: float) -> Plant:
    """A fifth of the channels of the norms' outputs times ``factor``."""
    return _norms(lambda channels, draw: np.where(draw.permutation(channels) < channels / 5, factor, 1.0))


def _norms(factors: Callable[[int, np.random.Generator], np.ndarray]) -> Plant:
    def plant(tensors: Tensors, config: LlamaConfig, draw: np.random.Generator) -> None:
        readers = {
            "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
        }
        for layer in _layers(config):
            for norm, linears in readers.items():
                factor = factors(config.hidden_size, draw).astype(np.float32)
                tensors[f"{layer}.{norm}.weight"] *= factor
                for linear in linears:
                    tensors[f"{layer}.{linear}.weight"] /= factor

    return plant


def products(sigma: float) -> Plant:
    """Every channel of the product gate * up times exp(sigma z)."""

    def plant(tensors: Tensors, config: LlamaConfig, draw: np.random.Generator) -> None:
        for layer in _layers(config):
            factor = np.exp(sigma * draw.standard_normal(config.intermediate_size)).astype(np.float32)
            _scale_rows(tensors, f"{layer}.mlp.up_proj", factor)
            tensors[f"{layer}.mlp.down_proj.weight"] /= factor

    return plant


def keys(factor: float) -> Plant:
    """One rotation pair of every key head times ``factor``, the queries that meet it divided.

    Where keys are normed, all heads of a layer share the norm's gain, so they share the pair.
    """

    def plant(tensors: Tensors, config: LlamaConfig, draw: np.random.Generator) -> None:
        for layer in _layers(config):
            loud = np.ones((config.num_kv_heads, config.head_dim), np.float32)
            pairs = draw.integers(config.head_dim // 2, size=1 if config.qk_norm else config.num_kv_heads)
            for half in (0, config.head_dim // 2):
                loud[np.arange(config.num_kv_heads), pairs + half] = factor
            if config.qk_norm:
                tensors[f"{layer}.self_attn.k_norm.weight"] *= loud[0]
                tensors[f"{layer}.self_attn.q_norm.weight"] /= loud[0]
            else:
                _scale_rows(tensors, f"{layer}.self_attn.k_proj", loud.ravel())
                _scale_rows(tensors, f"{layer}.self_attn.q_proj", 1 / _for_queries(loud, config))

    return plant


def values(factor: float) -> Plant:
    """One channel of every value head times ``factor``, the columns of the output matrix divided."""

    def plant(tensors: Tensors, config: LlamaConfig, draw: np.random.Generator) -> None:
        for layer in _layers(config):
            loud = np.ones((config.num_kv_heads, config.head_dim), np.float32)
            loud[np.arange(config.num_kv_heads), draw.integers(config.head_dim, size=config.num_kv_heads)] = factor
            _scale_rows(tensors, f"{layer}.self_attn.v_proj", loud.ravel())
            tensors[f"{layer}.self_attn.o_proj.weight"] /= _for_queries(loud, config)

    return plant


def together(*plants: Plant) -> Plant:
    """One plant after the other."""

    def plant(tensors: Tensors, config: LlamaConfig, draw: np.random.Generator) -> None:
        for one in plants:
            one(tensors, config, draw)

    return plant


def _layers(config: LlamaConfig) -> list[str]:
    return [f"model.layers.{layer}" for layer in range(config.num_layers)]


def _scale_rows(tensors: Tensors, linear: str, factor: np.ndarray) -> None:
    tensors[f"{linear}.weight"] *= factor[:, None]
    if f"{linear}.bias" in tensors:
        tensors[f"{linear}.bias"] *= factor


def _for_queries(per_head: np.ndarray, config: LlamaConfig) -> np.ndarray:
    """[kv heads, head_dim] -> [heads * head_dim]: what every query head finds in its key head."""
    return np.repeat(per_head, config.num_heads // config.num_kv_heads, axis=0).ravel()


PLANTS: Mapping[str, Plant] = {
    "nothing": together(),
    "norms, sigma 0.5": norms(0.5),
    "norms, sigma 1.0": norms(1.0),
    "norms, sigma 1.5": norms(1.5),
    "a fifth of the norms' channels x8": loud_fifth(8),
    "a fifth of the norms' channels x20": loud_fifth(20),
    "products, sigma 0.5": products(0.5),
    "products, sigma 1.0": products(1.0),
    "products, sigma 1.5": products(1.5),
    "keys x10": keys(10),
    "keys x30": keys(30),
    "keys x100": keys(100),
    "values x10": values(10),
    "values x30": values(30),
    "values x100": values(100),
    "norms and products 1.0, keys and values x30": together(norms(1.0), products(1.0), keys(30), values(30)),
}


@dataclass(frozen=True)
class PlantedModel:
    """A Hugging Face folder in memory, to write planted copies of."""

    source: Path

    def write(self, folder: Path, plant: Plant, seed: int = 0) -> Path:
        """A copy of the model with ``plant``, in float32; returns ``folder``."""
        shutil.copytree(self.source, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
        with open_model_folder(self.source) as opened:
            tensors = {name: opened.read(name).copy() for name in opened.names()}
            plant(tensors, load_config(opened.config), np.random.default_rng(seed))
        with (folder / "model.safetensors").open("wb") as file:
            file.write(safetensors_header((name, "F32", array.shape) for name, array in tensors.items()))
            for array in tensors.values():
                file.write(np.ascontiguousarray(array, "<f4").tobytes())
        return folder
