"""Numbers as people read them: bytes, times, tokens, and what an answer took."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from edge_llm.progress import byte_size as byte_size


def measured_time(seconds: float) -> str:
    """`250 ms`, `1.25 s`, `12.5 s`: how long something took."""
    if not math.isfinite(seconds):
        return "-"
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def time_so_far(seconds: float) -> str:
    """`5 s`, `1:05`: for a clock that runs."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{int(seconds // 60)}:{int(seconds % 60):02}"


def estimated_time(seconds: float) -> str:
    """`3 s`, `2 min`, `1 h 10 min`: no more exact than an estimate is."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def context_size(tokens: int) -> str:
    """`4096`, `128k`: tokens of a context."""
    return f"{tokens // 1024}k" if tokens >= 10240 else str(tokens)


THOUGHT_SECONDS = "thought_seconds"
"""Among the figures of a message: how long its model thought."""


def thought_title(figures: Mapping[str, Any]) -> str:
    """`thought for 12 s`; `thought` where nobody has measured it."""
    seconds = figures.get(THOUGHT_SECONDS)
    return "thought" if seconds is None else f"thought for {estimated_time(seconds)}"


def answer_figures(figures: Mapping[str, Any]) -> str:
    """What an answer took, in a line; only what is known."""
    tokens, rate, first = (figures.get(name) for name in ("completion_tokens", "tokens_per_second", "first_token_seconds"))
    parts = [f"{tokens} tokens"] if tokens is not None else []
    if rate:
        parts.append(f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s")
    if first is not None:
        parts.append(f"first after {measured_time(first)}")
    prompt, cached = figures.get("prompt_tokens"), figures.get("cached_tokens")
    if prompt is not None:
        parts.append(f"prompt {prompt} tokens" + (f", {cached} cached" if cached else ""))
    return " · ".join(parts)
