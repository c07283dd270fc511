"""POST /v1/completions: text goes on, without a chat template."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Answer, Delta, Finish
from edge_llm.engine.request import Request as Prompt
from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.formats import Guided
from edge_llm.server.host import ModelHost
from edge_llm.server.inputs import Texts, items_of, token_lists
from edge_llm.server.problems import Problem
from edge_llm.server.replies import answered
from edge_llm.server.schemas import Sampling, Streaming, choices
from edge_llm.server.shapes import (
    FINGERPRINT,
    RunningUsage,
    TextOffsets,
    completion_logprobs,
    new_id,
    openai_usage,
    stopped_by,
    timings,
)
from edge_llm.server.stream import DONE, TextEvent, event


class CompletionBody(Streaming, Guided):
    """The body of a legacy completion."""

    default_max_tokens: ClassVar[int | None] = 16
    """As in OpenAI's API."""

    prompt: Texts = None
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=limits.TOP_LOGPROBS)
    best_of: int | None = None
    parse_special: bool | None = None
    """llama.cpp's: whether what spells a control token in the prompt is one, as it is by itself."""
    add_special_tokens: bool | None = None
    """vLLM's: whether a prompt begins with a bos token where the model's author wants one."""

    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **Sampling.cannot,
        "suffix": ("",),
    }

    def reply(self, host: ModelHost, model: str) -> CompletionReply:
        """What answers this request."""
        prompts, each = self.prompts(host), self.n or 1
        texts = [self._echo(host, item) if self.echo else "" for item in items_of(self._texts)]
        echoes = [text for text in texts for _ in range(each)]
        return CompletionReply(model, prompts, each, echoes, self.wants_usage, self.wants_running_usage)

    def prompts(self, host: ModelHost) -> list[Prompt]:
        """One engine request per prompt and choice, prompt by prompt."""
        engine, n = host.engine, self.n or 1
        if self.best_of is not None and self.best_of != n:
            raise UsageError("best_of is not supported here; leave it out or make it equal to n", param="best_of")
        if self.echo and self.logprobs is not None:
            raise UsageError("echo cannot be combined with logprobs here", param="echo")
        params = replace(
            self.params(engine.served, engine.config.vocab_size),
            logprobs=self.logprobs,
            grammar=self.answer_grammar(engine.tokenizer),
        )
        given = token_lists(host, self._texts, "prompt", limits.PROMPTS, partial(self._encode, engine))
        return [replace(engine.token_request(tokens, params), params=one) for tokens in given for one in choices(params, n)]


    @property
    def _texts(self) -> Texts:
        return "" if self.prompt is None else self.prompt

    def _encode(self, engine: Engine, text: str) -> list[int]:
        return engine.tokenizer.encode_raw(
            text, parse_special=self.parse_special is not False, add_bos=_no_or_default(self.add_special_tokens),
            most=engine.runner.context,
        )  # fmt: skip

    def _echo(self, host: ModelHost, item: str | list[int]) -> str:
        """What stands before the answer to the prompt ``item``: the prompt as it was given."""
        skip = self.skip_special_tokens is not False
        return item if isinstance(item, str) else host.engine.tokenizer.decode(item, skip_special=skip)


def _no_or_default(asked: bool | None) -> bool | None:
    """Clients send true for "as usual", which is what the model's author says."""
    return False if asked is False else None


async def completions(request: Request) -> Response:
    """Continue one or several prompts, whole or as a stream of chunks."""
    return await answered(request, CompletionBody)


@dataclass(frozen=True)
class CompletionReply:
    """What all chunks of one reply have in common."""

    model: str
    requests: list[Prompt]
    """One per prompt and choice, prompt by prompt."""
    each: int
    """Choices of one prompt."""
    echoes: list[str]
    """What stands before each choice's text."""
    wants_usage: bool
    wants_running_usage: bool
    id: str = field(default_factory=lambda: new_id("cmpl-"))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def firsts(self) -> list[Prompt]:
        """The first request of each prompt."""
        return self.requests[:: self.each]

    def events(self) -> _Events:
        """The reply that is streamed."""
        return _Events(self)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The reply that is not streamed."""
        logprobs = [self.logprobs(answer.logprobs, TextOffsets()) for answer in answers]
        chosen = [
            self._choice(index, self.echoes[index] + answer.text, answer.finish, logprobs[index])
            for index, answer in enumerate(answers)
        ]
        finishes = [answer.finish for answer in answers]
        return {
            **self._head(),
            "choices": chosen,
            "usage": openai_usage(finishes, len(self.firsts)),
            "timings": timings(finishes[0]),
        }

    def chunk(self, index: int, text: str, finish: Finish | None = None, logprobs: Any = None) -> dict[str, Any]:
        """One chunk of choice ``index``."""
        return {**self._head(), "choices": [self._choice(index, text, finish, logprobs)]}

    def usage_chunk(self, finishes: Sequence[Finish]) -> dict[str, Any]:
        """The chunk without choices that ends a stream whose client asked for the usage."""
        return {**self._head(), "choices": [], "usage": openai_usage(finishes, len(self.firsts))}

    def logprobs(self, found: Sequence[TokenLogprobs], offsets: TextOffsets) -> dict[str, Any] | None:
        """The log-probabilities of the next tokens of a choice, which ``offsets`` follows."""
        return completion_logprobs(found, offsets) if found else None

    def _choice(self, index: int, text: str, finish: Finish | None, logprobs: Any) -> dict[str, Any]:
        end = {"finish_reason": None} if finish is None else {"finish_reason": finish.openai_reason, **stopped_by(finish)}
        return {"index": index, "text": text, "logprobs": logprobs, **end}

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }


class _Events:
    """The text of all choices as it comes, each with its end, the usage, and the word that it is all."""

    def __init__(self, reply: CompletionReply) -> None:
        self._reply = reply
        prompt_tokens = sum(len(first.prompt) for first in reply.firsts)
        self._usage = RunningUsage(prompt_tokens, wanted=reply.wants_running_usage)
        self._offsets = [TextOffsets() for _ in reply.echoes]
        self._texts = [TextEvent(reply.chunk(index, "")) for index in range(len(reply.echoes))]
        self._finishes: dict[int, Finish] = {}

    def opening(self) -> Iterator[str]:
        for index, echo in enumerate(self._reply.echoes):
            if echo:
                yield event(self._reply.chunk(index, echo) | self._usage.field())

    def grow(self, index: int, delta: Delta) -> Iterator[str]:
        self._usage.see(index, delta)
        if delta.text and not delta.logprobs and not self._usage.wanted:
            yield self._texts[index].with_text(delta.text)
        elif delta.text or delta.logprobs:
            logprobs = self._reply.logprobs(delta.logprobs, self._offsets[index])
            yield event(self._reply.chunk(index, delta.text, logprobs=logprobs) | self._usage.field())
        if delta.finish is not None:
            self._finishes[index] = delta.finish
            last = self._reply.chunk(index, "", delta.finish) | {"timings": timings(delta.finish)}
            yield event(last | self._usage.field())

    def closing(self) -> Iterator[str]:
        if self._reply.wants_usage:
            yield event(self._reply.usage_chunk([self._finishes[index] for index in range(len(self._reply.echoes))]))
        yield DONE

    def failed(self, problem: Problem) -> Iterator[str]:
        yield event(problem.openai())
        yield DONE
