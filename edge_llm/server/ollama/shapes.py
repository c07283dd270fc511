"""Pieces that several of Ollama's answers share: times, log-probabilities, calls of tools."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.engine.request import Finish
from edge_llm.server.logprobs import chat_logprobs
from edge_llm.server.shapes import stopped_by
from edge_llm.talk.outcome import Call
from edge_llm.talk.pieces import AnswerPiece, CallArguments, CallBegun


def now() -> str:
    """The time as Ollama writes it: RFC 3339, in UTC."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def written(seconds: float) -> str:
    """The same of ``seconds`` since 1970."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


NEVER = "2318-03-09T23:47:16Z"
"""When a model is unloaded that stays for ever: Ollama's clients expect a time, far away."""


@dataclass(frozen=True)
class Clock:
    """When a request came, and how long its model took to load, in nanoseconds."""

    load_ns: int = 0
    began: int = field(default_factory=time.perf_counter_ns)

    def durations(self) -> dict[str, int]:
        """The fields of an answer that ends now."""
        return {"total_duration": time.perf_counter_ns() - self.began, "load_duration": self.load_ns}


def ended(finish: Finish, clock: Clock) -> dict[str, Any]:
    """The fields of an answer's end."""
    usage, times = finish.usage, finish.timings
    return {
        "done": True,
        "done_reason": finish.openai_reason,
        **stopped_by(finish),
        **clock.durations(),
        "prompt_eval_count": usage.prompt_tokens,
        "prompt_eval_duration": round(1e6 * times.prompt_ms),
        "eval_count": usage.completion_tokens,
        "eval_duration": round(1e6 * times.predicted_ms),
    }


def logprobs(found: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The field with the log-probabilities of tokens, if any were asked for."""
    return {"logprobs": chat_logprobs(found)["content"]} if found else {}


def tool_call(call: Call, index: int) -> dict[str, Any]:
    """A call of a tool: its arguments are an object."""
    named = {"index": index, "name": call.name, "arguments": call.arguments_object}
    return {"id": call.id, "function": named}


class WholeCalls:
    """Calls of tools as their pieces come; each is given when it is complete, as Ollama's clients expect it."""

    def __init__(self) -> None:
        self._call: Call | None = None
        self._given = 0

    def push(self, piece: AnswerPiece) -> list[dict[str, Any]]:
        """The calls that are complete when ``piece`` has come."""
        if isinstance(piece, CallArguments):
            assert self._call is not None, "a call begins before its arguments"
            self._call.arguments += piece.text
            return []
        found = self.end()
        self._call = Call(piece.id, piece.name) if isinstance(piece, CallBegun) else None
        return found

    def end(self) -> list[dict[str, Any]]:
        """The call that is under way, if one is: nothing more comes."""
        call, self._call = self._call, None
        if call is None:
            return []
        self._given += 1
        return [tool_call(call, self._given - 1)]
