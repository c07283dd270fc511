"""The only file that knows folders and environment variables.

``EDGE_LLM_HOME`` moves everything (models, history, caches); without it the platform's user data folder is used.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from edge_llm.errors import ModelNotFound, StorageError, UsageError

BUILTIN_MODEL_NAME = "builtin"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}")


def home() -> Path:
    """Folder of everything that edge-llm keeps for this user (it may not exist yet).

    Raises `StorageError`, as all of this file's folders do, when something else has its place.
    """
    chosen = os.environ.get("EDGE_LLM_HOME")
    if chosen:
        return _possible_folder(Path(chosen).expanduser().absolute())
    from platformdirs import user_data_path

    return _possible_folder(user_data_path("edge-llm", appauthor=False))


def models_folder() -> Path:
    """Folder that holds one bundle folder per imported model."""
    return _possible_folder(home() / "models")


def synthetic_folder() -> Path:
    """Folder of the random models that are measured."""
    return _possible_folder(home() / "synthetic")


def prefix_cache_folder() -> Path:
    """Folder of the keys and values that are kept for the next start: one folder per model inside."""
    return _possible_folder(home() / "prefix-cache")


def _possible_folder(folder: Path) -> Path:
    """``folder`` if it is one or can be made."""
    nearest = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not nearest.is_dir():
        raise StorageError(f"`{nearest}` is not a folder; move it away, or set EDGE_LLM_HOME to a folder")
    return folder


def builtin_bundle() -> Path:
    """The bundle that ships inside the package."""
    return Path(__file__).parent / "builtin"


def safe_name(name: str) -> str:
    """Return ``name`` if it can be a bundle's folder name; a path or an odd character raises `UsageError`."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"`{name}` cannot be a model name; use up to 96 letters, digits, '.', '_' or '-', "
            "starting with a letter or digit",
            param="name",
        )
    return name


def bundle_path(name: str) -> Path:
    """Folder of the bundle called ``name`` (existing or not)."""
    return models_folder() / safe_name(name)


def find_bundle(model: str | Path | None) -> Path:
    """The bundle folder that ``model`` names: a name given at import, a path to a bundle, or the built-in model."""
    if model is None or str(model) == BUILTIN_MODEL_NAME:
        return builtin_bundle()
    path = Path(model).expanduser()
    looks_like_path = isinstance(model, Path) or os.sep in model or path.is_dir()
    folder = path if looks_like_path else bundle_path(str(model))
    if (folder / "manifest.json").is_file():
        return folder
    if (folder / "config.json").is_file() or folder.suffix == ".gguf":
        raise ModelNotFound(f"`{model}` is not imported yet; run `edge-llm import {model} --name NAME` first")
    raise ModelNotFound(f"no model `{model}`; `edge-llm list` shows what is here, `edge-llm import SOURCE` adds one")
