"""The tile layout of an INT8 weight W[N, K] (N output channels, K input channels), in memory and in the file.

`tiles` int8[ceil(N/16), ceil(K/4), 16, 4] with tiles[p, kb, i, j] = W[16p+i, 4kb+j], zero padded: a panel of sixteen output
channels is one run of memory, and four input channels of each lie together, as dot-product instructions want them.
Values are in [-127, 127]. Every function raises ValueError, naming the argument, for a wrong type, shape or value.
"""

from __future__ import annotations

from edge_llm.kernels import _native
from edge_llm.kernels.types import I8, I32, I64


def pack_tiles(weight: I8) -> I8:
    """weight[N, K] -> tiles. Refuses -128."""
    return _native.pack_tiles(weight)


def unpack_tiles(tiles: I8, n: int, k: int) -> I8:
    """tiles -> weight[N, K]."""
    return _native.unpack_tiles(tiles, n, k)


def gather_rows(tiles: I8, rows: I64, k: int) -> I8:
    """Rows (output channels) of the weight by index: rows i64[M] -> i8[M, K]. An embedding look-up."""
    return _native.gather_rows(tiles, rows, k)


def row_sums(tiles: I8, n: int) -> I32:
    """Sum over input channels of each output channel -> i32[N]."""
    return _native.row_sums(tiles, n)
