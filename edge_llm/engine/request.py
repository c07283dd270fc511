"""What travels between a face and the engine: a request, the deltas of its answer, and how it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from edge_llm.config import REPETITION, GenerationParams
from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.text.reasoning import Thinking


class Enough(Protocol):
    """Reads an answer's text as it comes, thoughts left out."""

    def push(self, text: str) -> bool:
        """Whether the answer ends here."""
        ...


@dataclass(frozen=True)
class Request:
    """A prompt in tokens and how to continue it."""

    prompt: tuple[int, ...]
    params: GenerationParams
    continues: bool = False
    """The answer goes on in the middle of the prompt's text, so its leading space belongs to it."""
    thinking: Thinking = Thinking.RAW
    """Where the answer begins; stop strings begin behind its thought."""
    marks: frozenset[int] = frozenset()
    """Control tokens whose text is part of the answer's text, because somebody looks for it there."""
    enough: Callable[[], Enough] | None = field(default=None, compare=False)
    """What else ends the answer."""
    adapter: int = 0
    """The number of the adapter that it is computed with; 0: none."""


@dataclass
class PromptProgress:
    """How much of a prompt is computed: written by the thread that computes it, read by any."""

    total: int
    done: int = 0
    """Cached tokens are among them.  It falls only when a request gives its pages back and begins again."""
    cached: int | None = None
    """Tokens whose keys and values were there when the request began; None until then."""


@dataclass(frozen=True)
class Usage:
    """Tokens that a request took."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values were there already."""


@dataclass(frozen=True)
class Timings:
    """Where the time went, in milliseconds."""

    load_ms: float
    prompt_ms: float
    prompt_per_second: float
    """Prompt tokens that were computed (cached ones left out) per second."""
    predicted_ms: float
    predicted_per_second: float
    drafted_tokens: int = 0
    """Tokens that a drafter guessed."""
    accepted_tokens: int = 0
    """Guesses that were right: tokens that took no step of their own."""

    @classmethod
    def of(
        cls, *, load_ms: float, prompt_seconds: float, computed_tokens: int, predicted_seconds: float, steps: int, **counts: int
    ) -> Timings:
        """``computed_tokens`` of the prompt and ``steps`` tokens after the first took so many seconds."""
        return cls(
            load_ms=round(load_ms, 3),
            prompt_ms=round(1e3 * prompt_seconds, 3),
            prompt_per_second=round(computed_tokens / prompt_seconds, 3) if prompt_seconds > 0 else 0.0,
            predicted_ms=round(1e3 * predicted_seconds, 3),
            predicted_per_second=round(steps / predicted_seconds, 3) if predicted_seconds > 0 else 0.0,
            **counts,
        )


@dataclass(frozen=True)
class Finish:
    """How a request ended: ``stop`` (end token or stop string), ``length`` (token limit or full context), ``repetition`` (the
    loop guard), ``cancelled``."""

    reason: str
    usage: Usage
    timings: Timings
    stop: str | None = None
    """The stop string that ended the answer."""
    end_token: int | None = None
    """The token that ended the answer, which is no part of it."""

    @property
    def openai_reason(self) -> str:
        """The reason in OpenAI's words.  They have none for a loop: it is not complete, and would have ended by its length."""
        return "length" if self.reason == REPETITION else self.reason


@dataclass(frozen=True)
class Delta:
    """The next piece of an answer.  Only the last delta of a stream has ``finish``."""

    text: str
    tokens: tuple[int, ...] = ()
    finish: Finish | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token, when the request asks for them."""
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    """One per token of the prompt, before the first token, when the request asks for them."""


@dataclass(frozen=True)
class Answer:
    """A whole answer: all deltas of a stream put together."""

    text: str
    tokens: tuple[int, ...]
    finish: Finish
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The answer as a JSON object, its text as the model wrote it."""
        return {
            "text": self.text,
            "tokens": list(self.tokens),
            "finish_reason": self.finish.reason,
            "usage": asdict(self.finish.usage),
            "timings": asdict(self.finish.timings),
        }
