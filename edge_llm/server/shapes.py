"""Pieces that several of OpenAI's answers share: ids, usage, timings."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import edge_llm
from edge_llm.config import REPETITION
from edge_llm.engine.request import Delta, Finish

FINGERPRINT = f"b{edge_llm.__version__}-edge-llm"
"""As llama.cpp begins its own."""


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return prefix + secrets.token_hex(12)


def openai_usage(finishes: Sequence[Finish], prompts: int = 1, *, thought: int = 0) -> dict[str, Any]:
    """Usage of the answers to ``prompts`` prompts; one with several answers counts once.  ``thought`` tokens are reasoning."""
    each = len(finishes) // prompts
    prompt = sum(finish.usage.prompt_tokens for finish in finishes[::each])
    completion = sum(finish.usage.completion_tokens for finish in finishes)
    cached = sum(finish.usage.cached_tokens for finish in finishes[::each])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {
            "reasoning_tokens": thought,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def stopped_by(finish: Finish) -> dict[str, str]:
    """The field beside the reason that tells a loop from a limit of tokens: a new reason would break clients' enumerations."""
    return {"stopped_by": REPETITION} if finish.reason == REPETITION else {}


def shown_tokens(tokens: Sequence[int], finish: Finish | None) -> list[int]:
    """The next ``tokens`` of an answer, and the one that ended it: vLLM's `token_ids` have it, too."""
    return [*tokens, *([] if finish is None or finish.end_token is None else [finish.end_token])]


class RunningUsage:
    """Usage of the answers to a prompt so far, for chunks of a stream whose client wants it in each."""

    def __init__(self, prompt_tokens: int, *, wanted: bool) -> None:
        self._prompt_tokens = prompt_tokens
        self.wanted = wanted
        self._counts: dict[int, int] = {}

    def see(self, index: int, delta: Delta) -> None:
        """The next piece of answer ``index`` has come."""
        so_far = self._counts.get(index, 0) + len(delta.tokens)
        self._counts[index] = so_far if delta.finish is None else delta.finish.usage.completion_tokens

    def field(self) -> dict[str, Any]:
        """The chunk's field, if it is wanted."""
        if not self.wanted:
            return {}
        completion = sum(self._counts.values())
        total = self._prompt_tokens + completion
        return {
            "usage": {"prompt_tokens": self._prompt_tokens, "completion_tokens": completion, "total_tokens": total}
        }


def timings(finish: Finish) -> dict[str, Any]:
    """Where the time went, in llama.cpp's names."""
    usage, times = finish.usage, finish.timings
    steps = max(0, usage.completion_tokens - 1)  # the first token comes with the prompt
    return prompt_timings(usage.cached_tokens, usage.prompt_tokens - usage.cached_tokens, times.prompt_ms) | {
        "predicted_n": usage.completion_tokens,
        "predicted_ms": times.predicted_ms,
        "predicted_per_token_ms": times.predicted_ms / steps if steps else 0.0,
        "predicted_per_second": 1e3 * steps / times.predicted_ms if times.predicted_ms > 0 else 0.0,
    }


def prompt_timings(cached: int, computed: int, milliseconds: float) -> dict[str, Any]:
    """The same of an answer that has no token yet: ``computed`` tokens of its prompt took so many milliseconds."""
    return {
        "cache_n": cached,
        "prompt_n": computed,
        "prompt_ms": milliseconds,
        "prompt_per_token_ms": milliseconds / computed if computed else 0.0,
        "prompt_per_second": 1e3 * computed / milliseconds if milliseconds > 0 else 0.0,
        "predicted_n": 0,
        "predicted_ms": 0.0,
        "predicted_per_token_ms": 0.0,
        "predicted_per_second": 0.0,
    }
