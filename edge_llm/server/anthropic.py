"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's shapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge_llm.config import GenerationParams
from edge_llm.engine.request import Answer, Delta, Finish, PromptProgress, Usage
from edge_llm.engine.request import Request as Prompt
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.server import limits
from edge_llm.server.fields import MESSAGES, Rule, refusals
from edge_llm.server.formats import Guided
from edge_llm.server.host import ModelHost
from edge_llm.server.lending import prepared
from edge_llm.server.offers import Offer, messages_offer
from edge_llm.server.problems import Problem
from edge_llm.server.replies import answered
from edge_llm.server.schemas import Body, NamesModel, Sampling, ignored_header
from edge_llm.server.shapes import new_id, stopped_by
from edge_llm.server.stream import event
from edge_llm.server.thinking import Thinks
from edge_llm.talk.contents import LeftOut, result_of, text_of, texts_of, without_old_thoughts
from edge_llm.talk.conversation import conversation_request, plain_messages, plain_text
from edge_llm.talk.outcome import AnswerSyntax, Outcome
from edge_llm.talk.pieces import AnswerPiece, CallArguments, CallBegun, Thought
from edge_llm.talk.tools import ToolUse
from edge_llm.talk.wish import Setting


class OutputConfig(Body):
    """What an answer is to be like."""

    effort: str | None = Field(None, max_length=64)
    format: dict[str, Any] | None = None


class CountBody(Thinks, Guided, NamesModel):
    """The body of a request to count tokens: a conversation."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=limits.MESSAGES)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=limits.TOOLS)
    tool_choice: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None

    rules: ClassVar[Sequence[Rule]] = MESSAGES
    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = refusals(MESSAGES)

    def settings(self) -> dict[str, Setting]:
        return super().settings() | {"output_config.effort": self.output_config.effort if self.output_config else None}

    def prompt_for(self, host: ModelHost, params: GenerationParams) -> tuple[Prompt, AnswerSyntax]:
        """The engine's request, and how to read its answer.  A last message of the assistant is the answer's beginning."""
        tools = ToolUse.of(self.offer.functions, self.offer.choice, self._parallel, host.engine)
        messages = self._messages(LeftOut())
        begun = messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
        thought = self.think_tokens(host.engine.template.source)
        params = replace(params, grammar=self.answer_grammar(host.engine.tokenizer), think_tokens=thought)
        variables = self.thinking_variables(host.engine.template.source)
        plain = host.checked(plain_messages(messages))
        return conversation_request(host.engine, plain, params, begun=begun, tools=tools, variables=variables)

    @cached_property
    def offer(self) -> Offer:
        """The tools that may be called.  Raises `UsageError`."""
        return messages_offer(self.tools or [], _chat_choice(self.tool_choice or {}))

    @property
    def _parallel(self) -> bool:
        """Whether several calls are allowed."""
        return not (self.tool_choice or {}).get("disable_parallel_tool_use")

    def left_out(self) -> Sequence[str]:
        self._messages(found := LeftOut())
        return (*found.names, *self.offer.left_out)

    def _messages(self, left_out: LeftOut) -> list[dict[str, Any]]:
        """The conversation in OpenAI's shape."""
        messages: list[dict[str, Any]] = []
        if self.system is not None:
            system = texts_of(self.system, "system", "system", left_out)
            messages.append({"role": "system", "content": plain_text(system, "system")})
        for index, message in enumerate(self.messages):
            messages += _chat_messages(message, f"messages[{index}]", left_out)
        return without_old_thoughts(messages)

    def forms(self) -> dict[str, dict[str, Any] | None]:
        inner = self.output_config.format if self.output_config else None
        return {"output_config.format": inner, "output_format": self.output_format}


class MessagesBody(CountBody, Sampling):
    """The body of a message request; OpenAI's and the extra fields of sampling are understood, too."""

    max_tokens: int = Field(ge=-1)
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0.0, le=1.0)
    top_p: float | None = Field(None, ge=0.0, le=1.0)
    top_k: int | None = Field(None, ge=0)
    stop_sequences: list[str] | None = None

    def reply(self, host: ModelHost, model: str) -> MessageReply:
        """What answers this request."""
        prompt, syntax = self.prompt_for(host, self.params(host.engine.served, host.engine.config.vocab_size))
        return MessageReply(model, [prompt], syntax)

    def params(self, defaults: GenerationParams, vocab_size: int) -> GenerationParams:
        """``defaults`` with what this request says otherwise."""
        params = super().params(defaults, vocab_size)
        return params if self.stop_sequences is None else replace(params, stop=tuple(self.stop_sequences))


def _chat_choice(choice: dict[str, Any]) -> Any:
    """The tool choice in OpenAI's words."""
    kind = choice.get("type")
    named = {"type": "function", "function": {"name": choice.get("name")}}
    return named if kind == "tool" else "required" if kind == "any" else kind


def _chat_messages(message: dict[str, Any], where: str, left_out: LeftOut) -> list[dict[str, Any]]:
    """One message of Anthropic's as messages of OpenAI's: tool results become messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in _ROLES:  # Claude Code looks for these words, and goes on without the role
        raise UsageError(f"{where}: role '{shown(role, 40)}' is not supported; use {', '.join(_ROLES)}", param=f"{where}.role")
    left_out.beside(("role", "content"), message, "messages")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    said = _Said()
    for at, block in enumerate(content):
        said.take(block, f"{where}.content[{at}]", left_out)
    if said.results and not (said.texts or said.calls or said.thoughts):
        return said.results
    found = {"role": role, "content": plain_text(said.texts, f"{where}.content")}
    calls = {"tool_calls": said.calls} if said.calls else {}
    thought = {"reasoning_content": "\n".join(said.thoughts)} if said.thoughts else {}
    return [*said.results, found | calls | thought]


_ROLES = ("user", "assistant", "system")
_OF_OTHERS = ("redacted_thinking", "server_tool_use", "mcp_tool_use", "container_upload")
"""Blocks that only their own server reads."""


class _Said:
    """What the blocks of one message are."""

    def __init__(self) -> None:
        self.texts: list[Any] = []
        self.results: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []
        self.thoughts: list[str] = []

    def take(self, block: Any, where: str, left_out: LeftOut) -> None:
        """The next block.  Raises `UsageError`."""
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            left_out.beside(("name", "input", "caller"), block, _FIELD)
            self.calls.append({"id": block.get("id"), "function": {"name": block.get("name"), "arguments": block.get("input")}})
        elif kind == "tool_result":
            left_out.beside(("tool_use_id", "content"), block, _FIELD)
            given = result_of(block.get("content"), f"{where}.content", _FIELD, left_out)
            result = {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": "" if given is None else given}
            self.results.append(result)
        elif kind == "thinking":
            if isinstance(thought := block.get("thinking"), str) and thought:
                self.thoughts.append(thought)
        elif isinstance(kind, str) and (kind in _OF_OTHERS or kind.endswith("_tool_result")):
            left_out.add(f"{_FIELD}.{kind}")
        else:
            self.texts.append(text_of(block, where, _FIELD, left_out))


_FIELD = "messages.content"


async def messages(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of named events."""
    return await answered(request, MessagesBody)


async def count_tokens(request: Request) -> JSONResponse:
    """How many tokens a conversation has."""
    count, headers = await prepared(request, CountBody, _count)
    return JSONResponse({"input_tokens": count}, headers=headers)


def _count(host: ModelHost, body: CountBody) -> tuple[int, dict[str, str]]:
    prompt, _ = body.prompt_for(host, GenerationParams())
    return len(prompt.prompt), ignored_header(body.ignored(host.engine.template.source))


@dataclass(frozen=True)
class MessageReply:
    """What all events of one reply have in common."""

    model: str
    requests: list[Prompt]
    syntax: AnswerSyntax
    id: str = field(default_factory=lambda: new_id("msg_"))

    def events(self) -> _Events:
        """The message as it comes."""
        return _Events(self)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The finished message."""
        (answer,) = answers
        outcome = self.syntax.outcome(answer)
        return {**self.begun(_usage(answer.finish.usage)), "content": _content(outcome), **_stop(answer.finish, outcome.reason)}

    def begun(self, usage: dict[str, int]) -> dict[str, Any]:
        """The message before its content."""
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }


def _content(outcome: Outcome) -> list[dict[str, Any]]:
    """The blocks of a whole answer; an answer without anything is an empty text."""
    blocks: list[dict[str, Any]] = []
    if outcome.thought:
        blocks.append({"type": "thinking", "thinking": outcome.thought, "signature": ""})
    if outcome.said or not (blocks or outcome.calls):
        blocks.append({"type": "text", "text": outcome.said})
    for call in outcome.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments_object})
    return blocks


_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


def _stop(finish: Finish, reason: str) -> dict[str, Any]:
    ended = _REASONS.get(reason, "end_turn" if finish.stop is None else "stop_sequence")
    return {"stop_reason": ended, "stop_sequence": finish.stop, **stopped_by(finish)}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
    }


class _Blocks:
    """The blocks of one streamed message, each begun and ended."""

    def __init__(self) -> None:
        self._index = -1
        self._kind = ""

    def grow(self, piece: AnswerPiece) -> Iterator[str]:
        """``piece`` goes on with the last block, or ends it and begins the next."""
        calls = isinstance(piece, CallBegun | CallArguments)
        kind = "tool_use" if calls else "thinking" if isinstance(piece, Thought) else "text"
        if kind != self._kind or isinstance(piece, CallBegun):
            yield from self.end()
            yield from self.begin(kind, {"id": piece.id, "name": piece.name} if isinstance(piece, CallBegun) else {})
        if not isinstance(piece, CallBegun):
            name, key = _BLOCK_DELTAS[kind]
            yield named("content_block_delta", index=self._index, delta={"type": name, key: piece.text})

    def begin(self, kind: str, more: dict[str, Any]) -> Iterator[str]:
        """The beginning of a block."""
        self._index, self._kind = self._index + 1, kind
        block = {"type": kind, **more, **_EMPTY_BLOCKS[kind]}
        yield named("content_block_start", index=self._index, content_block=block)

    def end(self) -> Iterator[str]:
        """The end of the last block."""
        if self._kind:
            yield named("content_block_stop", index=self._index)

    def finish(self) -> Iterator[str]:
        """The end of the last block; an answer without anything gets an empty text."""
        if not self._kind:
            yield from self.begin("text", {})
        yield from self.end()


_EMPTY_BLOCKS: dict[str, dict[str, Any]] = {
    "text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}},
}  # fmt: skip
_BLOCK_DELTAS = {
    "text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}  # fmt: skip


def named(kind: str, **data: Any) -> str:
    """An event that has its type as its name."""
    return event({"type": kind, **data}, kind)


class _Events:
    """The named events of one message, in the order that clients expect.

    The message begins when it is known how much of its prompt was cached: clients count by its first event and by its last.
    """

    looks_often = False

    def __init__(self, reply: MessageReply) -> None:
        self._reply = reply
        self._reader = reply.syntax.reader()
        self._blocks = _Blocks()
        self._begun = False

    def opening(self) -> Iterator[str]:
        yield from ()

    def reading(self, progress: PromptProgress) -> Iterator[str]:
        """The beginning of the message, once."""
        if progress.cached is not None:
            yield from self._begin(progress.cached)

    def _begin(self, cached: int) -> Iterator[str]:
        if not self._begun:
            self._begun = True
            usage = _usage(Usage(len(self._reply.requests[0].prompt), 0, cached))
            yield named("message_start", message=self._reply.begun(usage))

    def grow(self, index: int, delta: Delta) -> Iterator[str]:
        yield from self._begin(0)
        for piece in self._reader.read(delta):
            yield from self._blocks.grow(piece)
        if delta.finish is not None:
            yield from self._blocks.finish()
            stop = _stop(delta.finish, self._reader.reason(delta.finish))
            yield named("message_delta", delta=stop, usage=_usage(delta.finish.usage))

    def closing(self) -> Iterator[str]:
        yield named("message_stop")

    def failed(self, problem: Problem) -> Iterator[str]:
        yield event(problem.anthropic(), "error")
