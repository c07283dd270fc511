"""What a folder of sentence-transformers says beside the model: which states become the vector, prompts, the longest text."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel, UnsupportedModel
from edge_llm.files import read_file, shown
from edge_llm.models import describe
from edge_llm.models.fields import MAX_CONTEXT, Fields
from edge_llm.models.layer import DescribedConfig
from edge_llm.models.reading import POOLINGS, Dense, Prompt, Reading, dense, score_by
from edge_llm.strict_json import parse_json, read_object

MODULES, SETTINGS, LONGEST = "modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"
READING_FILES = (
    MODULES, SETTINGS, LONGEST, "1_Pooling/config.json",
    *(f"{n}_Dense/{file}" for n in (2, 3) for file in ("config.json", "model.safetensors")),
)  # fmt: skip
MODULE_WEIGHTS = "model.safetensors"
"""Of a module, in its folder."""
_MAX_BYTES = 1 << 20
_MAX_MODULES, _MAX_PROMPTS, _MAX_PROMPT = 16, 256, 1000
_FLAGS = {"cls_token": "cls", "mean_tokens": "mean", "lasttoken": "lasttoken"}
_RUN = ("Transformer", "Pooling", "Dense", "Normalize")
"""The modules that run here, in this order; of Dense there may be several."""
_SCORES = ("Transformer", "LogitScore")
"""Those of a decoder that is asked for a word, as any is here."""
_ACTIVATIONS = {"Identity": "", "Tanh": "tanh", "GELU": "gelu_erf", "ReLU": "relu", "SiLU": "silu"}
"""By classes of torch."""


def with_reading(config: ModelConfig, folder: Path) -> ModelConfig:
    """``config`` with what the files of sentence-transformers in ``folder`` say; the same where there are none.

    Raises `UnsupportedModel` for a module that does not run here, `InvalidModel` for files that make no sense.
    """
    if not (folder / MODULES).exists():
        return config
    settings = read_object(folder / SETTINGS, max_bytes=_MAX_BYTES) if (folder / SETTINGS).exists() else {}
    modules = _modules(folder)
    own = describe(config).reading
    if tuple(kind for kind, _ in modules) == _SCORES:
        return config
    if own is not None and own.score and [kind for kind, _ in modules] == ["Transformer"]:
        return _scored(config, folder, own, settings.get("activation_fn"))
    pooling, head = _pooling(folder, modules, config.hidden_size), _head(folder, modules)
    prompts = _prompts(settings)
    default = settings.get("default_prompt_name") or ""
    if default and default not in [one.name for one in prompts]:
        raise InvalidModel(f"{SETTINGS}: default_prompt_name `{shown(default)}` is none of the prompts")
    try:
        reading = Reading(pooling, prompts, default, head)
        return _read(config, folder, reading)
    except ValueError as error:
        raise InvalidModel(f"{MODULES}: {error}") from None


def module_folders(folder: Path) -> list[str]:
    """The folders of modules with weights of their own, beside those of the model."""
    return [path for kind, path in _modules(folder) if kind == "Dense"] if (folder / MODULES).exists() else []


def _scored(config: ModelConfig, folder: Path, own: Reading, named: object) -> ModelConfig:
    """A reranker, whose scores are made by the class of torch that is ``named``; None: as its config.json says."""
    try:
        return _read(config, folder, own if named is None else replace(own, score=score_by(named)))
    except ValueError as error:
        raise UnsupportedModel(f"{SETTINGS}: activation_fn `{shown(named)}` does not run here: {error}") from None


def _read(config: ModelConfig, folder: Path, reading: Reading) -> ModelConfig:
    """``config`` whose states become what ``reading`` says."""
    return DescribedConfig.of(replace(describe(config), reading=reading), config.family, _longest(folder, config.context))


def _modules(folder: Path) -> list[tuple[str, str]]:
    """The kinds of the modules and their folders, in order."""
    found = parse_json(read_file(folder / MODULES, _MAX_BYTES).removeprefix(codecs.BOM_UTF8), MODULES)
    if not isinstance(found, list) or not 1 <= len(found) <= _MAX_MODULES or not all(isinstance(one, dict) for one in found):
        raise InvalidModel(f"{MODULES} must be a list of modules")
    modules = [(str(one.get("type")).rpartition(".")[2], one.get("path", "")) for one in found]
    for kind, path in modules:
        if not isinstance(path, str) or Path(path).name != path or path == ".." or (not path and kind in ("Pooling", "Dense")):
            raise InvalidModel(f"{MODULES}: `{shown(path)}` is no folder of the module {shown(kind)}")
    return modules


def _pooling(folder: Path, modules: Sequence[tuple[str, str]], hidden: int) -> str:
    """What `POOLINGS` calls the pooling module's kind."""
    kinds = [kind for kind, _ in modules]
    if foreign := [kind for kind in kinds if kind not in _RUN]:
        raise UnsupportedModel(f"{MODULES}: the module `{shown(foreign[0])}` does not run here; these do: {', '.join(_RUN)}")
    once = [kind for kind in kinds if kind != "Dense"]
    if kinds[:2] != ["Transformer", "Pooling"] or kinds != sorted(kinds, key=_RUN.index) or len(set(once)) < len(once):
        raise UnsupportedModel(f"{MODULES}: the modules `{shown(', '.join(kinds))}` do not run here in this order")
    return _pooling_of(read_object(folder / modules[1][1] / "config.json", max_bytes=_MAX_BYTES), hidden)


def _head(folder: Path, modules: Sequence[tuple[str, str]]) -> tuple[Dense, ...]:
    """The steps behind the pooling."""
    return tuple(_dense(folder, path, number) for number, (kind, path) in enumerate(modules) if kind == "Dense")


def _dense(folder: Path, path: str, number: int) -> Dense:
    raw = read_object(folder / path / "config.json", max_bytes=_MAX_BYTES)
    fields = Fields(raw)
    columns, rows = (fields.integer(key, 1, 1 << 17) for key in ("in_features", "out_features"))
    named = raw.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = "Identity" if named is None else named.rpartition(".")[2] if isinstance(named, str) else ""
    if activation not in _ACTIVATIONS:
        raise UnsupportedModel(f"{path}/config.json: the activation `{shown(named)}` does not run here")
    if any(raw.get(key) not in (None, "sentence_embedding") for key in ("module_input_name", "module_output_name")):
        raise UnsupportedModel(f"{path}/config.json: a module of anything but the pooled states does not run here")
    bias = fields.flag("bias", True)
    return dense(f"dense_{number}", f"{path}/linear", columns, rows, bias=bias, activation=_ACTIVATIONS[activation])


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
