"""A matrix that stays on flash: rows of it by number, or all of it in blocks, each piece checked as it is read.

The embedding is asked for a few rows per step and the output matrix is multiplied once per step, so neither needs to lie
in memory.  The pieces (`TensorRange.pieces`) are runs of whole panels; only ``tiles`` stays on flash, the vectors beside
it are small and resident.
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
from edge_llm.schemes.int8 import Int8Weight
from kernels.layout import gather_rows, pack_tiles
from kernels.range_reader import RangeReader

PANEL_ROWS = 16
BLOCK_BYTES = 2 << 20
"""Bytes of the output matrix that are multiplied at once, about."""
BLOCK_BUFFERS = 8
"""Blocks in memory: one is multiplied while the others are read and checked.  Fewer than the readers would leave some of these
to the layers of the next step, which can wait."""
ROW_BUFFERS = 4
"""Runs of pieces in memory while the rows of a prompt are gathered."""
ROW_PIECES = 8
"""Pieces that are read at once for rows, at most."""
ROW_GAP = 1
"""Pieces between two runs that are read all the same: another request would take longer."""

_Run = tuple[int, int]
"""Pieces of the tensor: the first, and how many (fewer at the end)."""


class FlashTable:
    """The matrix ``tensor`` in the file at ``path``; ``resident`` is all of the linear but its tiles.

    Reads through ``reader`` overtake those of layers: who asks for rows or blocks waits for them.  `rows` and `blocks` raise
    `StorageError` or `CorruptBundle`, and can be called again after that.  One caller at a time.
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
        self._buffers: list[np.ndarray] = []  # of `blocks`, made when it is first called
        self._row_buffers: list[np.ndarray] = []  # of `rows`, as well
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
        """All of the matrix: (rows, the linear that has them), each valid until the next one is asked for.

        After the last one the first ones are asked for again: they are there when the next step comes to them.  Other chunks
        of the same step come sooner, and wait for the layers that were asked for before.
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
        """Ask for as many ``runs`` as there are ``buffers``."""
        return deque(self._start(run, buffer, urgent=urgent) for run, buffer in zip(runs, buffers, strict=False))

    def _in_turn(
        self, runs: Sequence[_Run], buffers: Sequence[np.ndarray], begun: deque[_PieceReading]
    ) -> Generator[np.ndarray, None, None]:
        """Tiles int8 [panels, KB, 16, 4] of every run, each valid until the next is asked for.

        The first ones are ``begun``; as many as there are other ``buffers`` are on their way meanwhile.
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
        """Have ``run`` read into ``buffer``, as much of it as there is."""
        tensor = self._tensor
        first, count = run
        start = first * tensor.piece_bytes
        stop = min(start + count * tensor.piece_bytes, tensor.nbytes)
        page = (tensor.offset + start) // BLOCK_ALIGNMENT * BLOCK_ALIGNMENT
        lead = tensor.offset + start - page
        out = buffer[: align(tensor.offset + stop, BLOCK_ALIGNMENT) - page]
        ends = np.minimum(np.arange(count + 1) * tensor.piece_bytes, stop - start) + lead  # the first is what lies before
        reading = RangeReading(self._file, self._reader, out, page, ends, urgent=urgent)
        return _PieceReading(first, out[lead : lead + stop - start], reading)

    def _checked(self, pieces: _PieceReading) -> np.ndarray:
        """Wait for ``pieces``; the tiles in them, when they have the checksums of the bundle."""
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
        """Give the file back."""
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
    """Pieces of a table from ``first`` on, on their way to ``data`` (uint8)."""

    first: int
    data: np.ndarray
    reading: RangeReading


def block_memory(tensor: TensorRange) -> int:
    """Bytes of memory that a table takes for its blocks."""
    return BLOCK_BUFFERS * _buffer_bytes(tensor, _block_pieces(tensor))


def row_memory(tensor: TensorRange) -> int:
    """Bytes of memory that a table takes for its rows."""
    return ROW_BUFFERS * _buffer_bytes(tensor, ROW_PIECES)


def _block_pieces(tensor: TensorRange) -> int:
    return max(1, BLOCK_BYTES // tensor.piece_bytes)


def _buffer_bytes(tensor: TensorRange, pieces: int) -> int:
    """Of a buffer for ``pieces`` of ``tensor``, wherever in a page they begin."""
    return align(min(pieces * tensor.piece_bytes, tensor.nbytes), BLOCK_ALIGNMENT) + BLOCK_ALIGNMENT
