"""The model that is served: its names, whether it is ready, and the service that answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from edge_llm.engine.contract import Service
from edge_llm.engine.engine import Engine
from edge_llm.errors import ContextOverflow, Unavailable
from edge_llm.progress import StageProgress
from edge_llm.server.metrics import Metrics

LoadModel = Callable[[StageProgress], tuple[Engine, Service]]
"""Makes an engine and the service that answers with it, telling how far it is."""


class ModelHost:
    """One model, known by ``names`` (its own first), loading until `start` is called.

    ``beside`` are hosts of its adapters, which start with it; each has the name of its adapter.
    """

    def __init__(
        self, names: Sequence[str], metrics: Metrics | None = None, beside: Sequence[ModelHost] = ()
    ) -> None:
        self.names = tuple(names)
        self.beside = tuple(beside)
        self.verbose = False
        """Whether each chat completion shows the prompt that the model read."""
        self.metrics = metrics or Metrics()
        self.progress: tuple[str, int, int] = ("start", 0, 0)
        """(stage, done, total) of loading."""
        self.failure: Exception | None = None
        self._engine: Engine | None = None
        self._service: Service | None = None
        self._longest_token = 1
        self._closing = False

    def load(self, load: LoadModel) -> None:
        """Load and start; what goes wrong is kept in `failure`, unless the server is closing."""
        try:
            self.start(*load(self._on_progress))
        except Exception as error:
            self.failure = None if self._closing else error

    def start(self, engine: Engine, service: Service) -> None:
        """Answer with ``engine`` through ``service`` from now on."""
        tokenizer = engine.tokenizer
        self._longest_token = max(len(tokenizer.token_bytes(token)) for token in range(engine.config.vocab_size))
        self._engine, self._service = engine, service
        for host in self.beside:
            adapted = engine.adapted[host.names[0]]
            host.start(adapted, service.adapted(adapted))

    def close(self, *, drain_seconds: float) -> None:
        """End the service, or the loading of it."""
        self._closing = True
        if self._service is not None:
            self._service.close(drain_seconds=drain_seconds)

    @property
    def ready(self) -> bool:
        return self._service is not None

    @property
    def unanswered(self) -> int:
        """Requests that run or wait."""
        return 0 if self._service is None else self._service.running + self._service.waiting

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            raise Unavailable("the model is still loading; GET /health says how far it is")
        return self._engine

    @property
    def service(self) -> Service:
        if self._service is None:
            raise Unavailable("the model is still loading; GET /health says how far it is")
        return self._service

    @property
    def context(self) -> int | None:
        """Tokens of the context, once it is known."""
        return None if self._engine is None else self._engine.runner.context

    def called(self, name: str | None) -> str:
        """What an answer to a request for ``name`` calls the model: as its client does, or by its own name."""
        return name or self.names[0]

    def check_length(self, *texts: str) -> None:
        """Refuse texts that cannot fit whatever their tokens are, before tokenizing them."""
        least = sum(len(text.encode("utf-8", "replace")) for text in texts) // self._longest_token
        if least > self.engine.runner.context:
            raise ContextOverflow(least, self.engine.runner.context, at_least=True)

    def checked(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Plain ``messages`` if their texts can fit."""
        self.check_length(*(message["content"] for message in messages))
        return messages

    def _on_progress(self, stage: str, done: int, total: int) -> None:
        if self._closing:
            raise Unavailable("the server is shutting down")
        self.progress = (stage, done, total)
