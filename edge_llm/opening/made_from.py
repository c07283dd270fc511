"""Which models here were made of what: of a folder, a GGUF file, or a repository of a hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_llm.errors import EdgeLLMError
from edge_llm.formats.bundle import read_manifest
from edge_llm.formats.gguf import is_gguf, parts_of
from edge_llm.formats.manifest import MANIFEST
from edge_llm.paths import model_folders
from edge_llm.sources.hugging_face import stamps_of
from edge_llm.sources.place import Place


def imported_from(place: Place, *, may_be_older: bool = False) -> list[str]:
    """Names of the models here that were imported from ``place``; ``may_be_older`` as in `is_made_from`."""
    return [name for name, folder in model_folders() if is_made_from(place, folder, may_be_older=may_be_older)]


def is_made_from(place: Place, bundle: Path, *, may_be_older: bool = False) -> bool:
    """Whether the model at ``bundle`` was imported from ``place``.

    may_be_older: files there may be newer than it, or gone.
    """
    try:
        source = read_manifest(bundle)["source"]
        return _is_from(place, source) and (may_be_older or not _is_renewed(place, bundle, source))
    except (EdgeLLMError, OSError):
        return False


def _is_from(place: Place, source: Mapping[str, Any]) -> bool:
    if source.get("lora"):  # it is more than what is there
        return False
    if place.folder is not None:
        return source.get("kind") == "folder" and source.get("path") == str(place.folder)
    repository, commit = repository_of(source)
    return repository.casefold() == str(place).casefold() and place.revision in (None, commit)


def repository_of(source: Mapping[str, Any]) -> tuple[str, str]:
    """Hub id and commit that a bundle's ``source`` names; the first is empty where it was not on the hub, or not that alone."""
    path = "" if source.get("lora") else str(source.get("path"))
    if source.get("kind") == "hub":
        repository, _, commit = path.partition("@")
        return repository, commit
    parts = Path(path).parts
    cached = next((part for part in parts if part.startswith("models--")), "")  # somebody imported from the Hugging Face cache
    return cached.removeprefix("models--").replace("--", "/"), parts[-1] if parts else ""


def _is_renewed(place: Place, bundle: Path, source: Mapping[str, Any]) -> bool:
    """Whether a file of the model at ``place`` is younger than the ``bundle`` that was made of it, as ``source`` says.

    A GGUF file is also as young as its place: an older one may have been moved or linked there.  Where a folder above leads
    elsewhere by now, or another disk is mounted there, it has not the size and the time that it had.
    """
    if place.folder is None:
        return False
    made = (bundle / MANIFEST).stat().st_mtime_ns
    if is_gguf(place.folder):
        parts = parts_of(place.folder)
        return source.get("stamps", stamps_of(parts)) != stamps_of(parts) or any(_placed(path) > made for path in parts)
    files = [path for path in place.folder.glob("*") if path.suffix in (".json", ".safetensors")]
    return any(path.stat().st_mtime_ns > made for path in files)


def _placed(file: Path) -> int:
    """When ``file`` was last written, moved or linked where it is, in nanoseconds."""
    there = file.stat()
    return max(there.st_mtime_ns, there.st_ctime_ns, file.lstat().st_ctime_ns)
