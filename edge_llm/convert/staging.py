"""A folder that appears whole or not at all.

Work happens in a hidden sibling ``.import-NAME-RANDOM`` of the target, which its process holds locked.  `publish`
renames it into place; leaving without it removes it.  A killed process leaves a folder that nobody holds locked, and
`clear_leftovers` removes those.

    .import-NAME-*    being written: owned by the process that holds its lock; garbage when nobody does
    .replaced-NAME-*  the old target between two renames, where the file system cannot exchange folders;
                      moved back when the target is missing, else garbage
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import secrets
import shutil
from pathlib import Path

from edge_llm.errors import StorageError
from edge_llm.formats.bundle_writer import storage_errors, sync_folder

_WRITING = ".import-"
_REPLACED = ".replaced-"


class Staging:
    """Context manager around one folder in the making; ``path`` is where to write."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.path = target  # until a folder is held
        self._lock = -1

    def __enter__(self) -> Staging:
        with storage_errors(self.target):
            self.target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            while not self._hold_new_folder():
                pass
        return self

    def _hold_new_folder(self) -> bool:
        """Make and lock a folder; false if another import cleared it in between, taking it for a leftover."""
        self.path = self.target.parent / f"{_WRITING}{self.target.name}-{secrets.token_hex(6)}"
        self.path.mkdir(mode=0o700)
        try:
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            # a file system without locks only loses the clearing of leftovers
            with contextlib.suppress(OSError):
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if self.path.stat().st_ino == os.fstat(self._lock).st_ino:
                return True
        except FileNotFoundError:
            pass
        except BaseException:
            self._remove()
            raise
        self._remove()
        return False

    def __exit__(self, *_: object) -> None:
        self._remove()

    def publish(self, *, replace: bool) -> bool:
        """Move the folder into place, durably.  False when something is there and ``replace`` is not set."""
        with storage_errors(self.target):
            if not _move(self.path, self.target):
                if not replace:
                    return False
                _replace(self.path, self.target)
        sync_folder(self.target.parent)
        return True

    def _remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def clear_leftovers(parent: Path) -> None:
    """Remove what killed imports left in ``parent``, and finish a replacement that was cut short."""
    try:
        names = [path.name for path in parent.iterdir()]
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot list `{parent}`: {error.strerror}") from None
    for name in names:
        if name.startswith(_WRITING):
            _remove_unless_locked(parent / name)
        elif name.startswith(_REPLACED):
            target = parent / name.removeprefix(_REPLACED).rpartition("-")[0]
            with contextlib.suppress(OSError):
                if not _move(parent / name, target):
                    shutil.rmtree(parent / name, ignore_errors=True)


def _remove_unless_locked(folder: Path) -> None:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(fd)


def _move(source: Path, target: Path) -> bool:
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    return True


def _replace(source: Path, target: Path) -> None:
    if _exchange(source, target):
        return  # the old folder is now at `source` and goes with it
    aside = target.parent / f"{_REPLACED}{target.name}-{secrets.token_hex(6)}"
    target.rename(aside)
    try:
        source.rename(target)
    except OSError:
        aside.rename(target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Swap two names in one step (Linux renameat2); False where kernel, C library or file system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, exchange = -100, 2
    if renameat2(at_cwd, os.fsencode(first), at_cwd, os.fsencode(second), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(second))
