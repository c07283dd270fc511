"""A GGUF file whose blocks are laid out into memory: a bundle that goes with the process."""

from __future__ import annotations

import atexit
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from edge_llm.config import BLOCKS
from edge_llm.convert.allocate import LayerBits
from edge_llm.convert.importer import import_model
from edge_llm.errors import StorageError
from edge_llm.formats.leftovers import WRITING, clear_leftovers, hidden_sibling, lock_folder
from edge_llm.progress import StageProgress
from edge_llm.sources.names import default_name

_MEMORY = Path("/dev/shm")
"""A file system that is in memory, on Linux."""


def import_into_memory(
    file: Path, *, progress: StageProgress | None = None, notice: Callable[[str], None] | None = None
) -> Path:
    """The folder of a bundle of ``file``, in memory where the system has files there; it is removed when this process ends.

    What a killed process left is removed by the next one.  Raises as `import_model`.
    """
    name = default_name(str(file))
    try:
        parent = _own_folder()
        clear_leftovers(parent)
        holder = hidden_sibling(parent / name, WRITING)
        holder.mkdir(mode=0o700)
        lock_folder(holder)  # until the process ends, however it does
    except OSError as error:
        raise StorageError(f"cannot keep `{name}` in memory: {error.strerror}; leave --no-store out") from error
    atexit.register(_remove, holder, os.getpid())
    return import_model(file, target=holder / name, weights=LayerBits(BLOCKS), progress=progress, notice=notice)


def _own_folder() -> Path:
    """The folder of this user, which nobody else can write to."""
    if not os.access(_MEMORY, os.W_OK):
        return Path(tempfile.mkdtemp(prefix="edge-llm-"))
    folder = _MEMORY / f"edge-llm-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077
    return folder if is_own else Path(tempfile.mkdtemp(prefix="edge-llm-", dir=_MEMORY))


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and not a process that was forked from it
        shutil.rmtree(folder, ignore_errors=True)
