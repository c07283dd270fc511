"""POST /api/generate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Answer, Delta
from edge_llm.engine.request import Request as Prompt
from edge_llm.errors import UsageError
from edge_llm.server.fields import Rule, refusals, refused
from edge_llm.server.host import ModelHost
from edge_llm.server.ollama.bodies import Generating
from edge_llm.server.ollama.shapes import Clock, ended, logprobs, now
from edge_llm.server.problems import Problem
from edge_llm.server.schemas import check_tokens
from edge_llm.server.stream import line
from edge_llm.talk.conversation import conversation_request
from edge_llm.talk.outcome import AnswerSyntax
from edge_llm.talk.pieces import Said, Thought
from edge_llm.text.infill import infill_prompt


class GenerateBody(Generating):
    """A prompt, as the user's only message or, with ``raw``, as the model reads it."""

    prompt: str | None = None
    suffix: str | None = None
    """What stands behind the gap that the answer fills; the chat template is not used."""
    system: str | None = None
    raw: bool | None = None
    context: list[int] | None = None
    """The tokens that an earlier answer gave: the conversation goes on."""

    rules: ClassVar[Sequence[Rule]] = (
        *Generating.rules, refused("template", "", note="the model's is used; `raw` takes any prompt"),
    )  # fmt: skip
    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = refusals(rules)

    @property
    def begins(self) -> bool:
        return bool(self.prompt or self.suffix)

    def nothing(self) -> dict[str, Any]:
        return {"response": ""}

    def reply(self, host: ModelHost, model: str, clock: Clock) -> GenerateReply:
        """What answers this request."""
        prompt = self.prompt or ""
        host.check_length(prompt, self.system or "", self.suffix or "")
        asked = self._gap if self.suffix else self._raw if self.raw else self._asked
        request, syntax = asked(host.engine, prompt)
        return GenerateReply(model, [self.within(request, host.engine)], syntax, clock, keeps=not (self.raw or self.suffix))

    def _gap(self, engine: Engine, prompt: str) -> tuple[Prompt, AnswerSyntax]:
        """What stands between the prompt and the suffix."""
        self._alone("suffix")
        tokens = infill_prompt(engine.tokenizer, prompt, self.suffix or "", most=engine.runner.context)
        return engine.token_request(tokens, self.params(engine)), AnswerSyntax(engine.tokenizer)

    def _raw(self, engine: Engine, prompt: str) -> tuple[Prompt, AnswerSyntax]:
        """The text that goes on."""
        self._alone("raw")
        return engine.text_request(prompt, self.params(engine), parse_special=True), AnswerSyntax(engine.tokenizer)

    def _alone(self, way: str) -> None:
        """Refuse what has no place in a prompt without a chat template, which the field ``way`` asks for."""
        for name in ("system", "context"):
            if getattr(self, name):
                raise UsageError(f"{name} cannot be combined with `{way}`; write it into the prompt", param=name)

    def _asked(self, engine: Engine, prompt: str) -> tuple[Prompt, AnswerSyntax]:
        """The question, behind the conversation so far."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        variables = self.thinking_variables(engine.template.source)
        messages = [*system, {"role": "user", "content": prompt}]
        request, syntax = conversation_request(engine, messages, self.params(engine), variables=variables)
        return (self._behind(engine, request) if self.context else request), syntax

    def _behind(self, engine: Engine, request: Prompt) -> Prompt:
        """``request`` behind the tokens of the context; only the first of them begins a text."""
        context = check_tokens(self.context or [], engine.config.vocab_size, "context")
        begun = engine.tokenizer.bos_id is not None and request.prompt[:1] == (engine.tokenizer.bos_id,)
        tokens = (*context, *request.prompt[1 if begun else 0 :])
        longer = engine.token_request(tokens, request.params)
        return replace(request, prompt=longer.prompt)


@dataclass(frozen=True)
class GenerateReply:
    """What all lines of one reply have in common."""

    model: str
    requests: list[Prompt]
    syntax: AnswerSyntax
    clock: Clock
    keeps: bool
    """Whether the answer has the tokens of the conversation, for the next request."""
    left_out: ClassVar[tuple[str, ...]] = ()

    def events(self) -> _Lines:
        """The reply that is streamed."""
        return _Lines(self)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The reply that is not streamed."""
        (answer,) = answers
        outcome = self.syntax.outcome(answer)
        said = {"response": outcome.said} | ({"thinking": outcome.thought} if outcome.thought else {})
        end = ended(answer.finish, self.clock) | self.context(answer.tokens)
        return self.said(**said) | logprobs(answer.logprobs) | end

    def said(self, **fields: Any) -> dict[str, Any]:
        """A line with a piece of the answer."""
        return {"model": self.model, "created_at": now(), "response": "", **fields, "done": False}

    def context(self, tokens: Sequence[int]) -> dict[str, Any]:
        """The field with the conversation whose last answer has ``tokens``."""
        return {"context": [*self.requests[0].prompt, *tokens]} if self.keeps else {}


class _Lines:
    """Thoughts and text as they come, and the end."""

    def __init__(self, reply: GenerateReply) -> None:
        self._reply = reply
        self._reader = reply.syntax.reader()
        self._tokens: list[int] = []

    def opening(self) -> Iterator[str]:
        yield from ()

    def grow(self, index: int, delta: Delta) -> Iterator[str]:
        self._tokens += delta.tokens
        more = logprobs(delta.logprobs)
        pieces = [piece for piece in self._reader.read(delta) if isinstance(piece, Said | Thought)]
        for field in [_field(piece) for piece in pieces] or ([{}] if more else []):
            yield line(self._reply.said(**field) | more)
            more = {}
        if delta.finish is not None:
            end = ended(delta.finish, self._reply.clock) | self._reply.context(self._tokens)
            yield line(self._reply.said() | end)

    def closing(self) -> Iterator[str]:
        yield from ()

    def failed(self, problem: Problem) -> Iterator[str]:
        yield line(problem.ollama())


def _field(piece: Said | Thought) -> dict[str, str]:
    return {"response" if isinstance(piece, Said) else "thinking": piece.text}
