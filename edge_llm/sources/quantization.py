"""What config.json says of weights that somebody has quantized: which of the ways that are read, or a refusal by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.models import load_config

_KEYS = ("quantization_config", "compression_config", "quantize")
READ = ("gptq", "awq", "fp8", "fbgemm_fp8", "compressed-tensors", "mxfp4")
"""The values of quant_method that are read; `edge_llm.sources.quantized` has a packing for each."""
_OTHERS = {
    "bitsandbytes": "bitsandbytes", "mxfp4": "MXFP4", "bitnet": "BitNet", "exl2": "ExLlamaV2 (EXL2)",
    "exl3": "ExLlamaV3 (EXL3)", "hqq": "HQQ",
    "eetq": "EETQ", "quanto": "quanto", "torchao": "torchao", "aqlm": "AQLM", "vptq": "VPTQ", "spqr": "SpQR",
    "higgs": "HIGGS", "fp_quant": "FP-Quant", "quark": "Quark", "modelopt": "ModelOpt", "auto-round": "AutoRound",
    "intel/auto-round": "AutoRound", "marlin": "Marlin", "mlx": "MLX", "nvfp4": "NVFP4",
}  # fmt: skip
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")


def quantization_of(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a config.json says of its weights' quantization; None where they are floats.

    Raises `InvalidModel` for what is no object.
    """
    found = next((value for key in _KEYS[:2] if (value := raw.get(key))), None)
    if found is None:
        return None
    if not isinstance(found, dict):
        raise InvalidModel(f"config.json: `quantization_config` must be an object, not `{shown(found)}`")
    return found


def plain_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json without what it says of quantization."""
    return {key: value for key, value in raw.items() if key not in _KEYS}


def method_of(settings: Mapping[str, Any]) -> str:
    """The quant_method of a quantization_config; empty where nothing tells it."""
    method = settings.get("quant_method")
    if method is None and "config_groups" in settings:
        return "compressed-tensors"
    return method.lower() if isinstance(method, str) else ""


def load_settings(raw: Mapping[str, Any], original: object = None) -> ModelConfig:
    """The model that a config.json describes, quantized or not.

    ``original``: the model that its weights were made of, where the hub knows it.
    Raises `UnsupportedModel` for a quantization that is not read, with what to import instead, and as `load_config`.
    """
    config = load_config(plain_settings(raw))
    settings = quantization_of(raw)
    if settings is not None and method_of(settings) not in READ:
        raise _refusal(raw, settings, original)
    return config


def _refusal(raw: Mapping[str, Any], settings: Mapping[str, Any], original: object) -> UnsupportedModel:
    method = method_of(settings)
    how = "MLX" if not method and settings.keys() >= {"group_size", "bits"} else _OTHERS.get(method, "")
    how = how or (f"`{shown(method)}`" if method else "a method that `quant_method` does not name")
    found = next((name for name in (original, raw.get("base_model"), raw.get("_name_or_path")) if _is_hub_id(name)), None)
    instead = f"`{found}`, of which it says that it was made" if found else "the original model with float weights"
    return UnsupportedModel(
        f"config.json: the weights are quantized already, by {how}, which is not read here; import {instead}, "
        "or a GGUF, GPTQ or AWQ checkpoint of it"
    )


def _is_hub_id(name: object) -> bool:
    return isinstance(name, str) and _HUB_ID.fullmatch(name) is not None
