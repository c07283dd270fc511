"""The folder of all stored pages: one folder per model, its contents, and which pages are removed first.

A model's folder is named after its identity and holds its pages and `model.json`, which says whose they are.  A page's
time of last use is its file's time of last change.  Processes share the folder without locks: a page that
another process removed is unknown, and the same page written twice is the same file.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edge_llm.errors import EdgeLLMError, StorageError
from edge_llm.kv.pages import PAGE_TOKENS
from edge_llm.kv.prefix_page import PAGE_SUFFIX, is_unfinished, write_whole
from edge_llm.strict_json import read_object

_LABEL = "model.json"
_MAX_LABEL_BYTES = 1 << 16
_BLOCK = 4096
"""Bytes of disk that a file is rounded up to."""
_LATEST_NS = 253_370_764_800 * 10**9
"""The year 9999, the latest that can be printed; a wrong clock may have written any time."""


@dataclass(frozen=True)
class PageFile:
    """A stored page: where it is, its bytes on disk, and when it was last used (nanoseconds since 1970)."""

    path: Path
    nbytes: int
    used_ns: int


@dataclass(frozen=True)
class ModelPages:
    """The stored pages of one model; ``label`` names the model, and is empty when it cannot be read."""

    folder: Path
    label: Mapping[str, str]
    files: tuple[PageFile, ...]

    @property
    def tokens(self) -> int:
        return len(self.files) * PAGE_TOKENS

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files)

    @property
    def used_ns(self) -> int:
        """When a page was last used; 0 without pages."""
        return max((file.used_ns for file in self.files), default=0)


def disk_bytes(nbytes: int) -> int:
    """Bytes of disk that a file of ``nbytes`` takes."""
    return -(-nbytes // _BLOCK) * _BLOCK


def write_label(folder: Path, label: Mapping[str, str]) -> None:
    """Make ``folder`` and write the label of its model.  Raises `OSError`.

    Pages hold what users told the model, so only the owner may read the folder.
    """
    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(folder / _LABEL, f"{json.dumps(dict(label))}\n".encode())


def stored_models(root: Path) -> list[ModelPages]:
    """The stored models below ``root``, by folder name; [] without such a folder."""
    return [ModelPages(folder, _label(folder), tuple(_page_files(folder))) for folder in model_folders(root)]


def stored_pages(root: Path) -> list[PageFile]:
    """The pages of all models below ``root``, least recently used first."""
    return sorted((file for folder in model_folders(root) for file in _page_files(folder)), key=lambda file: file.used_ns)


def prune(root: Path, most_bytes: int) -> list[PageFile]:
    """Remove the least recently used pages of all models until at most ``most_bytes`` are left: the pages removed."""
    files = stored_pages(root)
    excess = sum(file.nbytes for file in files) - most_bytes
    removed: list[PageFile] = []
    for file in files:
        if excess <= 0:
            break
        with contextlib.suppress(OSError):
            file.path.unlink(missing_ok=True)
            excess -= file.nbytes
            removed.append(file)
    return removed


def remove_model(folder: Path) -> None:
    """Remove a model's pages and its folder, the label last; files that are not ours stay, and the folder with them.

    Raises `StorageError` when the disk refuses, after it has removed what it could.
    """
    refused: OSError | None = None
    for path in _ours(folder):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            refused = refused or error
    if refused is not None:
        raise StorageError(f"cannot remove `{refused.filename}`: {refused.strerror}")
    try:
        folder.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise StorageError(f"cannot remove `{folder}`: {error.strerror}") from None


def _ours(folder: Path) -> list[Path]:
    """All files that a store writes into ``folder``: pages, unfinished files, and last the label."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"cannot list `{folder}`: {error.strerror}") from None
    return [folder / name for name in names if name.endswith(PAGE_SUFFIX) or is_unfinished(name)] + [folder / _LABEL]


def model_folders(root: Path) -> list[Path]:
    """The folders of all models below ``root``; [] without such a folder.  Raises `StorageError`."""
    try:
        with os.scandir(root) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StorageError(f"cannot list `{root}`: {error.strerror}; check its permissions") from None


def _page_files(folder: Path) -> Iterator[PageFile]:
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(PAGE_SUFFIX):
                with contextlib.suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    used_ns = min(max(status.st_mtime_ns, 0), _LATEST_NS)
                    yield PageFile(Path(entry.path), disk_bytes(status.st_size), used_ns)


def _label(folder: Path) -> dict[str, str]:
    try:
        fields = read_object(folder / _LABEL, max_bytes=_MAX_LABEL_BYTES)
    except EdgeLLMError:
        return {}
    return {key: value for key, value in fields.items() if isinstance(value, str)}
