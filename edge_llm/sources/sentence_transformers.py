"""What a folder of sentence-transformers says beside the model: which states become the vector, prompts, the longest text."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import read_file, shown
from edge_llm.models import describe
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.models.layer import DescribedConfig
from edge_llm.models.reading import POOLINGS, Prompt, Reading
from edge_llm.strict_json import parse_json, read_object

MODULES, SETTINGS, LONGEST = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
READING_FILES = (MODULES, SETTINGS, LONGEST, "1_Pooling/config.json")
_MAX_BYTES = 1 << 20
_MAX_MODULES, _MAX_PROMPTS, _MAX_PROMPT = 16, 256, 1000
_FLAGS = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "lasttoken"}
_RUN = ("Transformer", "Pooling", "Normalize")
"""The modules that run here, in this order."""


def with_reading(config: ModelConfig, folder: Path) -> ModelConfig:
    """``config`` with what the files of sentence-transformers in ``folder`` say; the same where there are none.

    Raises `UnsupportedModel` for a module that does not run here, `InvalidModel` for files that make no sense.
    """
    if not (folder / MODULES).exists():
        return config
    pooling = _pooling(folder, config.hidden_size)
    settings = read_object(folder / SETTINGS, max_bytes=_MAX_BYTES) if (folder / SETTINGS).exists() else {}
    prompts = _prompts(settings)
    default = settings.get("default_prompt_name") or ""
    if default and default not in [one.name for one in prompts]:
        raise InvalidModel(f"{SETTINGS}: default_prompt_name `{shown(default)}` is none of the prompts")
    return DescribedConfig(
        family=config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        context=_longest(folder, config.context),
        tied_embeddings=config.tied_embeddings,
        decoder=replace(describe(config), reading=Reading(pooling, prompts, default)),
    )


def _pooling(folder: Path, hidden: int) -> str:
    """What `POOLINGS` calls the pooling module's kind."""
    found = parse_json(read_file(folder / MODULES, _MAX_BYTES).removeprefix(codecs.BOM_UTF8), MODULES)
    if not isinstance(found, list) or not 1 <= len(found) <= _MAX_MODULES or not all(isinstance(one, dict) for one in found):
        raise InvalidModel(f"{MODULES} must be a list of modules")
    kinds = [str(one.get("type")).rpartition(".")[2] for one in found]
    if foreign := [kind for kind in kinds if kind not in _RUN]:
        raise UnsupportedModel(f"{MODULES}: the module `{shown(foreign[0])}` does not run here; these do: {', '.join(_RUN)}")
    if kinds[:2] != ["Transformer", "Pooling"] or len(kinds) > len(_RUN):
        raise UnsupportedModel(f"{MODULES}: the modules `{shown(', '.join(kinds))}` do not run here in this order")
    path = found[1].get("path")
    if not isinstance(path, str) or Path(path).name != path or not path:
        raise InvalidModel(f"{MODULES}: `{shown(path)}` is no folder of the pooling module")
    return _pooling_of(read_object(folder / path / "config.json", max_bytes=_MAX_BYTES), hidden)


def _pooling_of(raw: dict[str, Any], hidden: int) -> str:
    width = raw.get("word_embedding_dimension", hidden)
    if width != hidden:
        raise InvalidModel(f"the pooling module has `{shown(width)}` channels, the model {hidden}")
    said = raw.get("pooling_mode")
    prefix = "pooling_mode_"
    flags = [key.removeprefix(prefix) for key, on in raw.items() if on and key.startswith(prefix)]
    modes = [_FLAGS.get(mode, mode) if isinstance(mode, str) else mode for mode in (flags if said is None else [said])]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UnsupportedModel(f"the pooling `{shown(modes)}` does not run here; one of these does: {', '.join(POOLINGS)}")
    if raw.get("include_prompt") is False:
        raise UnsupportedModel("a pooling without the prompt's tokens does not run here")
    return str(modes[0])


def _prompts(settings: Mapping[str, Any]) -> tuple[Prompt, ...]:
    raw = settings.get("prompts") or {}
    good = isinstance(raw, dict) and len(raw) <= _MAX_PROMPTS
    if not good or not all(isinstance(text, str) and max(len(name), len(text)) <= _MAX_PROMPT for name, text in raw.items()):
        raise InvalidModel(f"{SETTINGS}: prompts must be up to {_MAX_PROMPTS} texts by name, {_MAX_PROMPT} characters each")
    return tuple(Prompt(name, text) for name, text in raw.items())


def _longest(folder: Path, context: int) -> int:
    """Tokens of the longest text."""
    if not (folder / LONGEST).exists():
        return context
    said = Fields(read_object(folder / LONGEST, max_bytes=_MAX_BYTES)).integer("max_seq_length", 1, MAX_CONTEXT, context)
    return min(said, context)
