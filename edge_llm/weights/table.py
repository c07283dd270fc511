"""A matrix that stays on flash: rows of it by number, or all of it in blocks, each piece checked as it is read.

A step takes a few rows of the embedding and multiplies the output matrix once, so neither needs to lie in memory.  The
pieces (`TensorRange.pieces`) are runs of whole panels; only ``tiles`` stays on flash, the vectors beside it are small and
resident.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edge_llm.formats.direct import DirectFile, RangeFile, RangeReading, direct_buffers
from edge_llm.formats.layout import BLOCK_ALIGNMENT, TensorRange, align
from edge_llm.formats.manifest import corrupt
from edge_llm.schemes.int8_weight import Int8Weight
from kernels.layout import gather_rows, pack_tiles
from kernels.range_reader import RangeReader

PANEL_ROWS = 16
BLOCK_BYTES = 2 << 20
"""About as many bytes of the output matrix are multiplied at once."""
BLOCK_BUFFERS = 8
"""Blocks in memory: one is multiplied while the others are read and checked.  With fewer blocks than
readers, some readers would go on to the layers of the next step, which can wait."""
ROW_BUFFERS = 4
"""Runs of pieces that are in memory while the rows of a prompt are gathered."""
ROW_PIECES = 8
"""At most this many pieces are read at once for rows."""
ROW_GAP = 1
"""Two runs with this many pieces or fewer between them are read as one, because a second request would take longer."""

_Run = tuple[int, int]
"""Pieces of the tensor: the first, and how many (fewer at the end)."""


class FlashTable:
    """The matrix ``tensor`` in the file at ``path``; ``resident`` is the linear without its tiles.

    Its reads through ``reader`` overtake those of layers, because the caller waits for rows and blocks.  `rows` and `blocks`
    raise `StorageError` or `CorruptBundle`, and can be called again after that.  One caller at a time.
    """

    def __init__(
        self,
        path: Path,
        tensor: TensorRange,
        resident: Int8Weight,
        reader: RangeReader,
        file: RangeFile | None = None,
    ) -> None:
        self._path = path
        self._file = file or DirectFile(path)
        self._tensor = tensor
        self._resident = resident
        self._reader = reader
        self._close = weakref.finalize(self, self._file.close)
        self._buffers: list[np.ndarray] = []  # of `blocks`; its first call makes them
        self._row_buffers: list[np.ndarray] = []  # of `rows`; its first call makes them
        self._ahead: deque[_PieceReading] = deque()  # the first blocks of the next call

    def rows(self, tokens: np.ndarray) -> Int8Weight:
        """A linear whose row i is row ``tokens[i]`` (int64 [M]) of the matrix."""
        rows = np.empty((len(tokens), self._resident.columns), np.int8)
        order = np.argsort(tokens)
        pieces = tokens[order] // self._piece_rows
        runs = list(_runs(np.unique(pieces).tolist()))
        ends = np.searchsorted(pieces, [first + count for first, count in runs]).tolist()
        self._row_buffers = self._row_buffers or direct_buffers(ROW_BUFFERS, _buffer_bytes(self._tensor, ROW_PIECES))
        in_turn = self._in_turn(runs, self._row_buffers, self._begin(runs, self._row_buffers))
        for (first, _), start, end, tiles in zip(runs, [0, *ends], ends, in_turn, strict=False):
            places = order[start:end]
            rows[places] = gather_rows(tiles, tokens[places] - first * self._piece_rows, self._resident.columns)
        return self._part(pack_tiles(rows), tokens)

    def blocks(self) -> Iterator[tuple[slice, Int8Weight]]:
        """The whole matrix in blocks: (rows, the linear that has them), each valid until the next one is taken.

        After the last block the first ones are requested again, so that the next step finds them in memory.  Another chunk
        of the same step waits for the layers that were requested before them.
        """
        count = _block_pieces(self._tensor)
        self._buffers = self._buffers or direct_buffers(BLOCK_BUFFERS, _buffer_bytes(self._tensor, count))
        runs = [(first, count) for first in range(0, self._tensor.piece_count, count)]
        begun, self._ahead = self._ahead or self._begin(runs, self._buffers), deque()
        tiles_in_turn = self._in_turn(runs, self._buffers, begun)
        with contextlib.closing(tiles_in_turn):
            for (first, _), tiles in zip(runs, tiles_in_turn, strict=True):
                row = first * self._piece_rows
                rows = slice(row, min(row + len(tiles) * PANEL_ROWS, self._resident.rows))
                yield rows, self._part(tiles, rows)
        self._ahead = self._begin(runs, self._buffers, urgent=False)

    def _begin(self, runs: Sequence[_Run], buffers: Sequence[np.ndarray], *, urgent: bool = True) -> deque[_PieceReading]:
        """Request as many ``runs`` as there are ``buffers``."""
        return deque(self._start(run, buffer, urgent=urgent) for run, buffer in zip(runs, buffers, strict=False))

    def _in_turn(
        self, runs: Sequence[_Run], buffers: Sequence[np.ndarray], begun: deque[_PieceReading]
    ) -> Generator[np.ndarray, None, None]:
        """Tiles int8 [panels, KB, 16, 4] of every run, each valid until the next is taken.

        The first ones are ``begun``; the following ones are being read into the other ``buffers`` meanwhile.
        """
        reading = begun
        left = itertools.islice(zip(runs, itertools.cycle(buffers), strict=False), len(begun), None)
        try:
            while reading:
                yield self._checked(reading.popleft())
                for run, buffer in itertools.islice(left, 1):
                    reading.append(self._start(run, buffer, urgent=True))
        finally:
            for given_up in reading:
                given_up.reading.settle()

    @property
    def _piece_rows(self) -> int:
        return self._tensor.piece_bytes // self._panel_bytes * PANEL_ROWS

    @property
    def _panel_bytes(self) -> int:
        return self._tensor.nbytes // self._tensor.shape[0]

    def _start(self, run: _Run, buffer: np.ndarray, *, urgent: bool) -> _PieceReading:
        """Start to read ``run`` into ``buffer``, up to the end of the tensor."""
        tensor = self._tensor
        first, count = run
        start = first * tensor.piece_bytes
        stop = min(start + count * tensor.piece_bytes, tensor.nbytes)
        page = (tensor.offset + start) // BLOCK_ALIGNMENT * BLOCK_ALIGNMENT
        lead = tensor.offset + start - page
        out = buffer[: align(tensor.offset + stop, BLOCK_ALIGNMENT) - page]
        ends = np.minimum(np.arange(count + 1) * tensor.piece_bytes, stop - start) + lead  # the first: where pieces begin
        reading = RangeReading(self._file, self._reader, out, page, ends, urgent=urgent)
        return _PieceReading(first, out[lead : lead + stop - start], reading)

    def _checked(self, pieces: _PieceReading) -> np.ndarray:
        """Wait for ``pieces`` and compare their checksums with the bundle's: their tiles."""
        tensor = self._tensor
        checksums = pieces.reading.wait()[1:]
        expected = tensor.pieces[pieces.first : pieces.first + len(checksums)]
        if list(expected) != checksums[: len(expected)]:
            raise corrupt(f"tensor `{tensor.name}` in `{self._path}` is damaged (checksum does not match)")
        return pieces.data.view(np.int8).reshape(-1, *tensor.shape[1:])

    def _part(self, tiles: np.ndarray, rows: np.ndarray | slice) -> Int8Weight:
        whole = self._resident
        weight_scale = whole.weight_scale[rows]
        return dataclasses.replace(
            whole,
            tiles=tiles,
            rows=len(weight_scale),
            weight_scale=weight_scale,
            row_sum=whole.row_sum[rows],
            hot_weight=np.ascontiguousarray(whole.hot_weight[:, rows]),
            bias=None if whole.bias is None else whole.bias[rows],
        )

    def close(self) -> None:
        """Close the file."""
        self._ahead.clear()
        self._close()


def _runs(pieces: Sequence[int]) -> Iterator[_Run]:
    """Runs of at most `ROW_PIECES` that cover all ``pieces`` (ascending), with gaps of at most `ROW_GAP`."""
    first, last = None, 0
    for piece in pieces:
        if first is not None and (piece - last > ROW_GAP + 1 or piece - first >= ROW_PIECES):
            yield first, last - first + 1
            first = None
        first, last = piece if first is None else first, piece
    if first is not None:
        yield first, last - first + 1


@dataclass(frozen=True)
class _PieceReading:
    """Pieces of a table from ``first`` on, which are being read into ``data`` (uint8)."""

    first: int
    data: np.ndarray
    reading: RangeReading


def block_memory(tensor: TensorRange) -> int:
    """Bytes of the buffers of a table's blocks."""
    return BLOCK_BUFFERS * _buffer_bytes(tensor, _block_pieces(tensor))


def row_memory(tensor: TensorRange) -> int:
    """Bytes of the buffers of a table's rows."""
    return ROW_BUFFERS * _buffer_bytes(tensor, ROW_PIECES)


def _block_pieces(tensor: TensorRange) -> int:
    return max(1, BLOCK_BYTES // tensor.piece_bytes)


def _buffer_bytes(tensor: TensorRange, pieces: int) -> int:
    """Bytes of a buffer for ``pieces`` of ``tensor``, which may begin anywhere in a page of the disk."""
    return align(min(pieces * tensor.piece_bytes, tensor.nbytes), BLOCK_ALIGNMENT) + BLOCK_ALIGNMENT
