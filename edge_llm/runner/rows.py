"""Tokens of many sequences become the rows of chunks.

A chunk has one of a few static lengths: full ones, then the shortest of the ladder that holds the tail.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from edge_llm.devices.base import Chunk, Rows, static_length
from edge_llm.kv.sequence import SequencePages
from edge_llm.runner.base import Segment

LADDER = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def ladder(longest: int) -> tuple[int, ...]:
    """Static lengths up to ``longest``, which is always one of them."""
    return (*(length for length in LADDER if length < longest), longest)


def chunk_lengths(chunk: int, context: int) -> tuple[int, ...]:
    """Static lengths of chunks of at most ``chunk`` tokens, of sequences of at most ``context``."""
    return ladder(min(chunk, max(8, context)))


NO_ROWS = np.empty(0, np.int64)


def pack(segments: Sequence[Segment[SequencePages]], lengths: Sequence[int], window: int = 1) -> Iterator[Chunk]:
    """Cut the tokens of all ``segments``, one after the other, into chunks of at most ``lengths[-1]`` rows.

    The chunks of each ``window`` are numbered from 0.  A chunk may hold the end of one segment and the beginning of the next; a
    sequence's rows stay in order.
    """
    counts = [len(segment.tokens) for segment in segments]
    ends = np.cumsum(counts)
    tokens = np.array([token for segment in segments for token in segment.tokens], np.int64)
    sequence = np.repeat(np.arange(len(segments), dtype=np.int32), counts)
    lengths_before = np.array([segment.sequence.length for segment in segments])
    position = np.arange(len(tokens)) + np.repeat(lengths_before - (ends - counts), counts)
    table, page_tokens = _page_table(segments), segments[0].sequence.page_tokens
    slots = table[sequence, position // page_tokens].astype(np.int64) * page_tokens + position % page_tokens
    wanted = np.arange(len(tokens)) >= np.repeat(ends - [segment.wanted for segment in segments], counts)
    position = position.astype(np.int32)
    for number, (first, end) in enumerate(split(0, len(tokens), lengths[-1])):
        rows = Rows(
            static=static_length(end - first, lengths),
            tokens=tokens[first:end],
            sequence=sequence[first:end],
            position=position[first:end],
            slots=slots[first:end],
            page_table=table,
        )
        yield Chunk(number % window, rows, *_wanted(np.flatnonzero(wanted[first:end]), rows, segments))


def _wanted(
    wanted: np.ndarray, rows: Rows, segments: Sequence[Segment[SequencePages]]
) -> tuple[np.ndarray, np.ndarray]:
    """Of the rows ``wanted``, those whose logits and those whose states are wanted."""
    of_states = [segment.states for segment in segments]
    if not any(of_states):
        return wanted, NO_ROWS
    chosen = np.asarray(of_states)[rows.sequence[wanted]]
    return wanted[~chosen], wanted[chosen]


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
