"""A chat's title without a model: the first line of its first prompt that says something."""

from __future__ import annotations

import re
import unicodedata

from edge_llm.files import one_line

UNTITLED = "New chat"
COLUMNS = 50
_LOOKED_AT = 20_000
"""Characters; a title comes from the beginning of a text."""

_BLOCK_MARKS = re.compile(r"^(?:\s*(?:#{1,6}(?=\s|$)|>|[-*+](?=\s)|\d{1,3}[.)](?=\s)|\[[ xX]\](?=\s)))+")
_LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*\)")
_PAIRED_MARKS = re.compile(r"(\*\*\*|\*\*|__|~~|`+|\*)(?=\S)(.+?)(?<=\S)\1")
_FENCE_OR_RULE = re.compile(r"^\s*(?:`{3,}.*|~{3,}.*|[-*_=|:\s]{3,})$")


def title_of(text: str) -> str:
    """At most `COLUMNS` columns of the first line of ``text`` that has a letter or digit; never empty, one line, printable."""
    lines = [_plain(line) for line in text[:_LOOKED_AT].splitlines() if not _FENCE_OR_RULE.match(line)]
    said = next((line for line in lines if any(map(str.isalnum, line))), None)
    return _cut(said or next(filter(None, lines), UNTITLED))


def columns(text: str) -> int:
    """Cells of a terminal that ``text`` takes, to a good guess."""
    return sum(map(_width, text))


def _plain(line: str) -> str:
    line = _PAIRED_MARKS.sub(r"\2", _LINK.sub(r"\1", _BLOCK_MARKS.sub("", one_line(line))))
    return one_line(line)


def _cut(line: str) -> str:
    """``line``, or its beginning with an ellipsis: up to a space, unless that leaves less than half."""
    if columns(line) <= COLUMNS:
        return line
    room, end = COLUMNS - 1, 0
    while (room := room - _width(line[end])) >= 0:
        end += 1
    while end < len(line) and unicodedata.combining(line[end]):  # a letter keeps its marks; they take no column
        end += 1
    space = end if line[end : end + 1] == " " else line.rfind(" ", 0, end)
    if space > 0 and columns(line[:space]) * 2 >= COLUMNS:
        end = space
    return line[:end].rstrip(" ,;:-") + "…"


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
