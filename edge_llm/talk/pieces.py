"""What an answer is made of, as it comes: thoughts, text and tool calls."""

from __future__ import annotations

import re
from dataclasses import dataclass

TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""What a tool may be called."""


@dataclass(frozen=True)
class Thought:
    """A piece of what the model thinks."""

    text: str


@dataclass(frozen=True)
class Said:
    """A piece of the answer's text."""

    text: str


@dataclass(frozen=True)
class CallBegun:
    """Call number ``index`` of the answer begins."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """A piece of the arguments of call number ``index``, as JSON text."""

    index: int
    text: str


AnswerPiece = Thought | Said | CallBegun | CallArguments
