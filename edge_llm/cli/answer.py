"""An answer as a person sees it come: what the model says on stdout, what it thinks on a terminal's stderr."""

from __future__ import annotations

from edge_llm.cli.terminal import think, write
from edge_llm.engine.request import Delta
from edge_llm.talk.outcome import AnswerSyntax
from edge_llm.talk.pieces import Said, Thought


class Printer:
    """Prints one answer, delta by delta."""

    def __init__(self, syntax: AnswerSyntax) -> None:
        self._reader = syntax.reader()
        self._said: list[str] = []
        self._thinking = False

    @property
    def said(self) -> str:
        """What the model has said so far, without thoughts."""
        return "".join(self._said)

    def show(self, delta: Delta) -> None:
        """Print what ``delta`` completes."""
        for piece in self._reader.read(delta):
            if isinstance(piece, Thought):
                self._thinking = True
                think(piece.text)
            elif isinstance(piece, Said):
                self._end_thought()
                self._said.append(piece.text)
                write(piece.text)
        if delta.finish is not None:
            self._end_thought()

    def _end_thought(self) -> None:
        if self._thinking:
            think("\n")
        self._thinking = False
