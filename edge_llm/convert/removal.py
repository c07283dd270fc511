"""Models that leave, and models that get a second name: whole, or not at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from edge_llm.convert.staging import Staging, discard
from edge_llm.errors import ModelNotFound, UsageError
from edge_llm.files import is_folder, shown
from edge_llm.formats.leftovers import remove_stopped
from edge_llm.formats.output import storage_errors, sync_folder
from edge_llm.kv.prefix_folder import remove_model, stored_models
from edge_llm.paths import BUILTIN_MODEL_NAME, bundle_path, model_folders, prefix_cache_folder


def remove(folder: Path) -> tuple[bool, bool]:
    """Remove the model in ``folder`` and what is kept of it; whether a stopped import was there, and whether the model was.

    Raises `StorageError`.
    """
    stopped, there = remove_stopped(folder), is_folder(folder)
    if there:
        _forget_prefixes(folder)  # first: pages of a model that is gone would wait for somebody to prune them
        discard(folder)
    return stopped, there


def refuse_builtin(name: str, param: str) -> None:
    """Raise `UsageError` for the built-in model's name."""
    if name == BUILTIN_MODEL_NAME:
        raise UsageError("the built-in model is part of the program and cannot be removed", param=param)


def copy(source: str, name: str) -> Path:
    """The folder of a model ``name`` with the content of ``source``: the same files by hard links, where the disk has them.

    Raises `ModelNotFound`, `UsageError` for a name that is none or taken, `StorageError`.
    """
    folder, target = dict(model_folders()).get(source), bundle_path(name)
    if folder is None:
        raise ModelNotFound(f"no model `{shown(source)}` is here", model=source)
    taken = UsageError(f"a model is called `{name}` already; remove it first, or choose another name", param="destination")
    if name == BUILTIN_MODEL_NAME or is_folder(target):
        raise taken
    with Staging(target) as staging:
        with storage_errors(target):
            shutil.copytree(folder, staging.path, copy_function=_link_or_copy, dirs_exist_ok=True)
        sync_folder(staging.path)
        if not staging.publish(replace=False):
            raise taken
    return target


def _link_or_copy(source: str, target: str) -> str:
    try:
        os.link(source, target)
    except OSError:
        return shutil.copy2(source, target)
    return target


def _forget_prefixes(folder: Path) -> None:
    """Remove the pages that are kept of the model in ``folder``, and the pages whose model is unknown."""
    for kept in stored_models(prefix_cache_folder()):
        if kept.label.get("bundle", str(folder)) == str(folder):
            remove_model(kept.folder)
