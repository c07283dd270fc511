"""What a model is: one file per family, found by the ``model_type`` of its config.json.

A family file has two functions: ``config(raw) -> ModelConfig`` reads a config.json, and ``decoder(config) -> Decoder``
describes the model's layers (`edge_llm.models.layer`).  Adding a family adds a file.  Only code in this folder runs:
``auto_map`` and other pointers to code inside a model's folder are ignored.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any, Protocol, cast

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.models.layer import Decoder

_SHARED = {"layer", "weights", "reference", "rope", "rope_kinds"}


class Family(Protocol):
    """What a family file has."""

    def config(self, raw: dict[str, Any]) -> ModelConfig:
        """The shapes and constants in a Hugging Face config.json."""
        ...

    def decoder(self, config: ModelConfig) -> Decoder:
        """The model's layers."""
        ...


_ADDED: dict[str, Family] = {}


def add_family(model_type: str, family: Family) -> None:
    """Have models of ``model_type`` read by ``family``, a module or object that is not a file of this folder."""
    _ADDED[model_type] = family
    describe.cache_clear()


def families() -> list[str]:
    """The model types that run, sorted."""
    files = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted({name for name in files if not name.startswith("_") and name not in _SHARED} | set(_ADDED))


@functools.lru_cache(maxsize=16)
def describe(config: ModelConfig) -> Decoder:
    """The layers of a model.  Raises `UnsupportedModel` for a family that does not run here."""
    return _family(config.family).decoder(config)


def _family(name: str) -> Family:
    if name not in families():
        raise UnsupportedModel(f"the architecture `{shown(name)}` does not run here; these do: {_runnable()}")
    return _ADDED.get(name) or cast(Family, importlib.import_module(f"{__name__}.{name}"))


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
    return _family(family).config(raw)


def _runnable() -> str:
    return ", ".join(families())
