"""Whether guessing ahead pays, and how many guesses: measured while answers are under way.

A step with k guesses for each of n answers takes k rounds of the drafter and one sweep of n * (k + 1) rows through the model,
and gives 1 + p + ... + p^k tokens per answer, where p is the share of guesses that are right behind right ones.  A step
without any gives one token per answer for a sweep of n rows.  All of these times, and p, are measured; none is assumed.
Where guesses do not pay they are left, and tried again at distances that grow.
"""

from __future__ import annotations

from collections import defaultdict, deque

MOST_GUESSES = 12
"""Guesses for an answer in a step."""
FIRST = 2
"""Guesses of a step before anything is known."""
MARGIN = 1.05
"""Guesses pay when they give so many times the tokens per second: less is noise."""
MEASURED = 4
"""Steps without guesses to measure before any is made: the first is slow, because a program is built."""
ENOUGH = 8
"""Guesses to see before anything is said of them."""
TRIAL = 4
"""Steps of a trial."""
PAUSE, LONGEST_PAUSE = 32, 1024
"""Steps between two trials where guesses do not pay: at first, and at most."""
REFRESH = 64
"""One step of so many goes without guesses where they pay, so that the time of such a step stays known."""
DECAY = 0.98
"""What an observation weighs beside the next one."""
EVERY = 4
"""Steps between two looks at what was measured: that takes 20 us."""


class Times:
    """Medians of the latest seconds by a number of rows."""

    KEPT = 15

    def __init__(self) -> None:
        self._seconds: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=self.KEPT))
        self._medians: dict[int, float] = {}

    def count(self, rows: int) -> int:
        """Measurements that are kept for ``rows``."""
        return len(self._seconds.get(rows, ()))

    def add(self, rows: int, seconds: float) -> None:
        kept = self._seconds[rows]
        kept.append(seconds)
        self._medians[rows] = sorted(kept)[(len(kept) - 1) // 2]

    def at(self, rows: int) -> float:
        """Seconds for ``rows`` rows, between the nearest that are known; at least one must be."""
        if (exactly := self._medians.get(rows)) is not None:
            return exactly
        below = max((known for known in self._medians if known < rows), default=None)
        above = min((known for known in self._medians if known > rows), default=None)
        if below is None or above is None:
            known = above if below is None else below
            assert known is not None, "nothing was measured"
            return self._medians[known]
        share = (rows - below) / (above - below)
        return (1 - share) * self._medians[below] + share * self._medians[above]


class Gain:
    """Decides for each step of an engine how many guesses its answers get.  Whatever it says changes no token."""

    def __init__(self) -> None:
        self.sweeps = Times()
        """Of steps through the whole model, by their rows."""
        self.rounds = Times()
        """Of one token of the drafter for every answer, by the answers."""
        self._right = self._tested = 0.0
        self._chosen: dict[int, int] = {}
        """By the answers: the best number of guesses when it was looked at last."""
        self._steps = 0
        self._trial = 0
        self._pause = PAUSE
        self._wait = 0

    @property
    def accepted(self) -> float:
        """The share of guesses that are right behind right ones: lately, and never quite 0 or 1."""
        return (self._right + 0.5) / (self._tested + 1.0)

    def learn(self, right: int, wrong: int) -> None:
        """Of the guesses behind right ones so many were ``right`` and ``wrong``."""
        keep = DECAY ** (right + wrong)
        self._right = keep * self._right + right
        self._tested = keep * self._tested + right + wrong

    def guesses(self, answers: int) -> int:
        """Guesses for each of ``answers`` answers in the step that begins now."""
        self._steps += 1
        if self.sweeps.count(answers) < MEASURED:
            return 0
        if self._tested < ENOUGH or self._trial > 0:
            self._trial = max(0, self._trial - 1)
            self._chosen.clear()
            return FIRST
        if answers not in self._chosen or self._steps % EVERY == 0:
            self._chosen[answers] = self.best(answers)
        best = self._chosen[answers]
        if best:
            self._pause, self._wait = PAUSE, 0
            return 0 if self._steps % REFRESH == 0 else best
        self._wait_for_trial()
        return 0

    def best(self, answers: int) -> int:
        """The number of guesses that gives most tokens per second; 0 where none pay.  All times must have been measured."""
        guesses = self.least_bad(answers)
        pays = self._rate(answers, guesses, self.accepted) > MARGIN * answers / self.sweeps.at(answers)
        return guesses if pays else 0

    def least_bad(self, answers: int) -> int:
        """The number of guesses, one or more, that gives most tokens per second."""
        return max(range(1, MOST_GUESSES + 1), key=lambda guesses: (self._rate(answers, guesses, self.accepted), -guesses))

    def pays_from(self, answers: int) -> float | None:
        """The share of right guesses from which on some give more tokens per second than none, to 0.01; None: not even 1."""
        plain = answers / self.sweeps.at(answers)
        shares = (share / 100 for share in range(100))
        return next((p for p in shares if any(self._rate(answers, k, p) > plain for k in range(1, MOST_GUESSES + 1))), None)

    def _rate(self, answers: int, guesses: int, p: float) -> float:
        """Tokens per second where the share ``p`` of guesses is right behind right ones."""
        tokens = answers * (1 - p ** (guesses + 1)) / (1 - p)
        return tokens / (guesses * self.rounds.at(answers) + self.sweeps.at(answers * (guesses + 1)))

    def _wait_for_trial(self) -> None:
        if self._wait == 0:
            self._wait = self._pause
        self._wait -= 1
        if self._wait == 0:
            self._trial, self._pause = TRIAL, min(LONGEST_PAUSE, 2 * self._pause)
            old = min(1.0, ENOUGH / self._tested)  # what is seen now is to count
            self._right, self._tested = old * self._right, old * self._tested
