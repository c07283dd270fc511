"""Guesses of a model for all answers of a step at once, as many as pay."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from edge_llm.decoding.gain import Gain
from edge_llm.engine.work import Work
from edge_llm.runner.base import Segment

log = logging.getLogger("edge_llm.engine")


class GroupDrafter(Protocol):
    """Guesses the next tokens of several answers; all but their last known tokens have been computed."""

    def begin(self, works: Sequence[Work]) -> None:
        """Do what the first guesses for ``works`` wait for, such as computing their prompts."""
        ...

    def guess(self, works: Sequence[Work], most: Sequence[int]) -> list[list[int]]:
        """At most ``most[i]`` tokens behind those of ``works[i]``; its sequence is as it was before."""
        ...

    def forget(self, work: Work) -> None:
        """``work`` is done, or waits; it need not be known."""
        ...


@dataclass(frozen=True)
class _Offer:
    """Guesses, and how many tokens were known then."""

    known: int
    guesses: Sequence[int]


class Drafting:
    """Has ``drafter`` guess where ``gain`` says that it pays; without one nothing is guessed and nothing measured."""

    def __init__(self, drafter: GroupDrafter | None = None, gain: Gain | None = None) -> None:
        self.gain = gain or Gain()
        """What is known of times and guesses, over all answers so far."""
        self.drafter = drafter
        self._offers: dict[Work, _Offer] = {}

    def offer(self, works: Sequence[Work]) -> None:
        """Guesses for ``works``, each of which the next step gives a token."""
        if self.drafter is None or not works:
            return
        for work in [*self._offers]:
            self._learn(work)
        guesses = self.gain.guesses(len(works))
        most = [min(guesses, work.room) for work in works]
        for work, found in zip(works, self._guess(self.drafter, works, most), strict=True):
            self._offers[work] = _Offer(len(work.known), found)
            work.offer(found)

    def ran(self, segments: Sequence[Segment[Any]], seconds: float) -> None:
        """A step of ``segments`` took so long; those with tokens of prompts say nothing."""
        if self.drafter is not None and all(segment.wanted == len(segment.tokens) for segment in segments):
            self.gain.sweeps.add(sum(len(segment.tokens) for segment in segments), seconds)

    def forget(self, work: Work) -> None:
        """``work`` is done, or waits."""
        if self.drafter is not None:
            self._learn(work)
            self._let_go(self.drafter, work)

    def _guess(self, drafter: GroupDrafter, works: Sequence[Work], most: Sequence[int]) -> list[list[int]]:
        nothing: list[list[int]] = [[] for _ in works]
        if not any(most):
            return nothing
        try:
            drafter.begin(works)
            started = perf_counter()
            found = drafter.guess(works, most)
            if longest := max(map(len, found)):
                self.gain.rounds.add(len(works), (perf_counter() - started) / longest)
            return found
        except Exception as error:  # nobody's answer depends on it
            log.warning("nothing is guessed in this step: %r", error)
            for work in works:
                self._let_go(drafter, work)
            return nothing

    def _let_go(self, drafter: GroupDrafter, work: Work) -> None:
        try:
            drafter.forget(work)
        except Exception:
            log.exception("a drafter could not forget an answer, and keeps its memory")

    def _learn(self, work: Work) -> None:
        """How many of the guesses for ``work`` were right, as far as their step has told."""
        offer = self._offers.pop(work, None)
        if offer is None:
            return
        right = 0
        for guess, token in zip(offer.guesses, work.known[offer.known :], strict=False):
            if guess != token:
                self.gain.learn(right, 1)
                return
            right += 1
        self.gain.learn(right, 0)
