"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from edge_llm.decoding.logprobs import TokenLogprobs
from edge_llm.engine.request import Answer, Finish
from edge_llm.engine.request import Request as Prompt
from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.answers import Answers, whole_reply
from edge_llm.server.conversation import Conversation
from edge_llm.server.formats import Guided
from edge_llm.server.host import ModelHost
from edge_llm.server.problems import problem_of
from edge_llm.server.schemas import Sampling, Streaming, choices, ignored_header
from edge_llm.server.shapes import FINGERPRINT, RunningUsage, chat_logprobs, new_id, openai_usage, timings
from edge_llm.server.stream import DONE, KEEP_ALIVE, EventStream, event
from edge_llm.talk.conversation import conversation_request
from edge_llm.talk.outcome import Outcome, Part, Reading
from edge_llm.talk.reasoning import Thought
from edge_llm.talk.tool_calls import CallBegun, Said
from edge_llm.talk.tools import ToolUse


class ChatBody(Conversation, Streaming, Guided):
    """The body of a chat completion."""

    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=limits.TOP_LOGPROBS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    continue_final_message: bool | None = None

    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        **Sampling.cannot,
        "audio": (), "chat_template": (), "documents": ([],), "echo": (False,), "function_call": ("none",), "functions": ([],),
        "modalities": (["text"],), "moderation": (), "prediction": (), "store": (False,), "web_search_options": (),
    }  # fmt: skip
    labels: ClassVar[frozenset[str]] = frozenset(
        (
            "cache_prompt", "metadata", "prompt_cache_key", "prompt_cache_options",
            "prompt_cache_retention", "safety_identifier", "service_tier", "user",
        )
    )  # fmt: skip

    def prompts(self, host: ModelHost) -> tuple[list[Prompt], Reading]:
        """One engine request per choice, and how to read the answers."""
        engine = host.engine
        params = replace(self.params(engine.defaults, engine.config.vocab_size), logprobs=self._wanted_logprobs())
        tools = ToolUse.of(self.tools, self.tool_choice, self.parallel_tool_calls, engine)
        params = replace(params, grammar=self.answer_grammar(engine.tokenizer))
        variables = self.variables(engine.template.source)
        messages, begun = host.checked(self.plain()), bool(self.continue_final_message)
        prompt, reading = conversation_request(engine, messages, params, begun=begun, tools=tools, variables=variables)
        return [replace(prompt, params=one) for one in choices(prompt.params, self.n or 1)], reading

    def _wanted_logprobs(self) -> int | None:
        if self.top_logprobs is not None and not self.logprobs:
            raise UsageError("top_logprobs needs `logprobs`: true", param="top_logprobs")
        return (self.top_logprobs or 0) if self.logprobs else None


async def chat_completions(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of chunks."""
    host: ModelHost = request.app.state.host
    body, prompts, reading, headers = await host.workshop.prepare(request, _prepare)
    answers = Answers(host, prompts)
    reply = ChatReply(new_id("chatcmpl-"), host.check_name(body.model), int(time.time()), reading)
    if body.stream:
        usage = RunningUsage(len(prompts[0].prompt), wanted=body.wants_running_usage)
        return EventStream(_events(reply, answers, len(prompts), usage, body.wants_usage), answers.cancel, headers)
    return await whole_reply(request, answers, reply.whole, headers)


def _prepare(host: ModelHost, data: bytes) -> tuple[ChatBody, list[Prompt], Reading, dict[str, str]]:
    engine = host.engine
    body = ChatBody.parse(data, engine.runner.context)
    host.check_name(body.model)
    prompts, reading = body.prompts(host)
    return body, prompts, reading, ignored_header(body.ignored(engine.template.source))


@dataclass(frozen=True)
class ChatReply:
    """What all chunks of one reply have in common."""

    id: str
    model: str
    created: int
    reading: Reading

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The reply that is not streamed."""
        outcomes = [self.reading.outcome(answer) for answer in answers]
        return {
            **self._head("chat.completion"),
            "choices": [self._choice(index, *found) for index, found in enumerate(zip(answers, outcomes, strict=True))],
            "usage": openai_usage(
                [answer.finish for answer in answers], thought=sum(outcome.thought_tokens for outcome in outcomes)
            ),
            "timings": timings(answers[0].finish),
        }

    def chunk(self, index: int, delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        """One chunk of choice ``index``."""
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None} | more
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def part_chunks(self, index: int, parts: Sequence[Part], found: Sequence[TokenLogprobs]) -> Iterator[dict[str, Any]]:
        """Pieces of choice ``index``; the first has the log-probabilities of all tokens that came."""
        logprobs = chat_logprobs(found) if found else None
        for delta in [_delta(part) for part in parts] or ([{"content": ""}] if found else []):
            yield self.chunk(index, delta, logprobs=logprobs)
            logprobs = None

    def last_chunk(self, index: int, finish: Finish, reason: str) -> dict[str, Any]:
        """The end of choice ``index``."""
        return self.chunk(index, {}, finish_reason=reason) | {"timings": timings(finish)}

    def usage_chunk(self, finishes: Sequence[Finish], thought: int) -> dict[str, Any]:
        """The chunk without choices that ends a stream whose client asked for the usage."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": openai_usage(finishes, thought=thought)}

    def _choice(self, index: int, answer: Answer, outcome: Outcome) -> dict[str, Any]:
        return {
            "index": index,
            "message": _message(outcome),
            "logprobs": chat_logprobs(answer.logprobs) if answer.logprobs else None,
            "finish_reason": outcome.reason,
        }

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }


def _message(outcome: Outcome) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": outcome.said, "refusal": None}
    if outcome.thought:
        message["reasoning_content"] = outcome.thought
    if outcome.calls:
        message["content"] = outcome.said or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in outcome.calls
        ]
    return message


def _delta(part: Part) -> dict[str, Any]:
    if isinstance(part, Thought):
        return {"reasoning_content": part.text}
    if isinstance(part, Said):
        return {"content": part.text}
    if isinstance(part, CallBegun):
        function = {"name": part.name, "arguments": ""}
        return {"tool_calls": [{"index": part.index, "id": part.id, "type": "function", "function": function}]}
    return {"tool_calls": [{"index": part.index, "function": {"arguments": part.text}}]}


async def _events(
    reply: ChatReply, answers: Answers, count: int, usage: RunningUsage, with_usage: bool
) -> AsyncIterator[str]:
    """The role first, then the parts of all choices as they come, each with its end, the usage, and the word that it is all."""
    finishes: dict[int, Finish] = {}
    readers = [reply.reading.reader() for _ in range(count)]
    for index in range(count):
        yield event(reply.chunk(index, {"role": "assistant", "content": ""}) | usage.field())
    try:
        async for found in answers.deltas(limits.KEEP_ALIVE_SECONDS):
            if found is None:
                yield KEEP_ALIVE
                continue
            index, delta = found
            usage.see(index, delta)
            for chunk in reply.part_chunks(index, readers[index].read(delta), delta.logprobs):
                yield event(chunk | usage.field())
            if delta.finish is not None:
                finishes[index] = delta.finish
                yield event(reply.last_chunk(index, delta.finish, readers[index].reason(delta.finish)) | usage.field())
        if with_usage:
            thought = sum(reader.thought_tokens for reader in readers)
            yield event(reply.usage_chunk([finishes[index] for index in range(count)], thought))
    except Exception as error:
        yield event(problem_of(error).openai())
    yield DONE
