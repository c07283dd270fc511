"""The models that are here, as lists and pickers show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge_llm.config import DEFAULT_CONTEXT, ModelConfig
from edge_llm.errors import EdgeLLMError
from edge_llm.files import folder_bytes
from edge_llm.formats.bundle import Bundle, open_bundle, read_manifest
from edge_llm.formats.gguf import is_gguf, parts_of
from edge_llm.formats.manifest import MANIFEST
from edge_llm.formats.sizes import sizes
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes
from edge_llm.models import describe
from edge_llm.paths import model_folders
from edge_llm.resources import free_memory
from edge_llm.sources.place import Place


@dataclass(frozen=True)
class InstalledModel:
    """What is known of a model without reading its weights; with a ``problem``, only its name and folder are."""

    name: str
    folder: Path
    family: str = ""
    parameters: int = 0
    nbytes: int = 0
    """Of all its files."""
    weights_bytes: int = 0
    kv_bytes: int = 0
    """Of INT8 keys and values, when the context that it gets by default is full."""
    context: int = 0
    precision: str = ""
    """The schemes of its linears, such as `int8` or `int8+float16`, the one with most linears first."""
    repository: str = ""
    """The hub id that it was imported from, if it was."""
    problem: str | None = None

    def fits(self, free: int | None = None) -> bool:
        """Whether its weights and a full default context have room in ``free`` bytes; default: the memory that is free now.

        One that does not fit may still run: `--memory` streams weights from flash, `--ctx` makes the context smaller.
        """
        return self.problem is None and fits(self.weights_bytes, self.kv_bytes, free_memory() if free is None else free)


def fits(weights_bytes: int, kv_bytes: int, free: int) -> bool:
    """Whether weights and keys and values have room in ``free`` bytes of memory."""
    return weights_bytes + kv_bytes <= free


def default_kv_bytes(config: ModelConfig) -> int:
    """Bytes of INT8 keys and values, when the context that a model gets by default is full."""
    return page_bytes(describe(config).attentions) // PAGE_TOKENS * min(config.context, DEFAULT_CONTEXT)


def imported_from(place: Place, *, may_be_older: bool = False) -> list[str]:
    """Names of the models here that were imported from ``place``; ``may_be_older`` as in `is_made_from`."""
    return [name for name, folder in model_folders() if is_made_from(place, folder, may_be_older=may_be_older)]


def is_made_from(place: Place, bundle: Path, *, may_be_older: bool = False) -> bool:
    """Whether the model at ``bundle`` was imported from ``place``.

    may_be_older: files there may be newer than it, or gone.
    """
    try:
        return _is_from(place, read_manifest(bundle)["source"]) and (may_be_older or not _is_renewed(place, bundle))
    except (EdgeLLMError, OSError):
        return False


def _is_from(place: Place, source: Mapping[str, Any]) -> bool:
    if source.get("lora"):  # it is more than what is there
        return False
    if place.folder is not None:
        return source.get("kind") == "folder" and source.get("path") == str(place.folder)
    repository, commit = _repository(source)
    return repository.casefold() == str(place).casefold() and place.revision in (None, commit)


def _repository(source: Mapping[str, Any]) -> tuple[str, str]:
    """Hub id and commit that a bundle's ``source`` names; the first is empty where it was not on the hub, or not that alone."""
    path = "" if source.get("lora") else str(source.get("path"))
    if source.get("kind") == "hub":
        repository, _, commit = path.partition("@")
        return repository, commit
    parts = Path(path).parts
    cached = next((part for part in parts if part.startswith("models--")), "")  # somebody imported from the Hugging Face cache
    return cached.removeprefix("models--").replace("--", "/"), parts[-1] if parts else ""


def _is_renewed(place: Place, bundle: Path) -> bool:
    """Whether a file of the model at ``place`` is younger than the ``bundle`` that was made of it.

    A GGUF file is also as young as its place: an older one may have been moved or linked there.
    """
    if place.folder is None:
        return False
    made = (bundle / MANIFEST).stat().st_mtime_ns
    if is_gguf(place.folder):
        return any(_placed(path) > made for path in parts_of(place.folder))
    files = [path for path in place.folder.glob("*") if path.suffix in (".json", ".safetensors")]
    return any(path.stat().st_mtime_ns > made for path in files)


def _placed(file: Path) -> int:
    """When ``file`` was last written, moved or linked where it is, in nanoseconds."""
    there = file.stat()
    return max(there.st_mtime_ns, there.st_ctime_ns, file.lstat().st_ctime_ns)


def installed_models() -> list[InstalledModel]:
    """The built-in model and those that were imported, by name.  Raises `StorageError` where nobody may look."""
    return [_installed(name, folder) for name, folder in model_folders()]


def _installed(name: str, folder: Path) -> InstalledModel:
    try:
        with open_bundle(folder) as bundle:
            return installed(name, bundle)
    except EdgeLLMError as error:
        return InstalledModel(name, folder, problem=str(error))


def installed(name: str, bundle: Bundle) -> InstalledModel:
    """What is known of the open ``bundle``, which is called ``name``."""
    config, described = bundle.config, describe(bundle.config)
    return InstalledModel(
        name,
        bundle.folder,
        config.family,
        described.parameters,
        folder_bytes(bundle.folder),
        bundle.size,
        default_kv_bytes(config),
        config.context,
        sizes(bundle).precision,
        _repository(bundle.manifest["source"])[0],
    )
