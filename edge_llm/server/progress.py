"""How much of a prompt is read, for clients that asked to be told (`return_progress`)."""

from __future__ import annotations

import time
from typing import Any

from edge_llm.engine.request import PromptProgress
from edge_llm.server.shapes import prompt_timings


class ProgressTeller:
    """Says how far the prompt of one answer is: first what was there already, then each look that found more, then all."""

    def __init__(self, *, wanted: bool) -> None:
        self.wanted = wanted
        self._began = time.perf_counter()
        self._cached: int | None = None
        self._told = -1

    def news(self, progress: PromptProgress) -> list[dict[str, Any]]:
        """The fields of each chunk that is due now that ``progress`` is so far."""
        if not self.wanted or progress.cached is None:
            return []
        if self._cached is None:
            self._cached = self._told = progress.cached
            first = [self._fields(progress.cached, progress.total, 0.0)]
        else:
            first = []
        if progress.done <= self._told:
            return first
        self._told = progress.done
        return [*first, self._fields(progress.done, progress.total, 1e3 * (time.perf_counter() - self._began))]

    def _fields(self, done: int, total: int, milliseconds: float) -> dict[str, Any]:
        cached, spent = self._cached or 0, round(milliseconds, 3)
        return {
            "prompt_progress": {"total": total, "cache": cached, "processed": done, "time_ms": int(milliseconds)},
            "timings": prompt_timings(cached, done - cached, spent),
        }
