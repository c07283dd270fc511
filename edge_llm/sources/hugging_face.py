"""Hugging Face folders, and the digest that identifies a model."""

from __future__ import annotations

import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.errors import InvalidModel
from edge_llm.files import RegularFile, read_file, shown
from edge_llm.formats.limits import MAX_WEIGHT
from edge_llm.formats.model_folder import SourceFolder, open_model_folder
from edge_llm.formats.safetensors import SafetensorsFile, open_safetensors
from edge_llm.models import load_config
from edge_llm.models.text_part import NOTICE
from edge_llm.progress import StageProgress, ignore
from edge_llm.sources.sentence_transformers import MODULE_WEIGHTS, READING_FILES, module_folders, with_reading
from edge_llm.strict_json import read_object
from edge_llm.text.chat import ChatTemplate
from edge_llm.text.template_files import TOOL_USE, USUAL, read_templates
from edge_llm.text.tokenizer import Tokenizer

DIGESTED = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    TOOL_USE,
    *READING_FILES,
)
"""Files beside the weights that make a model what it is."""
_COPIED = ("tokenizer.json", "tokenizer_config.json", "config.json", "generation_config.json", "special_tokens_map.json")
_MAX_TEXT_FILE = 64 * 2**20
_BLOCK = 8 * 2**20


class HuggingFaceSource:
    """A Hugging Face folder: ``config.json``, safetensors, ``tokenizer.json`` and what stands beside them."""

    def __init__(self, kind: str, path: str, folder: Path) -> None:
        self.kind = kind
        self.path = path
        self.place = str(folder)
        self.folder = folder
        self._weights = self._open_weights(folder)
        self._heads: dict[str, SafetensorsFile] = {}
        """What stands behind the pooling, by its folders."""
        try:
            self.config = with_reading(self._read_config(self._weights.config), folder)
            files = [found for name in (*DIGESTED, *self._beside()) if (found := folder / name).exists()]
            for path in module_folders(folder):
                self._heads[path] = open_safetensors(folder / path / MODULE_WEIGHTS)
            beside = [one.path for one in self._heads.values() if one.path not in files]
            self._files = files + beside + self._weights.files
            self._prefix = "model." if "embed_tokens.weight" in self._weights.names() else ""
            """What names lack that were written without the head, as those of Qwen3-Embedding."""
            self._stamps = [stamp(file) for file in self._files]
        except BaseException:
            self.close()
            raise

    def _open_weights(self, folder: Path) -> SourceFolder:
        return open_model_folder(folder)

    def _read_config(self, raw: dict[str, Any]) -> ModelConfig:
        return load_config(raw)

    def _beside(self) -> tuple[str, ...]:
        """Files beside those of any folder that make the model what it is."""
        return ()

    @property
    def told(self) -> tuple[str, ...]:
        """What a person should know of it, a line at a time."""
        return (NOTICE,) if self._weights.is_part else ()

    def names(self) -> list[str]:
        beside = [f"{path}/{name}" for path, file in self._heads.items() for name in file.tensors]
        return [*(self._prefix + name for name in self._weights.names()), *beside]

    def shape(self, name: str) -> tuple[int, ...]:
        path, _, inside = name.partition("/")
        if path in self._heads:
            return self._heads[path].tensors[inside].shape
        return self._weights.shape(name.removeprefix(self._prefix))

    def read(self, name: str) -> np.ndarray:
        path, _, inside = name.partition("/")
        if path in self._heads:
            return self._heads[path].read(inside, most=MAX_WEIGHT)
        return self._weights.read(name.removeprefix(self._prefix))

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_folder(self.folder, self.config.vocab_size)

    def template(self, tokenizer: Tokenizer) -> ChatTemplate:
        return ChatTemplate.from_folder(self.folder, tokenizer)

    def generation_config(self) -> dict[str, Any]:
        path = self.folder / "generation_config.json"
        return read_object(path) if path.exists() else {}

    def side_files(self) -> dict[str, bytes]:
        copied = [name for name in _COPIED if (self.folder / name).exists()]
        files = {name: read_file(self.folder / name, _MAX_TEXT_FILE).removeprefix(BOM_UTF8) for name in copied}
        if self._weights.is_part:
            files["config.json"] = json.dumps(self._weights.config, indent=2, ensure_ascii=False).encode()
        found = read_templates(self.folder)
        templates = {USUAL: found.usual, TOOL_USE: found.tool_use}
        return files | {name: template.encode() for name, template in templates.items() if template is not None}

    def digest(self, progress: StageProgress = ignore) -> str:
        return digest_files(self._files, progress)

    def check_unchanged(self) -> None:
        for path, before in zip(self._files, self._stamps, strict=True):
            if stamp(path) != before:
                raise InvalidModel(f"`{shown(path)}` changed during the import; import it again")

    def close(self) -> None:
        self._weights.close()
        for file in self._heads.values():
            file.close()

    def __enter__(self) -> HuggingFaceSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def stamp(path: Path) -> tuple[int, int, int]:
    """What changes when a file is written or replaced: inode, size and time; zeros if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_size, status.st_mtime_ns)


def stamps_of(files: Sequence[Path]) -> str:
    """The sizes and times of ``files``, which tell other contents under the same names; inodes change with what is mounted."""
    return ", ".join(f"{size} bytes of {time}" for _, size, time in map(stamp, files))


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
