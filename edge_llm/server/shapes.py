"""Pieces that several of OpenAI's answers share: ids, usage, log-probabilities."""

from __future__ import annotations

import secrets
from codecs import getincrementaldecoder
from collections.abc import Sequence
from typing import Any

import edge_llm
from edge_llm.config import REPETITION
from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.engine.request import Delta, Finish

FINGERPRINT = f"edge-llm-{edge_llm.__version__}"


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
    return {
        "cache_n": usage.cached_tokens,
        "prompt_n": usage.prompt_tokens - usage.cached_tokens,
        "prompt_ms": times.prompt_ms,
        "prompt_per_second": times.prompt_per_second,
        "predicted_n": usage.completion_tokens,
        "predicted_ms": times.predicted_ms,
        "predicted_per_second": times.predicted_per_second,
    }


def chat_logprobs(found: Sequence[TokenLogprobs]) -> dict[str, Any]:
    """The logprobs object of a chat choice."""

    def item(piece: bytes, logprob: float) -> dict[str, Any]:
        return {"token": piece.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(piece)}

    content = [
        item(one.piece, one.logprob)
        | {"top_logprobs": [item(piece, value) for piece, (_, value) in zip(one.top_pieces, one.top, strict=True)]}
        for one in found
    ]
    return {"content": content, "refusal": None}


class TextOffsets:
    """Where the tokens of a text begin in it, in characters, one after the other.

    A token that ends within a character leaves it to the next ones, which begin where it does.
    """

    def __init__(self) -> None:
        self._length = 0
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def next(self, piece: bytes) -> int:
        """The place of the token that writes ``piece``."""
        place = self._length
        self._length += len(self._decoder.decode(piece))
        return place


def completion_logprobs(found: Sequence[TokenLogprobs], offsets: TextOffsets) -> dict[str, Any]:
    """The logprobs object of the next tokens of a legacy completion, which ``offsets`` follows."""
    return {
        "tokens": [_named(one.piece) for one in found],
        "token_logprobs": [one.logprob for one in found],
        "top_logprobs": [
            {_named(piece): value for piece, (_, value) in zip(one.top_pieces, one.top, strict=True)} for one in found
        ],
        "text_offset": [offsets.next(one.piece) for one in found],
    }


def _named(piece: bytes) -> str:
    r"""The text of ``piece``, or as OpenAI writes a part of a character: `bytes:\xf0\x9f`."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
