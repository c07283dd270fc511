"""Pages of keys and values on disk: a beginning that was computed once is known after a restart and to other processes.

Reading is done by the caller, writing behind its back on one thread: a process that is killed loses what was not written
yet and nothing else, because a page is a file that appears whole (`kv.prefix_page`).  Everything that goes wrong with the
disk ends as a page that is not known; `StoreCounts` says how often.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from edge_llm.errors import StorageError
from edge_llm.formats.bundle_writer import sync_folder
from edge_llm.kv.prefix_folder import disk_bytes, model_folders, prune, stored_pages, write_label
from edge_llm.kv.prefix_page import PAGE_SUFFIX, Page, clear_leftovers, page_file_bytes, pages_of, read_page, write_page

QUEUE_BYTES = 64 << 20
"""Most data that waits to be written; what comes on top is not kept on disk this time."""
PIECE_PAGES = 32
"""Pages that are read at a time: a few megabytes, which are still in the CPU's cache when they are put in place."""
TOUCH_SECONDS = 60.0
"""A page's time of last use is renewed at most so often."""
_KEEP = 0.9
"""Share of the budget that is left when room is made, so that room is rarely made."""
_PAGE_APART_NS = 1000
"""The pages of a text were used so far apart, the last of them first: a beginning outlives its end."""
_NOT_A_PAGE = {errno.ELOOP, errno.EISDIR, errno.ESPIPE, errno.ENXIO, errno.EINVAL, errno.EIO}


@dataclass
class StoreCounts:
    """What happened since the store was opened, in pages; ``problem`` is the last thing that the disk refused."""

    read: int = 0
    damaged: int = 0
    """Not what they must be, and removed."""
    dropped: int = 0
    """Not written, because too much was waiting."""
    written: int = 0
    failed: int = 0
    """Not written, because the disk refused."""
    pruned: int = 0
    problem: str | None = None


class PrefixStore:
    """The stored pages of the model that ``identity`` (32 bytes, see `kv.prefix.page_keys`) stands for, below ``root``.

    ``page_bytes`` is the data of one page, ``budget`` the bytes on disk of all models' pages together, ``label`` says to
    people whose pages these are.  Opening never fails: where nothing can be read or written, no page is known.
    Called by one thread; any number of processes may share ``root``.
    """

    def __init__(self, root: Path, identity: bytes, page_bytes: int, budget: int, label: Mapping[str, str]) -> None:
        self.identity = identity
        self.page_bytes = page_bytes
        self.folder = root / identity.hex()
        self.counts = StoreCounts()
        self._root = root
        self._budget = budget
        self._label = label
        self._known: dict[str, float] = {}  # file names that are there or will be, and when their use was last noted
        self._bytes = 0  # on disk, as far as this process knows
        self._trusted = 0  # how many bytes that may become before it must look
        self._handed_over = 0  # bytes to be written, ever
        self._done = 0  # bytes of these that were written, or failed
        self._piece = np.full((PIECE_PAGES, page_bytes), 0, np.uint8)  # touched now, not during the first answer
        self._behind = ThreadPoolExecutor(1, "prefix-store")
        self._submit(self._begin)

    def count(self, most: int) -> int:
        """How many pages of the model are stored, counted up to ``most``."""
        try:
            with os.scandir(self.folder) as entries:
                return sum(1 for _ in islice((entry for entry in entries if entry.name.endswith(PAGE_SUFFIX)), most))
        except OSError:
            return 0

    def find(self, tokens: Sequence[int], first: int = 0) -> list[Page]:
        """The pages of ``tokens`` from number ``first`` on, as far as files of their names are there."""
        found = []
        missing = False
        for page in pages_of(self.identity, tokens):
            if page.number < first:
                continue
            missing = missing or not self._has_file(page)
            if missing:
                self._known.pop(page.file_name, None)
            else:
                found.append(page)
        return found

    def read(self, pages: Sequence[Page]) -> Iterator[np.ndarray]:
        """The data of ``pages`` in pieces, uint8 [n, page_bytes], up to the first page that cannot be had.

        A piece is valid until the next one is asked for.
        """
        done, count = 0, PIECE_PAGES
        while count == PIECE_PAGES:  # the piece before was a whole one
            count = 0
            for page, out in zip(pages[done : done + PIECE_PAGES], self._piece, strict=False):
                if not self._read(page, out):
                    break
                count += 1
            done += count
            yield self._piece[:count]
        self.counts.read += done
        self._touch(pages[:done])

    def missing(self, tokens: Sequence[int]) -> list[Page]:
        """The full pages of ``tokens`` that are not stored yet, as many as may wait to be written now."""
        stored: list[Page] = []
        missing: list[Page] = []
        for page in pages_of(self.identity, tokens):
            (stored if page.file_name in self._known else missing).append(page)
        self._touch(stored)
        waiting = self._handed_over - self._done
        room = max(0, QUEUE_BYTES - waiting) // self.page_bytes
        self.counts.dropped += len(missing[room:])
        return missing[:room]

    def write(self, pages: Sequence[Page], data: np.ndarray) -> None:
        """Store ``pages`` behind; data: uint8 [pages, page_bytes], contiguous, the store's own from now on."""
        self._known.update((page.file_name, time.monotonic()) for page in pages)
        self._handed_over += data.nbytes
        self._submit(lambda: self._write(pages, data))

    def flush(self) -> None:
        """Wait until everything that was handed over is on disk."""
        self._behind.submit(int).result()

    def close(self) -> None:
        """`flush`, and write no more."""
        self._behind.shutdown()

    def _has_file(self, page: Page) -> bool:
        return os.access(f"{self.folder}/{page.file_name}", os.F_OK)

    def _read(self, page: Page, out: np.ndarray) -> bool:
        try:
            if read_page(self.folder, page, out):
                return True
            self._remove(page)
        except OSError as error:
            if error.errno in _NOT_A_PAGE:
                self._remove(page)
        self._known.pop(page.file_name, None)
        return False

    def _remove(self, page: Page) -> None:
        self.counts.damaged += 1
        with contextlib.suppress(OSError):
            (self.folder / page.file_name).unlink()

    def _touch(self, pages: Sequence[Page]) -> None:
        now = time.monotonic()
        due = [page for page in pages if now - self._known.get(page.file_name, -TOUCH_SECONDS) >= TOUCH_SECONDS]
        if due:
            self._known.update((page.file_name, now) for page in due)
            self._submit(lambda: self._note_use(due))

    # -- on the thread behind -----------------------------------------------------------------------------------------

    def _submit(self, job: Callable[[], None]) -> None:
        def run() -> None:
            try:
                job()
            except (OSError, StorageError) as error:
                self.counts.problem = str(error)

        with contextlib.suppress(RuntimeError):  # closed, or the interpreter is about to end
            self._behind.submit(run)

    def _begin(self) -> None:
        for folder in model_folders(self._root):
            with contextlib.suppress(OSError):  # another user's, perhaps
                clear_leftovers(folder)
        write_label(self.folder, self._label)
        self._make_room(0)

    def _note_use(self, pages: Sequence[Page]) -> None:
        now = time.time_ns()
        for page in pages:
            used = now - page.number * _PAGE_APART_NS
            try:
                os.utime(f"{self.folder}/{page.file_name}", ns=(used, used))
            except FileNotFoundError:
                self._known.pop(page.file_name, None)

    def _write(self, pages: Sequence[Page], data: np.ndarray) -> None:
        now = time.time_ns()
        done = 0
        try:
            for page, row in zip(pages, data, strict=True):
                self._write_page(page, row, now - page.number * _PAGE_APART_NS)
                done += 1
            sync_folder(self.folder)
        finally:
            for page in pages[done:]:
                self._known.pop(page.file_name, None)
            self.counts.failed += len(pages) - done
            self._done += data.nbytes

    def _write_page(self, page: Page, data: np.ndarray, used_ns: int) -> None:
        if self._has_file(page):
            return
        self._make_room(disk_bytes(page_file_bytes(data.nbytes)))
        try:
            write_page(self.folder, page, data, used_ns)
        except FileNotFoundError:  # somebody removed the folder
            write_label(self.folder, self._label)
            write_page(self.folder, page, data, used_ns)
        self._bytes += disk_bytes(page_file_bytes(data.nbytes))
        self.counts.written += 1

    def _make_room(self, nbytes: int) -> None:
        """Prune if ``nbytes`` more on disk would be too many.  Looks what is there now and then: others write, too."""
        if nbytes > self._budget:
            raise OSError(errno.EDQUOT, f"a page of {nbytes} bytes is more than the prefix cache may hold")
        if self._bytes + nbytes <= self._trusted:
            return
        stored = sum(file.nbytes for file in stored_pages(self._root))
        if stored + nbytes > self._budget:
            removed = prune(self._root, int(_KEEP * self._budget) - nbytes)
            stored -= sum(file.nbytes for file in removed)
            self.counts.pruned += len(removed)
            for file in removed:
                self._known.pop(file.path.name, None)
        self._bytes = stored
        self._trusted = min(self._budget, stored + max(nbytes, self._budget // 16))
