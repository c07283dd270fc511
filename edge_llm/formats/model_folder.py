"""Hugging Face model folders: ``config.json`` and float weights in one or several safetensors files.

    with open_model_folder(Path("qwen2.5-0.5b")) as source:
        embedding = source.read("model.embed_tokens.weight")      # float32 [vocab, hidden]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel, ModelNotFound, StorageError, UnsupportedModel
from edge_llm.files import shown, status
from edge_llm.formats.limits import MAX_WEIGHT
from edge_llm.formats.safetensors import SafetensorsFile, TensorInfo, open_safetensors
from edge_llm.models import text_settings
from edge_llm.models.text_part import text_name, tied_as
from edge_llm.paths import gguf_file_in
from edge_llm.strict_json import read_object

MAX_INDEX_BYTES = 16 << 20
MAX_INDEX_VALUES = 131_072
"""Tensors of all files together."""
MAX_SHARDS = 4096
MAX_CONFIG_BYTES = 4 << 20
TURNED_OVER = "weight_turned_over"
"""The end of a matrix that is its module's weight with rows and columns changed over."""
MODEL = "model"
"""What weights are called: this with .safetensors, or shards of it and this with .safetensors.index.json."""
_ADAPTER = "adapter_config.json"
_STACKS = {f"{name}.weight": f"{name}.{{}}.weight" for name in ("input_linear", "output_linear")} | {
    f"experts.{name}{end}": f"experts.{name}.{{}}.{one}"
    for name in ("gate_up_proj", "down_proj")
    for end, one in (("", TURNED_OVER), ("_bias", "bias"), ("_blocks", "weight_blocks"), ("_scales", "weight_scales"))
}
"""Tensors of all experts of a layer, and what that of one expert is called."""
_ROWS_FIRST = {"qwen3_5_moe", "qwen3_5_moe_text"}
"""Model types whose stacks are not turned over."""
FUSED = "experts_fused"
"""What the settings say where gate and up of an expert are one matrix, which no config.json says."""


class SourceFolder:
    """A Hugging Face model folder: its settings as dictionaries, its weights by name.

    Of a checkpoint that sees images it has the text part, with the settings and the names of a text model.
    """

    def __init__(self, folder: Path, config: dict[str, Any], shards: list[SafetensorsFile]) -> None:
        """Raises `InvalidModel` where two tensors of a text part have one name."""
        self.folder = folder
        self._shards = shards
        settings = text_settings(config)
        self._where = _named(folder, shards, settings is not None)
        self.config = config if settings is None else tied_as(settings, config, self._where)
        if any(".experts.gate_up_proj.0." in name for name in self._where):
            self.config = self.config | {FUSED: True}
        self.is_part = settings is not None
        """Whether it is the text part of more."""

    def names(self) -> list[str]:
        """Names of all tensors, in file order."""
        return list(self._where)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor; an unknown name raises `InvalidModel`."""
        shape = self._info(name).shape
        return shape[::-1] if self._is_turned_over(name) else shape

    def read(self, name: str) -> np.ndarray:
        """The tensor as float32; NaN, infinity and what no model was trained to raise `InvalidModel` naming it."""
        shard, inside = self._find(name)
        values = shard.read(inside, most=MAX_WEIGHT)
        return np.ascontiguousarray(values.T) if self._is_turned_over(name) else values

    def dtype(self, name: str) -> str:
        """The tensor's type as safetensors has it, such as BF16."""
        return self._info(name).dtype

    def read_integers(self, name: str) -> np.ndarray:
        """`SafetensorsFile.read_integers` of the file that holds it."""
        shard, inside = self._find(name)
        return shard.read_integers(inside)

    @property
    def nbytes(self) -> int:
        """Of all its tensors."""
        return sum(self._info(name).nbytes for name in self._where)

    def _info(self, name: str) -> TensorInfo:
        shard, inside = self._find(name)
        return shard.tensors[inside]

    def _is_turned_over(self, name: str) -> bool:
        return self._find(name)[1].endswith(TURNED_OVER)

    def _find(self, name: str) -> tuple[SafetensorsFile, str]:
        """The file of a tensor, and its name there."""
        found = self._where.get(name)
        if found is None:
            raise InvalidModel(f"`{shown(self.folder)}` has no tensor `{shown(name)}`")
        return found

    @property
    def files(self) -> list[Path]:
        """The weight files, in index order."""
        return [shard.path for shard in self._shards]

    def close(self) -> None:
        """Close every file; more than once is fine."""
        for shard in self._shards:
            shard.close()

    def __enter__(self) -> SourceFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _named(folder: Path, shards: Sequence[SafetensorsFile], is_part: bool) -> dict[str, tuple[SafetensorsFile, str]]:
    """All tensors by their names in the model, each with its file and its name there; of a text part no others."""
    found: dict[str, tuple[SafetensorsFile, str]] = {}
    for shard in shards:
        for inside in shard.tensors:
            own = f"{inside.removesuffix(TURNED_OVER)}weight" if inside.endswith(TURNED_OVER) else inside
            name = text_name(own) if is_part else own
            if name is not None and found.setdefault(name, (shard, inside)) != (shard, inside):
                raise InvalidModel(f"`{shown(folder)}` has the tensor `{shown(name)}` of its text part twice; save it again")
    return found


def open_model_folder(folder: Path, weights: str = MODEL) -> SourceFolder:
    """Open a Hugging Face folder whose weights are called ``weights``, see `MODEL`.

    Raises `ModelNotFound`, `InvalidModel`, `UnsupportedModel` or `StorageError`.
    """
    if not _exists(folder):
        raise ModelNotFound(f"no model folder `{shown(folder)}`; check the path")
    if not folder.is_dir():
        raise InvalidModel(f"`{shown(folder)}` is not a folder; give the folder that holds config.json")
    if not _exists(folder / "config.json"):
        if _exists(folder / _ADAPTER):
            raise _is_adapter(folder)
        raise _has_gguf(folder) or ModelNotFound(
            f"no config.json in `{shown(folder)}`; give a Hugging Face folder with config.json and safetensors"
        )
    config = read_object(folder / "config.json", max_bytes=MAX_CONFIG_BYTES)
    single, index = f"{weights}.safetensors", f"{weights}.safetensors.index.json"
    if _exists(folder / single):
        return _folder(folder, config, [open_safetensors(folder / single)])
    if _exists(folder / index):
        return _folder(folder, config, _open_shards(folder / index, config))
    raise _is_adapter(folder) if _exists(folder / _ADAPTER) else _no_weights(folder)


def _folder(folder: Path, config: dict[str, Any], shards: list[SafetensorsFile]) -> SourceFolder:
    try:
        stacks = _STACKS
        if config.get("model_type") in _ROWS_FIRST:
            stacks = {name: one.replace(TURNED_OVER, "weight") for name, one in stacks.items()}
        return SourceFolder(folder, config, [shard.apart(stacks) for shard in shards])
    except BaseException:
        for shard in shards:
            shard.close()
        raise


def _is_adapter(folder: Path) -> UnsupportedModel:
    base = read_object(folder / _ADAPTER, max_bytes=MAX_CONFIG_BYTES).get("base_model_name_or_path")
    known = isinstance(base, str) and base
    of = f" of `{shown(base)}`" if known else ""
    way_out = f"import {f'`{shown(base)}`' if known else 'the model that it was made for'} with --lora {shown(folder)}"
    return UnsupportedModel(f"`{shown(folder)}` is an adapter (LoRA){of}, not a model; {way_out}")


def needed_shards(weight_map: Mapping[str, object], config: dict[str, Any]) -> list[object]:
    """The files of an index that a model is read from, in its order: those with images alone are not."""
    is_part = text_settings(config) is not None
    return list(dict.fromkeys(file for name, file in weight_map.items() if not is_part or text_name(name) is not None))


def _open_shards(index_path: Path, config: dict[str, Any]) -> list[SafetensorsFile]:
    index = read_object(index_path, max_bytes=MAX_INDEX_BYTES, max_values=MAX_INDEX_VALUES)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise InvalidModel(f"`{index_path.name}`: weight_map must map tensor names to file names")
    for name, file in weight_map.items():
        if not _is_shard_name(file):
            raise InvalidModel(
                f"`{index_path.name}` puts tensor `{shown(name)}` into `{shown(file)}`; "
                "a shard must be a plain .safetensors file name in the same folder"
            )
    names = needed_shards(weight_map, config)
    if len(names) > MAX_SHARDS:
        raise InvalidModel(f"`{index_path.name}` lists `{len(names)}` files; at most {MAX_SHARDS} are read")
    shards: list[SafetensorsFile] = []
    try:
        for name in names:
            shards.append(_open_shard(index_path.parent / str(name), index_path.name))
        _check_index({name: file for name, file in weight_map.items() if file in names}, shards, index_path.name)
    except BaseException:
        for shard in shards:
            shard.close()
        raise
    return shards


def _open_shard(path: Path, index: str) -> SafetensorsFile:
    try:
        return open_safetensors(path)
    except ModelNotFound:
        raise InvalidModel(f"`{index}` lists `{shown(path.name)}`, which is missing; download it again") from None


def _check_index(weight_map: dict[str, str], shards: list[SafetensorsFile], index: str) -> None:
    for shard in shards:
        for name in shard.tensors:
            if weight_map.get(name) != shard.path.name:
                listed = shown(weight_map.get(name, "nowhere"))
                raise InvalidModel(f"tensor `{shown(name)}` is in `{shard.path.name}`, but `{index}` puts it into `{listed}`")
    present = {name for shard in shards for name in shard.tensors}
    for name, file in weight_map.items():
        if name not in present:
            raise InvalidModel(f"`{index}` puts tensor `{shown(name)}` into `{file}`, which does not hold it")


def _is_shard_name(name: Any) -> bool:
    return (
        isinstance(name, str)
        and 0 < len(name) <= 255
        and name.isprintable()
        and name.endswith(".safetensors")
        and not name.startswith(".")
        and not any(c in name for c in "/\\:")
    )


def _no_weights(folder: Path) -> Exception:
    try:
        present = sorted(p.name for p in folder.iterdir())
    except OSError as failure:
        return StorageError(f"cannot list `{shown(folder)}`: {failure.strerror}; check its permissions")
    pickles = [n for n in present if n.endswith((".bin", ".pt", ".pth", ".ckpt"))]
    if pickles:
        return UnsupportedModel(
            f"`{shown(folder)}` has its weights only as `{shown(pickles[0])}`; such files can run code when loaded: "
            "save the model as safetensors"
        )
    either = f"{MODEL}.safetensors or {MODEL}.safetensors.index.json"
    return _has_gguf(folder) or ModelNotFound(f"no {either} in `{shown(folder)}`; download the weights too")


def _has_gguf(folder: Path) -> ModelNotFound | None:
    file = gguf_file_in(folder)
    if file is None:
        return None
    return ModelNotFound(f"`{shown(folder)}` has GGUF files; name one of them, such as `{shown(folder / file)}`")


def _exists(path: Path) -> bool:
    return status(path) is not None
