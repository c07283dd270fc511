"""What a model is: one file per family, found by the ``model_type`` of its config.json.

A family file has one function, ``config(raw) -> ModelConfig``; everything else is shared.  Adding a family adds a
file.  Only code in this folder runs: ``auto_map`` and other pointers to code inside a model's folder are ignored.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown

_SHARED = {"weights", "reference", "rope"}


def families() -> list[str]:
    """The model types that run, sorted."""
    files = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(name for name in files if not name.startswith("_") and name not in _SHARED)


def load_config(raw: dict[str, Any]) -> ModelConfig:
    """Read a Hugging Face config.json into a `ModelConfig`.

    Raises `UnsupportedModel` for a model that is well formed but cannot be run here, `InvalidModel` for values that
    make no sense.
    """
    family = raw.get("model_type")
    if not isinstance(family, str):
        raise InvalidModel("config.json has no `model_type`; give the folder of a Hugging Face model")
    expected = family.replace("_", "") + "forcausallm"
    architectures = raw.get("architectures") or [expected]
    if not isinstance(architectures, list) or not all(isinstance(a, str) for a in architectures):
        raise InvalidModel(f"config.json: architectures must be a list of names, not `{shown(architectures)}`")
    if family not in families() or expected not in (a.lower() for a in architectures):
        named = family if family not in families() else architectures[0]
        raise UnsupportedModel(f"the architecture `{shown(named)}` does not run here; these do: {_runnable()}")
    if raw.get("quantization_config"):
        raise UnsupportedModel(
            "config.json has a `quantization_config`: the weights are quantized already; "
            "give the original model with F32, F16 or BF16 weights"
        )
    config: ModelConfig = importlib.import_module(f"{__name__}.{family}").config(raw)
    return config


def _runnable() -> str:
    return ", ".join(families())
