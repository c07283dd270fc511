"""Counters and histograms in Prometheus' text format, under names of our own."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edge_llm.engine.request import Delta

PREFIX = "edge_llm_"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_COUNTERS = {
    "requests_total": "Requests that ended, by outcome.",
    "requests_refused_total": "Requests that were refused, by HTTP status.",
    "prompt_tokens_total": "Prompt tokens, cached ones included.",
    "cached_prompt_tokens_total": "Prompt tokens whose keys and values were there already.",
    "embedded_tokens_total": "Tokens of texts that were embedded.",
    "prompt_seconds_total": "Time spent on prompts.",
    "tokens_predicted_total": "Tokens generated.",
    "tokens_predicted_seconds_total": "Time spent on generating.",
    "drafted_tokens_total": "Tokens guessed ahead.",
    "accepted_tokens_total": "Guesses that were right.",
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "From submitting a request to its first token.",
    "inter_token_latency_seconds": "From one token of a stream to the next.",
    "e2e_request_latency_seconds": "From submitting a request to its end.",
}


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(SECONDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds


class Metrics:
    """Everything counted since the server began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: defaultdict[tuple[str, str], float] = defaultdict(float)
        self.longest = 0
        """Tokens of the longest sequence, prompt and answer."""
        self._histograms = {name: _Histogram() for name in _HISTOGRAMS}

    def count(self, name: str, by: float = 1, labels: str = "") -> None:
        """Add to a counter."""
        with self._lock:
            self._counters[name, labels] += by

    def observe(self, name: str, seconds: float) -> None:
        """Add to a histogram."""
        with self._lock:
            self._histograms[name].observe(seconds)

    def value(self, name: str, labels: str = "") -> float:
        """A counter's value."""
        return self._counters[name, labels]

    def counter_lines(self, name: str, label: str) -> Iterator[str]:
        """The lines of a counter, each with ``label``."""
        with self._lock:
            found = {labels: value for (key, labels), value in self._counters.items() if key == name} or {"": 0.0}
        for labels, value in sorted(found.items()):
            yield f"{PREFIX}{name}{labelled(label, labels)} {value:.10g}"

    def histogram_lines(self, name: str, label: str) -> Iterator[str]:
        """The lines of a histogram, each with ``label``."""
        with self._lock:
            counts, total = list(self._histograms[name].counts), self._histograms[name].total
        seen = 0
        for bound, count in zip((*SECONDS, "+Inf"), counts, strict=True):
            seen += count
            le = f'le="{bound}"'
            yield f"{PREFIX}{name}_bucket{labelled(label, le)} {seen}"
        yield f"{PREFIX}{name}_sum{labelled(label)} {total:.6f}"
        yield f"{PREFIX}{name}_count{labelled(label)} {seen}"


@dataclass(frozen=True)
class Counted:
    """What there is to say of one model, or of the server itself, in lines that have ``label``."""

    label: str
    metrics: Metrics
    gauges: Mapping[str, float]
    """As they are now."""


def exposition(parts: Sequence[Counted]) -> str:
    """All ``parts`` as Prometheus reads them."""
    lines: list[str] = []
    for name, help_text in _COUNTERS.items():
        counted = (one for part in parts for one in part.metrics.counter_lines(name, part.label))
        lines += [*_heading(name, help_text, "counter"), *counted]
    for name in dict.fromkeys(name for part in parts for name in part.gauges):
        now = [f"{PREFIX}{name}{labelled(part.label)} {part.gauges[name]:.16g}" for part in parts if name in part.gauges]
        lines += [*_heading(name, "As it is now.", "gauge"), *now]
    for name, help_text in _HISTOGRAMS.items():
        found = (one for part in parts for one in part.metrics.histogram_lines(name, part.label))
        lines += [*_heading(name, help_text, "histogram"), *found]
    return "\n".join([*lines, ""])


def labelled(*given: str) -> str:
    """What stands behind a metric's name, of the labels that are ``given``; empty ones count for nothing."""
    labels = ",".join(one for one in given if one)
    return f"{{{labels}}}" if labels else ""


def _heading(name: str, help_text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {PREFIX}{name} {help_text}"
    yield f"# TYPE {PREFIX}{name} {kind}"


class Stopwatch:
    """Follows one request from its submission to its one end."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._started = time.perf_counter()
        self._last_token: float | None = None
        self._tokens = 0

    def see(self, delta: Delta) -> None:
        """A delta has come."""
        now = time.perf_counter()
        if delta.tokens:
            if self._last_token is None:
                self._metrics.observe("time_to_first_token_seconds", now - self._started)
            else:
                self._metrics.observe("inter_token_latency_seconds", now - self._last_token)
            self._last_token = now
            self._tokens += len(delta.tokens)
            self._metrics.count("tokens_predicted_total", len(delta.tokens))  # as they come: their rate is the speed
        if delta.finish is not None:
            usage, timings = delta.finish.usage, delta.finish.timings
            self._metrics.longest = max(self._metrics.longest, usage.prompt_tokens + usage.completion_tokens)
            self._metrics.count("prompt_tokens_total", usage.prompt_tokens)
            self._metrics.count("cached_prompt_tokens_total", usage.cached_tokens)
            self._metrics.count("prompt_seconds_total", timings.prompt_ms / 1e3)
            self._metrics.count("tokens_predicted_total", max(0, usage.completion_tokens - self._tokens))
            self._metrics.count("tokens_predicted_seconds_total", timings.predicted_ms / 1e3)
            self._metrics.count("drafted_tokens_total", timings.drafted_tokens)
            self._metrics.count("accepted_tokens_total", timings.accepted_tokens)
            self._end("cancelled" if delta.finish.reason == "cancelled" else "completed")

    def fail(self) -> None:
        """The request has ended with an error."""
        self._end("failed")

    def _end(self, outcome: str) -> None:
        self._metrics.observe("e2e_request_latency_seconds", time.perf_counter() - self._started)
        self._metrics.count("requests_total", labels=f'outcome="{outcome}"')
