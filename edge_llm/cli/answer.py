"""An answer as a person sees it come: what the model says on stdout, what it thinks on a terminal's stderr."""

from __future__ import annotations

import os
import sys
from typing import Protocol

from edge_llm.cli.terminal import say, think, write
from edge_llm.config import REPETITION
from edge_llm.engine.request import Finish
from edge_llm.talk.pieces import AnswerPiece, Said, Thought

LOOPED = "the answer said the same over and over and was ended"
"""What is told of an answer that the loop guard has ended."""


class Output(Protocol):
    """Where what the model says goes."""

    def write(self, text: str) -> None:
        """``text`` comes behind what came."""

    def end(self) -> None:
        """Nothing more comes; the line ends."""


class PlainOutput:
    """Stdout, as it was said."""

    def __init__(self) -> None:
        self._is_open = True

    def write(self, text: str) -> None:
        write(text)
        self._is_open = not text.endswith("\n") if text else self._is_open

    def end(self) -> None:
        if self._is_open:
            say()


class Printer:
    """Prints one answer, piece by piece."""

    def __init__(self, output: Output | None = None) -> None:
        self._output = output or PlainOutput()
        self._said: list[str] = []
        self._thinking = False

    @property
    def said(self) -> str:
        """What the model has said so far, without thoughts."""
        return "".join(self._said)

    def show(self, piece: AnswerPiece) -> None:
        """Print ``piece``."""
        if isinstance(piece, Thought):
            self._thinking = True
            think(piece.text)
        elif isinstance(piece, Said):
            self.end()
            self._said.append(piece.text)
            self._output.write(piece.text)

    def end(self) -> None:
        """End a thought that is open."""
        if self._thinking:
            think("\n")
        self._thinking = False

    def finish(self) -> None:
        """Nothing more comes: end the line, too."""
        self.end()
        self._output.end()


def is_drawn() -> bool:
    """Whether Markdown is drawn on stdout: a terminal that knows more than plain text, and is not asked for that."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not os.environ.get("NO_COLOR")


def cut_short(finish: Finish, max_tokens: int | None) -> str | None:
    """What to say of an answer that did not come to its own end; ``max_tokens`` is what it might have."""
    if finish.reason == REPETITION:
        return f"[{LOOPED}; --no-loop-guard lets it go on]"
    if finish.reason != "length":
        return None
    usage = finish.usage
    if max_tokens is not None and usage.completion_tokens >= max_tokens:
        return f"[cut short after {usage.completion_tokens} tokens; --max-tokens allows more]"
    return f"[cut short: the context of {usage.prompt_tokens + usage.completion_tokens} tokens is full; --ctx may allow more]"
