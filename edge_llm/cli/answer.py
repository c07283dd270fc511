"""An answer as a person sees it come: what the model says on stdout, what it thinks on a terminal's stderr."""

from __future__ import annotations

from edge_llm.cli.terminal import think, write
from edge_llm.engine.request import Finish
from edge_llm.talk.pieces import AnswerPiece, Said, Thought


class Printer:
    """Prints one answer, piece by piece."""

    def __init__(self) -> None:
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
            write(piece.text)

    def end(self) -> None:
        """End a thought that is open."""
        if self._thinking:
            think("\n")
        self._thinking = False


def cut_short(finish: Finish, max_tokens: int | None) -> str | None:
    """What to say of an answer that did not come to its own end; ``max_tokens`` is what it might have."""
    if finish.reason != "length":
        return None
    usage = finish.usage
    if max_tokens is not None and usage.completion_tokens >= max_tokens:
        return f"[cut short after {usage.completion_tokens} tokens; --max-tokens allows more]"
    return f"[cut short: the context of {usage.prompt_tokens + usage.completion_tokens} tokens is full; --ctx may allow more]"
