"""The types of blocks of GGUF files that are multiplied as they are."""

from __future__ import annotations

from dataclasses import dataclass

from edge_llm.kernels.types import TILE_CHANNELS

GROUP = 32
"""Input channels that share a scale of the activations."""
_LINE = 64


@dataclass(frozen=True)
class BlockKind:
    """One type of ggml that is multiplied as it is."""

    name: str
    number: int
    """Of the native kernels."""
    ggml: int
    """Of GGUF files."""
    columns: int
    """Of a block in the file."""
    nbytes: int
    """Of a block in the file."""
    bits: int
    """Of a code: 4, 5, 6 or 8."""
    width: int
    """Columns that share a scale: 16 or 32."""
    head: int
    """Bytes of the scales of 16 rows and `columns` columns in a panel."""
    has_least: bool = False
    """Whether something is subtracted from every 32 columns of a row."""

    def panel_bytes(self, k: int) -> int:
        """Bytes of a panel of 16 rows and ``k`` columns, a multiple of `columns`."""
        return -(-(k // self.columns * self.head) // _LINE) * _LINE + k // GROUP * self.group_bytes

    @property
    def group_bytes(self) -> int:
        """Bytes of the codes of 16 rows and 32 columns."""
        return TILE_CHANNELS * GROUP * self.bits // 8

    def file_bytes(self, n: int, k: int) -> int:
        """Bytes of ``n`` rows of ``k`` columns in the file."""
        return n * (k // self.columns) * self.nbytes


KINDS = {
    kind.name: kind
    for kind in (
        BlockKind("q4_0", 0, 2, 32, 18, bits=4, width=32, head=32),
        BlockKind("q4_1", 1, 3, 32, 20, bits=4, width=32, head=64, has_least=True),
        BlockKind("q5_0", 2, 6, 32, 22, bits=5, width=32, head=32),
        BlockKind("q5_1", 3, 7, 32, 24, bits=5, width=32, head=64, has_least=True),
        BlockKind("q8_0", 4, 8, 32, 34, bits=8, width=32, head=32),
        BlockKind("q4_k", 5, 12, 256, 144, bits=4, width=32, head=320, has_least=True),
        BlockKind("q5_k", 6, 13, 256, 176, bits=5, width=32, head=320, has_least=True),
        BlockKind("q6_k", 7, 14, 256, 210, bits=6, width=16, head=288),
        BlockKind("iq4_nl", 8, 20, 32, 18, bits=4, width=32, head=32),
        BlockKind("iq4_xs", 9, 23, 256, 136, bits=4, width=32, head=160),
        BlockKind("mxfp4", 10, 39, 32, 17, bits=4, width=32, head=16),
    )
}
"""By their names, in the order of their numbers."""
