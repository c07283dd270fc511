"""A thought that has had its tokens is closed, by the marker that the model itself closes thoughts with."""

from __future__ import annotations

from edge_llm.text.reasoning import CLOSE, Thinking, ThoughtCounter
from edge_llm.text.tokenizer import Tokenizer


class ThoughtBudget:
    """Follows one answer, and says which token it is to go on with once ``most`` tokens stand in its thought.

    The answer begins as ``thinking`` says; the marks of a thought are not counted.
    """

    def __init__(self, most: int, tokenizer: Tokenizer, thinking: Thinking) -> None:
        self._tokenizer = tokenizer
        self._counter = ThoughtCounter(opened=thinking is Thinking.OPEN)
        self._most = most if thinking is Thinking.OPEN else most + 1  # the opening mark is counted, too
        mark = tokenizer.token_id(CLOSE)
        self._marker = tokenizer.encode(CLOSE) if mark is None else [mark]
        self._written = 0
        """Tokens of the marker that stand there."""

    def push(self, token: int) -> None:
        """The next token of the answer."""
        self._written = self._written + 1 if token == self.due else 0
        self._counter.push(self._tokenizer.token_string(token).encode())

    @property
    def due(self) -> int | None:
        """The token that comes next; None leaves it to the model."""
        spent = self._counter.inside and self._counter.count >= self._most
        return self._marker[self._written % len(self._marker)] if spent else None
