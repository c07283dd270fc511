"""What an answer's text is made of: what the model thought, what it says, and the tools that it calls."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from edge_llm.engine.engine import Engine
from edge_llm.engine.request import Answer, Delta, Finish, Request
from edge_llm.talk.pieces import AnswerPiece, CallBegun, Said, Thought
from edge_llm.talk.reasoning import CLOSE, OPEN, ReasoningSplitter, ThoughtCounter
from edge_llm.talk.tool_calls import ToolCallParser
from edge_llm.talk.tools import ToolUse
from edge_llm.text.tokenizer import Tokenizer

_TAIL = 64
"""Tokens at a prompt's end that may open a thought."""


@dataclass(frozen=True)
class AnswerSyntax:
    """Where thoughts, text and calls of tools stand in the answers to one request."""

    tokenizer: Tokenizer
    thinks: bool = False
    opened: bool = False
    """The prompt ends inside of a thought."""
    tools: ToolUse | None = None

    @classmethod
    def of(cls, engine: Engine, prompt: Request, tools: ToolUse | None) -> AnswerSyntax:
        """The syntax of answers to ``prompt``: thoughts only of a model whose template knows them."""
        if CLOSE not in engine.template.source and OPEN not in engine.template.source:
            return cls(engine.tokenizer, tools=tools)
        tail = engine.tokenizer.decode(prompt.prompt[-_TAIL:], skip_special=False)
        opened = tail.rfind(OPEN) > tail.rfind(CLOSE)
        return cls(engine.tokenizer, opened or not tail.rstrip().endswith(CLOSE), opened, tools)

    def reader(self) -> AnswerReader:
        return AnswerReader(self)

    def outcome(self, answer: Answer) -> Outcome:
        """The whole answer, read."""
        reader = self.reader()
        return Outcome.of(reader.read(Delta(answer.text, answer.tokens, answer.finish)), reader, answer)


class AnswerReader:
    """Reads one answer as its deltas come."""

    def __init__(self, syntax: AnswerSyntax) -> None:
        self._tokenizer = syntax.tokenizer
        self._splitter = ReasoningSplitter(opened=syntax.opened) if syntax.thinks else None
        tools = syntax.tools
        self._parser = None if tools is None else ToolCallParser(tools.style, tools.names, only_calls=tools.forced)
        self._counter = ThoughtCounter(opened=syntax.opened)

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
