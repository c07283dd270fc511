"""The text of an answer while it grows: several pieces of Markdown, of which only the last is parsed and laid out anew."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownStream

SEALED_CHARACTERS = 3000
"""A piece that has more is sealed at the next end of a block: the cost of a step grows with the piece, not with the answer."""
MOST_CHARACTERS = 12_000
"""A piece that has more is sealed anywhere: one paragraph may be as long as a model likes."""


def block_end(text: str) -> int:
    """Where ``text`` may be cut: behind its last empty line outside of fences; 0 where it has none."""
    end, at, fence = 0, 0, ""
    for line in text.splitlines(keepends=True):
        at += len(line)
        mark = line.strip()[:3]
        if fence:
            fence = "" if mark == fence else fence
        elif mark in ("```", "~~~"):
            fence = mark
        elif not line.strip():
            end = at
    return end


class GrowingText:
    """Streams text into ``first``, which may have some, and then into further pieces; ``mount`` puts one below another."""

    def __init__(self, first: Markdown, mount: Callable[[Markdown, Markdown], Awaitable[object]]) -> None:
        self._mount = mount
        self._first = self._body = first
        self._stream: MarkdownStream | None = None  # into the last piece; None before the first text
        self._text = first.source
        self._pieces: list[Markdown] = []  # all but the first

    async def write(self, text: str) -> None:
        """Show ``text`` behind what is shown."""
        self._text += text
        end = block_end(self._text) if len(self._text) > SEALED_CHARACTERS else 0
        if not end and len(self._text) > MOST_CHARACTERS:
            end = max(self._text.rfind("\n"), self._text.rfind(" ")) + 1 or len(self._text)
        if end:
            await self._seal(end)
        else:
            await self._append(text)

    async def stop(self) -> None:
        """Show no more: the screen shows something else."""
        with contextlib.suppress(Exception):  # its widget may be gone, with what it was to show
            await self._end_stream()

    async def finish(self, text: str) -> None:
        """The text is ``text``: all of it is one piece again."""
        await self._end_stream()
        for piece in self._pieces:
            await piece.remove()
        if self._first.is_attached:
            await self._first.update(text)

    async def _seal(self, end: int) -> None:
        """End the last piece at ``end``, and begin another one with what stands behind."""
        sealed, self._text = self._text[:end], self._text[end:]
        await self._end_stream()
        await self._body.update(sealed)
        above, self._body = self._body, Markdown(open_links=False)
        self._pieces.append(self._body)
        await self._mount(self._body, above)
        await self._append(self._text)

    async def _append(self, text: str) -> None:
        if text:
            self._stream = self._stream or Markdown.get_stream(self._body)
            await self._stream.write(text)

    async def _end_stream(self) -> None:
        """Draw what was written.  A stream must have been written to: stopped before, its task would end as cancelled."""
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.stop()
