"""How a model's files are opened: regular files only, bounded, read with ``pread``, never mapped.

Knows the operating system and the error tree, nothing of formats.  A model folder is untrusted input: a FIFO, a
device or a folder in a file's place is refused before anything blocks, and every read is checked against the size
that the file had when it was opened.  Symbolic links are followed (the Hugging Face cache is made of them); what
they lead to must be a regular file.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

from edge_llm.errors import (
    TOO_MANY_FILES,
    EdgeLLMError,
    InvalidModel,
    ModelNotFound,
    StorageError,
    UsageError,
    is_too_many_files,
)

if TYPE_CHECKING:  # whoever only names or reads a small file need not wait for it
    import numpy as np

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def shown(value: object, limit: int = 120) -> str:
    """One printable line for an error message: control characters escaped, long values cut in the middle."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 512:
        return f"a {value.bit_length()}-bit integer"
    text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if len(text) > limit:
        text = f"{text[: limit * 2 // 3]}...{text[-limit // 4 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


_JOINERS = "\u200c\u200d"
"""Between letters of Persian and Indic scripts, and inside of emoji; they move no cursor."""


def printable(text: str) -> str:
    """``text`` without control characters: what comes from a model must not move the cursor or talk to the terminal.

    Texts are kept as they came.  Whoever gives one to a widget, the clipboard or the terminal makes it printable there, once.
    """
    lines = text.replace("\u2028", "\n").replace("\u2029", "\n")
    kept = "\n\t" + _JOINERS
    return "".join(char for char in lines if char.isprintable() or char in kept or unicodedata.category(char) == "Zs")


def storable(text: str) -> str:
    """``text`` without halves of surrogate pairs, which have no UTF-8, and without NULs, at which SQLite stops to look."""
    return text.encode("utf-8", "replace").decode().replace("\0", "\ufffd")


def one_line(text: str) -> str:
    """``text`` as one printable line, as for a title: a space stands for what cannot be in it."""
    return " ".join("".join(char if char.isprintable() or char in _JOINERS else " " for char in text).split())


def status(path: Path) -> os.stat_result | None:
    """What the system knows of ``path``; None when nothing is there.  Raises `StorageError` when it may not be seen."""
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL inside
        return None
    except OSError as failure:
        raise StorageError(f"cannot look at `{shown(path)}`: {failure.strerror}; check its permissions") from None


def is_folder(path: Path) -> bool:
    """Whether a folder is at ``path``.  Raises `StorageError` when it may not be seen."""
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class RegularFile:
    """An open regular file that must not change while it is read.

    Raises ``error`` when it is not a regular file, `ModelNotFound` where nothing is there and `StorageError` when the system
    refuses.  Where the ``error`` is `UsageError`, whoever asked named the file, and one that cannot be opened is misuse too.
    Close it when done; reads are positional, so threads may share it.
    """

    def __init__(self, path: Path, *, error: type[EdgeLLMError] = InvalidModel) -> None:
        self.path = path
        self._error = error
        self._fd = -1
        try:
            self._require_regular(path.stat())  # before open: opening a device may already do something
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            status = os.fstat(self._fd)
            self._require_regular(status)
        except BaseException as failure:
            self.close()
            if isinstance(failure, (OSError, ValueError)):
                raise _open_error(path, failure, is_named=error is UsageError) from None
            raise
        self.size = status.st_size
        self._modified = status.st_mtime_ns

    def _require_regular(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a file")
            raise self._error(f"`{shown(self.path)}` is {kind}; a regular file is needed")

    def read_into(self, out: np.ndarray, offset: int) -> None:
        """Fill ``out`` (uint8, contiguous) with the bytes at ``offset``; all of them or an error."""
        self._fill(out.data, offset)

    def _fill(self, view: memoryview, offset: int) -> None:
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as failure:
                raise StorageError(f"cannot read `{shown(self.path)}`: {failure.strerror}; check the disk") from None
            if got == 0:
                raise self._error(
                    f"`{shown(self.path)}` ends at byte {offset + done}, {len(view) - done} bytes too early; "
                    "it is truncated: copy or download it again"
                )
            done += got

    def read(self, count: int, offset: int = 0) -> bytes:
        """The ``count`` bytes at ``offset``."""
        out = bytearray(count)
        self._fill(memoryview(out), offset)
        return bytes(out)

    def check_unchanged(self) -> None:
        """Refuse a file that was truncated, extended or rewritten since it was opened."""
        status = os.fstat(self._fd)
        if (status.st_size, status.st_mtime_ns) != (self.size, self._modified):
            raise self._error(f"`{shown(self.path)}` changed while it was being read; load it again")

    def close(self) -> None:
        """Give the descriptor back; more than once is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> RegularFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_file(path: Path, limit: int, *, error: type[EdgeLLMError] = InvalidModel) -> bytes:
    """The whole of a small file; more than ``limit`` bytes raises ``error``."""
    with RegularFile(path, error=error) as file:
        if file.size > limit:
            raise error(f"`{shown(path)}` has {file.size} bytes; at most {limit} are read")
        return file.read(file.size)


def _open_error(path: Path, failure: OSError | ValueError, *, is_named: bool) -> EdgeLLMError:
    missing, refused = (UsageError, UsageError) if is_named else (ModelNotFound, StorageError)
    if isinstance(failure, (FileNotFoundError, NotADirectoryError)):
        return missing(f"no file `{shown(path)}`; check the path")
    if is_too_many_files(failure):
        return StorageError(f"cannot open `{shown(path)}`: {TOO_MANY_FILES}")
    if isinstance(failure, OSError):
        way_out = "check its permissions" if isinstance(failure, PermissionError) else "check the path"
        return refused(f"cannot open `{shown(path)}`: {failure.strerror or failure}; {way_out}")
    return missing(f"`{shown(path)}` is not a possible file name; check the path")  # NUL inside


def write_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write or replace the file: all of it or, where the disk is full or the process is killed, nothing.  Raises `OSError`."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
