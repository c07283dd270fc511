"""Adapters as PEFT saves them: adapter_config.json and adapter_model.safetensors.

base_model.model.<module>.lora_A.weight [rank, columns], .lora_B.weight [rows, rank]
base_model.model.<embedding>.lora_embedding_A [rank, tokens], .lora_embedding_B [columns, rank]
base_model.model.<module>.lora_magnitude_vector [rows]            DoRA
base_model.model.<module>.weight, .bias                           whole, of modules_to_save and trained biases
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from edge_llm.errors import InvalidModel, ModelNotFound, UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.limits import MAX_WEIGHT
from edge_llm.formats.safetensors import SafetensorsFile, open_safetensors
from edge_llm.sources.base import AdapterBase
from edge_llm.sources.hub_files import ADAPTER_CONFIG as CONFIG
from edge_llm.sources.hub_files import ADAPTER_TEXTS as TEXTS
from edge_llm.sources.hub_files import ADAPTER_WEIGHTS as WEIGHTS
from edge_llm.sources.lora import EMBEDDING, OUTPUT, Adapter, Change, LowRank, refuse_shape, refuse_unknown
from edge_llm.sources.lora_settings import PeftSettings, peft_settings
from edge_llm.strict_json import read_object
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.template_files import TOOL_USE, USUAL, read_templates

_MAX_CONFIG = 4 << 20
_STARTS_AT_RANDOM = (".lora_A.weight", ".lora_embedding_B")
"""Matrices that are not zero before training."""
_PREFIX = "base_model.model."
_PART = re.compile(
    r"(?P<module>.+?)\.(?P<part>lora_A|lora_B|lora_embedding_A|lora_embedding_B|lora_magnitude_vector)"
    r"(?:\.default)?(?:\.weight)?"
)
_MLX = "adapters.safetensors"


def open_peft(named: str, folder: Path, model: AdapterBase) -> Adapter:
    """The adapter in ``folder``, checked against ``model``.

    Raises `ModelNotFound`, `InvalidModel` for what is damaged or fits another model, `UnsupportedModel` or `StorageError`.
    """
    where = f"the adapter `{shown(named)}`"
    _check_there(folder, where)
    settings = peft_settings(read_object(folder / CONFIG, max_bytes=_MAX_CONFIG), where)
    file = open_safetensors(folder / WEIGHTS)
    try:
        changes = _Fitting(file, settings, model, where).changes()
        moves = [bool(file.read(name, most=MAX_WEIGHT).any()) and not name.endswith(_STARTS_AT_RANDOM) for name in file.tensors]
        template, template_files = _template(folder, model)
    except BaseException:
        file.close()
        raise
    files = [folder / CONFIG, folder / WEIGHTS, *(folder / name for name in TEXTS if (folder / name).exists())]
    told = _told(where, settings.base, model, any(moves), template is not None)
    return Adapter(named, str(folder), changes, files, file.close, template, template_files, settings.ties, told)


def _told(where: str, base: str, model: AdapterBase, moves: bool, has_template: bool) -> list[str]:
    lines = []
    if (name := base.rstrip("/").rpartition("/")[2]) and name.casefold() not in model.path.casefold():
        lines.append(f"{where} was made for `{shown(base)}`, and fits `{shown(model.path)}`: it is added to that")
    if not moves:
        lines.append(f"{where} changes nothing: its `lora_B` are all zero, as before training")
    if has_template:
        lines.append(f"the chat template is that of {where}")
    return lines


def _check_there(folder: Path, where: str) -> None:
    if not (folder / CONFIG).exists():
        mlx = " (mlx-lm's adapters are another format: fuse them with `mlx_lm.fuse`)" if (folder / _MLX).exists() else ""
        raise ModelNotFound(f"{where} has no {CONFIG}{mlx}; give the folder that PEFT saved, or a GGUF adapter")
    if not (folder / WEIGHTS).exists():
        if (folder / "adapter_model.bin").exists():
            raise UnsupportedModel(
                f"{where} has its weights only as `adapter_model.bin`; such files can run code when loaded: save it as "
                "safetensors"
            )
        raise ModelNotFound(f"{where} has no {WEIGHTS}; download the weights too")


def _template(folder: Path, model: AdapterBase) -> tuple[ChatTemplate | None, Mapping[str, bytes]]:
    """The chat template beside the adapter, where it is another than the model's."""
    found, files = read_templates(folder), model.side_files()
    if found.usual is None or found.usual.encode() == files.get(USUAL):
        return None, {}
    told = {USUAL: found.usual.encode()} | ({TOOL_USE: found.tool_use.encode()} if found.tool_use else {})
    return ChatTemplate.of(found, model.tokenizer()), told


class _Fitting:
    """Finds for every tensor of an adapter the one of the model that it changes."""

    def __init__(self, file: SafetensorsFile, settings: PeftSettings, model: AdapterBase, where: str) -> None:
        self._file = file
        self._settings = settings
        self._model = model
        self._where = where
        tied = [OUTPUT] if model.config.tied_embeddings else []
        self._present = dict.fromkeys([*model.names(), *tied])
        self._parts: dict[str, dict[str, str]] = {}
        """By modules of the adapter and kinds of parts: tensors of the adapter."""
        self._whole: dict[str, str] = {}
        """By names of the model: tensors of the adapter."""

    def changes(self) -> dict[str, Change]:
        for name in self._file.tensors:
            self._sort(name)
        if not self._parts and not self._whole:
            raise InvalidModel(f"{self._where} has no tensors; download or save it again")
        pairs = {}
        for module, parts in self._parts.items():
            weight = self._weight_of(module)
            if weight in pairs:
                raise self._twice(module)
            pairs[weight] = self._low_rank(module, weight, parts)
        self._check_complete(pairs)
        wholes = {name: partial(self._read, tensor) for name, tensor in self._whole.items()}
        return {name: Change(wholes.get(name), pairs.get(name)) for name in {**wholes, **pairs}}

    def _sort(self, name: str) -> None:
        bare = name.removeprefix(_PREFIX)
        if (found := _PART.fullmatch(bare)) is not None:
            parts = self._parts.setdefault(found["module"], {})
            if parts.setdefault(found["part"], name) != name:
                raise self._twice(name)
            return
        plain = bare.replace(".base_layer.", ".").replace(".modules_to_save.default.", ".").replace(".modules_to_save.", ".")
        target = self._in_model(plain)
        if target is None:
            raise refuse_unknown(plain, self._where, self._settings.base, self._model)
        self._check_shape(name, self._shape(target))
        if self._whole.setdefault(target, name) != name:
            raise self._twice(name)

    def _twice(self, name: str) -> InvalidModel:
        return InvalidModel(f"{self._where} has `{shown(name)}` twice; save it again")

    def _in_model(self, name: str) -> str | None:
        """The model's own name of ``name``, which may have been trained without its head, or as a part of a larger one."""
        inner = name.replace("language_model.", "", 1)
        tries = (name, f"model.{name}", inner, inner.removeprefix("model."))
        return next((one for one in tries if one in self._present), None)

    def _weight_of(self, module: str) -> str:
        found = self._in_model(f"{module}.weight")
        if found is None or len(self._shape(found)) != 2:
            raise refuse_unknown(module, self._where, self._settings.base, self._model)
        return found

    def _shape(self, name: str) -> tuple[int, ...]:
        tied = self._model.config.tied_embeddings and name == OUTPUT
        return tuple(self._model.shape(EMBEDDING if tied else name))

    def _low_rank(self, module: str, weight: str, parts: Mapping[str, str]) -> LowRank:
        is_embedding = "lora_embedding_A" in parts or "lora_embedding_B" in parts
        a, b = (self._part(module, parts, f"lora_embedding_{one}" if is_embedding else f"lora_{one}") for one in "AB")
        own = weight.removesuffix(".weight")
        rank, (rows, columns) = self._settings.rank_of(own), self._shape(weight)
        self._check_rank(a, b, rank)
        self._check_shape(a, (rank, rows if is_embedding else columns))
        self._check_shape(b, (columns if is_embedding else rows, rank))
        magnitude = None
        if self._settings.dora:
            name = self._part(module, parts, "lora_magnitude_vector")
            self._check_shape(name, (columns if is_embedding else rows,))
            magnitude = partial(self._read, name)
        elif "lora_magnitude_vector" in parts:
            raise InvalidModel(f"{self._where} has magnitudes (DoRA), and its {CONFIG} does not say `use_dora`; save it again")
        scale = self._settings.scale_of(own)
        if is_embedding:
            return LowRank(partial(self._turned, a), partial(self._turned, b), scale, magnitude, axis=0)
        return LowRank(partial(self._read, b), partial(self._read, a), scale, magnitude)

    def _part(self, module: str, parts: Mapping[str, str], part: str) -> str:
        if part not in parts:
            raise InvalidModel(f"{self._where} lacks `{part}` of `{shown(module)}`; it is not whole: download or save it again")
        return parts[part]

    def _check_rank(self, a: str, b: str, rank: int) -> None:
        found = {self._shape_in_file(a)[:1], self._shape_in_file(b)[1:]}
        if found != {(rank,)}:
            said = ", ".join(str(shape[0]) for shape in sorted(found) if shape) or "none"
            raise InvalidModel(
                f"{self._where}: `{shown(a)}` and its partner have the rank {said}, and {CONFIG} says {rank}; take the "
                f"{CONFIG} that was saved with these weights"
            )

    def _check_shape(self, name: str, wanted: tuple[int, ...]) -> None:
        if (found := self._shape_in_file(name)) != wanted:
            raise refuse_shape(name, found, wanted, self._where, self._settings.base, self._model)

    def _shape_in_file(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[name].shape

    def _check_complete(self, pairs: Mapping[str, LowRank]) -> None:
        """Raise `InvalidModel` where the settings name a module that has no matrices, or none of what is there."""
        for name in self._modules():
            named = self._settings.names(name, output=OUTPUT.removesuffix(".weight"))
            if named is True and f"{name}.weight" not in pairs:
                raise InvalidModel(
                    f"{self._where} lacks `lora_A` of `{shown(name)}`, which its `target_modules` name; it is not whole, or "
                    "was made for another model: download or save it again"
                )
            if named is False and f"{name}.weight" in pairs:
                raise InvalidModel(
                    f"{self._where} changes `{shown(name)}`, which its `target_modules` do not name; take the {CONFIG} that "
                    "was saved with these weights"
                )
        for module in self._settings.saved:
            if _holds(self._present, module) and not _holds(self._whole, module):
                raise InvalidModel(
                    f"{self._where} lacks `{shown(module)}`, which its `modules_to_save` name; download or save it again"
                )

    def _modules(self) -> Iterator[str]:
        """Those that multiply, and the embedding."""
        for name in self._present:
            is_named = name != EMBEDDING or self._settings.targets != "all-linear"
            if is_named and name.endswith(".weight") and len(self._shape(name)) == 2:
                yield name.removesuffix(".weight")

    def _read(self, name: str) -> np.ndarray:
        return self._file.read(name, most=MAX_WEIGHT)

    def _turned(self, name: str) -> np.ndarray:
        return self._read(name).T


def _holds(tensors: Iterable[str], module: str) -> bool:
    return any(f".{module}." in f".{name}" for name in tensors)
