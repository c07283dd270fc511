"""POST /v1/completions: text goes on, without a chat template."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Answer, Delta, Finish
from edge_llm.engine.request import Request as Prompt
from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.fields import COMPLETIONS, Rule, refusals
from edge_llm.server.formats import Guided
from edge_llm.server.host import ModelHost
from edge_llm.server.inputs import Texts, items_of, token_lists
from edge_llm.server.logprobs import TextOffsets, completion_logprobs, joined, prompt_logprobs
from edge_llm.server.problems import Problem
from edge_llm.server.replies import answered
from edge_llm.server.schemas import Streaming, choices
from edge_llm.server.shapes import FINGERPRINT, RunningUsage, new_id, openai_usage, shown_tokens, stopped_by, timings
from edge_llm.server.stream import DONE, TextEvent, event
from edge_llm.text.infill import infill_prompt


class CompletionBody(Streaming, Guided):
    """The body of a legacy completion."""

    default_max_tokens: ClassVar[int | None] = 16
    """As in OpenAI's API."""

    prompt: Texts = None
    suffix: str | None = None
    """What stands behind the gap that is filled."""
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=limits.TOP_LOGPROBS)
    best_of: int | None = None
    parse_special: bool | None = None
    """llama.cpp's: whether what spells a control token in the prompt is one, as it is by itself."""
    add_special_tokens: bool | None = None
    """vLLM's: whether a prompt begins with a bos token where the model's author wants one."""
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    """vLLM's: most tokens of the prompt; -1 is as many as fit."""
    truncation_side: Literal["left", "right"] | None = None
    """Where a prompt that is too long loses tokens: at its beginning, if nothing is said."""

    rules: ClassVar[Sequence[Rule]] = COMPLETIONS
    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = refusals(COMPLETIONS)

    def reply(self, host: ModelHost, model: str) -> CompletionReply:
        """What answers this request."""
        engine, each = host.engine, self.n or 1
        if self.best_of is not None and self.best_of != each:
            raise UsageError("best_of is not supported here; leave it out or make it equal to n", param="best_of")
        params = replace(
            self.params(engine.served, engine.config.vocab_size),
            logprobs=self.logprobs,
            grammar=self.answer_grammar(engine.tokenizer),
        )
        given = self._tokens(host)
        wanted = [(tokens, one) for tokens in given for one in choices(params, each)]
        prompts = [replace(engine.token_request(tokens, params), params=one) for tokens, one in wanted]
        found = zip(items_of(self._texts), given, strict=True)
        echoes = [echo for item, tokens in found for echo in [self._echo(engine, item, tokens)] * each]
        return CompletionReply(model, self, prompts, each, echoes)

    @property
    def scored(self) -> int | None:
        """Of an echo, log-probabilities are wanted where those of the answer are, or where there is no answer."""
        of_echo = (self.logprobs if self.logprobs is not None or next(self._limits(), None) != 0 else 0) if self.echo else None
        return of_echo if self.prompt_logprobs is None else max(self.prompt_logprobs, of_echo or 0)

    @property
    def _texts(self) -> Texts:
        return "" if self.prompt is None else self.prompt

    def _tokens(self, host: ModelHost) -> list[list[int]]:
        """The tokens of every prompt, cut as the request says."""
        engine, most = host.engine, self.truncate_prompt_tokens
        if self.suffix:
            host.check_length(self.suffix)
            if any(isinstance(item, list) for item in items_of(self._texts)):
                raise UsageError("suffix needs a prompt that is a text, not token ids", param="suffix")
        if most == 0:
            raise UsageError("truncate_prompt_tokens must be at least 1, or -1: as many as fit", param="truncate_prompt_tokens")
        given = token_lists(host, self._texts, "prompt", limits.PROMPTS, partial(self._encode, engine), cut=most is not None)
        if most is None:
            return given
        room = engine.runner.context - max(1, next(self._limits(), self.default_max_tokens or 1))
        most = max(1, room) if most == -1 else most
        return [tokens[:most] if self.truncation_side == "right" else tokens[-most:] for tokens in given]

    def _encode(self, engine: Engine, text: str) -> list[int]:
        if self.suffix:
            return infill_prompt(engine.tokenizer, text, self.suffix, most=engine.runner.context)
        return engine.tokenizer.encode_raw(
            text, parse_special=self.parse_special is not False, add_bos=_no_or_default(self.add_special_tokens),
            most=engine.runner.context if self.truncate_prompt_tokens is None else None,
        )  # fmt: skip

    def _echo(self, engine: Engine, item: str | list[int], tokens: list[int]) -> Echo | None:
        """What stands before the answer to the prompt ``item``: the prompt as it was given."""
        if not self.echo:
            return None
        tokenizer, skip = engine.tokenizer, self.skip_special_tokens is not False
        special = [token for token in dict.fromkeys(tokens) if tokenizer.is_special(token)]
        if isinstance(item, list) or self.truncate_prompt_tokens is not None:
            return Echo(tokenizer.decode(tokens, skip_special=skip), frozenset(special if skip else ()))
        return Echo(item, frozenset(token for token in special if tokenizer.token_text(token) not in item))


@dataclass(frozen=True)
class Echo:
    """What stands before an answer: the prompt's text."""

    text: str
    hidden: frozenset[int]
    """Tokens of the prompt that the text does not have."""

    def logprobs(self, found: Sequence[TokenLogprobs], *, as_ids: bool) -> dict[str, Any]:
        """The log-probabilities of the prompt's tokens."""
        offsets = TextOffsets()
        places = [offsets.next(one.piece, shown=one.token not in self.hidden) for one in found]
        return completion_logprobs(found, places, as_ids=as_ids)


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
    body: CompletionBody
    requests: list[Prompt]
    """One per prompt and choice, prompt by prompt."""
    each: int
    """Choices of one prompt."""
    echoes: list[Echo | None]
    """What stands before each choice's text."""
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
        finishes = [answer.finish for answer in answers]
        return {
            **self._head(),
            "choices": [self._whole_choice(index, answer) for index, answer in enumerate(answers)],
            "usage": openai_usage(finishes, len(self.firsts)),
            "timings": timings(finishes[0]),
        }

    def _whole_choice(self, index: int, answer: Answer) -> dict[str, Any]:
        body, scores = self.body, answer.prompt_logprobs
        text = self.echo_text(index) + answer.text
        found = self.logprobs(answer.logprobs, self.offsets(index))
        scored = {"prompt_logprobs": None if body.prompt_logprobs is None else prompt_logprobs(scores)}
        choice = self._choice(index, text, answer.finish, self.echoed(index, scores, found)) | scored
        return choice | {"prompt_token_ids": None} | self.prompt_ids(index) | self.token_ids(answer.tokens, answer.finish)

    def chunk(self, index: int, text: str, finish: Finish | None = None, logprobs: Any = None, **more: Any) -> dict[str, Any]:
        """One chunk of choice ``index``."""
        return {**self._head(), "choices": [self._choice(index, text, finish, logprobs) | more]}

    def usage_chunk(self, finishes: Sequence[Finish]) -> dict[str, Any]:
        """The chunk without choices that ends a stream whose client asked for the usage."""
        return {**self._head(), "choices": [], "usage": openai_usage(finishes, len(self.firsts))}

    def echo_text(self, index: int) -> str:
        """What stands before the text of choice ``index``."""
        echo = self.echoes[index]
        return "" if echo is None else echo.text

    def offsets(self, index: int) -> TextOffsets:
        """Where the tokens of choice ``index`` begin; nothing is counted for an echo without log-probabilities."""
        return TextOffsets(len(self.echo_text(index)))

    def logprobs(self, found: Sequence[TokenLogprobs], offsets: TextOffsets) -> dict[str, Any] | None:
        """The log-probabilities of the next tokens of a choice, which ``offsets`` follows."""
        places = [offsets.next(one.piece) for one in found]
        return completion_logprobs(found, places, as_ids=bool(self.body.return_tokens_as_token_ids)) if found else None

    def echoed(
        self, index: int, scores: Sequence[TokenLogprobs], behind: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """The log-probabilities of the prompt's tokens, before those ``behind``, where both are wanted."""
        echo = self.echoes[index]
        if echo is None or self.body.logprobs is None or not scores:
            return behind
        most = self.body.logprobs
        scores = [replace(one, top=one.top[:most], top_pieces=one.top_pieces[:most]) for one in scores]
        return joined(echo.logprobs(scores, as_ids=bool(self.body.return_tokens_as_token_ids)), behind)

    def prompt_ids(self, index: int) -> dict[str, Any]:
        """The prompt's tokens, if they are wanted."""
        return {"prompt_token_ids": list(self.requests[index].prompt)} if self.body.return_token_ids else {}

    def token_ids(self, tokens: Sequence[int], finish: Finish | None) -> dict[str, Any]:
        """The next tokens of an answer, if they are wanted."""
        return {"token_ids": shown_tokens(tokens, finish)} if self.body.return_token_ids else {}

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
        self._usage = RunningUsage(prompt_tokens, wanted=reply.body.wants_running_usage)
        self._offsets = [reply.offsets(index) for index in range(len(reply.requests))]
        self._texts = [TextEvent(reply.chunk(index, "")) for index in range(len(reply.requests))]
        self._finishes: dict[int, Finish] = {}
        body = reply.body
        self._waits = body.logprobs is not None and bool(body.echo)
        """Whether an echo comes with its log-probabilities."""
        self._plain = not (self._usage.wanted or body.return_token_ids)

    def opening(self) -> Iterator[str]:
        for index in range(len(self._reply.requests)):
            text, ids = "" if self._waits else self._reply.echo_text(index), self._reply.prompt_ids(index)
            if text or ids:
                yield event(self._reply.chunk(index, text, **ids, **self._reply.token_ids((), None)) | self._usage.field())

    def grow(self, index: int, delta: Delta) -> Iterator[str]:
        reply = self._reply
        self._usage.see(index, delta)
        if self._waits and delta.prompt_logprobs:
            echoed = reply.chunk(index, reply.echo_text(index), None, reply.echoed(index, delta.prompt_logprobs))
            yield event(echoed | self._usage.field())
        if delta.text and not delta.logprobs and self._plain:
            yield self._texts[index].with_text(delta.text)
        elif delta.text or delta.tokens:
            logprobs = reply.logprobs(delta.logprobs, self._offsets[index])
            ids = reply.token_ids(delta.tokens, None)
            if delta.text or logprobs or ids:
                yield event(reply.chunk(index, delta.text, None, logprobs, **ids) | self._usage.field())
        if delta.finish is not None:
            self._finishes[index] = delta.finish
            last = reply.chunk(index, "", delta.finish, **reply.token_ids((), delta.finish))
            yield event(last | {"timings": timings(delta.finish)} | self._usage.field())

    def closing(self) -> Iterator[str]:
        if self._reply.body.wants_usage:
            yield event(self._reply.usage_chunk([self._finishes[index] for index in range(len(self._reply.requests))]))
        yield DONE

    def failed(self, problem: Problem) -> Iterator[str]:
        yield event(problem.openai())
        yield DONE
