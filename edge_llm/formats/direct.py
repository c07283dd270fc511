"""Ranges of files read past the page cache: ``O_DIRECT``, some requests in flight, checksums computed on the way.

Weights that are streamed are read again for every token.  Through the page cache they would push out what else the
machine needs, and be copied once more.  Reading and checking is native and in the background, so that the disk waits
neither for a checksum nor for the interpreter, and the next range follows without a pause.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
from pathlib import Path
from typing import Protocol

import numpy as np

from edge_llm.errors import CorruptBundle
from edge_llm.files import RegularFile
from edge_llm.formats.layout import BLOCK_ALIGNMENT
from edge_llm.kernels.checksum import crc32c
from edge_llm.kernels.range_reader import RangeReader, Reading

REQUEST_BYTES = 2 << 20
READERS = 8
"""Threads that read and check in turns.  One or two requests saturate a disk; the others are there when a thread has to wait
for a core."""
HUGE_PAGE_BYTES = 2 << 20


def direct_buffers(count: int, nbytes: int) -> list[np.ndarray]:
    """``count`` buffers, uint8 [nbytes] (a multiple of 4096), zero, side by side from the start of a huge page.

    A disk fills memory of small pages at 60 to 70 % of its rate, because each page is an address of its own to it.  The
    system has the memory back as soon as nobody uses it.
    """
    if not count * nbytes:
        return []
    try:
        memory = mmap.mmap(-1, count * nbytes + HUGE_PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:  # it is no file that fails here
        raise MemoryError(f"{count * nbytes} bytes for weights that are read from flash") from error
    with contextlib.suppress(OSError):  # a system without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    arena = np.frombuffer(memory, np.uint8)
    start = -arena.ctypes.data % HUGE_PAGE_BYTES
    return [arena[start + index * nbytes : start + (index + 1) * nbytes] for index in range(count)]


def range_reader() -> RangeReader:
    """Threads that keep a disk busy, for one or more files of it."""
    return RangeReader(READERS, REQUEST_BYTES)


class RangeFile(Protocol):
    """A file that is read by ranges."""

    @property
    def descriptor(self) -> int:
        """For reads of aligned ranges in the background; negative when there is none, and `read_into` alone will do."""
        ...

    @property
    def direct(self) -> bool:
        """Reads with `descriptor` leave nothing behind, so nobody need be told when one has `landed`."""
        ...

    def landed(self, offset: int, nbytes: int) -> None:
        """Told of every range that was read with `descriptor`."""
        ...

    def read_into(self, out: np.ndarray, offset: int) -> None:
        """Fill ``out`` (uint8, contiguous) from ``offset``, or raise `StorageError` or `CorruptBundle`."""
        ...

    def close(self) -> None:
        """Give the file back."""
        ...


class DirectFile(RegularFile):
    """A regular file read with ``O_DIRECT``: offsets, lengths and addresses are multiples of 4096.

    What a direct read does not deliver (the file system refuses them, an error, the end of a file that was cut) is
    read once more through the page cache, which is then emptied of it; the errors are those of `RegularFile`.
    """

    _direct_fd = -1  # before there is one: a file that cannot be opened is closed, too

    def __init__(self, path: Path) -> None:
        super().__init__(path, error=CorruptBundle)
        with contextlib.suppress(OSError):  # the same file, even if another has its name by now
            self._direct_fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        self.direct = self._direct_fd >= 0

    @property
    def descriptor(self) -> int:
        return self._direct_fd if self.direct else self._fd

    def landed(self, offset: int, nbytes: int) -> None:
        if not self.direct:
            self._forget(offset, nbytes)

    def read_into(self, out: np.ndarray, offset: int) -> None:
        if offset % BLOCK_ALIGNMENT or len(out) % BLOCK_ALIGNMENT or out.ctypes.data % BLOCK_ALIGNMENT:
            raise ValueError(f"direct reads are aligned to {BLOCK_ALIGNMENT} bytes; got offset {offset}, {len(out)} bytes")
        done = self._read_direct(out.data, offset) if self.direct else 0
        if done < len(out):
            super().read_into(out[done:], offset + done)
            self._forget(offset, len(out))

    def _forget(self, offset: int, nbytes: int) -> None:
        os.posix_fadvise(self._fd, offset, nbytes, os.POSIX_FADV_DONTNEED)

    def _read_direct(self, view: memoryview, offset: int) -> int:
        """Bytes read, a multiple of 4096; fewer than asked for when anything is odd."""
        done = 0
        while done < len(view):
            try:
                got = os.preadv(self._direct_fd, [view[done:]], offset + done)
            except OSError as failure:
                if failure.errno == errno.EINVAL:  # some file systems refuse only the read
                    self.direct = False
                return done
            if got < BLOCK_ALIGNMENT:
                return done
            done += got - got % BLOCK_ALIGNMENT
        return done

    def close(self) -> None:
        if self._direct_fd >= 0:
            os.close(self._direct_fd)
            self._direct_fd = -1
        super().close()


class RangeReading:
    """A range of ``file`` on its way into ``out`` (uint8, 4096-aligned), which must not be touched before `wait`.

    Piece i of it ends at ``ends[i]`` (int64, ascending, from the start of ``out``).  What is ``urgent`` overtakes what is not.
    ``beside`` is an earlier range of the file, whose descriptor this one shares.
    """

    def __init__(
        self,
        file: RangeFile,
        reader: RangeReader,
        out: np.ndarray,
        offset: int,
        ends: np.ndarray,
        *,
        urgent: bool = False,
        beside: RangeReading | None = None,
    ) -> None:
        self._file = file
        self._descriptor = fd = file.descriptor
        self._out = out
        self._offset = offset
        self._ends = ends
        shared = beside._reading if beside is not None and beside._descriptor == fd else None
        self._reading: Reading | None = reader.start(fd, out, offset, ends, urgent, shared) if fd >= 0 else None

    @property
    def native(self) -> Reading | None:
        """The reading itself, for who repeats it without Python; None where Python has a part in it, or the file was closed."""
        return self._reading if self._file.direct and self._file.descriptor == self._descriptor else None

    def again(self) -> bool:
        """Ask for the same range once more; false, with nothing done, where it must be asked for anew."""
        if self._reading is None or self._file.descriptor != self._descriptor:
            return False
        self._reading.again()
        return True

    def wait(self) -> list[int]:
        """The CRC32C of every piece.

        What did not come in the background is read once more, for its error.  Raises `StorageError` or `CorruptBundle`.
        """
        if self._reading is not None:
            there, checksums = self._reading.wait()
            self._file.landed(self._offset, len(self._out))
            if there == len(self._out):
                return list(checksums.tolist())
        self._file.read_into(self._out, self._offset)
        starts = [0, *self._ends.tolist()]
        return [crc32c(self._out[start:end]) for start, end in itertools.pairwise(starts)]

    def hurry(self) -> None:
        """Somebody waits for it: it comes before all that is not urgent."""
        if self._reading is not None:
            self._reading.hurry()

    def drop(self) -> None:
        """Nobody wants it any more: what no reader took on yet is not read."""
        if self._reading is not None:
            self._reading.drop()

    def settle(self) -> int:
        """Wait until nobody writes to ``out`` any more, whatever came of it; how many of its first bytes are there."""
        return self._reading.wait()[0] if self._reading is not None else 0
