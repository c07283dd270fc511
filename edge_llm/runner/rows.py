"""Tokens of many sequences become the rows of chunks, and their rows of the embedding the first hidden states.

A chunk has one of a few static lengths: full ones, then the shortest of the ladder that holds the tail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from edge_llm.devices.base import Buffers, Device, Rows
from edge_llm.kv.pages import PAGE_TOKENS
from edge_llm.kv.store import SequencePages
from edge_llm.runner.base import Segment
from edge_llm.weights.base import Weights

LADDER = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def ladder(longest: int) -> tuple[int, ...]:
    """Static lengths up to ``longest``, which is always one of them."""
    return (*(length for length in LADDER if length < longest), longest)


def static_length(tokens: int, lengths: Sequence[int]) -> int:
    """The shortest length that holds ``tokens`` tokens."""
    return next(length for length in lengths if length >= tokens)


def pack(segments: Sequence[Segment[SequencePages]], lengths: Sequence[int]) -> Iterator[tuple[Rows, np.ndarray]]:
    """Cut the tokens of all ``segments``, one after the other, into chunks of at most ``lengths[-1]`` rows.

    Yields the rows of each chunk, and which of them need logits: int64 [wanted], ascending.  A chunk may hold the end of
    one segment and the beginning of the next; a sequence's rows stay in order.
    """
    counts = [len(segment.tokens) for segment in segments]
    ends = np.cumsum(counts)
    tokens = np.array([token for segment in segments for token in segment.tokens], np.int64)
    sequence = np.repeat(np.arange(len(segments), dtype=np.int32), counts)
    lengths_before = np.array([segment.sequence.length for segment in segments])
    position = np.arange(len(tokens)) + np.repeat(lengths_before - (ends - counts), counts)
    table = _page_table(segments)
    slots = table[sequence, position // PAGE_TOKENS].astype(np.int64) * PAGE_TOKENS + position % PAGE_TOKENS
    wanted = np.arange(len(tokens)) >= np.repeat(ends - [segment.wanted for segment in segments], counts)
    position = position.astype(np.int32)
    for first, end in split(0, len(tokens), lengths[-1]):
        rows = Rows(
            static=static_length(end - first, lengths),
            tokens=tokens[first:end],
            sequence=sequence[first:end],
            position=position[first:end],
            slots=slots[first:end],
            page_table=table,
        )
        yield rows, np.flatnonzero(wanted[first:end])


def _page_table(segments: Sequence[Segment[SequencePages]]) -> np.ndarray:
    """The pages of every segment's sequence, padded with 0: int32 [segments, pages]."""
    if len(segments) == 1:
        return segments[0].sequence.table[None, :]
    table = np.zeros((len(segments), max(len(segment.sequence.table) for segment in segments)), np.int32)
    for row, segment in enumerate(segments):
        table[row, : len(segment.sequence.table)] = segment.sequence.table
    return table


def split(start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Cut tokens [start, end) into pieces of at most ``longest`` tokens: pairs (first, one past the last)."""
    for first in range(start, end, longest):
        yield first, min(first + longest, end)


def embed(device: Device, weights: Weights, rows: Rows, buffers: Buffers) -> Callable[[], None]:
    """The task that writes the embeddings of the tokens of ``rows`` to ``buffers["hidden"]``."""

    def run() -> None:
        table, places = weights.embedding_rows(rows.tokens)
        device.embed(table, replace(rows, tokens=places), buffers["hidden"])

    return run
