"""An answer as a person sees it come: what the model says on stdout, what it thinks on a terminal's stderr."""

from __future__ import annotations

from edge_llm.cli.terminal import think, write
from edge_llm.talk.pieces import AnswerPiece, Said, Thought

LOOPED = "the answer said the same over and over and was ended"
"""What is told of an answer that the loop guard has ended."""


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
