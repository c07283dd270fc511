"""A model on its way to this machine, followed from the chat."""

from __future__ import annotations

import time
from collections.abc import Callable

from edge_llm.errors import EdgeLLMError
from edge_llm.progress import Step
from edge_llm.providers.base import Catalogue, Fetch
from edge_llm.tui.threads import in_thread


class Fetching:
    """Brings the model ``source`` here; cancelled from the event loop at any time."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._step, self._told = Step("waiting"), time.monotonic()
        self._fetch: Fetch | None = None
        self._cancelled = False

    async def run(self, catalogue: Callable[[], Catalogue]) -> str | None:
        """The model's name here, None if it was cancelled.  Raises `EdgeLLMError`."""
        try:
            return await in_thread(self._follow, catalogue)
        except EdgeLLMError:
            if self._cancelled:
                return None
            raise

    @property
    def step(self) -> Step:
        """How far it is; the clock runs on between what is told."""
        return self._step.after(time.monotonic() - self._told)

    def cancel(self) -> None:
        """Stop it; what has come stays for the next try."""
        self._cancelled = True
        if self._fetch is not None:
            self._fetch.cancel()

    def _follow(self, catalogue: Callable[[], Catalogue]) -> str | None:
        self._fetch = catalogue().fetch(self.source)
        if self._cancelled:
            self._fetch.cancel()
        for step in self._fetch:
            self._step, self._told = step, time.monotonic()
        return None if self._cancelled else self._fetch.name
