"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.engine.request import Answer, Delta, Finish, PromptProgress
from edge_llm.engine.request import Request as Prompt
from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.conversation import Conversation
from edge_llm.server.customs import CustomCalls, CustomInput, with_inputs
from edge_llm.server.fields import CHAT, Rule, refusals
from edge_llm.server.formats import Guided
from edge_llm.server.host import ModelHost
from edge_llm.server.llama_settings import verbose_fields
from edge_llm.server.logprobs import chat_logprobs, prompt_logprobs
from edge_llm.server.problems import Problem
from edge_llm.server.progress import ProgressTeller
from edge_llm.server.replies import answered, counted
from edge_llm.server.schemas import Streaming, choices
from edge_llm.server.shapes import FINGERPRINT, RunningUsage, new_id, openai_usage, shown_tokens, stopped_by, timings
from edge_llm.server.stream import DONE, TextEvent, event
from edge_llm.talk.conversation import conversation_request
from edge_llm.talk.outcome import AnswerSyntax, Outcome
from edge_llm.talk.pieces import AnswerPiece, CallArguments, CallBegun, Said, Thought
from edge_llm.talk.tools import ToolUse


class ChatBody(Conversation, Streaming, Guided):
    """The body of a chat completion."""

    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=limits.TOP_LOGPROBS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    """vLLM's: whether a message that is continued comes back as a whole."""
    return_progress: bool | None = None
    """llama.cpp's: tell how much of the prompt is read."""
    verbose: bool | None = None
    """llama.cpp's: show the prompt."""

    rules: ClassVar[Sequence[Rule]] = CHAT
    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = refusals(CHAT)

    def reply(self, host: ModelHost, model: str) -> ChatReply:
        """What answers this request."""
        prompts, syntax = self.prompts(host)
        shown = verbose_fields(host.engine, prompts[0]) if self.verbose or host.verbose else {}
        return ChatReply(model, self, prompts, syntax, self.begun, shown)

    def prompts(self, host: ModelHost) -> tuple[list[Prompt], AnswerSyntax]:
        """One engine request per choice, and how to read the answers."""
        engine = host.engine
        params = replace(self.params(engine.served, engine.config.vocab_size), logprobs=self._wanted_logprobs())
        tools = ToolUse.of(self.offer.functions, self.offer.choice, self.parallel_tool_calls, engine)
        thought = self.think_tokens(engine.template.source)
        params = replace(params, grammar=self.answer_grammar(engine.tokenizer), think_tokens=thought)
        variables = self.variables(engine.template.source)
        messages, begun = host.checked(self.plain()), bool(self.continue_final_message)
        prompt, syntax = conversation_request(engine, messages, params, begun=begun, tools=tools, variables=variables)
        return [replace(prompt, params=one) for one in choices(prompt.params, self.n or 1)], syntax

    @property
    def begun(self) -> str:
        """What stands before the content of every answer."""
        return str(self.plain()[-1]["content"]) if self.echo and self.continue_final_message else ""

    def _wanted_logprobs(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise UsageError("top_logprobs needs `logprobs`: true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of chunks."""
    return await answered(request, ChatBody)


async def chat_tokens(request: Request) -> JSONResponse:
    """How many tokens the prompt of a chat completion would have."""
    return await counted(request, ChatBody, lambda host, body: len(body.prompts(host)[0][0].prompt))


@dataclass(frozen=True)
class ChatReply:
    """What all chunks of one reply have in common."""

    model: str
    body: ChatBody
    requests: list[Prompt]
    """One per choice."""
    syntax: AnswerSyntax
    begun: str
    """What stands before the content of every choice."""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """What is told of the prompt beside the answer."""
    id: str = field(default_factory=lambda: new_id("chatcmpl-"))
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def customs(self) -> frozenset[str]:
        """Names of custom tools."""
        return self.body.offer.customs

    def events(self) -> _Events:
        """The reply that is streamed."""
        return _Events(self)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The reply that is not streamed."""
        outcomes = [with_inputs(self.syntax.outcome(answer), self.customs) for answer in answers]
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(index, *found) for index, found in enumerate(zip(answers, outcomes, strict=True))],
            "usage": openai_usage(
                [answer.finish for answer in answers], thought=sum(outcome.thought_tokens for outcome in outcomes)
            ),
            "timings": timings(answers[0].finish),
            "prompt_logprobs": None if self.body.prompt_logprobs is None else prompt_logprobs(answers[0].prompt_logprobs),
            **self.prompt_ids(),
            **self.shown,
        }

    def prompt_ids(self) -> dict[str, Any]:
        """The prompt's tokens, if they are wanted."""
        return {"prompt_token_ids": list(self.requests[0].prompt)} if self.body.return_token_ids else {}

    def token_ids(self, tokens: Sequence[int], finish: Finish | None) -> dict[str, Any]:
        """The next tokens of an answer, if they are wanted."""
        return {"token_ids": shown_tokens(tokens, finish)} if self.body.return_token_ids else {}

    def logprobs(self, found: Sequence[TokenLogprobs]) -> dict[str, Any] | None:
        """The log-probabilities of the next tokens of an answer."""
        return chat_logprobs(found, as_ids=bool(self.body.return_tokens_as_token_ids)) if found else None

    def chunk(self, index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        """One chunk of choice ``index``."""
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None} | more
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def piece_chunks(self, index: int, pieces: Sequence[AnswerPiece], came: Delta) -> Iterator[dict[str, Any]]:
        """Pieces of choice ``index``; the first has the log-probabilities and ids of all tokens that ``came``."""
        more = {"logprobs": self.logprobs(came.logprobs), **self.token_ids(came.tokens, None)}
        told = bool(came.logprobs or (came.tokens and self.body.return_token_ids))
        for delta in [self.delta(piece) for piece in pieces] or ([{"content": ""}] if told else []):
            yield self.chunk(index, delta, **more)
            more = {}

    def last_chunk(self, index: int, finish: Finish, reason: str) -> dict[str, Any]:
        """The end of choice ``index``."""
        more = stopped_by(finish) | self.token_ids((), finish)
        return self.chunk(index, {}, finish_reason=reason, **more) | {"timings": timings(finish), **self.shown}

    def usage_chunk(self, finishes: Sequence[Finish], thought: int) -> dict[str, Any]:
        """The chunk without choices that ends a stream whose client asked for the usage."""
        return {**self._head("chat.completion.chunk"), "choices": []} | {
            "usage": openai_usage(finishes, thought=thought),
            "timings": timings(finishes[0]),
        }

    def _choice(self, index: int, answer: Answer, outcome: Outcome) -> dict[str, Any]:
        return {
            "index": index,
            "message": self._message(outcome),
            "logprobs": self.logprobs(answer.logprobs),
            "finish_reason": outcome.reason,
            **stopped_by(outcome.finish),
            **self.token_ids(answer.tokens, answer.finish),
        }

    def delta(self, piece: AnswerPiece) -> dict[str, Any]:
        """What ``piece`` adds to a choice."""
        if isinstance(piece, Thought):
            return {"reasoning_content": piece.text}
        if isinstance(piece, Said):
            return {"content": piece.text}
        if isinstance(piece, CallBegun):
            return {"tool_calls": [{"index": piece.index} | self._call(piece.id, piece.name, "")]}
        return {"tool_calls": [{"index": piece.index} | self._arguments(piece)]}

    def _arguments(self, piece: CallArguments) -> dict[str, Any]:
        return {"custom": {"input": piece.text}} if isinstance(piece, CustomInput) else {"function": {"arguments": piece.text}}

    def _call(self, call_id: str, name: str, arguments: str) -> dict[str, Any]:
        if name in self.customs:
            return {"id": call_id, "type": "custom", "custom": {"name": name, "input": arguments}}
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _message(self, outcome: Outcome) -> dict[str, Any]:
        said = self.begun + outcome.said
        message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None}
        if outcome.thought:
            message["reasoning_content"] = outcome.thought
        if outcome.calls:
            message["content"] = said or None
            message["tool_calls"] = [self._call(call.id, call.name, call.arguments) for call in outcome.calls]
        return message

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }


class _Events:
    """The role first, then all choices' pieces as they come, each with its end, the usage, and the word that it is all."""

    def __init__(self, reply: ChatReply) -> None:
        self._reply = reply
        self._readers = [reply.syntax.reader() for _ in reply.requests]
        self._customs = [CustomCalls(reply.customs) for _ in reply.requests]
        self._usage = RunningUsage(len(reply.requests[0].prompt), wanted=reply.body.wants_running_usage)
        self._finishes: dict[int, Finish] = {}
        self._texts: dict[tuple[int, type[Said | Thought]], TextEvent] = {}
        self._teller = ProgressTeller(wanted=bool(reply.body.return_progress))

    def opening(self) -> Iterator[str]:
        for index in range(len(self._readers)):
            said = {"content": self._reply.begun} if self._reply.begun else {}
            begun = self._reply.chunk(index, {"role": "assistant"} | said)
            yield event(begun | self._usage.field() | ({} if index else self._reply.prompt_ids()))

    @property
    def looks_often(self) -> bool:
        """Whether progress is told."""
        return self._teller.wanted

    def reading(self, progress: PromptProgress) -> Iterator[str]:
        """What is told of the prompt while it is read."""
        for news in self._teller.news(progress):
            yield event(self._reply.chunk(0, {}) | news)

    def grow(self, index: int, delta: Delta) -> Iterator[str]:
        self._usage.see(index, delta)
        reader = self._readers[index]
        pieces = self._customs[index].push(reader.read(delta), ended=delta.finish is not None)
        if self._usage.wanted or delta.logprobs or self._reply.body.return_token_ids:
            for chunk in self._reply.piece_chunks(index, pieces, delta):
                yield event(chunk | self._usage.field())
        else:
            for piece in pieces:
                yield self._piece(index, piece)
        if delta.finish is not None:
            self._finishes[index] = delta.finish
            yield event(self._reply.last_chunk(index, delta.finish, reader.reason(delta.finish)) | self._usage.field())

    def _piece(self, index: int, piece: AnswerPiece) -> str:
        """The event of ``piece`` alone."""
        if not isinstance(piece, Said | Thought):
            return event(self._reply.chunk(index, self._reply.delta(piece)))
        known = (index, type(piece))
        if known not in self._texts:
            self._texts[known] = TextEvent(self._reply.chunk(index, self._reply.delta(type(piece)(""))))
        return self._texts[known].with_text(piece.text)

    def closing(self) -> Iterator[str]:
        if self._reply.body.wants_usage:
            thought = sum(reader.thought_tokens for reader in self._readers)
            finishes = [self._finishes[index] for index in range(len(self._readers))]
            yield event(self._reply.usage_chunk(finishes, thought))
        yield DONE

    def failed(self, problem: Problem) -> Iterator[str]:
        yield event(problem.openai())
        yield DONE
