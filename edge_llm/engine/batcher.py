"""Many requests in one stream of steps: continuous batching over the paged keys and values.

A step computes the next token of every answer that is under way, and prompt tokens of those that are not, as far as the
step's budget goes.  Requests start in the order in which they came, as soon as their prompts fit into memory; when memory
runs out, the one that came last gives its pages back and is computed again later.

Texts to embed are work for the background: they come after all answers, take little of a step that answers wait for, and
are the first to give way.

When the device is lost, the work of that step ends with its error, another runner takes the place, and all other work is
computed there.

Every piece of work ends once: with its last delta, or with the exception that its own part of a step raised.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from edge_llm.engine.drafting import Drafting
from edge_llm.engine.limits import Limits
from edge_llm.engine.request import Delta
from edge_llm.engine.runner_place import Replace, RunnerPlace, no_other
from edge_llm.engine.work import Work
from edge_llm.errors import DeviceLost, OutOfMemory
from edge_llm.progress import StageProgress, ignore
from edge_llm.runner.base import Cancel, Cancelled, Memory, Runner, Segment, never

log = logging.getLogger("edge_llm.engine")


@dataclass(frozen=True)
class _Line:
    """Work of one kind, oldest first."""

    waiting: deque[Work] = field(default_factory=deque)
    running: list[Work] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(len(work.known) for work in (*self.running, *self.waiting))


Item = Delta | Exception
Step = list[tuple[Work, Segment[Any]]]
Told = Generator[tuple[Work, Item], None, None]


class Batcher:
    """Runs work on ``runner``, or on what ``replace`` gives for it, within ``limits``; called by one thread at a time."""

    def __init__(
        self, runner: Runner[Any], limits: Limits, replace: Replace = no_other, drafting: Drafting | None = None
    ) -> None:
        self._place = RunnerPlace(runner, replace)
        self._limits = limits
        self.drafting = drafting or Drafting()
        """What guesses ahead for all answers of a step."""
        self._answers = _Line()
        self._background = _Line()
        self._ended: deque[tuple[Work, Item]] = deque()  # ends that the caller of `step` has not got yet
        self.preempted = 0
        """Times that work gave its pages back before it was done."""
        self.steps = 0
        """Steps that computed something."""
        self.step_works = 0
        """Pieces of work in all of these steps."""

    @property
    def runner(self) -> Runner[Any]:
        """What computes now."""
        return self._place.runner

    @property
    def most_running(self) -> int:
        """Answers that may be under way at a time."""
        return self._limits.most_running

    @property
    def running(self) -> int:
        """Answers under way."""
        return len(self._answers.running)

    @property
    def waiting(self) -> int:
        """Answers that wait for their turn."""
        return len(self._answers.waiting)

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        lines = (self._answers, self._background)
        return bool(self._ended or self._lost) or any(line.running or line.waiting for line in lines)

    @property
    def hungry(self) -> bool:
        """Whether there is less background work than a step could do."""
        return self._background.tokens < self._limits.step_tokens

    def works(self) -> list[Work]:
        """All that has been added and whose end has not been told."""
        ended = [work for work, _ in self._ended]
        return [*self._running, *self._answers.waiting, *self._background.waiting, *ended]

    def add(self, work: Work) -> None:
        """Queue ``work``; raises `OutOfMemory` if it could not even run alone."""
        self._memory.check_fits(len(work.known) + (0 if work.background else 1))
        self._line(work).waiting.append(work)

    def clear(self) -> None:
        """Forget everything and give all pages back."""
        for work in (*self._running, *self._answers.waiting, *self._background.waiting):
            self._remove(work)
        self._ended.clear()

    def step(self, interrupted: Cancel = never) -> Told:
        """One step: the deltas that it gives, and the errors of work that failed.

        Where it is ``interrupted`` before its end, the next step computes the same.  Whoever stops listening closes it: what
        was computed and not told is computed again.
        """
        yield from self.drop_cancelled()
        self._recover()
        self._admit()
        step = self._next_step()
        yield from self._tell()
        self.steps += bool(step)
        self.step_works += len(step)
        left = deque((work, segment, segment.sequence.length) for work, segment in step)
        try:
            for outcome in self._run(step, interrupted) if step else ():
                yield from self._take(left[0][0], outcome)
                left.popleft()
        except Cancelled:
            return  # the next step goes on, without those that were cancelled
        finally:
            for work, segment, length in left:  # computed, perhaps, and not taken: it is computed again
                if work.sequence is segment.sequence:
                    work.sequence.truncate(length)

    def drop_cancelled(self) -> Told:
        """End what nobody wants any more."""
        for work in (*self._running, *self._answers.waiting, *self._background.waiting):
            try:
                if work.cancelled():
                    self._end(work, work.end("cancelled"))
            except Exception as error:
                self._end(work, error)
        yield from self._tell()

    # -- who runs -----------------------------------------------------------------------------------------------------

    @property
    def _memory(self) -> Memory[Any]:
        return self.runner.memory

    def prepare(self, progress: StageProgress = ignore) -> None:
        """`Runner.prepare`; where the device is lost by that, another runner takes the place."""
        try:
            self.runner.prepare(progress)
        except DeviceLost as error:
            self._take_place(self._place.lose(error))

    @property
    def _lost(self) -> DeviceLost | None:
        return self._place.lost

    def _recover(self) -> None:
        """If the device is lost, have another runner compute anew all that ran; interrupted, the next step does it."""
        if self._lost is not None:
            for work in reversed(self._running):
                self._preempt(work)
            self._take_place(self._lost)

    def _take_place(self, lost: DeviceLost) -> None:
        """Another runner, within its own limits."""
        self._place.fill(lost)
        self._limits = self._limits.after_loss or self._limits

    @property
    def _running(self) -> list[Work]:
        """All that run; the last is preempted first."""
        return [*self._answers.running, *self._background.running]

    def _line(self, work: Work) -> _Line:
        return self._background if work.background else self._answers

    def _admit(self) -> None:
        """Start those that wait, in order, while there is memory for their prompts."""
        answers, background = self._answers, self._background
        while answers.waiting and len(answers.running) < self._limits.most_running:
            if not self._start(answers):
                return
        while background.waiting and self._start(background):
            pass

    def _start(self, line: _Line) -> bool:
        """Start the first of ``line`` that waits; false if there is no memory for it, or no device any more."""
        work = line.waiting[0]
        try:
            if self._running and not self._memory.has_room(len(work.known) + 1):
                return False
            work.start(self._memory)
            line.waiting.popleft()
            line.running.append(work)
        except Exception as error:
            self._end(work, error)
        return self._lost is None

    def _preempt(self, work: Work) -> None:
        line = self._line(work)
        self._remove(work)
        line.waiting.appendleft(work)
        self.preempted += 1

    def _remove(self, work: Work) -> None:
        line = self._line(work)
        self.drafting.forget(work)
        for works in (line.running, line.waiting):
            if work in works:
                works.remove(work)
        sequence, work.sequence = work.sequence, None
        if sequence is not None:
            try:
                sequence.close()
            except Exception:  # nobody's answer depends on it
                log.exception("the pages of a sequence are lost")

    # -- how work ends ------------------------------------------------------------------------------------------------

    def _end(self, work: Work, item: Item) -> None:
        self._remove(work)
        self._ended.append((work, self._place.lose(item) if isinstance(item, DeviceLost) else item))

    def _tell(self) -> Iterator[tuple[Work, Item]]:
        while self._ended:
            yield self._ended.popleft()

    # -- a step -------------------------------------------------------------------------------------------------------

    def _next_step(self) -> Step:
        """What the step computes: a token of every answer first, then prompts in order, while budget and memory last."""
        limits = self._limits
        answers = [work for work in self._answers.running if work.decoding]
        prompts = [work for work in self._answers.running if not work.decoding]
        self.drafting.offer(answers)
        step: Step = []
        budget = limits.mixed_tokens if answers else limits.step_tokens
        for number, work in enumerate(answers):
            others = len(answers) - number - 1  # each of them gets a row, whatever is guessed here
            budget -= self._add(step, work, max(1, budget - others))
        self._fill(step, prompts, max(budget, limits.prompt_tokens))
        self._fill(step, self._background.running, limits.background_tokens if answers or prompts else limits.step_tokens)
        return [] if self._lost else [(work, segment) for work, segment in step if work.sequence is segment.sequence]

    def _fill(self, step: Step, works: Sequence[Work], budget: int) -> None:
        for work in [*works]:
            if budget > 0:
                budget -= self._add(step, work, budget)

    def _add(self, step: Step, work: Work, most: int) -> int:
        """Add at most ``most`` tokens of ``work`` to ``step``, if it still runs and there is memory: how many."""
        if work.sequence is None or self._lost:  # it gave way to an older one, or all will be computed elsewhere
            return 0
        try:
            segment = work.segment(most)
            if self._try_reserve(segment) is not None:
                segment = work.segment(1) if work.decoding else segment  # a guess is not worth preempting others
                if not self._make_room(work, segment):
                    return 0
        except Exception as error:
            self._end(work, error)
            return 0
        step.append((work, segment))
        return len(segment.tokens)

    def _make_room(self, work: Work, segment: Segment[Any]) -> bool:
        """Room for ``segment``, made by those that come after ``work`` if need be; false if that means this one too."""
        while (error := self._try_reserve(segment)) is not None:
            last = self._running[-1]
            if last is work and len(self._running) == 1:  # nobody else has pages to give up
                self._end(work, work.strand(error))
            else:
                self._preempt(last)
            if last is work:
                return False
        return True

    def _try_reserve(self, segment: Segment[Any]) -> OutOfMemory | None:
        try:
            self._memory.reserve(segment.sequence, segment.sequence.length + len(segment.tokens))
        except OutOfMemory as error:
            return error
        return None

    def _run(self, step: Step, interrupted: Cancel) -> list[np.ndarray | Exception]:
        """The rows of every segment.  When the step fails, each runs alone, so that only those to blame get the error."""
        segments, started = [segment for _, segment in step], perf_counter()
        try:
            outcomes = self.runner.run(segments, cancel=lambda: interrupted() or _unwanted(step))
        except Cancelled:
            raise
        except Exception as error:
            if len(step) == 1 or isinstance(error, DeviceLost):
                return [error] * len(step)
        else:  # beyond this point the sequences have grown, and nothing runs again
            self.drafting.ran(segments, perf_counter() - started)
            return [*outcomes]
        alone: list[np.ndarray | Exception] = []
        for segment in segments:
            lost = alone and isinstance(alone[-1], DeviceLost)
            alone.append(alone[-1] if lost else self._run_alone(segment))
        return alone

    def _run_alone(self, segment: Segment[Any]) -> np.ndarray | Exception:
        """Never cancelled, because what was computed for the others before it would be lost."""
        try:
            return self.runner.run([segment])[0]
        except Exception as error:
            return error

    def _take(self, work: Work, outcome: np.ndarray | Exception) -> Iterator[tuple[Work, Item]]:
        try:
            if isinstance(outcome, Exception):
                raise outcome
            if len(outcome) == 0:
                return  # its prompt is not through
            for delta in work.take(outcome):
                yield work, delta
        except Exception as error:
            self._end(work, error)
            yield from self._tell()
            return
        except BaseException:  # half taken: it cannot go on
            self._remove(work)
            raise
        try:
            work.remember(self._memory)
        except DeviceLost as error:
            self._place.lose(error)
        except Exception as error:  # a help for later requests, of which this one needs nothing
            log.warning("computed pages could not be kept for later requests: %r", error)
        finally:  # its last delta is told, whatever interrupts this thread
            if work.finished:
                self._remove(work)


def _unwanted(step: Step) -> bool:
    """Whether somebody whose prompt is in the step is cancelled: a whole prompt is long to wait for."""
    return any(work.cancelled() for work, segment in step if len(segment.tokens) > 1)
