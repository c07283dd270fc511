"""What a growing text says again: the runs of tokens that it ends with and that it has had before."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence

LONGEST = 64
"""Tokens of a repeat beyond which its length is not looked for: a penalty that grows with it has long been enough."""
MOST_PLACES = 64
"""Places of one run that are looked at, the last ones: what is said more often is as long there as anywhere."""


class Repeats:
    """Follows the tokens of a text behind its first ``start``: O(1) a token where nothing is said again."""

    def __init__(self, shortest: int, start: int, breaks: Callable[[int], bool]) -> None:
        """``shortest``: tokens of a repeat that counts.  No repeat has a token that ``breaks``."""
        self._shortest = shortest
        self._start = start
        self._breaks = breaks
        self._places: dict[tuple[int, ...], deque[int]] = defaultdict(lambda: deque(maxlen=MOST_PLACES))
        """Behind which tokens a run of ``shortest`` stands."""
        self._read = start + shortest

    def follow(self, tokens: Sequence[int]) -> dict[int, int]:
        """The tokens that would lengthen a repeat at the end of ``tokens``, and how long the longest of these repeats is."""
        for place in range(self._read, len(tokens)):
            self._places[tuple(tokens[place - self._shortest : place])].append(place)
        self._read = max(self._read, len(tokens))
        found: dict[int, int] = {}
        if len(tokens) - self._start < self._shortest:
            return found
        places = self._places.get(tuple(tokens[len(tokens) - self._shortest :]), ())
        most = self._unbroken(tokens) if places else 0
        if most >= self._shortest:
            for place in places:
                found[tokens[place]] = max(found.get(tokens[place], 0), self._length(tokens, place, most))
        return found

    def _unbroken(self, tokens: Sequence[int]) -> int:
        """Of how many tokens a repeat at the end can be."""
        most = min(max(LONGEST, self._shortest), len(tokens) - self._start)
        return next((length for length in range(most) if self._breaks(tokens[-1 - length])), most)

    def _length(self, tokens: Sequence[int], place: int, most: int) -> int:
        """Of what stands both before ``place`` and at the end; at most ``most``."""
        most = min(most, place - self._start)
        length = self._shortest
        while length < most and tokens[place - 1 - length] == tokens[-1 - length]:
            length += 1
        return length
