"""Hugging Face models: a folder or a hub id, and the digest that identifies a model."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.errors import InvalidModel, ModelNotFound, StorageError, UnsupportedModel, UsageError
from edge_llm.files import RegularFile, read_file, shown
from edge_llm.formats.safetensors import open_model_folder
from edge_llm.models import load_config
from edge_llm.paths import expanded, safe_name
from edge_llm.progress import StageProgress, ignore
from edge_llm.strict_json import read_object
from edge_llm.text.chat import ChatTemplate, find_template
from edge_llm.text.tokenizer import Tokenizer

DIGESTED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
)
"""Files beside the weights that make a model what it is."""
_COPIED = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json")
_MAX_TEXT_FILE = 64 * 2**20
_BLOCK = 8 * 2**20
_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}")


class HuggingFaceSource:
    """A Hugging Face folder: ``config.json``, safetensors, ``tokenizer.json`` and what stands beside them."""

    def __init__(self, kind: str, path: str, folder: Path) -> None:
        self.kind = kind
        self.path = path
        self.place = str(folder)
        self.folder = folder
        self._weights = open_model_folder(folder)
        try:
            self.config = load_config(self._weights.config)
            files = [found for name in DIGESTED if (found := folder / name).exists()]
            self._files = files + self._weights.files
            self._stamps = [stamp(file) for file in self._files]
        except BaseException:
            self._weights.close()
            raise

    def names(self) -> list[str]:
        return self._weights.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._weights.shape(name)

    def read(self, name: str) -> np.ndarray:
        return self._weights.read(name)

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_folder(self.folder, self.config.vocab_size)

    def template(self, tokenizer: Tokenizer) -> ChatTemplate:
        return ChatTemplate.from_folder(self.folder, tokenizer)

    def generation_config(self) -> dict[str, Any]:
        path = self.folder / "generation_config.json"
        return read_object(path) if path.exists() else {}

    def side_files(self) -> dict[str, bytes]:
        copied = [name for name in _COPIED if (self.folder / name).exists()]
        files = {name: read_file(self.folder / name, _MAX_TEXT_FILE) for name in copied}
        template = find_template(self.folder)
        return files if template is None else files | {"chat_template.jinja": template.encode()}

    def digest(self, progress: StageProgress = ignore) -> str:
        return digest_files(self._files, progress)

    def check_unchanged(self) -> None:
        for path, before in zip(self._files, self._stamps, strict=True):
            if stamp(path) != before:
                raise InvalidModel(f"`{shown(path)}` changed during the import; import it again")

    def close(self) -> None:
        self._weights.close()

    def __enter__(self) -> HuggingFaceSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def claims(source: str) -> bool:
    """Always: `open` refuses what is not a model."""
    return True


def open(source: str | Path, *, revision: str | None = None, progress: StageProgress = ignore) -> HuggingFaceSource:
    """Open the folder that ``source`` names; a hub id is downloaded first.  See `edge_llm.sources.open_source`."""
    return HuggingFaceSource(*find_folder(source, revision, progress))


def default_name(source: str | Path) -> str:
    """The name for ``source`` when none is given: its last part, as a legal bundle name."""
    path = expanded(source)
    cached = next((part for part in path.parts if part.startswith("models--")), None)  # a Hugging Face cache
    last = cached.split("--")[-1] if cached else path.absolute().name
    legal = re.sub(r"[^A-Za-z0-9._-]+", "-", last).strip("-._")[:96]
    if not legal:
        raise UsageError(f"`{shown(source)}` gives no usable model name; choose one with `--name`", param="name")
    return safe_name(legal)


def find_folder(source: str | Path, revision: str | None = None, progress: StageProgress = ignore) -> tuple[str, str, Path]:
    """Kind (folder or hub), name and folder of ``source``; a hub id is downloaded first."""
    text = str(source)
    if not text.strip():
        raise UsageError("the source is empty; give a Hugging Face folder (`.` is this one) or a hub id", param="source")
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
        return "folder", absolute, path.absolute()
    if exists:
        raise UsageError(f"`{shown(text)}` is a file; give the folder that holds config.json", param="source")
    if isinstance(source, str) and _HUB_ID.fullmatch(text):
        from edge_llm.sources.hub import pull

        folder = pull(text, revision, progress)
        return "hub", f"{text}@{folder.name}", folder
    raise ModelNotFound(
        f"no model folder `{shown(text)}`; give a Hugging Face folder, or a hub id such as `Qwen/Qwen2.5-0.5B-Instruct`"
    )


def stamp(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written or replaced: inode, size and time; zeros if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def digest_files(files: list[Path], progress: StageProgress = ignore) -> str:
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
