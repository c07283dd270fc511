"""Blocks of a bundle read past the page cache, one behind the other, every tensor checked on every read."""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from collections import deque

import numpy as np

from edge_llm.errors import CorruptBundle
from edge_llm.formats.bundle import Bundle, aligned_empty
from edge_llm.formats.direct import DirectFile, RangeFile, RangeReading, direct_buffers, range_reader
from edge_llm.formats.layout import DTYPES, BlockRange, beside_columns
from edge_llm.formats.manifest import WEIGHTS, corrupt
from edge_llm.kernels.range_reader import RangeReader, Reading


class BlockPieces:
    """The tensors of ``block`` of ``bundle`` and the padding behind each: where they end, and whether they came whole."""

    def __init__(self, bundle: Bundle, block: BlockRange) -> None:
        self._bundle = bundle
        self._block = block
        parts = [(tensor.offset - block.offset, tensor.nbytes, tensor.end - block.offset) for tensor in block.tensors]
        self.ends = np.array([(start + nbytes, end) for start, nbytes, end in parts], np.int64).reshape(-1)
        """In the block: int64 [2 * tensors]."""
        self._views = [
            (tensor.name, slice(start, start + nbytes), DTYPES[tensor.dtype], tensor.shape)
            for tensor, (start, nbytes, _) in zip(block.tensors, parts, strict=True)
        ]
        self._whole: list[int] | None = None  # checksums of a reading in which all was as it should be

    @property
    def whole(self) -> np.ndarray:
        """Checksums of a reading in which all was as it should be: uint32 [2 * tensors]."""
        return np.array(self._whole, np.uint32)

    def tensors(self, buffer: np.ndarray, checksums: list[int]) -> dict[str, np.ndarray]:
        """The tensors by their full names: views of ``buffer``, whose pieces have these ``checksums``; or `CorruptBundle`."""
        if checksums != self._whole:
            start = self._block.offset
            for tensor, checksum in zip(self._block.tensors, checksums[::2], strict=True):
                self._bundle.checked(tensor, buffer[tensor.offset - start : tensor.end - start], checksum)
            self._whole = checksums
        return {name: buffer[part].view(dtype).reshape(shape) for name, part, dtype, shape in self._views}

    def cut(self) -> CorruptBundle:
        """The error when the file ends before the block does."""
        path = self._bundle.folder / WEIGHTS
        return corrupt(f"`{path}` was cut while it was open: `{self._block.name}` is incomplete")


class BlockReading:
    """A block on its way into ``buffer`` (uint8, 4096-aligned), which must not be touched before `wait`."""

    def __init__(self, pieces: BlockPieces, buffer: np.ndarray, reading: RangeReading) -> None:
        self._pieces = pieces
        self._buffer = buffer
        self._range = reading

    def wait(self) -> dict[str, np.ndarray]:
        """The tensors of the block by their full names, checked: views of the buffer.

        Raises `StorageError` or `CorruptBundle`; the buffer then holds anything.
        """
        try:
            checksums = self._range.wait()
        except CorruptBundle:
            raise self._pieces.cut() from None
        return self._pieces.tensors(self._buffer, checksums)

    def hurry(self) -> None:
        """`RangeReading.hurry` of the block."""
        self._range.hurry()

    def drop(self) -> None:
        """`RangeReading.drop` of the block."""
        self._range.drop()

    def settle(self) -> int:
        """Wait until nobody writes to the buffer any more, whatever came of it; how many of the block's bytes are there."""
        return self._range.settle()

    def again(self) -> bool:
        """Ask for the same block once more; false, with nothing done, where it must be asked for anew."""
        return self._range.again()

    @property
    def native(self) -> Reading | None:
        """`RangeReading.native` of the block."""
        return self._range.native

    @property
    def checksums(self) -> np.ndarray:
        """Of all pieces of the block when it is whole: uint32 [pieces].  It has been read before."""
        return self._pieces.whole


class BlockReader:
    """Reads blocks of ``bundle`` past the page cache, every tensor checked against its CRC32C on every read.

    Blocks come in the order in which they were asked for.  ``reader`` may serve others too; ``file`` stands for its file.
    """

    def __init__(
        self, bundle: Bundle, reader: RangeReader, file: RangeFile | None = None, *, columns: bool = True
    ) -> None:
        """Without ``columns`` layers come without the columns of their neurons."""
        self._bundle = bundle
        self._columns = columns
        self._file = file or DirectFile(bundle.folder / WEIGHTS)
        self._reader = reader
        self._pieces: dict[str, BlockPieces] = {}  # of blocks that were asked for: layers are, again and again
        weakref.finalize(self, self._file.close)

    @property
    def file(self) -> RangeFile:
        """What it reads from."""
        return self._file

    def start(
        self,
        name: str,
        out: np.ndarray | None = None,
        beside: BlockReading | None = None,
        *,
        urgent: bool = False,
    ) -> BlockReading:
        """Ask for the block or unit ``name``, into ``out`` (uint8, 4096-aligned) or new memory; returns at once.

        ``beside`` is an earlier reading, whose file descriptor the new one shares.  What is ``urgent`` overtakes what is not.
        """
        block = self._bundle.blocks.get(name) or self._bundle.units[name]
        block = block if self._columns else beside_columns(block)
        buffer = aligned_empty(block.nbytes) if out is None else out[: block.nbytes]
        if name not in self._pieces:
            self._pieces[name] = BlockPieces(self._bundle, block)
        pieces = self._pieces[name]
        shared = None if beside is None else beside._range
        reading = RangeReading(
            self._file, self._reader, buffer, block.offset, pieces.ends, urgent=urgent, beside=shared
        )
        return BlockReading(pieces, buffer, reading)

    def read(self, name: str, out: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """`start` and `wait` in one."""
        return self.start(name, out).wait()

    def close(self) -> None:
        """Close the file; arrays that were read stay valid."""
        self._file.close()


def read_rate(bundle: Bundle, seconds: float) -> float:
    """Bytes per second at which the layers of ``bundle`` come when they are read as streamed ones are, but not checked."""
    blocks = [block for name, block in bundle.blocks.items() if name.startswith("layers.")]
    buffers = direct_buffers(2, max(block.nbytes for block in blocks))
    for buffer in buffers:
        buffer.fill(0)  # memory that is given out by the system now would be timed as well
    reader = range_reader()
    nothing = np.empty(0, np.int64)
    reading: deque[Reading] = deque()
    done = 0
    with contextlib.closing(DirectFile(bundle.folder / WEIGHTS)) as file:
        start = time.perf_counter()
        while time.perf_counter() < start + seconds:
            for block, buffer in zip(blocks, itertools.cycle(buffers), strict=False):
                if len(reading) == len(buffers):
                    reading.popleft().wait()
                reading.append(reader.start(file.descriptor, buffer[: block.nbytes], block.offset, nothing))
            done += sum(block.nbytes for block in blocks)
        for last in reading:
            last.wait()
        return done / (time.perf_counter() - start)
