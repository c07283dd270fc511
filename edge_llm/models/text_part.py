"""The text part of a checkpoint that sees images: its settings, and its tensors by the names that a text model gives them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown
from edge_llm.models.fields import Fields

NOTICE = "images are left out: the text part of the model alone is imported"
TIED, OUTPUT = "tie_word_embeddings", "lm_head.weight"
_BEGINS = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "lm_head.": "lm_head.",
    "model.layers.": "model.layers.",
    "model.embed_tokens.": "model.embed_tokens.",
    "model.norm.": "model.norm.",
}
"""How tensors of text models begin in such checkpoints, and in text models."""
_OF_ALL = ("quantization_config", "compression_config", "eos_token_id", "bos_token_id")
"""What stands beside text_config and is said of the text model, too."""
_OF_IMAGES = ("model_type", "architectures", "vision_config")
_ROTATION = ("rope_parameters", "rope_scaling")


def text_name(name: str) -> str | None:
    """The name of a tensor in a text model; None: it is none of the text part."""
    begin = next((one for one in _BEGINS if name.startswith(one)), None)
    return None if begin is None else _BEGINS[begin] + name[len(begin) :]


def text_settings(raw: dict[str, Any], families: Mapping[str, str], **defaults: Any) -> dict[str, Any]:
    """The config.json of the text model in ``raw``, as a model of its own.

    families: the model types of text models and the families that run them; the first where config.json names none.
    defaults: what keys that are absent mean.
    Older files have no text_config: the settings of the text model stand beside those of images.
    Raises `InvalidModel` or `UnsupportedModel`.
    """
    inner = Fields(raw).section("text_config") or {key: raw[key] for key in raw if key not in _OF_IMAGES}
    named = inner.get("model_type") or next(iter(families))
    if not isinstance(named, str) or named not in families:
        raise UnsupportedModel(
            f"config.json: a text part of the type `{shown(named)}` does not run here; these do: {', '.join(families)}"
        )
    said = {key: value for key, value in inner.items() if key != "architectures" and (value is not None or key not in defaults)}
    beside = {key: raw[key] for key in _OF_ALL if raw.get(key) is not None}
    tied = _ties(raw)
    settings = _unsaid(inner, defaults) | said | beside | {"model_type": families[named]} | _plain_positions(inner)
    return settings | {TIED: all(tied)} if tied else settings


def _unsaid(inner: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The ``defaults`` of keys, but of those that the section of the rotation says."""
    sections = [inner[key] for key in _ROTATION if isinstance(inner.get(key), dict)]
    return {key: value for key, value in defaults.items() if not any(key in section for section in sections)}


def _plain_positions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The rotation without sections for time, height and width: the three positions of a text are one."""
    found: dict[str, Any] = {}
    for key in _ROTATION:
        if isinstance(section := settings.get(key), dict):
            names = {name: "default" for name in ("type", "rope_type") if section.get(name) == "mrope"}
            found[key] = {name: value for name, value in section.items() if not name.startswith("mrope")} | names
    return found


def tied_as(settings: dict[str, Any], raw: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """``settings`` of a text model with tensors called ``names``: without an output matrix the embedding serves for it.

    Where config.json, ``raw``, says one thing of the whole and another of the text model, or nothing, tensors decide.
    """
    return settings if OUTPUT in names or _ties(raw) == {False} else settings | {TIED: True}


def _ties(raw: dict[str, Any]) -> set[bool]:
    """What config.json says of the output matrix: of the whole, and of its text model."""
    inner = raw.get("text_config")
    return {one[TIED] for one in (raw, inner) if isinstance(one, dict) and isinstance(one.get(TIED), bool)}
