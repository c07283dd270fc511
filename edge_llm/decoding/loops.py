"""A guard against loops: an answer whose end says the same tokens over and over will not come to an end of its own.

    guard = LoopGuard()
    ended = any(guard.push(token) for token in tokens)

A text is in a loop of period p when each of its last tokens, as many as `LoopLimits.tokens` says, is the one p tokens before,
as far as that is one of them.  Only exact repeats count: a list that goes on counting is none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LoopLimits:
    """How much of the same is a loop: above what lists, tables, code and pictures of characters repeat."""

    fewest: int = 200
    """Tokens that a loop has, however short its period is."""
    times: int = 4
    """How often its period is said."""
    longest: int = 512
    """Most tokens of a period."""

    def tokens(self, period: int) -> int:
        """How many of the last tokens must have ``period``."""
        return max(self.fewest, self.times * period)

    @property
    def window(self) -> int:
        """Tokens behind which nothing is looked for."""
        return self.tokens(self.longest)


LIMITS = LoopLimits()


class LoopGuard:
    """Follows one answer, token by token: O(1) amortised, because it looks again only when a loop may be complete."""

    def __init__(self, limits: LoopLimits = LIMITS) -> None:
        self._limits = limits
        self._tokens: deque[int] = deque(maxlen=limits.window)
        self._left = limits.fewest
        """Tokens before which there can be no loop."""

    def push(self, token: int) -> bool:
        """Take the next token: whether the text now ends in a loop."""
        self._tokens.append(token)
        self._left -= 1
        if self._left <= 0:
            self._left = missing(self._tokens, self._limits)
            return self._left == 0
        return False


def missing(tokens: Sequence[int], limits: LoopLimits) -> int:
    """How many tokens must follow at least before a text that ends with ``tokens`` is in a loop; 0: it is in one.

    A period that does not fit yet would need more tokens than the shortest one that does.
    """
    found = (limits.tokens(period) - period - run for period, run in enumerate(runs(tokens, limits.longest), 1))
    return max(0, min(found, default=limits.fewest - len(tokens)))


def runs(tokens: Sequence[int], longest: int) -> list[int]:
    """For every period from 1 to ``longest``, as far as it fits: how many of the last tokens stand one period before, too.

    They are the Z-function of the reversed text, in as many steps as there are tokens.
    """
    text = list(reversed(tokens))
    size = len(text)
    found = [0] * min(longest + 1, size)
    begin = end = 0  # of the stretch that reaches farthest among those that are like the beginning
    for period in range(1, len(found)):
        run = min(end - period, found[period - begin]) if period < end else 0
        while period + run < size and text[run] == text[period + run]:
            run += 1
        if period + run > end:
            begin, end = period, period + run
        found[period] = run
    return found[1:]
