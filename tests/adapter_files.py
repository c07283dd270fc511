"""LoRA adapters written by a writer of our own, right ones and any wrong one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf_files import Of, Tensor, floats, gguf_bytes, gguf_name, in_pairs
from model_files import safetensors_bytes, write_json

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


def settings(**changes: Any) -> dict[str, Any]:
    """adapter_config.json; ``...`` removes a key."""
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "org/base",
        "r": 4,
        "lora_alpha": 6,
        "target_modules": list(LINEARS),
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
    } | changes
    return {key: value for key, value in config.items() if value is not ...}


def pairs(
    tensors: Mapping[str, np.ndarray], rank: int = 4, targets: Sequence[str] = LINEARS, seed: int = 5
) -> dict[str, np.ndarray]:
    """Random matrices for those linears of a model that end in ``targets``."""
    rng = np.random.default_rng(seed)
    found = {}
    for name, values in tensors.items():
        module = name.removesuffix(".weight")
        if name.endswith(".weight") and module.rpartition(".")[2] in targets:
            rows, columns = values.shape
            found[f"{PREFIX}{module}.lora_A.weight"] = rng.standard_normal((rank, columns), np.float32) * np.float32(0.1)
            found[f"{PREFIX}{module}.lora_B.weight"] = rng.standard_normal((rows, rank), np.float32) * np.float32(0.1)
    return found


def write_adapter(folder: Path, matrices: Mapping[str, np.ndarray], dtype: str = "F32", **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "adapter_config.json", settings(**changes))
    (folder / "adapter_model.safetensors").write_bytes(safetensors_bytes(matrices, dtype))
    return folder


def merged(
    tensors: Mapping[str, np.ndarray], matrices: Mapping[str, np.ndarray], scale: float = 6 / 4
) -> dict[str, np.ndarray]:
    """The model's tensors with the matrices merged, in float64."""
    found = {name: values.astype(np.float64) for name, values in tensors.items()}
    for name, a in matrices.items():
        if name.endswith(".lora_A.weight"):
            module = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
            b = matrices[f"{PREFIX}{module}.lora_B.weight"].astype(np.float64)
            found[f"{module}.weight"] = found[f"{module}.weight"] + scale * b @ a.astype(np.float64)
    return found


def adapter_gguf(
    raw: Mapping[str, Any],
    matrices: Mapping[str, np.ndarray],
    alpha: Any = 6.0,
    more: Mapping[str, Any] | None = None,
    more_tensors: Sequence[Tensor] = (),
) -> bytes:
    """The GGUF file of PEFT's ``matrices``, as llama.cpp's converter makes it."""
    arch = "llama" if raw["model_type"] == "mistral" else raw["model_type"]
    said = {
        "general.type": "adapter",
        "general.architecture": arch,
        "adapter.type": "lora",
        "adapter.lora.alpha": Of(6, alpha) if isinstance(alpha, float) else alpha,
    } | dict(more or {})
    found = []
    for name, values in matrices.items():
        module, _, part = name.removeprefix(PREFIX).removesuffix(".weight").rpartition(".")
        counted = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(module.rpartition(".")[2])
        if counted and part == "lora_B" and arch == "llama":
            values = in_pairs(values, raw[counted])
        found.append(floats(f"{gguf_name(f'{module}.weight')}.{part.lower()}", np.ascontiguousarray(values)))
    return gguf_bytes({key: value for key, value in said.items() if value is not None}, [*found, *more_tensors])
