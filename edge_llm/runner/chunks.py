"""A prompt becomes chunks of static lengths: full ones, then the shortest of the ladder that holds the tail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

LADDER = (1, 8, 32, 64, 128, 256, 512, 1024, 2048, 4096)


def ladder(longest: int) -> tuple[int, ...]:
    """Static lengths up to ``longest``, which is always one of them."""
    return (*(length for length in LADDER if length < longest), longest)


def static_length(tokens: int, lengths: Sequence[int]) -> int:
    """The shortest length that holds ``tokens`` tokens."""
    return next(length for length in lengths if length >= tokens)


def split(start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Cut tokens [start, end) into pieces of at most ``longest`` tokens: pairs (first, one past the last)."""
    for first in range(start, end, longest):
        yield first, min(first + longest, end)
