"""A matrix that stays on flash: rows of it by number, or all of it in blocks, each piece checked as it is read.

A step takes a few rows of the embedding and multiplies the output matrix once, so neither needs to lie in memory.  The
pieces (`TensorRange.pieces`) are runs of whole panels; only the tiles, codes or blocks stay on flash, the vectors beside them
are small and resident.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

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
    from edge_llm.weights.pools import Budget

BLOCK_BYTES = 2 << 20
"""About as many bytes of the output matrix are multiplied at once."""
BLOCK_BUFFERS = 8
"""Blocks in memory: one is multiplied while the others are read and checked.  With fewer blocks than
readers, some readers would go on to the layers of the next step, which can wait."""
ROWS, BLOCKS = "rows", "blocks"
"""What runs of a table are read for."""
ROW_BUFFERS = 4
"""Runs of pieces that are in memory while the rows of a prompt are gathered."""
ROW_PIECES = 8
"""At most this many pieces are read at once for rows."""
ROW_GAP = 1
"""Two runs with this many pieces or fewer between them are read as one, because a second request would take longer."""


class Run(NamedTuple):
    """A block of a table."""

    tensor: str
    first: int
    """The number of its first piece."""
    pieces: int
    """How many these are; fewer at the tensor's end."""


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
        budget: Budget,
        file: RangeFile | None = None,
    ) -> None:
        file = file or DirectFile(bundle.folder / WEIGHTS)
        self._tensor = tensor
        self._resident = resident
        self._budget = budget
        self._flash = _FlashRuns(bundle, tensor, reader, file)
        self._close = weakref.finalize(self, file.close)

    def rows(self, tokens: np.ndarray) -> Table:
        """A linear whose row i is row ``tokens[i]`` (int64 [M]) of the matrix."""
        rows = empty_rows(self._resident, len(tokens))
        order = np.argsort(tokens)
        pieces = tokens[order] // self._piece_rows
        runs = list(_runs(self._tensor.name, np.unique(pieces).tolist()))
        ends = np.searchsorted(pieces, [run.first + run.pieces for run in runs]).tolist()
        for run, start, end, panels in zip(runs, [0, *ends], ends, in_turn(self._row_ring, runs), strict=False):
            places = order[start:end]
            rows[places] = gather(self._resident, panels, tokens[places] - run.first * self._piece_rows)
        return gathered(self._resident, rows, tokens)

    def blocks(self) -> Iterator[tuple[slice, Table]]:
        """The whole matrix in blocks: (rows, the linear that has them), each valid until the next one is taken.

        After the last block the first ones are requested again, so that the next step finds them in memory.  Another chunk
        of the same step waits for the layers that were requested before them.
        """
        count = _block_pieces(self._tensor)
        runs = [Run(self._tensor.name, first, count) for first in range(0, self._tensor.piece_count, count)]
        for run, panels in zip(runs, in_turn(self._block_ring, runs), strict=True):
            row = run.first * self._piece_rows
            rows = slice(row, min(row + len(panels) * TILE_CHANNELS, self._resident.rows))
            yield rows, part(self._resident, panels, rows)
        for run in runs[: len(self._block_ring)]:
            self._block_ring.request(run)

    @cached_property
    def _row_ring(self) -> Ring[Run, np.ndarray]:
        return self._ring(ROWS, ROW_BUFFERS, ROW_PIECES)

    @cached_property
    def _block_ring(self) -> Ring[Run, np.ndarray]:
        return self._ring(BLOCKS, BLOCK_BUFFERS, _block_pieces(self._tensor))

    def _ring(self, use: str, buffers: int, pieces: int) -> Ring[Run, np.ndarray]:
        """As many ``buffers`` for runs of at most ``pieces``: of each its panels of tiles, codes or blocks."""
        nbytes = _buffer_bytes(self._tensor, pieces)
        pool = self._budget.buffer_pool(f"{use} of {self._tensor.name}", buffers, nbytes, direct_buffers)
        return Ring(pool, self._flash.start, self._flash.open)

    @property
    def _piece_rows(self) -> int:
        panel_bytes = self._tensor.nbytes // self._tensor.shape[0]
        return self._tensor.piece_bytes // panel_bytes * TILE_CHANNELS

    def forget(self) -> None:
        """Give back the memory of runs, until one is read again."""
        for use, name in ((ROWS, "_row_ring"), (BLOCKS, "_block_ring")):
            ring: Ring[Run, np.ndarray] | None = self.__dict__.pop(name, None)
            if ring is not None:
                ring.release()
                self._budget.give_back(f"{use} of {self._tensor.name}")

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
        self._sound: set[Run] = set()  # runs that hold what they may; under the same checksums they always will

    def start(self, run: Run, buffer: np.ndarray, urgent: bool) -> RangeReading:
        at, lead, nbytes = self._extent(run)
        ends = np.minimum(np.arange(run.pieces + 1) * self._tensor.piece_bytes, nbytes) + lead  # the first: where pieces begin
        out = buffer[: align(lead + nbytes, BLOCK_ALIGNMENT)]
        return RangeReading(self._file, self._reader, out, at - lead, ends, urgent=urgent)

    def open(self, run: Run, buffer: np.ndarray, checksums: list[int]) -> np.ndarray:
        tensor = self._tensor
        expected = list(tensor.pieces[run.first : run.first + run.pieces])
        if checksums[1 : 1 + len(expected)] != expected:
            raise self._bundle.damaged(tensor)
        _, lead, nbytes = self._extent(run)
        panels = buffer[lead : lead + nbytes].view(DTYPES[tensor.dtype]).reshape(-1, *tensor.shape[1:])
        if run not in self._sound:
            self._bundle.check_values(tensor, panels)
            self._sound.add(run)
        return panels

    def _extent(self, run: Run) -> tuple[int, int, int]:
        """Where ``run`` begins in the file and in a buffer, which begins on a page, and its bytes up to the tensor's end."""
        tensor = self._tensor
        start = run.first * tensor.piece_bytes
        at = tensor.offset + start
        return at, at % BLOCK_ALIGNMENT, min(run.pieces * tensor.piece_bytes, tensor.nbytes - start)


def _runs(tensor: str, pieces: Sequence[int]) -> Iterator[Run]:
    """Runs of at most `ROW_PIECES` that cover all ``pieces`` (ascending) of ``tensor``, with gaps of at most `ROW_GAP`."""
    first, last = None, 0
    for piece in pieces:
        if first is not None and (piece - last > ROW_GAP + 1 or piece - first >= ROW_PIECES):
            yield Run(tensor, first, last - first + 1)
            first = None
        first, last = piece if first is None else first, piece
    if first is not None:
        yield Run(tensor, first, last - first + 1)


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
