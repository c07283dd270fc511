"""What faces ask of whoever answers requests: a queue of requests, each answered as a stream of deltas."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol

import numpy as np

from edge_llm.engine.delta_stream import Answering
from edge_llm.engine.ranking import RankingPrompts
from edge_llm.engine.request import Request

if TYPE_CHECKING:
    from edge_llm.engine.engine import Engine


class Service(Protocol):
    """Answers requests.  Every method may be called from any thread."""

    def submit(self, request: Request) -> Answering:
        """Queue ``request``.

        Raises `ContextOverflow` or `OutOfMemory` if it can never fit, `Overloaded` if the queue is full, `Unavailable`
        after `close`.
        """
        ...

    def embed(self, prompts: Sequence[Sequence[int]]) -> Future[np.ndarray]:
        """Queue an embedding of each of ``prompts``: float32 [prompts, size], every row of length 1.

        Raises what `submit` raises; cancelling the future stops the work.
        """
        ...

    def rank(self, ranking: RankingPrompts) -> Future[np.ndarray]:
        """Queue what orders documents by a query: what `RankingPrompts.scores` takes.  Raises what `embed` raises."""
        ...

    def adapted(self, engine: Engine) -> Service:
        """What answers with ``engine``, which has an adapter, in the same queue and the same steps."""
        ...

    def close(self, *, drain_seconds: float) -> None:
        """Take no more; let what is here end for ``drain_seconds``, then cancel the rest and wait for it."""
        ...

    @property
    def running(self) -> int:
        """Requests that are being answered."""
        ...

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        ...
