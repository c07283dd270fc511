"""Tokens of many sequences become the rows of chunks.

A chunk has one of a few static lengths: full ones, then the shortest of the ladder that holds the tail.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

import numpy as np

from edge_llm.devices.base import Chunk, Rows, static_length
from edge_llm.kv.sequence import SequencePages
from edge_llm.operations.keeps import Span
from edge_llm.runner.base import Segment

LADDER = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def ladder(longest: int) -> tuple[int, ...]:
    """Static lengths up to ``longest``, which is always one of them."""
    return (*(length for length in LADDER if length < longest), longest)


def chunk_lengths(chunk: int, context: int) -> tuple[int, ...]:
    """Static lengths of chunks of at most ``chunk`` tokens, of sequences of at most ``context``."""
    return ladder(min(chunk, max(8, context)))


NO_ROWS = np.empty(0, np.int64)


def pack(
    segments: Sequence[Segment[SequencePages]], lengths: Sequence[int], window: int = 1, *, whole: bool = False
) -> Iterator[Chunk]:
    """Cut the tokens of all ``segments``, one after the other, into chunks of at most ``lengths[-1]`` rows.

    The chunks of each ``window`` are numbered from 0.  A chunk may hold the end of one segment and the beginning of the next; a
    sequence's rows stay in order.  With ``whole`` no segment is cut: each has at most ``lengths[-1]`` tokens.
    """
    laid, wanted = _lay_out(segments)
    kinds, spans = _kinds(segments), _spans(segments)
    table, total, adapters = _page_table(segments), len(laid[0]), _adapters(segments)
    cuts = _between([len(segment.tokens) for segment in segments], lengths[-1]) if whole else split(0, total, lengths[-1])
    for number, (first, end) in enumerate(cuts):
        tokens, sequence, position, slots = laid if end - first == total else [array[first:end] for array in laid]
        of_pairs, of_states = None if kinds is None else kinds[first:end], _spans_inside(spans, first, end)
        its = None if adapters is None or not adapters[first:end].any() else adapters[first:end]
        rows = Rows(static_length(end - first, lengths), tokens, sequence, position, slots, table, of_pairs, of_states, its)
        yield Chunk(number % window, rows, _inside(wanted[False], first, end), _inside(wanted[True], first, end))


def _lay_out(segments: Sequence[Segment[SequencePages]]) -> tuple[tuple[np.ndarray, ...], dict[bool, list[int]]]:
    """Tokens, sequences, positions and slots of all rows; the rows whose states (True) or logits (False) are wanted.

    A step has one row or a few: lists are faster there than arrays.
    """
    tokens: list[int] = []
    sequence: list[int] = []
    position: list[int] = []
    slots: list[int] = []
    wanted: dict[bool, list[int]] = {False: [], True: []}
    for number, segment in enumerate(segments):
        start, count = segment.sequence.length, len(segment.tokens)
        tokens += segment.tokens
        sequence += [number] * count
        position += range(start, start + count)
        slots += _slots(segment.sequence, start, start + count)
        wanted[segment.states] += range(len(tokens) - segment.wanted, len(tokens))
    laid = np.array(tokens, np.int64), np.array(sequence, np.int32), np.array(position, np.int32), np.array(slots, np.int64)
    return laid, wanted


def _kinds(segments: Sequence[Segment[SequencePages]]) -> np.ndarray | None:
    """Of which text of a pair every row is, int32: 0 or 1; None where there are no pairs."""
    if not any(segment.second for segment in segments):
        return None
    found = [
        (segment.sequence.length + np.arange(len(segment.tokens)) >= segment.second) & bool(segment.second)
        for segment in segments
    ]
    return np.concatenate(found).astype(np.int32)


def _adapters(segments: Sequence[Segment[SequencePages]]) -> np.ndarray | None:
    """The adapter of every row, int32; None where none has one."""
    numbers = [segment.sequence.adapter for segment in segments]
    return np.repeat(np.array(numbers, np.int32), [len(one.tokens) for one in segments]) if any(numbers) else None


def _slots(sequence: SequencePages, start: int, end: int) -> list[int]:
    """Where the keys and values of the tokens [start, end) of ``sequence`` are written, page by page."""
    size, page_of = sequence.page_tokens, sequence.table.item
    found: list[int] = []
    for number in range(start // size, -(-end // size)):
        ahead = (page_of(number) - number) * size
        found += range(ahead + max(start, number * size), ahead + min(end, (number + 1) * size))
    return found


def _spans(segments: Sequence[Segment[SequencePages]]) -> list[Span]:
    """The spans of all segments, whose rows follow each other; none where nothing is kept in a fixed shape."""
    found: list[Span] = []
    start = 0
    for segment in segments:
        count = len(segment.tokens)
        for span in segment.sequence.spans(count, segment.wanted):
            found.append(span._replace(first=start + span.first, end=start + span.end))
        start += count
    return found


def _spans_inside(spans: Sequence[Span], first: int, end: int) -> tuple[Span, ...]:
    """The rows [first, end) of ``spans``, counted from there; what begins before goes on in the slot that it writes."""
    found = []
    for span in spans:
        start, stop = max(first, span.first), min(end, span.end)
        if start < stop:
            reads = span.reads if start == span.first else span.writes
            found.append(Span(start - first, stop - first, reads, span.writes))
    return tuple(found)


def _inside(rows: list[int], first: int, end: int) -> np.ndarray:
    """Those of the ascending ``rows`` that are in [first, end), counted from there."""
    if not rows:
        return NO_ROWS
    return np.array([row - first for row in rows[bisect_left(rows, first) : bisect_left(rows, end)]], np.int64)


def _page_table(segments: Sequence[Segment[SequencePages]]) -> np.ndarray:
    """The pages of every segment's sequence, padded with 0: int32 [segments, pages]."""
    if len(segments) == 1:
        return segments[0].sequence.table[None, :]
    table = np.zeros((len(segments), max(len(segment.sequence.table) for segment in segments)), np.int32)
    for row, segment in enumerate(segments):
        table[row, : len(segment.sequence.table)] = segment.sequence.table
    return table


def _between(counts: Sequence[int], longest: int) -> Iterator[tuple[int, int]]:
    """Put ``counts`` of tokens, none above ``longest``, into pieces of at most so many: pairs (first, one past the last)."""
    first = end = 0
    for count in counts:
        if end + count - first > longest:
            yield first, end
            first = end
        end += count
    yield first, end


def split(start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Cut tokens [start, end) into pieces of at most ``longest`` tokens: pairs (first, one past the last)."""
    for first in range(start, end, longest):
        yield first, min(first + longest, end)
