"""Bundles with random weights at real shapes: speed does not depend on weight values, so they are fair to measure.

They carry a typical shadow (0.3 % hot channels in every linear, as published for Qwen1.5-1.8B: llm.npu, §3.3).  Of a mixture
the routers are random as well: experts differ from token to token, and all are used alike.
"""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np

import edge_llm
from edge_llm.bench.random_weights import random_bytes
from edge_llm.config import INT8, ROW, LlamaConfig, ModelConfig, RopeScaling
from edge_llm.convert.turns import with_turns
from edge_llm.errors import UsageError
from edge_llm.files import is_folder, shown, status
from edge_llm.formats.bundle_writer import BundleWriter
from edge_llm.formats.layout import tensor_layout
from edge_llm.kernels import ThreadPool, w4
from edge_llm.kernels.layout import row_sums
from edge_llm.kernels.pointwise import MAX_TURN
from edge_llm.kernels.types import TILE_CHANNELS
from edge_llm.models import describe, load_config
from edge_llm.models.known import find_known
from edge_llm.models.layer import Decoder
from edge_llm.operations.linear import Linear
from edge_llm.paths import expanded, synthetic_folder
from edge_llm.quant.shadow import COLD, FULL
from edge_llm.schemes import Facts
from edge_llm.strict_json import read_object

HOT_SHARE = 0.003
_STEPS = np.array([9 << 4 | 12, 10 << 4 | 12], np.uint8)
"""Multiplier 12 and shifts 9 and 10 for groups of codes: weights with a mean of 0 that spread about as random INT8 ones do."""
INPUT_SCALE = 4.0 / 127.0
"""Four standard deviations of a normalized activation fit the INT8 range."""

SHAPES: dict[str, LlamaConfig] = {
    "smollm2-135m": LlamaConfig(
        family="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30, num_heads=9,
        num_kv_heads=3, head_dim=64, context=8192, norm_eps=1e-5, rope_theta=1e5, tied_embeddings=True,
    ),
    "qwen2.5-0.5b": LlamaConfig(
        family="qwen2", vocab_size=151936, hidden_size=896, intermediate_size=4864, num_layers=24, num_heads=14,
        num_kv_heads=2, head_dim=64, context=32768, norm_eps=1e-6, rope_theta=1e6, tied_embeddings=True, qkv_bias=True,
    ),
    "qwen3-0.6b": LlamaConfig(
        family="qwen3", vocab_size=151936, hidden_size=1024, intermediate_size=3072, num_layers=28, num_heads=16,
        num_kv_heads=8, head_dim=128, context=40960, norm_eps=1e-6, rope_theta=1e6, tied_embeddings=True, qk_norm=True,
    ),
    "llama-1.1b": LlamaConfig(
        family="llama", vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_layers=22, num_heads=32,
        num_kv_heads=4, head_dim=64, context=32768, norm_eps=1e-5, rope_theta=1e4,
    ),
    "llama-3.2-1b": LlamaConfig(
        family="llama", vocab_size=128256, hidden_size=2048, intermediate_size=8192, num_layers=16, num_heads=32,
        num_kv_heads=8, head_dim=64, context=131072, norm_eps=1e-5, rope_theta=5e5, tied_embeddings=True,
    ),
    "qwen3-1.7b": LlamaConfig(
        family="qwen3", vocab_size=151936, hidden_size=2048, intermediate_size=6144, num_layers=28, num_heads=16,
        num_kv_heads=8, head_dim=128, context=40960, norm_eps=1e-6, rope_theta=1e6, tied_embeddings=True, qk_norm=True,
    ),
    "llama-3.1-8b": LlamaConfig(
        family="llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_layers=32, num_heads=32,
        num_kv_heads=8, head_dim=128, context=131072, norm_eps=1e-5, rope_theta=5e5,
        rope_scaling=RopeScaling(8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_context=8192),
    ),
    "qwen3-8b": LlamaConfig(
        family="qwen3", vocab_size=151936, hidden_size=4096, intermediate_size=12288, num_layers=36, num_heads=32,
        num_kv_heads=8, head_dim=128, context=40960, norm_eps=1e-6, rope_theta=1e6, qk_norm=True,
    ),
}  # fmt: skip
MIXTURES = {"olmoe-1b-7b": "olmoe:7b", "granite-3.1-1b-a400m": "granite3.1-moe:1b", "qwen3-30b-a3b": "qwen3:30b"}
"""Shapes of mixtures of experts, by their short names in `edge_llm.models.known`."""
NAMES = (*SHAPES, *MIXTURES)


@dataclass(frozen=True)
class Shape:
    """What is made with random weights."""

    label: str
    """What tables call it."""
    name: str
    """Of its files: no other shape has it."""
    config: ModelConfig


def find_shape(text: str) -> Shape:
    """One of `NAMES`, or that of a config.json: the path of the file, or of a folder that has one.

    Raises `UsageError` for anything else, `InvalidModel` or `UnsupportedModel` for what a config.json says.
    """
    if text in SHAPES:
        return Shape(text, text, SHAPES[text])
    if text in MIXTURES:
        mixture = find_known(MIXTURES[text])
        assert mixture is not None
        return Shape(text, text, mixture.config)
    path = expanded(text)
    if is_folder(path):
        path /= "config.json"
    if not text.strip() or status(path) is None:
        raise UsageError(
            f"no synthetic shape `{shown(text)}`; there are: {', '.join(NAMES)}, and that of any config.json by its path",
            param="synthetic",
        )
    config = load_config(read_object(path))
    known = next((name for name, shape in SHAPES.items() if shape == config), None)
    label = path.absolute().parent.name if path.name == "config.json" else path.stem
    return Shape(label, known or f"{config.family}-{config.hidden_size}-{crc32(repr(config).encode()):08x}", config)


def synthetic_bundle(shape: Shape, weights: str = INT8, head: str = INT8) -> Path:
    """Folder of the bundle with random weights at ``shape``, made once and kept.

    ``weights`` is the scheme of the layers, ``head`` that of the output matrix.
    """
    kind = "v3" if weights == INT8 else f"{weights}-v3"
    folder = synthetic_folder() / (f"{shape.name}-{kind}" if head == INT8 else f"{shape.name}-{kind}-head-{head}")
    if not (folder / "manifest.json").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = folder.parent / f".{folder.name}.{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            write_random(temporary, shape.config, weights=weights, head=head, turned=True)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def write_random(
    folder: Path, config: ModelConfig, seed: int = 0, weights: str = INT8, head: str = INT8, *, turned: bool = False
) -> None:
    """Fill the empty ``folder`` with a bundle of random weights that keep activations near one.

    ``weights`` is the scheme of the layers, ``head`` that of the output matrix.  With ``turned`` channels are turned and rows
    have scales of their own, as import makes it; else scales are static and some channels hot.
    """
    random = np.random.default_rng(seed)
    plain = describe(config)
    schemes = dict.fromkeys(plain.linears(), weights) | {"output": head}
    decoder = with_turns(plain.with_schemes(schemes), MAX_TURN if turned else 0)
    shapes = decoder.linears()
    hot = {} if turned else {name: max(1, round(HOT_SHARE * shape.columns)) for name, shape in shapes.items()}
    with BundleWriter(folder) as writer:
        writer.add_file("tokenizer.json", [b"{}"])
        tiles: np.ndarray = np.empty(0, np.int8)
        for tensor in tensor_layout(decoder, hot):
            array: np.ndarray
            columns = _columns(tensor.name, config)
            if tensor.name.endswith(".row_sum"):
                array = row_sums(tiles, tensor.shape[0])
            else:
                array = _random_tensor(tensor.name, tensor.shape, columns, random)
            if tensor.name.endswith(".scale"):
                array /= np.float32(max(1, _linear_of(tensor.name, decoder).turn) ** 0.5)
            if tensor.name.endswith(".tiles"):
                tiles = array
            if tensor.name.endswith(".codes"):
                tiles = w4.expand(array.astype(np.uint8), TILE_CHANNELS * len(array), columns, ThreadPool(1))
            writer.add(tensor.name, array)
        writer.finish(
            config,
            dict.fromkeys(shapes, INPUT_SCALE),
            schemes=schemes,
            facts={name: _turned_facts(one) if turned else _STATIC_FACTS for name, one in shapes.items()},
            turns={name: one.turn for name, one in shapes.items()},
            heads=decoder.head_turns,
            profile={},
            source={"kind": "synthetic", "path": None, "digest": None, "float": None},
            created_with=edge_llm.__version__,
        )


_STATIC_FACTS = {"input_scale": INPUT_SCALE, "shadow": FULL}


def _turned_facts(linear: Linear) -> Facts:
    """Static scales cut off what lies above three deviations: 0.3 % of the values, about what trained models have."""
    return {"input_scale": 3.0 * max(1, linear.turn) ** 0.5 / 127, "shadow": COLD, "activations": ROW}


def _linear_of(tensor: str, decoder: Decoder) -> Linear:
    name = tensor.rpartition(".")[0]
    return decoder.table if name == "embedding" else decoder.linears()[name]


def _columns(tensor: str, config: ModelConfig) -> int:
    linear = tensor.rpartition(".")[0]
    shapes = describe(config).linears()
    return shapes[linear].columns if linear in shapes else config.hidden_size


def _random_tensor(name: str, shape: tuple[int, ...], columns: int, random: np.random.Generator) -> np.ndarray:
    kind = name.rpartition(".")[2]
    if kind == "tiles":
        tiles = random_bytes(math.prod(shape), random).view(np.int8).reshape(shape)
        return np.maximum(tiles, -127, out=tiles)
    if kind == "codes":
        codes = random_bytes(math.prod(shape), random).reshape(shape)
        steps = codes[:, : TILE_CHANNELS * -(-columns // w4.GROUP)]
        steps[:] = random.choice(_STEPS, steps.shape)
        return codes
    if kind == "scale":
        return np.full(shape, 1.0 / (73.0 * columns**0.5), np.float32)  # 73: deviation of a uniform INT8
    if kind == "hot_index":
        return np.sort(random.choice(columns, shape[0], replace=False)).astype(np.int32)
    if kind == "hot_weight":
        return (random.standard_normal(shape) / columns**0.5).astype(np.float16)
    if kind == "bias":
        return np.zeros(shape, np.float32)
    if kind == "router":  # scores that spread, and so experts that differ from token to token
        return (random.standard_normal(shape) * (2.0 / columns**0.5)).astype(np.float32)
    return np.ones(shape, np.float32)  # the gains of norms
