"""One engine for many callers: requests are submitted from any thread and answered as streams of deltas.

service = BatchingService(engine, queue_limit=256)
answering = service.submit(engine.text_request("Once upon a time", params))
for delta in answering: ...              # in a thread
async for delta in answering: ...        # on an event loop
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np

from edge_llm.engine.contract import Service
from edge_llm.engine.delta_stream import DeltaStream
from edge_llm.engine.embedding import EmbeddingJob
from edge_llm.engine.engine import Engine
from edge_llm.engine.ranking import RankingPrompts
from edge_llm.engine.request import Request
from edge_llm.errors import ContextOverflow, Overloaded, Unavailable, UsageError
from edge_llm.interrupts import HeldInterrupt

log = logging.getLogger("edge_llm.engine")


class BatchingService:
    """A `Service` (`edge_llm.engine.contract`) that answers through the driver of ``engine``, on a thread that runs its steps.

    At most ``queue_limit`` requests wait.  When nothing runs, the first step waits ``window_seconds`` for company: a batch
    that starts together shares every step.
    """

    def __init__(self, engine: Engine, *, queue_limit: int = 256, window_seconds: float = 0.0) -> None:
        self._engine = engine
        self._driver = engine.driver
        self._changed = engine.driver.changed
        self._queue_limit = queue_limit
        self._window_seconds = window_seconds
        self._closing = False
        self._hurry = False
        self._worker = threading.Thread(target=self._work, name="answers", daemon=True)
        self._worker.start()

    # -- called by many threads ---------------------------------------------------------------------------------------

    def submit(self, request: Request) -> DeltaStream:
        self._check_fits(len(request.prompt) + 1)
        generation, stream = self._engine.prepare(request, lambda: self._hurry)
        with HeldInterrupt(), self._changed:
            self._check_open()
            self._driver.add(generation, stream)
        return stream

    def embed(self, prompts: Sequence[Sequence[int]]) -> Future[np.ndarray]:
        return self.embed_with(self._engine, prompts)

    def embed_with(self, engine: Engine, prompts: Sequence[Sequence[int]]) -> Future[np.ndarray]:
        """`embed` with ``engine``, which may have an adapter."""
        if not prompts:
            raise UsageError("there is nothing to embed; give at least one text", param="input")
        for prompt in prompts:
            self._check_fits(len(prompt))
        return self._queued(engine.embedding_job(prompts, lambda: self._hurry))

    def adapted(self, engine: Engine) -> Service:
        return AdaptedService(engine, self)

    def rank(self, ranking: RankingPrompts) -> Future[np.ndarray]:
        return self.rank_with(self._engine, ranking)

    def rank_with(self, engine: Engine, ranking: RankingPrompts) -> Future[np.ndarray]:
        """`rank` with ``engine``, which may have an adapter."""
        for prompt in ranking.prompts:
            self._check_fits(len(prompt))
        return self._queued(engine.ranking_job(ranking, lambda: self._hurry))

    def _queued(self, job: EmbeddingJob) -> Future[np.ndarray]:
        with HeldInterrupt(), self._changed:
            self._check_open()
            self._driver.add_job(job)
        return job.future

    def close(self, *, drain_seconds: float) -> None:
        with HeldInterrupt(), self._changed:
            self._closing = True
            self._changed.notify_all()
        self._worker.join(drain_seconds)
        self._hurry = True
        self._worker.join()

    @property
    def running(self) -> int:
        return self._driver.running

    @property
    def waiting(self) -> int:
        return self._driver.waiting

    def _check_fits(self, tokens: int) -> None:
        if tokens > self._engine.runner.context:
            raise ContextOverflow(tokens, self._engine.runner.context)
        self._engine.runner.memory.check_fits(tokens)

    def _check_open(self) -> None:
        if self._closing:
            raise Unavailable("the service is shutting down; ask again later")
        if self.waiting >= self._queue_limit:
            raise Overloaded(f"`{self._queue_limit}` requests are waiting already; ask again later")

    # -- the worker's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while self._wait_for_work():
            try:
                self._driver.run_until(lambda: not self._driver.busy)
            except BaseException:  # nothing ends this thread but `close`; those who lost something by it have been told
                log.exception("a step was interrupted")

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; false when the service is closed and all is done."""
        with self._changed:
            idle = not self._driver.busy
            self._changed.wait_for(lambda: self._driver.busy or self._closing)
            if idle and self._window_seconds and not self._closing:
                until = time.monotonic() + self._window_seconds
                while (left := until - time.monotonic()) > 0 and not self._closing:
                    self._changed.wait(left)
            return self._driver.busy


class AdaptedService:
    """A `Service` that answers with ``engine``, which has an adapter, in the queue and the steps of the model's ``service``."""

    def __init__(self, engine: Engine, service: BatchingService) -> None:
        self._engine = engine
        self._service = service

    def submit(self, request: Request) -> DeltaStream:
        return self._service.submit(request)

    def embed(self, prompts: Sequence[Sequence[int]]) -> Future[np.ndarray]:
        return self._service.embed_with(self._engine, prompts)

    def rank(self, ranking: RankingPrompts) -> Future[np.ndarray]:
        return self._service.rank_with(self._engine, ranking)

    def adapted(self, engine: Engine) -> Service:
        return self._service.adapted(engine)

    def close(self, *, drain_seconds: float) -> None:
        """The model's own service ends all."""

    @property
    def running(self) -> int:
        """Those of the model and all its adapters."""
        return self._service.running

    @property
    def waiting(self) -> int:
        return self._service.waiting
