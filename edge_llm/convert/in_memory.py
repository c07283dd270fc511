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
        holder = hidden_sibling(parent / name, WRITING)
        holder.mkdir(mode=0o700)
        lock_folder(holder)  # until the process ends, however it does
    except OSError as error:
        raise StorageError(f"cannot keep `{name}` in memory: {error.strerror}; leave --no-store out") from error
    atexit.register(_remove, holder, os.getpid())
    return holder / name


def _parent() -> Path:
    """A folder of this user, which nobody else can write to: the one in memory, or among temporary files."""
    temporary = Path(tempfile.gettempdir())
    for place in (_MEMORY, temporary):
        if os.access(place, os.W_OK) and (folder := _own_folder(place)) is not None:
            return folder
    folder = Path(tempfile.mkdtemp(prefix="edge-llm-", dir=temporary))
    atexit.register(_remove, folder, os.getpid())
    return folder


def _own_folder(place: Path) -> Path | None:
    """The folder of this user in ``place``; None where somebody else has its name, or may write to it."""
    folder = place / f"edge-llm-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if is_own else None


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a process that was forked from it
        shutil.rmtree(folder, ignore_errors=True)
