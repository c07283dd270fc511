"""Checkpoints as ModelSlim writes them, of random float models; the writer's arithmetic in NumPy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from model_files import raw_safetensors, write_json, write_tokenizer

LINEARS = (*(f"self_attn.{name}_proj" for name in "qkvo"), *(f"mlp.{name}_proj" for name in ("gate", "up", "down")))
SAME_INPUT = {"self_attn.k_proj": "self_attn.q_proj", "self_attn.v_proj": "self_attn.q_proj", "mlp.up_proj": "mlp.gate_proj"}
"""Modules that read what another does, so their scale and offset are its."""
_KINDS = {"f4": "F32", "f2": "F16", "i1": "I8", "i4": "I32", "i8": "I64"}


@dataclass
class Checkpoint:
    """Tensors and how each is quantized; what a test changes before it is written."""

    tensors: dict[str, np.ndarray]
    kinds: dict[str, Any]


def quantized(
    tensors: Mapping[str, np.ndarray],
    rng: np.random.Generator,
    *,
    offsets: bool = True,
    bits: bool = True,
    half: bool = False,
    static: Callable[[str], bool] = lambda module: True,
) -> Checkpoint:
    """The float ``tensors`` of a model whose modules are W8A8 where ``static`` says so.

    Scales and offsets of inputs are random, alike where inputs are; ``bits``: the product scales are bits in int64, as for a
    float16 model, else float32.  ``half``: scales are float16, and so are their products at first.
    """
    made = Checkpoint({}, {"model_quant_type": "W8A8", "version": "1.0.0"})
    inputs: dict[str, tuple[np.float32, int]] = {}
    for name, values in tensors.items():
        module, _, part = name.rpartition(".")
        of_linear = module.endswith(LINEARS) and static(module)
        if not of_linear:
            made.tensors[name], made.kinds[name] = values, "FLOAT"
        if not of_linear or part != "weight":
            continue
        prefix, *_ = module.partition(".self_attn" if ".self_attn" in module else ".mlp")
        place = module.removeprefix(prefix + ".")
        key = f"{prefix}.{SAME_INPUT.get(place, place)}"
        drawn = np.float32(rng.uniform(0.01, 0.06)), int(rng.integers(-60, 60)) if offsets else 0
        scale, offset = inputs.setdefault(key, drawn)
        weight_scale = (np.abs(values).max(axis=1) / 127).astype(np.float32)
        weight = np.rint(values / weight_scale[:, None]).astype(np.int8)
        kind = np.float16 if half else np.float32
        scale, weight_scale = kind(scale), weight_scale.astype(kind)
        deq = (scale * weight_scale).astype(np.float32)
        bias = tensors.get(f"{module}.bias", np.zeros(len(values), np.float32))
        correction = weight.astype(np.float32).sum(axis=1) * np.float32(offset)
        parts = {
            "weight": weight,
            "quant_bias": np.rint(bias / deq - correction).astype(np.int32),
            "input_scale": np.array([scale], kind),
            "input_offset": np.array([offset], kind),
            "deq_scale": deq.view(np.int32).astype(np.int64) if bits else deq,
        }
        made.tensors |= {f"{module}.{one}": array for one, array in parts.items()}
        made.kinds |= {f"{module}.{one}": "W8A8" for one in parts}
    return made


def write_checkpoint(
    folder: Path,
    raw: Mapping[str, Any],
    made: Checkpoint,
    *,
    weights: str = "quant_model_weights",
    description: str = "quant_model_description.json",
    shards: int = 1,
) -> Path:
    """The folder of ``made``, a model with the config.json ``raw``."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", raw)
    write_tokenizer(folder)
    write_json(folder / description, made.kinds)
    names = list(made.tensors)
    if shards == 1:
        (folder / f"{weights}.safetensors").write_bytes(_safetensors(made.tensors))
        return folder
    where = {}
    for index in range(shards):
        file = f"{weights}-{index + 1:05}-of-{shards:05}.safetensors"
        part = {name: made.tensors[name] for name in names[index::shards]}
        (folder / file).write_bytes(_safetensors(part))
        where |= dict.fromkeys(part, file)
    write_json(folder / f"{weights}.safetensors.index.json", {"metadata": {}, "weight_map": where})
    return folder


def product(made: Checkpoint, module: str, x: np.ndarray) -> np.ndarray:
    """What the checkpoint's module makes of rows [M, K], in float64; -128 of an input counts as -127."""
    parts = ("weight", "deq_scale", "quant_bias", "input_scale", "input_offset")
    of = {part: made.tensors[f"{module}.{part}"] for part in parts}
    deq = of["deq_scale"]
    deq = deq.astype(np.uint32).view(np.float32) if deq.dtype == np.int64 else deq
    scale, offset = np.float32(of["input_scale"][0]), np.float32(of["input_offset"][0])
    q = np.clip(np.rint((x + offset * scale) * (np.float32(1) / scale)), -127, 127)
    return (q.astype(np.int64) @ of["weight"].astype(np.int64).T + of["quant_bias"]) * deq.astype(np.float64)


def _safetensors(tensors: Mapping[str, np.ndarray]) -> bytes:
    header, parts, offset = {}, [], 0
    for name, array in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": _KINDS[array.dtype.str[1:]],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(data)],
        }
        parts.append(data)
        offset += len(data)
    return raw_safetensors(json.dumps(header).encode(), b"".join(parts))
