"""Files that are written from front to back, and what goes wrong meanwhile in the words of `StorageError`."""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path

import numpy as np

from edge_llm.errors import StorageError


class Output:
    """A file of mode 0600 that is written from front to back: a new one, or one of which the first bytes are kept."""

    def __init__(self, path: Path, kept: int = 0) -> None:
        self._path = path
        new = os.O_CREAT | os.O_EXCL if not kept else 0
        with storage_errors(path):
            self._fd = os.open(path, os.O_WRONLY | new | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._close = weakref.finalize(self, os.close, self._fd)
        with storage_errors(path):
            os.ftruncate(self._fd, kept)
            os.lseek(self._fd, kept, os.SEEK_SET)

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes | np.ndarray) -> None:
        """Append bytes, or an array uint8 [n]."""
        view = memoryview(data) if isinstance(data, bytes) else data.data
        with storage_errors(self._path):
            while view:
                view = view[os.write(self._fd, view[: 2**30]) :]

    def sync(self) -> None:
        with storage_errors(self._path):
            os.fsync(self._fd)

    def close(self) -> None:
        self._close()


class storage_errors:  # noqa: N801  (a context manager, read as a phrase)
    """Turn an `OSError` inside the block into a `StorageError` that names ``path``."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageError(
                    f"no space left for `{self._path}`; free some, or set EDGE_LLM_HOME to a folder on another disk"
                ) from None
            raise StorageError(f"cannot write `{self._path}`: {error.strerror or error}") from None


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    with storage_errors(folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
