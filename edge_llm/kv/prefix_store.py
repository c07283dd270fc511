"""Pages of keys and values on disk: a beginning that was computed once is known after a restart and to other processes.

The caller's thread reads, a second thread writes.  A killed process loses only the pages that were not written yet, because
the file of a page appears whole (`kv.prefix_page`).  After any fault of the disk the page is unknown; `StoreCounts` counts
the faults.
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
from edge_llm.formats.output import sync_folder
from edge_llm.kv.prefix_folder import disk_bytes, model_folders, prune, stored_pages, write_label
from edge_llm.kv.prefix_page import PAGE_SUFFIX, Page, clear_leftovers, page_file_bytes, pages_of, read_page, write_page

QUEUE_BYTES = 64 << 20
"""At most this much data waits to be written; further pages are dropped."""
PIECE_PAGES = 32
"""Pages that are read at a time: a few megabytes, which are still in the CPU's cache when they are copied."""
TOUCH_SECONDS = 60.0
"""A page's time of last use is written at most once in this time."""
_KEEP = 0.9
"""Pruning goes down to this share of the budget, so that it is rare."""
_PAGE_APART_NS = 1000
"""Times of use of neighbouring pages differ by this; a later page gets an earlier time, so that ends are pruned first."""
_NOT_A_PAGE = {errno.ELOOP, errno.EISDIR, errno.ESPIPE, errno.ENXIO, errno.EINVAL, errno.EIO}


@dataclass
class StoreCounts:
    """Counts of pages since the store was opened; ``problem`` is the last error of the disk."""

    read: int = 0
    damaged: int = 0
    """Found invalid and removed."""
    dropped: int = 0
    """Not written, because too much data was waiting."""
    written: int = 0
    failed: int = 0
    """Not written, because the disk refused."""
    pruned: int = 0
    problem: str | None = None


class PrefixStore:
    """The stored pages below ``root`` of the model with ``identity`` (32 bytes, see `kv.prefix.page_keys`).

    ``page_bytes`` is the data of one page, ``budget`` the bytes on disk of all models' pages together, ``label`` tells
    people which model it is.  Opening never fails: without access to the folder, no page is known.
    One thread calls; any number of processes may share ``root``.
    """

    def __init__(self, root: Path, identity: bytes, page_bytes: int, budget: int, label: Mapping[str, str]) -> None:
        self.identity = identity
        self.page_bytes = page_bytes
        self.folder = root / identity.hex()
        self.counts = StoreCounts()
        self._root = root
        self._budget = budget
        self._label = label
        self._known: dict[str, float] = {}  # files that exist or are queued, and when their use was last written
        self._bytes = 0  # on disk, by the last look and own writes
        self._trusted = 0  # `_bytes` up to which no look is needed
        self._handed_over = 0  # bytes queued so far
        self._done = 0  # bytes of these that were written or failed
        self._piece = np.full((PIECE_PAGES, page_bytes), 0, np.uint8)  # gets memory now, not during the first answer
        self._behind = ThreadPoolExecutor(1, "prefix-store")
        self._submit(self._begin)

    def count(self, most: int) -> int:
        """How many pages of the model are stored, counted up to ``most``."""
        try:
            with os.scandir(self.folder) as entries:
                return sum(1 for _ in islice((entry for entry in entries if entry.name.endswith(PAGE_SUFFIX)), most))
        except OSError:
            return 0

    def find(self, tokens: Sequence[int], first: int = 0, identity: bytes | None = None) -> list[Page]:
        """The pages of ``tokens`` from number ``first`` on, up to the first without a file.

        ``identity`` is the store's own where it is None; the model with an adapter has another one.
        """
        found = []
        missing = False
        for page in pages_of(identity or self.identity, tokens):
            if page.number < first:
                continue
            missing = missing or not self._has_file(page)
            if missing:
                self._known.pop(page.file_name, None)
            else:
                found.append(page)
        return found

    def read(self, pages: Sequence[Page]) -> Iterator[np.ndarray]:
        """The data of ``pages`` in pieces, uint8 [n, page_bytes], up to the first page that is missing or invalid.

        A piece is valid until the next one is taken.
        """
        done, count = 0, PIECE_PAGES
        while count == PIECE_PAGES:  # the piece before was full
            count = 0
            for page, out in zip(pages[done : done + PIECE_PAGES], self._piece, strict=False):
                if not self._read(page, out):
                    break
                count += 1
            done += count
            yield self._piece[:count]
        self.counts.read += done
        self._touch(pages[:done])

    def missing(self, tokens: Sequence[int], identity: bytes | None = None) -> list[Page]:
        """The full pages of ``tokens`` that are not stored yet, as many as the queue takes; ``identity`` as in `find`."""
        stored: list[Page] = []
        missing: list[Page] = []
        for page in pages_of(identity or self.identity, tokens):
            (stored if page.file_name in self._known else missing).append(page)
        self._touch(stored)
        waiting = self._handed_over - self._done
        room = max(0, QUEUE_BYTES - waiting) // self.page_bytes
        self.counts.dropped += len(missing[room:])
        return missing[:room]

    def write(self, pages: Sequence[Page], data: np.ndarray) -> None:
        """Queue ``pages`` for writing; data: uint8 [pages, page_bytes], contiguous, owned by the store from now on."""
        self._known.update((page.file_name, time.monotonic()) for page in pages)
        self._handed_over += data.nbytes
        self._submit(lambda: self._write(pages, data))

    def flush(self) -> None:
        """Wait until all queued pages are on disk."""
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

    # -- on the writing thread ---------------------------------------------------------------------------------------

    def _submit(self, job: Callable[[], None]) -> None:
        def run() -> None:
            try:
                job()
            except (OSError, StorageError) as error:
                self.counts.problem = str(error)

        with contextlib.suppress(RuntimeError):  # the store is closed, or the interpreter is ending
            self._behind.submit(run)

    def _begin(self) -> None:
        for folder in model_folders(self._root):
            with contextlib.suppress(OSError):  # perhaps another user's folder
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
        except FileNotFoundError:  # another process removed the folder
            write_label(self.folder, self._label)
            write_page(self.folder, page, data, used_ns)
        self._bytes += disk_bytes(page_file_bytes(data.nbytes))
        self.counts.written += 1

    def _make_room(self, nbytes: int) -> None:
        """Prune if ``nbytes`` more would exceed the budget.  Recounts now and then, because other processes write too."""
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
