"""The text of an answer, which may grow and be long: pieces of Markdown, of which only the last is parsed and laid out anew."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import NamedTuple

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Markdown, Static
from textual.widgets.markdown import MarkdownStream

from edge_llm.tui.blocks import SaidMarkdown

SEALED_CHARACTERS = 3000
"""A piece that has more is sealed at the next end of a block: the cost of a step grows with the piece, not with the answer."""
MOST_CHARACTERS = 12_000
"""A piece that has more is sealed anywhere: one paragraph may be as long as a model likes."""
DRAWN_CHARACTERS = 48_000
"""What is drawn as Markdown; what stands before is shown as it was written, for thousands of widgets hold up every key."""
DRAWN_BLOCKS = 500
"""What of it may be blocks: an item of a list is three widgets, so that lists and tables have many in few characters."""


_OPENS = re.compile(r"(?:[ \t>]|[-*+][ \t]|\d{1,9}[.)][ \t])*((`{3,})[^`\n]*|(~{3,})[^\n]*)$", re.MULTILINE)
"""The line that begins a fence, also as an item of a list: its mark, and the language behind it."""
_CLOSES = re.compile(r"[ \t>]*(`{3,}|~{3,})\s*")


def block_end(text: str, fence: str = "") -> int:
    """Where ``text`` may be cut: behind its last empty line outside of fences; 0 where it has none."""
    return _read(text, fence)[0]


def open_fence(text: str, fence: str = "") -> str:
    """The mark of the fence that ``text`` ends inside of, with what stands behind it; empty outside of fences."""
    return _read(text, fence)[1]


def _read(text: str, fence: str) -> tuple[int, str]:
    """Behind the last empty line of ``text`` outside of fences, and the fence it ends inside of; it begins inside ``fence``."""
    end = at = 0
    for line, within in _lines(text, fence):
        at += len(line)
        if not within and not line.strip():
            end = at
        fence = within
    return end, fence


def _lines(text: str, fence: str = "") -> Iterator[tuple[str, str]]:
    """Each line of ``text`` with its end, and the fence that is open behind it; before the first it is ``fence``."""
    for line in text.splitlines(keepends=True):
        if fence:
            fence = "" if _closes(line, fence) else fence
        elif found := _OPENS.match(line):
            fence = found[1].rstrip()
        yield line, fence


def blocks_in(line: str) -> int:
    """About as many blocks ``line`` outside of fences is drawn as: one, and one for each cell of a table."""
    return 1 + line.count("|") if line.strip() else 0


def blocks(text: str, fence: str = "") -> int:
    """About as many blocks ``text`` is drawn as; it begins inside ``fence``."""
    return sum(blocks_in(line) for line, within in _lines(text, fence) if not within)


def _closes(line: str, fence: str) -> bool:
    found = _CLOSES.fullmatch(line)
    return found is not None and fence.startswith(found[1][0]) and not fence.startswith(found[1] + found[1][0])


def parts(text: str) -> tuple[list[str], str]:
    """What of ``text`` is shown as it was written, in pieces, and what is drawn as Markdown behind it."""
    if _is_drawn(text):
        return [], text
    room = _tail(text)
    end = block_end(text[:room])
    if not _is_drawn(text[end:]):  # a block may be as long as a model likes
        near = max(0, room - MOST_CHARACTERS)
        end = near + _last_gap(text[near:room])
    pieces, at = [], 0
    while at < end:
        cut = at + (_last_gap(text[at : min(at + MOST_CHARACTERS, end)]) if at + MOST_CHARACTERS < end else end - at)
        pieces.append(text[at:cut])
        at = cut
    return pieces, text[end:]


def _is_drawn(text: str) -> bool:
    """Whether ``text`` may be drawn as a whole."""
    return len(text) <= DRAWN_CHARACTERS and blocks(text) <= DRAWN_BLOCKS


def _tail(text: str) -> int:
    """Where the half of what may be drawn begins, at the end of ``text``, which is more."""
    at, room, left = len(text), len(text) - DRAWN_CHARACTERS // 2, DRAWN_BLOCKS // 2
    for line, within in reversed(list(_lines(text))):
        left -= 0 if within else blocks_in(line)
        if left < 0 or at < room:
            break
        at -= len(line)
    return max(at, room)


def _last_gap(text: str) -> int:
    """Behind the last line of ``text``, or else its last word, or else all of it."""
    return text.rfind("\n") + 1 or text.rfind(" ") + 1 or len(text)


class _Sealed(NamedTuple):
    """A piece that grows no more."""

    text: str
    blocks: int
    piece: SaidMarkdown


class GrowingText(Vertical):
    """Shows ``text`` as Markdown.  `write` adds to it while it streams, `finish` draws it once more as a whole."""

    def __init__(self, text: str = "") -> None:
        super().__init__()
        self._written, self._text = parts(text)  # the second is that of the last piece
        self._fence = open_fence("".join(self._written))  # that the last piece begins inside of
        self._last = SaidMarkdown(self._fenced(self._text))
        self._sealed: list[_Sealed] = []  # above the last piece, from top to bottom
        self._stream: MarkdownStream | None = None  # into the last piece; None before the first text

    def compose(self) -> ComposeResult:
        yield from map(_as_written, self._written)
        yield self._last

    async def write(self, text: str) -> None:
        """Show ``text`` behind what is shown."""
        self._text += text
        end = block_end(self._text, self._fence) if len(self._text) > SEALED_CHARACTERS else 0
        if not end and len(self._text) > MOST_CHARACTERS:
            end = _last_gap(self._text)
        if end:
            await self._seal(end)
        else:
            await self._append(text)

    async def finish(self, text: str) -> None:
        """The text is ``text``: what is drawn of it is one piece again."""
        await self._end_stream()
        self._written, self._text = parts(text)
        self._fence = open_fence("".join(self._written))
        self._sealed = []
        if self.is_attached:
            await self.remove_children([each for each in self.children if each is not self._last])
            await self.mount_all(map(_as_written, self._written), before=0)
            await self._last.update(self._fenced(self._text))

    async def on_unmount(self) -> None:
        """The screen shows something else."""
        with contextlib.suppress(Exception):  # the piece that it draws on may be gone
            await self._end_stream()

    async def _seal(self, end: int) -> None:
        """End the last piece at ``end``, and begin another one with what stands behind."""
        sealed, self._text = self._text[:end], self._text[end:]
        await self._end_stream()
        await self._last.update(self._fenced(sealed))
        self._sealed.append(_Sealed(sealed, blocks(sealed, self._fence), self._last))
        self._fence = open_fence(sealed, self._fence)
        self._last.styles.margin = 0, 0, 1, 0
        self._last = SaidMarkdown()
        await self.mount(self._last)
        await self._append(self._fenced(self._text))
        while not self._may_be_drawn():
            await self._draw_no_more(self._sealed.pop(0))

    def _may_be_drawn(self) -> bool:
        """Whether all sealed pieces may stay as they are drawn."""
        characters = sum(len(one.text) for one in self._sealed)
        return characters <= DRAWN_CHARACTERS and sum(one.blocks for one in self._sealed) <= DRAWN_BLOCKS

    async def _draw_no_more(self, sealed: _Sealed) -> None:
        await self.mount(_as_written(sealed.text), before=sealed.piece)
        await sealed.piece.remove()

    def _fenced(self, text: str) -> str:
        """``text`` as the last piece draws it: code that was cut stays code."""
        return f"{self._fence}\n{text}" if self._fence else text

    async def _append(self, text: str) -> None:
        if not text:
            return
        if self._stream is None:
            with self.app.batch_update():
                await self._draw_growing()
            self._stream = Markdown.get_stream(self._last)
        await self._stream.write(text)

    async def _draw_growing(self) -> None:
        """Draw the last piece anew, as one that grows: only then its last block goes on from its first line."""
        if drawn := self._last.source:
            await self._last.update("")
            await self._last.append(drawn)

    async def _end_stream(self) -> None:
        """Draw what was written.  A stream must have been written to: stopped before, its task would end as cancelled."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.stop()


def _as_written(text: str) -> Widget:
    return Static(text, markup=False)
