"""Room for a bundle that goes with the process."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from edge_llm.errors import StorageError
from edge_llm.formats.leftovers import WRITING, clear_leftovers, hidden_sibling, lock_folder

_MEMORY = Path("/dev/shm")
"""A file system that is in memory, on Linux."""


def room_in_memory(name: str) -> Path:
    """Where a bundle called ``name`` can be written that is removed when this process ends.

    It is in memory, where the system has files there.  What a killed process left is removed by the next one.  Raises
    `StorageError`.
    """
    try:
        parent = _parent()
        clear_leftovers(parent)
        holder = _held_folder(parent / name)
    except OSError as error:
        raise StorageError(f"cannot keep `{name}` in memory: {error.strerror}; leave --no-store out") from error
    atexit.register(_remove, holder, os.getpid())
    return holder / name


def clear_memory() -> None:
    """Remove what killed processes left in memory, as far as possible."""
    for place in _places():
        folder = _folder_in(place)
        with contextlib.suppress(OSError):
            if _is_own(folder):
                clear_leftovers(folder)


def _held_folder(target: Path) -> Path:
    """A new hidden folder beside ``target``, locked until the process ends, however it does."""
    while True:
        folder = hidden_sibling(target, WRITING)
        folder.mkdir(mode=0o700)
        with contextlib.suppress(FileNotFoundError):  # another process has just taken it for a leftover
            lock = lock_folder(folder)
            if folder.exists():
                return folder
            os.close(lock)


def _places() -> tuple[Path, ...]:
    return _MEMORY, Path(tempfile.gettempdir())


def _folder_in(place: Path) -> Path:
    return place / f"edge-llm-{os.getuid()}"


def _parent() -> Path:
    """A folder of this user, which nobody else can write to: the one in memory, or among temporary files."""
    for place in _places():
        if os.access(place, os.W_OK) and (folder := _own_folder(place)) is not None:
            return folder
    folder = Path(tempfile.mkdtemp(prefix="edge-llm-", dir=tempfile.gettempdir()))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _own_folder(place: Path) -> Path | None:
    """The folder of this user in ``place``; None where somebody else has its name, or may write to it."""
    folder = _folder_in(place)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder if _is_own(folder) else None


def _is_own(folder: Path) -> bool:
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a process that was forked from it
        shutil.rmtree(folder, ignore_errors=True)
