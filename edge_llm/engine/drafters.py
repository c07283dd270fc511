"""Who guesses for several answers at once: the model's own first layers, or a small model of the same tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edge_llm.decoding.sampler import greedy
from edge_llm.engine.work import Work
from edge_llm.errors import OutOfMemory
from edge_llm.runner.base import Runner, Segment


class FirstLayers(Protocol):
    """A runner whose model's first layers and head stay in memory."""

    def run_first(self, layers: int, segments: Sequence[Segment[Any]]) -> list[np.ndarray]:
        """As `Runner.run`, through the first ``layers`` layers and the head alone."""
        ...


class OwnLayers:
    """The first ``layers`` layers of the model that ``runner`` runs, and its head.

    They read the keys and values that the model has written and write their own behind them, where the step that checks the
    guesses writes the same bits again.  So there is nothing to begin and nothing to keep.
    """

    def __init__(self, runner: FirstLayers, layers: int) -> None:
        self._runner = runner
        self._layers = layers

    def begin(self, works: Sequence[Work]) -> None:
        """Nothing: the model has computed all that is needed."""

    def guess(self, works: Sequence[Work], most: Sequence[int]) -> list[list[int]]:
        lengths = [work.sequence.length for work in works]
        found: list[list[int]] = [[] for _ in works]
        try:
            for number in range(max(most)):
                active = [place for place in range(len(works)) if most[place] > number]
                tokens = [(found[place] or works[place].known)[-1] for place in active]
                segments = [Segment(works[place].sequence, [token]) for place, token in zip(active, tokens, strict=True)]
                for place, logits in zip(active, self._runner.run_first(self._layers, segments), strict=True):
                    found[place].append(greedy(logits[-1]).token)
        except OutOfMemory:  # what was guessed until then may be checked
            pass
        finally:
            for work, length in zip(works, lengths, strict=True):
                work.sequence.truncate(length)
        return found

    def forget(self, work: Work) -> None:
        """Nothing is kept."""


@dataclass
class _Followed:
    """An answer in the draft model's memory."""

    sequence: Any
    tokens: list[int]
    """Those that the sequence holds, and perhaps more."""
    sure: int
    """So many of them are the answer's; the others are guesses."""

    def agreed(self, known: Sequence[int]) -> int:
        """Of the tokens that the sequence holds, how many are the beginning of ``known``, whose last one is computed again."""
        most = min(self.sequence.length, len(known) - 1)
        return next((at for at in range(self.sure, most) if self.tokens[at] != known[at]), most)


class DraftModel:
    """Greedy decoding on ``runner`` among the first ``vocab_size`` tokens, which it and the model have in common.

    One of them may have more rows in its matrices, which the tokenizer has no tokens for: an answer that has one of these
    gets no guess any more.  Each answer has a sequence of its own there, which follows it as far as there is memory.
    """

    PENDING = 2
    """Tokens of an answer that a round takes at most: where all guesses were right, the last of them and the one behind it."""

    def __init__(self, runner: Runner[Any], vocab_size: int) -> None:
        self._runner = runner
        self._vocab_size = vocab_size
        self._followed: dict[Work, _Followed] = {}

    def begin(self, works: Sequence[Work]) -> None:
        for work in works:
            is_new = work not in self._followed
            one = self._follow(work)
            if one is not None and is_new:
                self._catch_up(work, one)

    def guess(self, works: Sequence[Work], most: Sequence[int]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in works]
        for work in works:
            if (one := self._followed.get(work)) is not None:  # where states went back far behind a wrong guess, each time
                self._catch_up(work, one)
        followed = [(place, self._followed[work]) for place, work in enumerate(works) if work in self._followed]
        active = [(place, one) for place, one in followed if self._has_room(works[place], one, most[place])]
        while active := [(place, one) for place, one in active if len(found[place]) < most[place]]:
            segments = []
            for place, one in active:
                one.tokens, one.sure = [*works[place].known, *found[place]], len(works[place].known)
                segments.append(Segment(one.sequence, one.tokens[one.sequence.length :]))
            for (place, _), logits in zip(active, self._runner.run(segments), strict=True):
                found[place].append(greedy(logits[-1, : self._vocab_size]).token)
        return found

    def forget(self, work: Work) -> None:
        one = self._followed.pop(work, None)
        if one is None:
            return
        try:
            one.sequence.truncate(one.agreed(work.known))
            self._runner.memory.remember(one.sequence, work.known)
        finally:
            one.sequence.close()

    def _follow(self, work: Work) -> _Followed | None:
        """The sequence of ``work``, which holds a beginning of it; None where it is too long for the draft model, or has a
        token that this lacks.
        """
        one, known = self._followed.get(work), work.known
        unknown = any(token >= self._vocab_size for token in known[0 if one is None else one.sure :])
        if unknown or len(known) >= self._runner.context:
            self.forget(work)
            return None
        if one is None:
            one = self._followed[work] = _Followed(self._runner.memory.open(known), [*known], len(known))
        one.sequence.truncate(one.agreed(known))
        one.tokens, one.sure = [*known], len(known)
        return one

    def _catch_up(self, work: Work, one: _Followed) -> None:
        """Compute what ``one`` lacks of ``work``, up to the tokens that a round takes."""
        if len(work.known) - one.sequence.length <= self.PENDING:
            return
        try:  # one by one: a prompt may be as long as a step
            self._runner.run([Segment(one.sequence, work.known[one.sequence.length : -1], 0)])
        except OutOfMemory:
            self.forget(work)

    def _has_room(self, work: Work, one: _Followed, most: int) -> bool:
        tokens = len(work.known) + most
        if most < 1 or tokens > self._runner.context:
            return False
        try:
            self._runner.memory.reserve(one.sequence, tokens)
        except OutOfMemory:
            return False
        return True
