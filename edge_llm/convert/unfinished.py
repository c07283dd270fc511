"""The folder in which an import works: its bundle in the making, and what it has found out so far.

    .stopped-NAME/job.saved      which import this is
                  *.saved        what it has found out (`saved`)
                  owner          the number of the process that is at work
                  bundle/        what will be the bundle

It stays when the import is stopped by Ctrl-C, a kill or a full disk.  The same import then goes on from there; another
one of the same name removes it.  Who is at work holds the folder locked, and a second import of the name is refused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from edge_llm.convert.saved import Saved
from edge_llm.convert.staging import publish
from edge_llm.errors import EdgeLLMError, StorageError, Unavailable
from edge_llm.files import folder_bytes
from edge_llm.formats.leftovers import WRITING, hidden_sibling, lock_folder, lock_if_free, stopped_folder
from edge_llm.formats.output import storage_errors

_JOB = "job"
_BUNDLE = "bundle"
_OWNER = "owner"
_LOOKS, _PAUSE = 10, 0.05
"""Tries, and the seconds between them: listing or removing a stopped import locks its folder for a moment."""


def refuse_second(target: Path) -> None:
    """Raise `Unavailable` where an import of ``target`` is at work; what a killed one left is in nobody's way."""
    with contextlib.suppress(OSError):  # nothing is there, or the file system has no locks
        os.close(_wait_for_lock(target))


def _wait_for_lock(target: Path) -> int:
    """A descriptor that locks the folder of an import of ``target``.

    Raises `Unavailable` where another process holds it, and `OSError` where there is no folder or no lock.
    """
    folder = stopped_folder(target)
    for look in range(_LOOKS):
        time.sleep(_PAUSE if look else 0)
        lock = lock_if_free(folder)
        if lock is not None:
            return lock
    raise Unavailable(
        f"another import of `{target.name}` is at work{_owner(folder)}; wait until it ends, or choose another `--name`"
    )


def _owner(folder: Path) -> str:
    try:
        return f" (process {int((folder / _OWNER).read_bytes()[:20])})"
    except (OSError, ValueError):  # it has not said so yet
        return ""


class Unfinished:
    """Context manager around the import that the facts of ``job`` tell from others.

    tell: told what was found and what stays.
    """

    def __init__(self, target: Path, job: Mapping[str, str], tell: Callable[[str], None]) -> None:
        self.target = target
        self._job = job
        self._tell = tell
        self._lock = -1
        self._may_stay = True
        self._use(target)  # until a folder is held

    def _use(self, folder: Path) -> None:
        self.folder = folder
        self.saved = Saved(folder)
        self.bundle = folder / _BUNDLE

    def __enter__(self) -> Unfinished:
        with storage_errors(self.target):
            self.target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            while not self._hold():
                pass
        try:
            self._begin()
        except BaseException:
            self._close(stays=self._is_worth_keeping())
            raise
        return self

    def _hold(self) -> bool:
        """Make and lock a folder; false if somebody removed it in between."""
        self._use(stopped_folder(self.target) if self._may_stay else hidden_sibling(self.target, WRITING))
        self.folder.mkdir(mode=0o700, exist_ok=self._may_stay)
        try:
            lock = self._lock_folder()
            if lock is None:
                self._may_stay = False
                return False
            self._lock = lock
            if self.folder.stat().st_ino == os.fstat(lock).st_ino:
                return True
        except FileNotFoundError:
            pass
        self._unlock()
        return False

    def _lock_folder(self) -> int | None:
        """The lock; None where the file system has none: what stays must have one owner."""
        if not self._may_stay:
            return lock_folder(self.folder)
        try:
            return _wait_for_lock(self.target)
        except FileNotFoundError:
            raise
        except OSError:
            shutil.rmtree(self.folder, ignore_errors=True)
            return None

    def _begin(self) -> None:
        """Go on with what lies here, if it is of this import."""
        if self.saved.load(_JOB) != dict(self._job):
            if any(self.folder.iterdir()):
                self._tell(f"removing what another import of `{self.target.name}` left when it was stopped")
            self._clear()
            self.saved.save(_JOB, self._job)
        elif self._is_worth_keeping():
            self._tell(f"an import of `{self.target.name}` was stopped; this one goes on from there")
        with storage_errors(self.bundle):
            (self.folder / _OWNER).write_text(str(os.getpid()))
            self.bundle.mkdir(mode=0o700, exist_ok=True)

    def _clear(self) -> None:
        with storage_errors(self.folder):
            for path in list(self.folder.iterdir()):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def publish(self, *, replace: bool) -> bool:
        """Move the bundle into place, durably.  False when something is there and ``replace`` is not set."""
        return publish(self.bundle, self.target, replace=replace)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        stopped = error is not None and (isinstance(error, StorageError) or not isinstance(error, EdgeLLMError))
        stays = stopped and self._may_stay and self._is_worth_keeping()
        self._close(stays=stays)
        if stays:
            self._tell(
                f"progress on `{self.target.name}` is saved ({folder_bytes(self.folder) / 2**20:.1f} MiB): the same import "
                f"goes on from there, `--fresh` starts anew, and `edge-llm rm {self.target.name}` removes it"
            )

    def _is_worth_keeping(self) -> bool:
        """Whether anything was found out."""
        return len(list(self.folder.glob("*.saved"))) > 1

    def _close(self, *, stays: bool) -> None:
        if not stays:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
