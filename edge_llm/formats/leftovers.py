"""Hidden folders beside the models: what is being written, replaced or removed, and what a killed process left of that.

    .import-NAME-*    being written
    .stopped-NAME     an import that may go on where it stopped, or is at work; it goes with `edge-llm rm NAME`
    .removed-NAME-*   being removed
    .replaced-NAME-*  the old folder between two renames, where the file system cannot exchange folders;
                      moved back when its place is empty, else garbage

The process at work holds its folder locked, so one that nobody holds is a leftover, and the next start removes it, all but
imports that may go on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

WRITING = ".import-"
STOPPED = ".stopped-"
REMOVED = ".removed-"
REPLACED = ".replaced-"
_OLD_REMOVED = re.compile(r"\..+\.removed")
"""As it was named before folders were locked."""


def hidden_sibling(target: Path, kind: str) -> Path:
    """A new hidden name beside ``target``."""
    return target.parent / f"{kind}{target.name}-{secrets.token_hex(6)}"


def lock_folder(folder: Path) -> int:
    """A descriptor that holds ``folder`` locked until it is closed.  Raises `OSError`.

    A file system without locks only loses the clearing of leftovers.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with contextlib.suppress(OSError):
        fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold ``folder`` locked inside the block, under whatever name; what cannot be locked is not."""
    fd = -1
    with contextlib.suppress(OSError):
        fd = lock_folder(folder)
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def clear_leftovers(parent: Path) -> None:
    """Remove what killed processes left in ``parent``, and finish a replacement that was cut short, as far as possible."""
    try:
        names = [path.name for path in parent.iterdir()]
    except OSError:
        return  # not there, or not ours: whoever needs it says so
    for name in names:
        if name.startswith((WRITING, REMOVED)) or _OLD_REMOVED.fullmatch(name):
            _unless_held(parent / name, _remove)
        elif name.startswith(REPLACED):
            _unless_held(parent / name, _put_back)


def stopped_folder(target: Path) -> Path:
    """Where an import of ``target`` is at work."""
    return target.parent / f"{STOPPED}{target.name}"


def stopped_imports(parent: Path) -> dict[str, Path]:
    """The folders of imports in ``parent`` that stopped and may go on, by their models' names."""
    free: list[Path] = []
    with contextlib.suppress(OSError):
        for folder in sorted(parent.iterdir()):
            if folder.name.startswith(STOPPED):
                _unless_held(folder, free.append)
    return {folder.name.removeprefix(STOPPED): folder for folder in free}


def remove_stopped(target: Path) -> bool:
    """Remove what a stopped import of ``target`` left; false if there is none, or it is at work."""
    folder = stopped_imports(target.parent).get(target.name)
    if folder is not None:
        _unless_held(folder, _remove)
    return folder is not None


def lock_if_free(folder: Path) -> int | None:
    """A descriptor that holds ``folder`` locked until it is closed; None where somebody else does.  Raises `OSError`."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        os.close(fd)
        raise
    return fd


def _unless_held(folder: Path, act: Callable[[Path], None]) -> None:
    with contextlib.suppress(OSError):
        fd = lock_if_free(folder)
        if fd is None:
            return
        try:
            act(folder)
        finally:
            os.close(fd)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _put_back(folder: Path) -> None:
    target = folder.parent / folder.name.removeprefix(REPLACED).rpartition("-")[0]
    if not move(folder, target):
        _remove(folder)


def move(source: Path, target: Path) -> bool:
    """Rename a folder; False when its new place is taken."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    return True
