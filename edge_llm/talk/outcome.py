"""What an answer's text is made of: what the model thought, what it says, and the tools that it calls."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from edge_llm.engine.request import Answer, Delta, Finish
from edge_llm.strict_json import MAX_DEPTH, is_deeper
from edge_llm.talk.pieces import AnswerPiece, CallBegun, Said, Thought
from edge_llm.talk.tool_calls import ToolCallParser
from edge_llm.talk.tool_formats import MARKS
from edge_llm.talk.tools import ToolUse, control_token
from edge_llm.text.reasoning import ReasoningSplitter, Thinking, ThoughtCounter
from edge_llm.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class AnswerSyntax:
    """Where thoughts, text and tool calls stand in the answers to one request.  By itself: all is text."""

    tokenizer: Tokenizer
    thinking: Thinking = Thinking.RAW
    tools: ToolUse | None = None

    @property
    def marks(self) -> frozenset[int]:
        """The control tokens that mark calls."""
        return frozenset(self._controls().values())

    def reader(self) -> AnswerReader:
        return AnswerReader(self)

    def outcome(self, answer: Answer) -> Outcome:
        """The whole answer, read."""
        reader = self.reader()
        return Outcome.of(reader.read(Delta(answer.text, answer.tokens, answer.finish)), reader, answer)

    def calls_parser(self) -> ToolCallParser | None:
        """What finds calls in a text behind thoughts; None where there are no tools."""
        tools = self.tools
        if tools is None:
            return None
        return ToolCallParser(
            tools.style,
            tools.names,
            only_calls=tools.forced,
            most=None if tools.parallel else 1,
            schemas={tool["function"]["name"]: tool["function"]["parameters"] for tool in tools.tools},
            controls=frozenset(self._controls()),
        )

    def enough(self) -> FirstCall:
        """What ends an answer behind its only call."""
        parser = self.calls_parser()
        assert parser is not None, "there are tools"
        return FirstCall(parser)

    def _controls(self) -> dict[str, int]:
        """The marks of calls that are control tokens."""
        find = control_token(self.tokenizer)
        return {} if self.tools is None else {mark: token for mark in MARKS if (token := find(mark)) is not None}


class FirstCall:
    """Reads what an answer says, up to the end of its first call."""

    def __init__(self, parser: ToolCallParser) -> None:
        self._parser = parser

    def push(self, text: str) -> bool:
        """Whether the call is complete."""
        self._parser.push(text)
        return self._parser.over


class AnswerReader:
    """Reads one answer as its deltas come."""

    def __init__(self, syntax: AnswerSyntax) -> None:
        self._tokenizer = syntax.tokenizer
        opened = syntax.thinking is Thinking.OPEN
        self._splitter = None if syntax.thinking is Thinking.RAW else ReasoningSplitter(opened=opened)
        self._parser = syntax.calls_parser()
        self._counter = ThoughtCounter(opened=opened)

    @property
    def thought_tokens(self) -> int:
        """Tokens that the model spent on thinking."""
        return self._counter.count

    def read(self, delta: Delta) -> list[AnswerPiece]:
        """The pieces that ``delta`` completes, in order; all that is left if it is the last."""
        thought, said = ("", delta.text) if self._splitter is None else self._splitter.push(delta.text)
        if self._splitter is not None:
            for token in delta.tokens:
                self._counter.push(self._tokenizer.token_string(token).encode())
            if delta.finish is not None:
                more_thought, more_said = self._splitter.finish()
                thought, said = thought + more_thought, said + more_said
        pieces: list[AnswerPiece] = [Thought(thought)] if thought else []
        if self._parser is None:
            return [*pieces, Said(said)] if said else pieces
        pieces += self._parser.push(said)
        if delta.finish is not None:
            pieces += self._parser.finish()
        return pieces

    def reason(self, finish: Finish) -> str:
        """How the answer ended, in OpenAI's words."""
        called = self._parser is not None and self._parser.calls > 0
        return "tool_calls" if called and finish.reason == "stop" else finish.openai_reason


@dataclass
class Call:
    """One call of a tool."""

    id: str
    name: str
    arguments: str = ""
    """JSON text, as the model wrote it."""

    @property
    def arguments_object(self) -> dict[str, Any]:
        """The arguments as an object; what was cut off, or cannot be written as JSON again, is empty."""
        try:
            value = json.loads(self.arguments, strict=False)
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) and not is_deeper(value, MAX_DEPTH) else {}


@dataclass
class Outcome:
    """A whole answer, read."""

    finish: Finish
    reason: str
    thought_tokens: int
    thought: str = ""
    said: str = ""
    calls: list[Call] = field(default_factory=list)

    @classmethod
    def of(cls, pieces: Iterable[AnswerPiece], reader: AnswerReader, answer: Answer) -> Outcome:
        """``pieces`` put together."""
        outcome = cls(answer.finish, reader.reason(answer.finish), reader.thought_tokens)
        for piece in pieces:
            outcome.add(piece)
        return outcome

    def add(self, piece: AnswerPiece) -> None:
        """Put ``piece`` behind what is there."""
        if isinstance(piece, Thought):
            self.thought += piece.text
        elif isinstance(piece, Said):
            self.said += piece.text
        elif isinstance(piece, CallBegun):
            self.calls.append(Call(piece.id, piece.name))
        else:
            self.calls[piece.index].arguments += piece.text
