"""Calls of custom tools on their way back: a function's one argument becomes the text that the API has."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from edge_llm.talk.outcome import Outcome
from edge_llm.talk.pieces import AnswerPiece, CallArguments, CallBegun

_BEGUN_INPUT = re.compile(r'\s*\{\s*"input"\s*:\s*"((?:[^"\\]|\\(?:u[0-9A-Fa-f]{4}|[^u]))*)')


def custom_input(arguments: str) -> str:
    """The text in the arguments of a call of a custom tool, also of one that was cut off."""
    try:
        found = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        begun = _BEGUN_INPUT.match(arguments)
        try:
            return arguments if begun is None else _unicode(json.loads(f'"{begun[1]}"', strict=False))
        except ValueError:
            return arguments
    text = found.get("input") if isinstance(found, dict) else found
    return _unicode(text) if isinstance(text, str) else arguments


def _unicode(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@dataclass(frozen=True)
class CustomInput(CallArguments):
    """The text of a call of a custom tool."""


class CustomCalls:
    """Pieces of an answer in which a call of a custom tool has its text as one piece, when all of it is there."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names
        self._open = -1
        """Number of the call whose text comes."""
        self._held = ""

    def push(self, pieces: Sequence[AnswerPiece], *, ended: bool) -> list[AnswerPiece]:
        """What can be told now; all if the answer has ``ended``."""
        if not self._names:
            return list(pieces)
        found: list[AnswerPiece] = []
        for piece in pieces:
            if isinstance(piece, CallArguments) and piece.index == self._open:
                self._held += piece.text
                continue
            found += self._closed()
            found.append(piece)
            if isinstance(piece, CallBegun) and piece.name in self._names:
                self._open = piece.index
        return found + (self._closed() if ended else [])

    def _closed(self) -> list[AnswerPiece]:
        if self._open < 0:
            return []
        piece = CustomInput(self._open, custom_input(self._held))
        self._open, self._held = -1, ""
        return [piece]


def with_inputs(outcome: Outcome, customs: frozenset[str]) -> Outcome:
    """``outcome`` whose calls of custom tools have their text as arguments."""
    for call in outcome.calls:
        if call.name in customs:
            call.arguments = custom_input(call.arguments)
    return outcome
