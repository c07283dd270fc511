"""A matrix that stays on flash: rows of it by number, or all of it in blocks, each piece checked as it is read.

A step takes a few rows of the embedding and multiplies the output matrix once, so neither needs to lie in memory.  The
pieces (`TensorRange.pieces`) are runs of whole panels; only the tiles, codes or blocks stay on flash, the vectors beside them
are small and resident.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from edge_llm.formats.direct import DirectFile, RangeFile, RangeReading, direct_buffers
from edge_llm.formats.layout import BLOCK_ALIGNMENT, DTYPES, TensorRange, align
from edge_llm.formats.manifest import WEIGHTS
from edge_llm.kernels.range_reader import RangeReader
from edge_llm.kernels.types import TILE_CHANNELS
from edge_llm.schemes.tables import Table, empty_rows, gather, gathered, part
from edge_llm.weights.ring import Ring, in_turn

if TYPE_CHECKING:
    from edge_llm.formats.bundle import Bundle

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
    """The matrix ``tensor`` of ``bundle``; ``resident`` is the linear without its tiles, codes or blocks.

    Its reads through ``reader`` overtake those of layers, because the caller waits for rows and blocks.  `rows` and `blocks`
    raise `StorageError` or `CorruptBundle`, and can be called again after that.  One caller at a time.
    """

    def __init__(
        self,
        bundle: Bundle,
        tensor: TensorRange,
        resident: Table,
        reader: RangeReader,
        file: RangeFile | None = None,
    ) -> None:
        file = file or DirectFile(bundle.folder / WEIGHTS)
        self._tensor = tensor
        self._resident = resident
        self._flash = _FlashRuns(bundle, tensor, reader, file)
        self._close = weakref.finalize(self, file.close)

    def rows(self, tokens: np.ndarray) -> Table:
        """A linear whose row i is row ``tokens[i]`` (int64 [M]) of the matrix."""
        rows = empty_rows(self._resident, len(tokens))
        order = np.argsort(tokens)
        pieces = tokens[order] // self._piece_rows
        runs = list(_runs(np.unique(pieces).tolist()))
        ends = np.searchsorted(pieces, [first + count for first, count in runs]).tolist()
        for (first, _), start, end, panels in zip(runs, [0, *ends], ends, in_turn(self._row_ring, runs), strict=False):
            places = order[start:end]
            rows[places] = gather(self._resident, panels, tokens[places] - first * self._piece_rows)
        return gathered(self._resident, rows, tokens)

    def blocks(self) -> Iterator[tuple[slice, Table]]:
        """The whole matrix in blocks: (rows, the linear that has them), each valid until the next one is taken.

        After the last block the first ones are requested again, so that the next step finds them in memory.  Another chunk
        of the same step waits for the layers that were requested before them.
        """
        count = _block_pieces(self._tensor)
        runs = [(first, count) for first in range(0, self._tensor.piece_count, count)]
        for (first, _), panels in zip(runs, in_turn(self._block_ring, runs), strict=True):
            row = first * self._piece_rows
            rows = slice(row, min(row + len(panels) * TILE_CHANNELS, self._resident.rows))
            yield rows, part(self._resident, panels, rows)
        for run in runs[: len(self._block_ring)]:
            self._block_ring.request(run)

    @cached_property
    def _row_ring(self) -> Ring[_Run, np.ndarray]:
        return self._flash.ring(ROW_BUFFERS, ROW_PIECES)

    @cached_property
    def _block_ring(self) -> Ring[_Run, np.ndarray]:
        return self._flash.ring(BLOCK_BUFFERS, _block_pieces(self._tensor))

    @property
    def _piece_rows(self) -> int:
        panel_bytes = self._tensor.nbytes // self._tensor.shape[0]
        return self._tensor.piece_bytes // panel_bytes * TILE_CHANNELS

    def forget(self) -> None:
        """Give back the memory of runs, until one is read again."""
        for name in ("_row_ring", "_block_ring"):
            ring: Ring[_Run, np.ndarray] | None = self.__dict__.pop(name, None)
            if ring is not None:
                ring.release()

    def close(self) -> None:
        """Close the file."""
        self._close()


class _FlashRuns:
    """Runs of pieces of ``tensor``, read through ``reader`` and checked."""

    def __init__(self, bundle: Bundle, tensor: TensorRange, reader: RangeReader, file: RangeFile) -> None:
        self._bundle = bundle
        self._tensor = tensor
        self._reader = reader
        self._file = file
        self._sound: set[_Run] = set()  # runs that hold what they may; under the same checksums they always will

    def ring(self, buffers: int, pieces: int) -> Ring[_Run, np.ndarray]:
        """As many ``buffers`` for runs of at most ``pieces``: of each its panels of tiles, codes or blocks."""
        return Ring(direct_buffers(buffers, _buffer_bytes(self._tensor, pieces)), self._start, self._open)

    def _start(self, run: _Run, buffer: np.ndarray, urgent: bool) -> RangeReading:
        at, lead, nbytes = self._extent(run)
        ends = np.minimum(np.arange(run[1] + 1) * self._tensor.piece_bytes, nbytes) + lead  # the first: where pieces begin
        out = buffer[: align(lead + nbytes, BLOCK_ALIGNMENT)]
        return RangeReading(self._file, self._reader, out, at - lead, ends, urgent=urgent)

    def _open(self, run: _Run, buffer: np.ndarray, checksums: list[int]) -> np.ndarray:
        tensor, (first, count) = self._tensor, run
        expected = list(tensor.pieces[first : first + count])
        if checksums[1 : 1 + len(expected)] != expected:
            raise self._bundle.damaged(tensor)
        _, lead, nbytes = self._extent(run)
        panels = buffer[lead : lead + nbytes].view(DTYPES[tensor.dtype]).reshape(-1, *tensor.shape[1:])
        if run not in self._sound:
            self._bundle.check_values(tensor, panels)
            self._sound.add(run)
        return panels

    def _extent(self, run: _Run) -> tuple[int, int, int]:
        """Where ``run`` begins in the file and in a buffer, which begins on a page, and its bytes up to the tensor's end."""
        tensor, (first, count) = self._tensor, run
        start = first * tensor.piece_bytes
        at = tensor.offset + start
        return at, at % BLOCK_ALIGNMENT, min(count * tensor.piece_bytes, tensor.nbytes - start)


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
