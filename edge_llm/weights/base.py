"""What the runner may ask of weights, wherever they lie."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from edge_llm.schemes import BlockWeights
from edge_llm.schemes.int8 import Int8Weight


class Weights(Protocol):
    """The weights of one model.

    A sweep over the layers requests and reads every streamed layer before it uses it, and requests streamed layer j only
    after the last use of streamed layer j - slots, whose memory it takes.
    """

    head: BlockWeights
    """The final norm and the output linear, which may lie on flash: `head_blocks` gives what can be multiplied."""
    streamed: tuple[int, ...]
    """Layers that are read before each use, ascending; () when all are resident."""
    streamed_bytes: int
    """Bytes that one sweep and its logits read from flash; 0 when all is resident."""
    slots: int
    """How many streamed layers are in memory at a time; 0 when none is streamed."""

    def layer(self, index: int) -> BlockWeights:
        """Weights of decoder layer ``index``, which is resident or has been read."""
        ...

    def request(self, index: int) -> None:
        """Have streamed layer ``index`` read in the background; returns at once.  Nothing to do when it is there."""
        ...

    def read(self, index: int) -> None:
        """Wait until streamed layer ``index``, which was requested, is in memory and checked.

        Raises `StorageError` when the disk refuses, `CorruptBundle` when the bytes are not what was written.
        """
        ...

    def embedding_rows(self, tokens: np.ndarray) -> tuple[Int8Weight, np.ndarray]:
        """A linear that has the embeddings of ``tokens`` (int64 [M]) among its rows, and which rows they are (int64 [M]).

        Raises what `read` raises when the embedding lies on flash.
        """
        ...

    def head_blocks(self) -> Iterator[tuple[slice, BlockWeights]]:
        """The final norm and the output linear in runs of output rows: (rows, head of these rows), each valid until the next.

        Raises what `read` raises when the output matrix lies on flash.
        """
        ...

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the weights hold."""
        ...
