"""POST /v1/responses: a request brings its conversation, or goes on with a response that is kept here."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Answer, Delta
from edge_llm.engine.request import Request as Prompt
from edge_llm.errors import UsageError
from edge_llm.server import limits
from edge_llm.server.customs import CustomCalls, with_inputs
from edge_llm.server.fields import RESPONSES, Rule, refusals
from edge_llm.server.formats import Guided
from edge_llm.server.host import ModelHost
from edge_llm.server.items import Items, shortened
from edge_llm.server.logprobs import chat_logprobs
from edge_llm.server.offers import Offer, responses_offer
from edge_llm.server.output_items import CALLS, OutputItem, kind_of, more_of, output_items
from edge_llm.server.problems import Problem
from edge_llm.server.replies import answered, counted
from edge_llm.server.schemas import Body, NamesModel, Sampling
from edge_llm.server.shapes import new_id, stopped_by
from edge_llm.server.stored import ResponseStore, Stored, is_reference, named
from edge_llm.server.stream import event
from edge_llm.server.thinking import Thinks
from edge_llm.talk.contents import LeftOut, without_old_thoughts
from edge_llm.talk.conversation import conversation_request, plain_messages
from edge_llm.talk.outcome import AnswerSyntax, Outcome
from edge_llm.talk.pieces import AnswerPiece, CallArguments, CallBegun
from edge_llm.talk.tools import ToolUse

LOGPROBS = "message.output_text.logprobs"
"""What `include` names to have the text's log-probabilities told."""
ENCRYPTED = "reasoning.encrypted_content"
"""What it names to have thoughts sent back by clients: they come as they are here."""


class TextSettings(Body):
    """What the text of a response is to be like."""

    format: dict[str, Any] | None = None


class ResponsesBody(Thinks, Guided, Sampling, NamesModel):
    """The body of a response request."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    stream: bool | None = None
    text: TextSettings | None = None
    tools: list[dict[str, Any]] | None = Field(None, max_length=limits.TOOLS)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, Any] | None = None
    previous_response_id: str | None = Field(None, max_length=limits.MODEL_CHARACTERS)
    store: bool | None = None
    include: list[str] | None = Field(None, max_length=limits.TOOLS)
    top_logprobs: int | None = Field(None, ge=0, le=limits.TOP_LOGPROBS)
    truncation: Literal["auto", "disabled"] | None = None
    """auto: a conversation that is too long loses its beginning."""
    _kept: ResponseStore = PrivateAttr(default_factory=ResponseStore)

    rules: ClassVar[Sequence[Rule]] = RESPONSES
    cannot: ClassVar[Mapping[str, tuple[Any, ...]]] = refusals(RESPONSES)

    def among(self, kept: ResponseStore) -> Self:
        """This request, where ``kept`` has the responses that it may go on with."""
        self._kept = kept
        return self

    def keep(self, response: dict[str, Any]) -> None:
        """Keep what was answered, unless the client wants it forgotten."""
        if self.store is not False:
            self._kept.put(Stored(response, tuple(self.asked), self.previous_response_id))

    @cached_property
    def asked(self) -> list[dict[str, Any]]:
        """The input, each item with an id, and references replaced by what they stand for.  Raises `UsageError`."""
        given = named(self.input)
        return [self._kept.item(one["id"], f"input[{at}]") if is_reference(one) else one for at, one in enumerate(given)]

    def reply(self, host: ModelHost, model: str) -> ResponsesReply:
        """What answers this request."""
        prompt, syntax = self.prompt_for(host)
        return ResponsesReply(model, self, [prompt], syntax)

    def prompt_for(self, host: ModelHost) -> tuple[Prompt, AnswerSyntax]:
        """The engine's request, and how to read its answer."""
        engine = host.engine
        params = self.params(engine.served, engine.config.vocab_size)
        params = replace(params, think_tokens=self.think_tokens(engine.template.source), logprobs=self._wanted_logprobs())
        tools = ToolUse.of(self.offer.functions, self.offer.choice, self.parallel_tool_calls, engine)
        params = replace(params, grammar=self.answer_grammar(engine.tokenizer))
        variables = self.thinking_variables(engine.template.source)

        def asked(messages: list[dict[str, Any]]) -> tuple[Prompt, AnswerSyntax]:
            return conversation_request(engine, host.checked(messages), params, tools=tools, variables=variables)

        messages = self._messages(LeftOut())
        return shortened(messages, asked, self._room(engine)) if self.truncation == "auto" else asked(messages)

    @cached_property
    def offer(self) -> Offer:
        """The tools that may be called.  Raises `UsageError`."""
        return responses_offer(self.tools or [], self.tool_choice)

    def forms(self) -> dict[str, dict[str, Any] | None]:
        return {"text.format": self.text.format if self.text else None}

    def left_out(self) -> Sequence[str]:
        self._messages(found := LeftOut())
        beyond = [f"include.{name}" for name in self.include or () if name not in (LOGPROBS, ENCRYPTED)]
        return (*found.names, *self.offer.left_out, *beyond)

    def _wanted_logprobs(self) -> int | None:
        """How many likely tokens beside each of the text; None: not even the token itself."""
        if LOGPROBS not in (self.include or ()):
            if self.top_logprobs:
                raise UsageError(f"top_logprobs needs `include`: ['{LOGPROBS}']", param="top_logprobs")
            return None
        if self.offer.functions:
            raise UsageError(f"`{LOGPROBS}` is not told beside tools; leave one of them out", param="include")
        return self.top_logprobs or 0

    def _room(self, engine: Engine) -> int:
        """Tokens of a shortened prompt: what is left beside the answer, half of the context at least."""
        context = engine.runner.context
        return context - min(self._token_limit() or context // 4, context // 2)

    @property
    def effort(self) -> str | None:
        """How hard the model is to think, as the request has it."""
        return self.reasoning.get("effort") if isinstance(self.reasoning, dict) else None

    def _messages(self, left_out: LeftOut) -> list[dict[str, Any]]:
        if not 1 <= (1 if isinstance(self.input, str) else len(self.input)) <= limits.MESSAGES:
            raise UsageError(f"input takes 1 to {limits.MESSAGES} items, got `{len(self.input)}`", param="input")
        said = Items(left_out)
        for item in self._kept.before(self.previous_response_id):
            said.take(item, "previous_response_id")
        for index, item in enumerate(self.asked):
            said.take(item, f"input[{index}]")
        system = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        return without_old_thoughts(plain_messages([*system, *said.messages], "input"))


async def responses(request: Request) -> Response:
    """Answer a conversation, whole or as a stream of named events."""
    kept: ResponseStore = request.app.state.responses
    return await answered(request, ResponsesBody, lambda body: body.among(kept))


async def input_tokens(request: Request) -> JSONResponse:
    """How many tokens the prompt of a response would have."""
    kept: ResponseStore = request.app.state.responses
    return await counted(request, ResponsesBody, lambda host, body: len(body.among(kept).prompt_for(host)[0].prompt))


@dataclass(frozen=True)
class ResponsesReply:
    """What all events of one reply have in common."""

    model: str
    body: ResponsesBody
    requests: list[Prompt]
    syntax: AnswerSyntax
    id: str = field(default_factory=lambda: new_id("resp_"))
    created: int = field(default_factory=lambda: int(time.time()))

    def events(self) -> _Events:
        """The response as it comes."""
        return _Events(self)

    def whole(self, answers: Sequence[Answer]) -> dict[str, Any]:
        """The finished response."""
        outcome = with_inputs(self.syntax.outcome(*answers), self.body.offer.customs)
        likely = chat_logprobs(answers[0].logprobs[outcome.thought_tokens :])["content"]
        return self.finished(outcome, [item.done for item in output_items(outcome, self.body.offer.customs, likely)])

    def finished(self, outcome: Outcome, output: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The response with all its output."""
        cut = outcome.reason == "length"
        details = {"reason": "max_output_tokens"} if cut else None
        state = self.state("incomplete" if cut else "completed", output, outcome)
        response = state | {"incomplete_details": details, **stopped_by(outcome.finish)}
        self.body.keep(response)
        return response

    def state(self, status: str, output: Sequence[dict[str, Any]] = (), outcome: Outcome | None = None) -> dict[str, Any]:
        """The response object in the state ``status``."""
        params = self.requests[0].params
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "instructions": self.body.instructions,
            "max_output_tokens": self.body.max_output_tokens,
            "metadata": self.body.metadata or {},
            "model": self.model,
            "output": list(output),
            "parallel_tool_calls": self.body.parallel_tool_calls is not False,
            "previous_response_id": self.body.previous_response_id,
            "reasoning": {"effort": self.body.effort, "summary": None},
            "store": self.body.store is not False,
            "temperature": params.temperature,
            "text": {"format": (self.body.text and self.body.text.format) or {"type": "text"}},
            "tool_choice": self.body.tool_choice or "auto",
            "tools": self.body.tools or [],
            "top_p": params.top_p,
            "truncation": self.body.truncation or "disabled",
            "usage": None if outcome is None else _usage(outcome),
        }


def _usage(outcome: Outcome) -> dict[str, Any]:
    usage = outcome.finish.usage
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": outcome.thought_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


class _Events:
    """The numbered events of one response, in the order that clients expect."""

    def __init__(self, reply: ResponsesReply) -> None:
        self._reply = reply
        self._reader = reply.syntax.reader()
        self._customs = CustomCalls(reply.body.offer.customs)
        self._number = 0
        self._items: list[OutputItem] = []
        self._scored = 0
        """Tokens whose log-probabilities came."""
        self._likely: list[dict[str, Any]] = []
        """Those of the text's tokens that are in no event yet."""

    def opening(self) -> Iterator[str]:
        yield self._named("response.created", response=self._reply.state("in_progress"))
        yield self._named("response.in_progress", response=self._reply.state("in_progress"))

    def grow(self, index: int, delta: Delta) -> Iterator[str]:
        pieces = self._customs.push(self._reader.read(delta), ended=delta.finish is not None)
        of_thought = max(0, self._reader.thought_tokens - self._scored)
        self._likely += chat_logprobs(delta.logprobs[of_thought:])["content"]
        self._scored += len(delta.logprobs)
        for piece in pieces:
            yield from self._add(piece)
        if delta.finish is not None:
            yield from self._finish(Outcome(delta.finish, self._reader.reason(delta.finish), self._reader.thought_tokens))

    def closing(self) -> Iterator[str]:
        return iter(())

    def failed(self, problem: Problem) -> Iterator[str]:
        failure = {"code": problem.code or "server_error", "message": problem.message}
        yield self._named("response.failed", response=self._reply.state("failed") | {"error": failure})

    def _finish(self, outcome: Outcome) -> Iterator[str]:
        """The end of the last item and of the response; an answer without anything gets an empty message."""
        if not self._items:
            yield from self._begin(OutputItem("message", new_id("msg_")))
        yield from self._end("incomplete" if outcome.reason == "length" else "completed")
        done = self._reply.finished(outcome, [item.done for item in self._items])
        yield self._named(f"response.{done['status']}", response=done)

    def _named(self, kind: str, **data: Any) -> str:
        """The next event."""
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **data}, kind)

    def _add(self, piece: AnswerPiece) -> Iterator[str]:
        """``piece`` goes on with the last item, or ends it and begins the next."""
        item = self._items[-1] if self._items else None
        goes_on = isinstance(piece, CallArguments) or (item is not None and item.kind == kind_of(piece))
        if item is None or isinstance(piece, CallBegun) or not goes_on:
            yield from self._end("completed")
            item = OutputItem.of(piece, self._reply.body.offer.customs)
            yield from self._begin(item)
        if not isinstance(piece, CallBegun):
            item.text += piece.text
            new, self._likely = (self._likely, []) if item.kind == "message" else ([], self._likely)
            item.logprobs += new
            place = self._place(item) | more_of(item, new)
            yield self._named(f"response.{_DELTAS[item.kind]}.delta", **place, delta=piece.text)

    def _begin(self, item: OutputItem) -> Iterator[str]:
        """The beginning of the next item."""
        self._items.append(item)
        yield self._named("response.output_item.added", output_index=len(self._items) - 1, item=item.begun)
        if item.kind not in CALLS:
            yield self._named("response.content_part.added", **self._place(item), part=item.content_part(""))

    def _end(self, status: str) -> Iterator[str]:
        """The last item is complete."""
        if not self._items:
            return
        item = self._items[-1]
        item.status = status
        key = CALLS.get(item.kind, "text")
        place = self._place(item) | more_of(item, item.logprobs)
        yield self._named(f"response.{_DELTAS[item.kind]}.done", **place, **{key: item.text})
        if item.kind not in CALLS:
            yield self._named("response.content_part.done", **self._place(item), part=item.content_part(item.text))
        yield self._named("response.output_item.done", output_index=len(self._items) - 1, item=item.done)

    def _place(self, item: OutputItem) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": item.id, "output_index": len(self._items) - 1}
        return place if item.kind in CALLS else place | {"content_index": 0}


_DELTAS = {
    "function_call": "function_call_arguments", "custom_tool_call": "custom_tool_call_input",
    "reasoning": "reasoning_text", "message": "output_text",
}  # fmt: skip
