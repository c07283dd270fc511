"""A folder that appears whole or not at all, and disappears the same way.

Work happens in a hidden sibling of the target, which its process holds locked.  `Staging.publish` renames it into place;
leaving without it removes it.  `discard` hides a folder and then removes it.  What a killed process leaves is named and
cleared by `edge_llm.formats.leftovers`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from edge_llm.errors import StorageError
from edge_llm.formats.leftovers import REMOVED, REPLACED, WRITING, held, hidden_sibling, lock_folder, move
from edge_llm.formats.output import storage_errors, sync_folder


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
        self.path = hidden_sibling(self.target, WRITING)
        self.path.mkdir(mode=0o700)
        try:
            self._lock = lock_folder(self.path)
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
        return publish(self.path, self.target, replace=replace)

    def _remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def publish(folder: Path, target: Path, *, replace: bool) -> bool:
    """Move ``folder`` to ``target``, durably.  False when something is there and ``replace`` is not set.

    What it replaces lies in ``folder`` afterwards, or is gone.
    """
    with storage_errors(target):
        if not move(folder, target):
            if not replace:
                return False
            _replace(folder, target)
    sync_folder(target.parent)
    return True


def discard(target: Path) -> None:
    """Remove the folder ``target``: a rename hides it, then its bytes are deleted.  Raises `StorageError`.

    If it is killed or fails in between, the next start removes what is left.
    """
    if target.is_symlink():  # what it leads to is not ours
        with _removal_errors(target):
            target.unlink()
        return
    with held(target):
        with _removal_errors(target):
            doomed = hidden_sibling(target, REMOVED)
            target.rename(doomed)
            shutil.rmtree(doomed)
        sync_folder(target.parent)


@contextlib.contextmanager
def _removal_errors(target: Path) -> Iterator[None]:
    """Turn an `OSError` inside the block into a `StorageError` about ``target``."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"cannot remove `{target}`: {error.strerror or error}") from None


def _replace(source: Path, target: Path) -> None:
    if _exchange(source, target):
        return  # the old folder is now at `source` and goes with it
    with held(target):
        aside = hidden_sibling(target, REPLACED)
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
