"""GGUF files with random weights at a real shape, for measuring llama.cpp beside us (needs the `gguf` package).

Q8_0 is written here, and Q4_0 in all matrices (`q4_0-pure`).  Other types are made of Q8_0 by llama.cpp's own quantizer, which
gives some matrices more bits than others, as in published files.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.bench.peer_model import PeerModel, WeightBytes, shape_name
from edge_llm.bench.random_weights import random_bytes
from edge_llm.config import LlamaConfig
from edge_llm.errors import DeviceError, UsageError
from edge_llm.formats.gguf import parts_of
from edge_llm.paths import synthetic_folder

BLOCK = 32
"""Weights that share one float16 scale in Q8_0 and Q4_0."""
BLOCK_BYTES = {"q8_0": 34, "q4_0-pure": 18}
_DEVIATION = {"q8_0": 73.0, "q4_0-pure": 4.6}
"""Of uniform random quants, so that activations stay near one."""
MIXED = ("q4_0", "q4_k_m", "iq4_xs", "f16")
"""Types that llama.cpp's quantizer makes."""
VARIANTS = ("q8_0", "q4_0", "q4_0-pure", "q4_k_m", "iq4_xs", "f16")
ROPE_FACTORS = "rope_freqs.weight"
"""The tensor of a scaled rotary embedding."""
ARCHITECTURES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}


@dataclass(frozen=True)
class Matrix:
    """A tensor of a GGUF file: ``columns`` is 0 for a vector of float32."""

    name: str
    rows: int
    columns: int = 0

    def nbytes(self, quant: str) -> int:
        return self.rows * self.columns // BLOCK * BLOCK_BYTES[quant] if self.columns else 4 * self.rows


def gguf_model(config: LlamaConfig, quant: str) -> PeerModel:
    """The model at the shape of ``config``, for llama.cpp."""
    return file_model(synthetic_gguf(config, quant), quant)


def file_model(path: Path, quant: str) -> PeerModel:
    """The model in the GGUF file at ``path``."""
    return PeerModel({"gguf": str(path)}, path.name, quant.upper(), path.stat().st_size, partial(weight_bytes, path), "f16", 2)


def synthetic_gguf(config: LlamaConfig, quant: str) -> Path:
    """The GGUF file of random ``quant`` weights (one of `VARIANTS`) at the shape of ``config``; made once and kept."""
    path = synthetic_folder() / f"{shape_name(config)}-{quant}-v2.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            if quant in MIXED:
                quantize(synthetic_gguf(config, "q8_0"), temporary, quant)
            else:
                write_random_gguf(temporary, config, quant)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    return path


def matrices(config: LlamaConfig) -> Iterator[Matrix]:
    """Every tensor of the model in llama.cpp's names."""
    hidden, inner = config.hidden_size, config.intermediate_size
    yield Matrix("token_embd.weight", config.vocab_size, hidden)
    if config.rope_scaling:
        yield Matrix(ROPE_FACTORS, config.head_dim // 2)
    for layer in range(config.num_layers):
        prefix = f"blk.{layer}."
        yield Matrix(f"{prefix}attn_norm.weight", hidden)
        for part, rows in (("q", config.q_size), ("k", config.kv_size), ("v", config.kv_size)):
            yield Matrix(f"{prefix}attn_{part}.weight", rows, hidden)
            if config.qkv_bias:
                yield Matrix(f"{prefix}attn_{part}.bias", rows)
        if config.qk_norm:
            yield Matrix(f"{prefix}attn_q_norm.weight", config.head_dim)
            yield Matrix(f"{prefix}attn_k_norm.weight", config.head_dim)
        yield Matrix(f"{prefix}attn_output.weight", hidden, config.q_size)
        if config.output_bias:
            yield Matrix(f"{prefix}attn_output.bias", hidden)
        yield Matrix(f"{prefix}ffn_norm.weight", hidden)
        for part, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
            yield Matrix(f"{prefix}ffn_{part}.weight", rows, columns)
            if config.mlp_bias:
                yield Matrix(f"{prefix}ffn_{part}.bias", rows)
    yield Matrix("output_norm.weight", hidden)
    if not config.tied_embeddings:
        yield Matrix("output.weight", config.vocab_size, hidden)


@cache
def weight_bytes(path: Path) -> WeightBytes:
    """Of the tensors in the GGUF file at ``path``, which may be the first of several."""
    import gguf

    files = [gguf.GGUFReader(part) for part in parts_of(path)]
    sizes = {tensor.name: int(tensor.n_bytes) for file in files for tensor in file.tensors}
    unread = sizes["token_embd.weight"] if "output.weight" in sizes else 0
    return WeightBytes(sum(sizes.values()), sum(sizes.values()) - unread)


def quantize(source: Path, target: Path, quant: str) -> None:
    """Have llama.cpp make ``target`` of ``source``, in a process of its own: what it says goes to no terminal."""
    command = [sys.executable, "-m", "edge_llm.bench.quantize_gguf", str(source), str(target), quant]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["it does not say why"]
        raise DeviceError(f"llama.cpp cannot quantize to `{quant}`: {words[-1]}")


def write_random_gguf(
    path: Path, config: LlamaConfig, quant: str, seed: int = 0, add_tokenizer: Callable[[Any], None] | None = None
) -> None:
    """Write the file tensor by tensor; `UsageError` for a shape that llama.cpp cannot hold in blocks of 32.

    add_tokenizer: gives the writer one of `config.vocab_size` tokens; the file has none otherwise.
    """
    import gguf

    tensors = list(matrices(config))
    for matrix in tensors:
        if matrix.columns % BLOCK:
            raise UsageError(
                f"`{matrix.name}` has {matrix.columns} input channels, and {quant} needs a multiple of {BLOCK}; "
                "measure this model without --peer llama.cpp",
                param="peer",
            )
    kind = {"q8_0": gguf.GGMLQuantizationType.Q8_0, "q4_0-pure": gguf.GGMLQuantizationType.Q4_0}[quant]
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.family])
    describe_shape(writer, config, add_tokenizer)
    for matrix in tensors:
        if matrix.columns:
            shape = (matrix.rows, matrix.nbytes(quant) // matrix.rows)
            writer.add_tensor_info(matrix.name, shape, np.dtype(np.uint8), matrix.nbytes(quant), kind)
        else:
            writer.add_tensor_info(matrix.name, (matrix.rows,), np.dtype(np.float32), matrix.nbytes(quant))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    random = np.random.default_rng(seed)
    for matrix in tensors:
        writer.write_tensor_data(_random_values(matrix, quant, random))
    writer.close()


def describe_shape(writer: Any, config: LlamaConfig, add_tokenizer: Callable[[Any], None] | None = None) -> None:
    """Give ``writer`` what llama.cpp wants to know of the model beside its tensors."""
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    if add_tokenizer is not None:
        add_tokenizer(writer)
    else:
        writer.add_tokenizer_model("none")  # speed has no words


def _random_values(matrix: Matrix, quant: str, random: np.random.Generator) -> np.ndarray:
    if not matrix.columns:
        return np.full(matrix.rows, 0.0 if matrix.name.endswith(".bias") else 1.0, np.float32)
    blocks = matrix.rows * matrix.columns // BLOCK
    raw = random_bytes(matrix.nbytes(quant), random).reshape(blocks, BLOCK_BYTES[quant])
    scale = np.float16(1.0 / (_DEVIATION[quant] * matrix.columns**0.5))
    raw[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return raw.reshape(matrix.rows, -1)
