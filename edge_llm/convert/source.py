"""Where a model comes from: a Hugging Face folder or the hub, and the digest that tells it from others."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_llm.errors import ModelNotFound, StorageError, UnsupportedModel, UsageError
from edge_llm.files import RegularFile, shown
from edge_llm.paths import expanded, safe_name

Progress = Callable[[str, int, int], None]
"""Called as (stage, done, total).  Stages: download and digest (bytes), layers, output, copy, unchanged."""

DIGESTED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""Files beside the weights that make a model what it is."""
_BLOCK = 8 * 2**20
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")


@dataclass(frozen=True)
class Origin:
    """Where a model comes from."""

    kind: str
    """folder or hub."""
    path: str
    """What the user named: an absolute path, or a hub id with its revision."""
    folder: Path


def ignore(*_: object) -> None:
    pass


def default_name(source: str | Path) -> str:
    """The name for ``source`` when none is given: its last part, as a legal bundle name."""
    path = expanded(source)
    cached = next((part for part in path.parts if part.startswith("models--")), None)  # a Hugging Face cache
    last = cached.split("--")[-1] if cached else path.absolute().name
    legal = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._")[:96]
    if not legal:
        raise UsageError(f"`{shown(source)}` gives no usable model name; choose one with `--name`", param="name")
    return safe_name(legal)


def find_source(source: str | Path, revision: str | None = None, progress: Progress = ignore) -> Origin:
    """Find the model folder that ``source`` names; a hub id is downloaded."""
    text = str(source)
    path = expanded(text)
    try:
        exists, is_folder = path.exists(), path.is_dir()
        is_bundle = (path / "manifest.json").exists() and not (path / "model.safetensors").exists()
    except PermissionError as error:
        raise StorageError(f"cannot look into `{shown(text)}`: {error.strerror}; check its permissions") from None
    except (OSError, ValueError):  # a name that is too long, or with NUL inside
        raise ModelNotFound(f"no model at `{shown(text)}`; check the path") from None
    if path.suffix.lower() == ".gguf" and (exists or not _HUB_ID.fullmatch(text)):
        if not exists:
            raise ModelNotFound(f"no file `{shown(text)}`; check the path")
        raise UnsupportedModel(
            f"`{shown(text)}` is a GGUF file; importing those is planned but not there yet: import the Hugging Face "
            "folder (config.json and safetensors) that it was made from"
        )
    if is_folder:
        if is_bundle:
            raise UsageError(f"`{shown(text)}` is an imported model already; use it by its path or name")
        try:
            absolute = str(path.absolute())
            absolute.encode()
        except UnicodeEncodeError:
            raise UsageError(f"the folder name `{shown(text)}` is not UTF-8; rename it") from None
        return Origin("folder", absolute, path.absolute())
    if exists:
        raise UsageError(f"`{shown(text)}` is a file; give the folder that holds config.json", param="source")
    if isinstance(source, str) and _HUB_ID.fullmatch(text):
        from edge_llm.convert.hub import pull

        folder = pull(text, revision, progress)
        return Origin("hub", f"{text}@{folder.name}", folder)
    raise ModelNotFound(
        f"no model folder `{shown(text)}`; give a Hugging Face folder, or a hub id such as `Qwen/Qwen2.5-0.5B-Instruct`"
    )


def stamp(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written or replaced: inode, size and time; zeros for no file."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def digest_files(files: list[Path], progress: Progress = ignore) -> str:
    """SHA-256 over the names, sizes and contents of ``files``."""
    opened = []
    try:
        for path in files:
            opened.append(RegularFile(path))
        total = sum(file.size for file in opened)
        digest = hashlib.sha256()
        done = 0
        for file in opened:
            digest.update(json.dumps([file.path.name, file.size]).encode())
            for start in range(0, file.size, _BLOCK):
                block = np.empty(min(_BLOCK, file.size - start), np.uint8)
                file.read_into(block, start)
                digest.update(block.data)
                done += len(block)
                progress("digest", done, total)
        return f"sha256:{digest.hexdigest()}"
    finally:
        for file in opened:
            file.close()
