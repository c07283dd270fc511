"""Random blocks of every kind that is multiplied as it is, and tiny models of them in GGUF files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf_files import Tensor, gguf_bytes, model_pairs, model_tensors, tokenizer_pairs
from model_files import random_tensors, tiny_config

from edge_llm.formats.gguf_blocks import TYPES, decode
from edge_llm.kernels.blocks import KINDS, BlockKind

NUMBERS = {kind.name.lower(): number for number, kind in TYPES.items()}
"""ggml's number of a type by its name in lower case."""
_MIDDLES = {"q4_1": -7.5, "q5_1": -15.5, "q4_k": 7.5, "q5_k": 15.5}
"""The minimum beside a scale of 1 that makes the mean of random codes 0."""
_LEAST_AT = {"q4_1": 2, "q5_1": 2, "q4_k": 2, "q5_k": 2}


def random_blocks(kind: BlockKind, rows: int, columns: int, seed: int = 0, deviation: float = 0.05) -> np.ndarray:
    """The bytes of a random matrix whose values have about this ``deviation``: uint8 [rows, bytes of a row]."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * columns // kind.columns, kind.nbytes), np.uint8)
    if kind.name == "mxfp4":
        blocks[:, 0] = rng.integers(119, 123, len(blocks))
        return blocks.reshape(rows, -1)
    at = 208 if kind.name == "q6_k" else 0
    steps = np.ones(len(blocks))
    for _ in range(2):  # once with steps of 1, to see how large the values are
        halves = {at: steps} | ({_LEAST_AT[kind.name]: steps * _MIDDLES[kind.name]} if kind.name in _MIDDLES else {})
        for place, values in halves.items():
            blocks[:, place : place + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)
        spread = decode(TYPES[kind.ggml], blocks).std()
        steps = deviation / spread * rng.uniform(0.5, 1.5, len(blocks))
    return blocks.reshape(rows, -1)


def in_types(name_of: Callable[[str], str], tensors: list[Tensor]) -> list[Tensor]:
    """``tensors`` with random matrices in the types that ``name_of`` gives to their names; an empty one leaves a matrix."""
    found = []
    for seed, (name, number, shape, data) in enumerate(tensors):
        wanted = name_of(name) if len(shape) == 2 else ""
        if wanted in KINDS:
            data, number = random_blocks(KINDS[wanted], *shape, seed).tobytes(), NUMBERS[wanted]
        elif wanted == "f16":
            data, number = np.frombuffer(data, "<f4").astype("<f2").tobytes(), 1
        found.append((name, number, shape, data))
    return found


def config(**changes: Any) -> dict[str, Any]:
    """A tiny Llama whose rows are whole blocks of every kind."""
    return tiny_config("llama", **{"hidden_size": 256, "intermediate_size": 256, **changes})


def mixed(name: str) -> str:
    """As a published Q4_K_M has it: some values and the output matrix have more bits, the embedding is of another kind."""
    more = name in ("output.weight", "blk.0.attn_v.weight", "blk.1.ffn_down.weight")
    return "q6_k" if more else "q5_0" if name == "token_embd.weight" else "q4_k"


def write_blocks(path: Path, name_of: Callable[[str], str], raw: Mapping[str, Any] | None = None, **more: Any) -> Path:
    """A GGUF file of a tiny model, its matrices in the types that ``name_of`` says."""
    raw = raw or config()
    tensors = in_types(name_of, model_tensors(raw, random_tensors(dict(raw))))
    pairs = model_pairs(raw) | tokenizer_pairs() | {key.replace("__", "."): value for key, value in more.items()}
    path.write_bytes(gguf_bytes(pairs, tensors))
    return path
