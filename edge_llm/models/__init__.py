"""What a model is: one file per family, found by the ``model_type`` of its config.json.

A family file has two functions: ``config(raw) -> ModelConfig`` reads a config.json, and ``decoder(config) -> Decoder``
describes the model's layers (`edge_llm.models.layer`).  Adding a family adds a file.  Only code in this folder runs:
``auto_map`` and other pointers to code inside a model's folder are ignored.

The file of a checkpoint that sees images has another function alone: ``text(raw) -> settings`` gives the config.json of the
text model inside, which is a family of its own (`edge_llm.models.text_part`).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import shown
from edge_llm.models.layer import Decoder, DescribedConfig

_SHARED = {
    "blocks", "encoder", "fields", "gated_delta_layers", "head", "known", "layer", "llama_like", "mixtures", "weights",
    "reference", "reading", "rope", "text_part",
}  # fmt: skip


class Family(Protocol):
    """What a family file has.

    It may have an ``ARCHITECTURE`` too, where that of its config.json is not the model type and ForCausalLM, or several
    ``ARCHITECTURES``.
    """

    def config(self, raw: dict[str, Any]) -> ModelConfig:
        """The shapes and constants in a Hugging Face config.json."""
        ...

    def decoder(self, config: Any) -> Decoder:
        """The layers of a model, as `config` read it."""
        ...


_ADDED: dict[str, Family] = {}


def add_family(model_type: str, family: Family) -> None:
    """Have models of ``model_type`` read by ``family``, a module or object that is not a file of this folder."""
    _ADDED[model_type] = family
    _described.cache_clear()


def families() -> list[str]:
    """The model types that run, sorted."""
    files = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted({name for name in files if not name.startswith("_") and name not in _SHARED} | set(_ADDED))


def describe(config: ModelConfig) -> Decoder:
    """The layers of a model.  Raises `UnsupportedModel` for a family that does not run here."""
    return config.decoder if isinstance(config, DescribedConfig) else _described(config)


@functools.lru_cache(maxsize=16)
def _described(config: ModelConfig) -> Decoder:
    return _family(config.family).decoder(config)


def _family(name: str) -> Family:
    name = name.replace("-", "_")
    if name not in families():
        raise UnsupportedModel(f"the architecture `{shown(name)}` does not run here; these do: {_runnable()}")
    return _ADDED.get(name) or cast(Family, importlib.import_module(f"{__name__}.{name}"))


def load_config(raw: dict[str, Any]) -> ModelConfig:
    """Read a Hugging Face config.json into a `ModelConfig`; of a checkpoint that sees images, that of its text part.

    Raises `UnsupportedModel` for a model that is well formed but cannot be run here, `InvalidModel` for values that
    make no sense.
    """
    page = _page(raw)
    if (text := _text_of(page)) is not None:
        return load_config(text(raw))
    if raw.get("quantization_config"):
        raise UnsupportedModel(
            "config.json has a `quantization_config`: the weights are quantized already; "
            "give the original model with F32, F16 or BF16 weights"
        )
    return page.config(raw)


def text_settings(raw: dict[str, Any]) -> dict[str, Any] | None:
    """The config.json of the text model in a checkpoint that sees images; None for any other.

    Raises `InvalidModel` or `UnsupportedModel`.
    """
    family = raw.get("model_type")
    text = _text_of(_family(family)) if isinstance(family, str) and family in families() else None
    return None if text is None else text(raw)


def _text_of(page: Family) -> Callable[[dict[str, Any]], dict[str, Any]] | None:
    return getattr(page, "text", None)


def _page(raw: dict[str, Any]) -> Family:
    """The file of the family that a config.json names."""
    family = raw.get("model_type")
    if not isinstance(family, str):
        raise InvalidModel("config.json has no `model_type`; give the folder of a Hugging Face model")
    architectures = raw.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(a, str) for a in architectures):
        raise InvalidModel(f"config.json: architectures must be a list of names, not `{shown(architectures)}`")
    page = _family(family)
    known = getattr(page, "ARCHITECTURES", (getattr(page, "ARCHITECTURE", f"{family.removesuffix('_text')}ForCausalLM"),))
    if architectures and not set(map(_plain, known)) & set(map(_plain, architectures)):
        raise UnsupportedModel(f"the architecture `{shown(architectures[0])}` does not run here; these do: {_runnable()}")
    return page


def _plain(architecture: str) -> str:
    return architecture.lower().replace("_", "")


def _runnable() -> str:
    return ", ".join(families())
