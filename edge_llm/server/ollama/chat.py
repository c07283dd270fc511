"""POST /api/chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import Field

from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.engine.request import Answer, Delta
from edge_llm.engine.request import Request as Prompt
from edge_llm.server import limits
from edge_llm.server.host import ModelHost
from edge_llm.server.offers import Offer, chat_offer
from edge_llm.server.ollama.bodies import Generating
from edge_llm.server.ollama.messages import as_many_as_fit, chat_messages
from edge_llm.server.ollama.shapes import Clock, WholeCalls, ended, logprobs, now, tool_call
from edge_llm.server.problems import Problem
from edge_llm.server.stream import line
from edge_llm.talk.contents import LeftOut
from edge_llm.talk.conversation import conversation_request, plain_messages
from edge_llm.talk.outcome import AnswerSyntax
from edge_llm.talk.pieces import Said, Thought
from edge_llm.talk.tools import ToolUse


class ChatBody(Generating):
    """A conversation to be continued; a last message of the assistant is the answer's beginning."""

    messages: list[dict[str, Any]] | None = Field(None, max_length=limits.MESSAGES)
    tools: list[dict[str, Any]] | None = Field(None, max_length=limits.TOOLS)
    truncate: bool | None = None
    """Whether the oldest turns may be left out of a conversation that does not fit; they may, if it is not said."""

    @property
    def begins(self) -> bool:
        return bool(self.messages)

    def nothing(self) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": ""}}

    def reply(self, host: ModelHost, model: str, clock: Clock) -> ChatReply:
        """What answers this request."""
        engine = host.engine
        messages = plain_messages(chat_messages(self.messages or [], LeftOut()))
        tools = ToolUse.of(self.offer.functions, None, None, engine)
        params, variables = self.params(engine), self.thinking_variables(engine.template.source)
        begun = messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")

        def made(found: list[dict[str, Any]]) -> tuple[Prompt, AnswerSyntax]:
            host.checked(found)
            request, syntax = conversation_request(engine, found, params, begun=begun, tools=tools, variables=variables)
            return self.within(request, engine), syntax

        (request, syntax), missing = (made(messages), 0) if self.truncate is False else as_many_as_fit(messages, made)
        return ChatReply(model, [request], syntax, clock, ("messages.oldest",) if missing else ())

    @cached_property
    def offer(self) -> Offer:
        """The tools that may be called.  Raises `UsageError`."""
        return chat_offer(self.tools or [], None)

    def left_out(self) -> Sequence[str]:
        chat_messages(self.messages or [], found := LeftOut())
        return (*found.names, *self.offer.left_out)


@dataclass(frozen=True)
class ChatReply:
    """What all lines of one reply have in common."""

    model: str
    requests: list[Prompt]
    syntax: AnswerSyntax
    clock: Clock
    left_out: tuple[str, ...] = ()
    """Names of what the model is not shown."""

    def events(self) -> _Lines:
        """The reply that is streamed."""
        return _Lines(self)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The reply that is not streamed."""
        (answer,) = answers
        outcome = self.syntax.outcome(answer)
        message: dict[str, Any] = {"content": outcome.said}
        if outcome.thought:
            message["thinking"] = outcome.thought
        if outcome.calls:
            message["tool_calls"] = [tool_call(call, at) for at, call in enumerate(outcome.calls)]
        return self.said(**message) | logprobs(answer.logprobs) | ended(answer.finish, self.clock)

    def said(self, **message: Any) -> dict[str, Any]:
        """A line with a piece of the message."""
        return {
            "model": self.model,
            "created_at": now(),
            "message": {"role": "assistant", "content": "", **message},
            "done": False,
        }


class _Lines:
    """Thoughts and text as they come, each call when it is complete, and the end."""

    def __init__(self, reply: ChatReply) -> None:
        self._reply = reply
        self._reader = reply.syntax.reader()
        self._calls = WholeCalls()

    def opening(self) -> Iterator[str]:
        yield from ()

    def grow(self, index: int, delta: Delta) -> Iterator[str]:
        messages = self._messages(delta)
        yield from self._with_logprobs(messages, delta.logprobs)
        if delta.finish is not None:
            yield line(self._reply.said() | ended(delta.finish, self._reply.clock))

    def _messages(self, delta: Delta) -> list[dict[str, Any]]:
        """What ``delta`` adds to the message, piece by piece."""
        messages: list[dict[str, Any]] = []
        for piece in self._reader.read(delta):
            messages += [{"tool_calls": [call]} for call in self._calls.push(piece)]
            if isinstance(piece, Said | Thought):
                messages.append({"content" if isinstance(piece, Said) else "thinking": piece.text})
        if delta.finish is not None:
            messages += [{"tool_calls": [call]} for call in self._calls.end()]
        return messages

    def _with_logprobs(self, messages: list[dict[str, Any]], found: Sequence[TokenLogprobs]) -> Iterator[str]:
        """A line for each of ``messages``; the first has the log-probabilities of all tokens that came."""
        more = logprobs(found)
        for message in messages or ([{}] if more else []):
            yield line(self._reply.said(**message) | more)
            more = {}

    def closing(self) -> Iterator[str]:
        yield from ()

    def failed(self, problem: Problem) -> Iterator[str]:
        yield line(problem.ollama())
