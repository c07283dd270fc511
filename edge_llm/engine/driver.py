"""Who runs the steps of a batcher when many callers wait for their answers: one of them at a time, for all.

A caller that wants its next delta runs steps until it is there, while nobody else does; what a step gives to others lies in
their mailboxes when they come for it.  A service is one more such caller, on a thread of its own.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

from edge_llm.engine.batcher import Batcher, Told
from edge_llm.engine.embedding import EmbeddingJob
from edge_llm.engine.request import Delta
from edge_llm.engine.work import Work
from edge_llm.errors import Unavailable
from edge_llm.interrupts import HeldInterrupt

log = logging.getLogger("edge_llm.engine")


class Mailbox(Protocol):
    """Where one caller finds what its work gave.  Never raises."""

    def put(self, delta: Delta) -> None:
        """The next delta; the last one has ``finish``."""
        ...

    def fail(self, error: BaseException) -> None:
        """Its work has ended with ``error``."""
        ...


class Driver:
    """Runs the steps of ``batcher``, whose only user it is.  Every method may be called from any thread.

    Whatever is raised where, every mailbox gets one end.
    """

    def __init__(self, batcher: Batcher) -> None:
        self.changed = threading.Condition()
        """Held for moments only; notified when something was added, and after every step."""
        self._batcher = batcher
        self._stepper: int | None = None  # the thread that has the batcher
        self._orphaned = False  # that thread is not in this process, a fork, and left the batcher in any state
        self._untidy = False  # something was cancelled meanwhile
        self._arrived: deque[tuple[Work, Mailbox]] = deque()
        self._jobs: list[EmbeddingJob] = []
        self._mailboxes: dict[Work, Mailbox] = {}
        _drivers.add(self)

    def add(self, work: Work, mailbox: Mailbox) -> None:
        """Compute ``work``; its deltas go to ``mailbox``."""
        with HeldInterrupt(), self.changed:
            self._arrived.append((work, mailbox))
            self.changed.notify_all()

    def add_job(self, job: EmbeddingJob) -> None:
        """Compute the embeddings of ``job``, in turns with the other jobs."""
        with HeldInterrupt(), self.changed:
            self._jobs.append(job)
            self.changed.notify_all()

    def run_until(self, done: Callable[[], bool]) -> None:
        """Run steps, or wait while another thread does, until ``done`` says so.

        Raises `Unavailable` in a process that was forked while another thread ran a step.
        """
        while self._turn(done):
            pass

    def tidy(self, _: object = None) -> None:
        """End what is cancelled: now, or after the step that is under way.

        Never waits for a step: the end of an iterator may come from the garbage collector, in the middle of one.
        """
        with HeldInterrupt():
            with self.changed:
                self._untidy = True
                if self._stepper is not None:
                    return
                self._stepper = threading.get_ident()
            self._let_go()

    @property
    def busy(self) -> bool:
        """Whether a step has anything to do."""
        return bool(self._arrived or self._jobs or self._batcher.busy)

    @property
    def running(self) -> int:
        """Requests that are being computed; the embeddings of a job are one."""
        return self._batcher.running + sum(job.begun for job in self._jobs)

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn."""
        return self._batcher.waiting + len(self._arrived) + sum(not job.begun for job in self._jobs)

    def _turn(self, done: Callable[[], bool]) -> bool:
        """Run a step if nobody else does, or wait; false when it is ``done``."""
        mine = False
        with HeldInterrupt(self._wake) as interrupt:
            try:
                with self.changed:
                    self.changed.wait_for(lambda: interrupt.pending or done() or self._stepper is None or self._orphaned)
                    if done():
                        return False
                    if self._orphaned:
                        raise Unavailable("this process was forked while the model was computing; load the model here")
                    if interrupt.pending:
                        return True
                    mine, self._stepper = True, threading.get_ident()
                self._step(lambda: interrupt.pending)
                return True
            finally:
                if mine:
                    self._let_go()

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def _step(self, interrupted: Callable[[], bool]) -> None:
        with self._telling():
            self._take_arrived()
            self._feed()
            self._deliver(self._batcher.step(interrupted))

    def _let_go(self) -> None:
        """Let others have the batcher, tidied up."""
        while True:
            with self.changed:
                if not self._untidy:
                    self._stepper = None
                    self.changed.notify_all()
                    return
                self._untidy = False
            try:
                with self._telling():
                    self._take_arrived()
                    self._deliver(self._batcher.drop_cancelled())
            except BaseException:  # this thread shall end; the next step tidies up
                with self.changed:
                    self._stepper = None
                    self.changed.notify_all()
                raise

    def _take_arrived(self) -> None:
        while self._arrived:
            self._add(*self._arrived.popleft())

    def _feed(self) -> None:
        """Give the batcher as many texts to embed as it can use, one of every job in turn."""
        with self.changed:
            self._jobs = [job for job in self._jobs if not job.future.done()]
        jobs = deque(self._jobs)
        while jobs and self._batcher.hungry:
            job = jobs.popleft()
            part = job.next_part()
            if part is not None:
                self._add(*part)
                jobs.append(job)

    def _add(self, work: Work, mailbox: Mailbox) -> None:
        self._mailboxes[work] = mailbox
        try:
            self._batcher.add(work)
        except Exception as error:
            self._mailboxes.pop(work).fail(error)

    def _deliver(self, told: Told) -> None:
        """Give everyone what is told; interrupted, the batcher is in order again before anybody else has it."""
        with contextlib.closing(told):
            for work, item in told:
                mailbox = self._mailboxes[work]
                if isinstance(item, Delta):
                    mailbox.put(item)
                else:
                    mailbox.fail(item)
                if not isinstance(item, Delta) or item.finish is not None:
                    del self._mailboxes[work]

    @contextlib.contextmanager
    def _telling(self) -> Iterator[None]:
        """Whatever is raised in here, those whose work is lost by it are told."""
        try:
            yield
        except Exception as error:  # a mistake of ours: nobody waits for ever, and the next request gets a clean start
            log.exception("a step failed, and all that was under way with it")
            self._batcher.clear()
            self._fail_lost(error)
        except BaseException:  # this thread shall end; the others go on
            self._fail_lost(Unavailable("the computation was interrupted; ask again"))
            raise

    def _fail_lost(self, error: Exception) -> None:
        for job in self._jobs:
            job.fail(error)
        held = set(self._batcher.works())
        for work in [work for work in self._mailboxes if work not in held]:
            self._mailboxes.pop(work).fail(error)

    def begin_child(self) -> None:
        """In a process that was just forked, by the one thread that it has."""
        self.changed = threading.Condition()  # another thread may have held it
        self._orphaned |= self._stepper not in (None, threading.get_ident())


_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def _begin_child() -> None:
    for driver in _drivers:
        driver.begin_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_child)
