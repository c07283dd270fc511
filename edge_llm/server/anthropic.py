"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's shapes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge_llm.config import GenerationParams, Grammar
from edge_llm.engine.request import Answer, Delta, Finish
from edge_llm.engine.request import Request as Prompt
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.server import limits
from edge_llm.server.host import ModelHost
from edge_llm.server.problems import Problem
from edge_llm.server.replies import answered
from edge_llm.server.schemas import Body, Sampling, ignored_header
from edge_llm.server.shapes import new_id, stopped_by
from edge_llm.server.stream import event
from edge_llm.server.thinking import Thinks
from edge_llm.strict_json import is_deeper
from edge_llm.talk.conversation import conversation_request, plain_messages, plain_text
from edge_llm.talk.formats import checked_grammar, response_format
from edge_llm.talk.outcome import AnswerSyntax, Outcome
from edge_llm.talk.pieces import AnswerPiece, CallArguments, CallBegun, Thought
from edge_llm.talk.tools import ToolUse
from edge_llm.talk.wish import Setting
from edge_llm.text.tokenizer import Tokenizer


class OutputConfig(Body):
    """What an answer is to be like."""

    effort: str | None = Field(None, max_length=64)
    format: dict[str, Any] | None = None


class CountBody(Thinks):
    """The body of a request to count tokens: a conversation."""

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=limits.MESSAGES)
    model: str | None = Field(None, max_length=limits.MODEL_CHARACTERS)
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=limits.TOOLS)
    tool_choice: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None

    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = {**Sampling.cannot, "container": (), "mcp_servers": ([],)}

    def settings(self) -> dict[str, Setting]:
        return super().settings() | {"output_config.effort": self.output_config.effort if self.output_config else None}

    def prompt_for(self, host: ModelHost, params: GenerationParams) -> tuple[Prompt, AnswerSyntax]:
        """The engine's request, and how to read its answer.  A last message of the assistant is the answer's beginning."""
        given = [_chat_tool(tool, at) for at, tool in enumerate(self.tools or [])]
        choice, parallel = _chat_choice(self.tool_choice or {})
        tools = ToolUse.of(given, choice, parallel, host.engine)
        messages: list[dict[str, Any]] = []
        if self.system is not None:
            messages.append({"role": "system", "content": plain_text(self.system, "system")})
        for index, message in enumerate(self.messages):
            messages += _chat_messages(message, f"messages[{index}]")
        begun = messages[-1]["role"] == "assistant" and not messages[-1].get("tool_calls")
        params = replace(params, grammar=self._answer_grammar(host.engine.tokenizer))
        variables = self.thinking_variables(host.engine.template.source)
        plain = host.checked(plain_messages(messages))
        return conversation_request(host.engine, plain, params, begun=begun, tools=tools, variables=variables)

    def _answer_grammar(self, tokenizer: Tokenizer) -> Grammar | None:
        inner = response_format(self.output_config.format if self.output_config else None, "output_config.format")
        found = {"output_config.format": inner, "output_format": response_format(self.output_format, "output_format")}
        return checked_grammar({name: grammar for name, grammar in found.items() if grammar is not None}, tokenizer)


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


def _chat_tool(tool: dict[str, Any], at: int) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise UsageError(f"tools[{at}]: tools of type `{shown(tool['type'], 40)}` do not run here", param=f"tools[{at}]")
    function = {"name": tool.get("name"), "description": tool.get("description"), "parameters": tool.get("input_schema")}
    return {"type": "function", "function": function}


def _chat_choice(choice: dict[str, Any]) -> tuple[Any, bool]:
    """The tool choice in OpenAI's words, and whether several calls are allowed."""
    kind = choice.get("type")
    named = {"type": "function", "function": {"name": choice.get("name")}}
    return named if kind == "tool" else "required" if kind == "any" else kind, not choice.get("disable_parallel_tool_use")


def _chat_messages(message: dict[str, Any], where: str) -> list[dict[str, Any]]:
    """One message of Anthropic's as messages of OpenAI's: the results of tools become messages of their own."""
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant"):
        raise UsageError(f"{where}.role must be user or assistant, got `{shown(role, 40)}`", param=f"{where}.role")
    if not isinstance(content, list):
        return [{"role": role, "content": content}]
    texts: list[Any] = []
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "tool_use":
            calls.append({"id": block.get("id"), "function": {"name": block.get("name"), "arguments": block.get("input")}})
        elif kind == "tool_result":
            text = plain_text(block.get("content"), f"{where}.content[{at}].content")
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": text})
        elif kind not in ("thinking", "redacted_thinking"):  # what was thought in an earlier turn is not shown again
            texts.append(block)
    if results and not texts and not calls:
        return results
    said = {"role": role, "content": plain_text(texts, f"{where}.content")} | ({"tool_calls": calls} if calls else {})
    return [*results, said]


async def messages(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of named events."""
    return await answered(request, MessagesBody)


async def count_tokens(request: Request) -> JSONResponse:
    """How many tokens a conversation has."""
    host: ModelHost = request.app.state.host
    count, headers = await host.prepare(request, _count)
    return JSONResponse({"input_tokens": count}, headers=headers)


def _count(host: ModelHost, data: bytes) -> tuple[int, dict[str, str]]:
    body = CountBody.parse(data, host.engine.runner.context)
    host.check_name(body.model)
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
        return {**self.begun(_usage(answer.finish)), "content": _content(outcome), **_stop(answer.finish, outcome.reason)}

    def begun(self, usage: dict[str, Any]) -> dict[str, Any]:
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
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call.arguments)})
    return blocks


def _input(arguments: str) -> Any:
    """The arguments of a call as an object; what was cut off, or cannot be written as JSON again, is empty."""
    try:
        value = json.loads(arguments, strict=False)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return {}
    return {} if is_deeper(value, limits.JSON_DEPTH) else value


_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}


def _stop(finish: Finish, reason: str) -> dict[str, Any]:
    ended = _REASONS.get(reason, "end_turn" if finish.stop is None else "stop_sequence")
    return {"stop_reason": ended, "stop_sequence": finish.stop, **stopped_by(finish)}


def _usage(finish: Finish) -> dict[str, Any]:
    usage = finish.usage
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
    """The named events of one message, in the order that clients expect."""

    def __init__(self, reply: MessageReply) -> None:
        self._reply = reply
        self._reader = reply.syntax.reader()
        self._blocks = _Blocks()

    def opening(self) -> Iterator[str]:
        usage = {"input_tokens": len(self._reply.requests[0].prompt), "output_tokens": 0}
        yield named("message_start", message=self._reply.begun(usage))

    def grow(self, index: int, delta: Delta) -> Iterator[str]:
        for piece in self._reader.read(delta):
            yield from self._blocks.grow(piece)
        if delta.finish is not None:
            yield from self._blocks.finish()
            stop = _stop(delta.finish, self._reader.reason(delta.finish))
            yield named("message_delta", delta=stop, usage=_usage(delta.finish))

    def closing(self) -> Iterator[str]:
        yield named("message_stop")

    def failed(self, problem: Problem) -> Iterator[str]:
        yield event(problem.anthropic(), "error")
