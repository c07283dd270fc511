"""POST /v1/completions: text goes on, without a chat template."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Answer, Finish
from edge_llm.engine.request import Request as Prompt
from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.answers import Answers, whole_reply
from edge_llm.server.formats import Guided
from edge_llm.server.host import ModelHost
from edge_llm.server.problems import problem_of
from edge_llm.server.schemas import Sampling, Streaming, check_tokens, choices, ignored_header, log
from edge_llm.server.shapes import FINGERPRINT, RunningUsage, completion_logprobs, new_id, openai_usage, timings
from edge_llm.server.stream import DONE, KEEP_ALIVE, EventStream, event

Texts = str | list[str] | list[int] | list[list[int]] | None


class CompletionBody(Streaming, Guided):
    """The body of a legacy completion."""

    default_max_tokens: ClassVar[int | None] = 16
    """As in OpenAI's API."""

    prompt: Texts = None
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=limits.TOP_LOGPROBS)
    best_of: int | None = None

    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **Sampling.cannot,
        "suffix": ("",),
    }
    labels: ClassVar[frozenset[str]] = frozenset(("cache_prompt", "user"))

    def prompts(self, host: ModelHost) -> list[Prompt]:
        """One engine request per prompt and choice, prompt by prompt."""
        engine, n = host.engine, self.n or 1
        if self.best_of is not None and self.best_of != n:
            raise UsageError("best_of is not supported here; leave it out or make it equal to n", param="best_of")
        if self.echo and self.logprobs is not None:
            raise UsageError("echo cannot be combined with logprobs here", param="echo")
        params = replace(
            self.params(engine.defaults, engine.config.vocab_size),
            logprobs=self.logprobs,
            grammar=self.answer_grammar(engine.tokenizer),
        )
        start = "" if self.prompt is None else self.prompt
        given = token_lists(host, start, "prompt", limits.PROMPTS)
        return [replace(engine.token_request(tokens, params), params=one) for tokens in given for one in choices(params, n)]


def token_lists(host: ModelHost, texts: Texts, param: str, most: int) -> list[list[int]]:
    """The token ids of every text in one of OpenAI's four shapes; token ids are checked, not trusted."""
    engine = host.engine
    items: list[Any] = texts if isinstance(texts, list) and not _is_tokens(texts) else [texts]
    if not 1 <= len(items) <= most:
        raise UsageError(f"{param} takes 1 to {most} texts, got `{len(items)}`", param=param)
    if any(isinstance(item, list) for item in items):
        log.warning("a client sends token ids; they must come from this model's own tokenizer")
    return [_tokens(host, engine, item, param) for item in items]


def _is_tokens(texts: list[Any]) -> bool:
    return bool(texts) and isinstance(texts[0], int)


def _tokens(host: ModelHost, engine: Engine, item: str | list[int], param: str) -> list[int]:
    if isinstance(item, str):
        host.check_length(item)
        tokens = engine.tokenizer.encode(item, add_bos=engine.tokenizer.add_bos, most=engine.runner.context)
    else:
        tokens = check_tokens(item, engine.config.vocab_size, param)
    if not tokens:
        raise UsageError(f"{param} is empty; give at least one character", param=param)
    return tokens


async def completions(request: Request) -> Response:
    """Continue one or several prompts, whole or as a stream of chunks."""
    host: ModelHost = request.app.state.host
    body, prompts, echoes, headers = await host.workshop.prepare(request, _prepare)
    answers = Answers(host, prompts)
    each = body.n or 1
    reply = CompletionReply(new_id("cmpl-"), host.check_name(body.model), int(time.time()), echoes, len(prompts) // each)
    if body.stream:
        usage = RunningUsage(sum(len(prompt.prompt) for prompt in prompts[::each]), wanted=body.wants_running_usage)
        return EventStream(_events(reply, answers, usage, body.wants_usage), answers.cancel, headers)
    return await whole_reply(request, answers, reply.whole, headers)


def _prepare(host: ModelHost, data: bytes) -> tuple[CompletionBody, list[Prompt], list[str], dict[str, str]]:
    """The body, a request for each choice, what stands before each choice's text, and headers of the answer."""
    body = CompletionBody.parse(data, host.engine.runner.context)
    host.check_name(body.model)
    prompts, each = body.prompts(host), body.n or 1
    texts = [host.engine.tokenizer.decode(prompt.prompt) if body.echo else "" for prompt in prompts[::each]]
    return body, prompts, [text for text in texts for _ in range(each)], ignored_header(body.ignored())


@dataclass(frozen=True)
class CompletionReply:
    """What all chunks of one reply have in common."""

    id: str
    model: str
    created: int
    echoes: list[str]
    """What stands before each choice's text."""
    prompts: int

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The reply that is not streamed."""
        chosen = [
            self._choice(index, self.echoes[index] + answer.text, answer.finish.reason, self._logprobs(answer.logprobs, 0))
            for index, answer in enumerate(answers)
        ]
        finishes = [answer.finish for answer in answers]
        return {
            **self._head(),
            "choices": chosen,
            "usage": openai_usage(finishes, self.prompts),
            "timings": timings(finishes[0]),
        }

    def chunk(self, index: int, text: str, reason: str | None = None, logprobs: Any = None) -> dict[str, Any]:
        """One chunk of choice ``index``."""
        return {**self._head(), "choices": [self._choice(index, text, reason, logprobs)]}

    def usage_chunk(self, finishes: Sequence[Finish]) -> dict[str, Any]:
        """The chunk without choices that ends a stream whose client asked for the usage."""
        return {**self._head(), "choices": [], "usage": openai_usage(finishes, self.prompts)}

    def _logprobs(self, found: Sequence[TokenLogprobs], offset: int) -> dict[str, Any] | None:
        return completion_logprobs(found, offset) if found else None

    def _choice(self, index: int, text: str, reason: str | None, logprobs: Any) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }


async def _events(
    reply: CompletionReply, answers: Answers, usage: RunningUsage, with_usage: bool
) -> AsyncIterator[str]:
    """The text of all choices as it comes, each with its end, the usage, and the word that it is all."""
    finishes: dict[int, Finish] = {}
    lengths = [len(echo) for echo in reply.echoes]
    for index, echo in enumerate(reply.echoes):
        if echo:
            yield event(reply.chunk(index, echo) | usage.field())
    try:
        async for found in answers.deltas(limits.KEEP_ALIVE_SECONDS):
            if found is None:
                yield KEEP_ALIVE
                continue
            index, delta = found
            usage.see(index, delta)
            if delta.text or delta.logprobs:
                logprobs = reply._logprobs(delta.logprobs, lengths[index])
                yield event(reply.chunk(index, delta.text, logprobs=logprobs) | usage.field())
                lengths[index] += len(delta.text)
            if delta.finish is not None:
                finishes[index] = delta.finish
                last = reply.chunk(index, "", delta.finish.reason) | {"timings": timings(delta.finish)}
                yield event(last | usage.field())
        if with_usage:
            yield event(reply.usage_chunk([finishes[index] for index in range(len(reply.echoes))]))
    except Exception as error:
        yield event(problem_of(error).openai())
    yield DONE
