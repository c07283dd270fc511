"""Markdown on a terminal as it comes: everything is written once, as soon as nothing that follows can change it.

The cursor only goes on, so an answer may be longer than the screen, and what was written stays as it is.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable

from rich.color import ColorSystem

from edge_llm.cli.markdown_layout import Laid, Layout, Line
from edge_llm.files import printable

MOST_COLUMNS = 100
"""Longer lines are hard to read."""
PER_SECOND = 30
"""Text is laid out so often at most: its cost is that of the last block."""
MOST_CHARACTERS = 6000
"""A block that is longer is cut: no cost grows with an answer that never ends a paragraph."""
CODE_LINES = 40
"""Code that has more lines is cut likewise, behind an empty line."""
_MARKS = " \t>-*+_=#0123456789.)"
"""What a line may have before what it says."""


def _columns() -> int:
    return min(shutil.get_terminal_size().columns, MOST_COLUMNS)


def _to_stdout(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


class MarkdownWriter:
    """Writes one answer."""

    def __init__(
        self,
        put: Callable[[str], None] = _to_stdout,
        columns: Callable[[], int] = _columns,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._put = put
        self._columns = columns
        self._clock = clock
        self._layout = Layout(columns())
        self._colours = ColorSystem.EIGHT_BIT if "256" in os.environ.get("TERM", "") else ColorSystem.STANDARD
        self._text = ""
        """What is not complete, or not written."""
        self._shown = [""]
        """Its lines as they stand on the screen; the cursor is behind the last one."""
        self._code = ""
        """What is laid out, if it ends inside of a fence."""
        self._next = 0.0

    def write(self, text: str) -> None:
        """``text`` comes behind what came."""
        self._text += printable(text)
        if (now := self._clock()) >= self._next:
            self._next = now + 1 / PER_SECOND
            self._grow()

    def end(self) -> None:
        """Nothing more comes: write what is left, and end the line."""
        laid = self._layout.lay(self._text, whole=True)
        if laid.lines:
            self._show(laid, (len(laid.lines) - 1, sum(len(segment.text) for segment in laid.lines[-1])))
        self._put("\n")
        self._text, self._shown = "", [""]

    def _grow(self) -> None:
        complete = self._text[: self._text.rfind("\n") + 1]
        if self._code == complete and complete:  # code is written line by line
            return
        laid = self._layout.lay(text := complete if self._code else _certain(self._text), whole=False)
        if laid.in_code != bool(self._code):
            laid = self._layout.lay(text := complete if laid.in_code else _certain(self._text), whole=False)
        self._code = text if laid.in_code else ""
        if not laid.lines:
            return
        self._show(laid, laid.settled)
        line, row = laid.last
        if line:
            self._forget(line, row, laid)
        elif laid.in_code:
            self._forget_code(laid)
        elif len(text) > MOST_CHARACTERS:
            self._show(laid, (len(laid.lines) - 1, sum(len(segment.text) for segment in laid.lines[-1])))
            self._put("\n")
            self._text, self._shown = self._text[len(text) :], [""]

    def _forget_code(self, laid: Laid) -> None:
        """Of long code only the last part is coloured anew with each line; it begins behind an empty line if there is one."""
        lines = self._text.splitlines(keepends=True)
        known = len(self._shown) - 1  # lines that are written, the fence among them
        if not laid.lines[0] or not lines[0].startswith(laid.lines[0][0].text) or known < CODE_LINES:
            return  # it lies in a list or a quote, or is short
        empty = [at for at in range(2, known) if not lines[at - 1].strip()]
        if cut := empty[-1] if empty else known if known > 3 * CODE_LINES else 0:
            self._text = "".join([lines[0], *lines[cut:]])
            self._shown = [self._shown[0], *self._shown[cut:]]
            self._code = self._text[: self._text.rfind("\n") + 1]

    def _forget(self, line: int, row: int, laid: Laid) -> None:
        """What stands before ``line`` of the text, and before ``row`` on the screen, is complete."""
        while len(self._shown) <= row:
            self._end_row(laid)
        self._text = "".join(self._text.splitlines(keepends=True)[line:])
        self._shown = self._shown[row:]
        self._code = self._code and self._text[: self._text.rfind("\n") + 1]
        if self._shown == [""]:
            self._layout = self._layout if self._layout.width == self._columns() else Layout(self._columns())

    def _show(self, laid: Laid, until: tuple[int, int]) -> None:
        """Write ``laid`` from what is shown of it ``until`` a row and a number of characters there."""
        row, size = until
        for at, shown in enumerate(self._shown):
            is_last = at == len(self._shown) - 1
            text = "".join(segment.text for segment in laid.lines[at]) if at < len(laid.lines) else None
            if text is None or not (text.startswith(shown) if is_last else text == shown):
                self._put("\n")  # it was taken for something else: once more
                self._shown[at:] = [""]
                break
        while len(self._shown) <= row:
            self._end_row(laid)
        if len(self._shown) == row + 1:
            self._put_line(laid.lines[row], size)

    def _end_row(self, laid: Laid) -> None:
        at = len(self._shown) - 1
        self._put_line(laid.lines[at], None)
        self._put("\n")
        self._shown.append("")

    def _put_line(self, line: Line, size: int | None) -> None:
        """The rest of the last line, until ``size`` characters of it."""
        skip = len(self._shown[-1])
        out: list[str] = []
        for text, style, _ in line:
            piece = text[skip:] if size is None else text[skip:size]
            skip, size = max(0, skip - len(text)), None if size is None else max(0, size - len(text))
            if piece:
                out.append(style.render(piece, color_system=self._colours) if style else piece)
                self._shown[-1] += piece
        if out:
            self._put("".join(out))


def _certain(text: str) -> str:
    """``text`` without a word at its end that may go on, or a line that may begin something else."""
    begin = text.rfind("\n") + 1
    end = len(text)
    while end > begin and not (text[end - 1].isspace() or ord(text[end - 1]) > 0x2E7F):
        end -= 1
    said = text[begin:end].lstrip(_MARKS)
    return text[:end] if said and text[begin:].lstrip(_MARKS)[0] not in "|`~" else text[:begin]
