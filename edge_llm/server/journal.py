"""One line for each request, for the person who watches the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any

from starlette.types import Scope

from edge_llm.engine.request import Delta
from edge_llm.files import shown
from edge_llm.server import limits

PROBES = frozenset(("/health", "/v1/health", "/ping", "/metrics"))
"""Paths that supervisors ask all the time: said only where they are refused."""
PAGE_FILES = "/web/"
"""Below it are the chat page's files, which a browser asks for by the dozen."""
_ENTRY = "edge_llm.entry"
"""Where a request's scope has its entry."""
LEFT = 499
"""The status of a request whose client went away, or whose connection was cut."""


class Entry:
    """What is said of one request; each part of the server that handles it adds what it knows."""

    def __init__(self, method: str, path: str) -> None:
        self._method = method
        self._path = path
        self._began = time.perf_counter()
        self.status = LEFT
        self.model: str | None = None
        """The name that the client gave, or that of the model that answered."""
        self.prompt_tokens: int | None = None
        self._written: dict[int, int] = {}
        """Tokens of each answer."""
        self.trouble = ""
        """What went wrong, as the client was told."""

    @classmethod
    def of(cls, scope: Scope) -> Entry:
        """The entry of the request of ``scope``."""
        if _ENTRY not in scope:
            scope[_ENTRY] = cls(scope["method"], scope["path"])
        entry: Entry = scope[_ENTRY]
        return entry

    def fail(self, error: BaseException, message: str) -> None:
        """The client is told of ``error`` by ``message``."""
        self.trouble = message
        self.model = getattr(error, "model", None) or self.model

    def see(self, index: int, delta: Delta) -> None:
        """``delta`` belongs to answer ``index``; a finished one is as long as its usage says."""
        sofar = self._written.get(index, 0) + len(delta.tokens)
        self._written[index] = sofar if delta.finish is None else delta.finish.usage.completion_tokens

    @property
    def completion_tokens(self) -> int:
        """Tokens of all answers as far as they have come."""
        return sum(self._written.values())

    @property
    def is_probe(self) -> bool:
        """A supervisor asked, or a browser for a file of the page, and was answered."""
        asked = self._path in PROBES or self._path.startswith(PAGE_FILES)
        return asked and self.status in (200, 304, 503) and self._method in ("GET", "HEAD")

    def line(self) -> str:
        """Time, method, path, status, model, tokens, seconds; what a client sent cannot move the cursor."""
        parts = [time.strftime("%Y-%m-%d %H:%M:%S"), shown(self._method, 20), shown(self._path), str(self.status)]
        if self.model is not None:
            parts.append(shown(self.model, 80))
        if self.prompt_tokens is not None:
            parts.append(f"{self.prompt_tokens} tokens in, {self.completion_tokens} out,")
        parts.append(f"{time.perf_counter() - self._began:.2f} s")
        return " ".join(parts) + (f": {shown(self.trouble, 200)}" if self.trouble else "")


class Journal:
    """Hands lines to ``write`` in a thread of its own: a reader that is slow or gone holds up no answer, but loses lines.

    Without ``write`` they are nobody's.
    """

    def __init__(self, write: Callable[[str], None] | None) -> None:
        self._write = write
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        self._lost = 0
        self._thread = Thread(target=self._work, name="journal", daemon=True)
        if write is not None:
            self._thread.start()

    def __call__(self, line: str) -> None:
        if self._write is None:
            return
        if self._lines.qsize() >= limits.JOURNAL_LINES:
            self._lost += 1
            return
        if self._lost:
            self._lines.put(f"({self._lost} requests are not listed: nobody read their lines)")
            self._lost = 0
        self._lines.put(line)

    def close(self) -> None:
        """Write what is there, if it is read."""
        if self._write is not None:
            self._lines.put(None)
            self._thread.join(limits.END_SECONDS)

    def _work(self) -> None:
        while (line := self._lines.get()) is not None and self._write is not None:
            self._write(line)


def no_journal(line: Any) -> None:
    """Says nothing."""
