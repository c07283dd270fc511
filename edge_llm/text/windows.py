"""Long texts are encoded window by window: the ids of the whole, in memory that the text's length does not set.

A tokenizer needs some hundred bytes for each byte of a text, and one that knows no words needs more time for each, the
longer the text.  A window ends before a token that is safe: encoded from there, what follows in the window has the ids
that it has in the window.  The next window begins there.  Only where no safe token is found (none of several dozen) may
the ids of two neighbours differ from those of the whole; their text never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

WINDOW = 1 << 13
"""Characters of one window."""
TRIES = 16
"""Tokens behind a space, and others, that are tried as the next window's first."""

Encode = Callable[[str], Any]
"""Makes a `tokenizers.Encoding` of a text."""


@dataclass(frozen=True)
class _Start:
    """How a text is encoded so that it goes on where another ended."""

    prefix: str = ""
    """A text put before it, whose ids are dropped."""
    skipped: str = ""
    """What the text loses first, because the tokenizer adds it by itself."""


_WHOLE = _Start()
_STARTS = (_WHOLE, _Start(skipped=" "), _Start(prefix="\n"))


class _Window:
    """The ids of ``part``, and where each begins in it."""

    def __init__(self, encode: Encode, part: str, start: _Start) -> None:
        encoding = encode(start.prefix + part.removeprefix(start.skipped))
        head: list[int] = encode(start.prefix).ids if start.prefix else []
        self.fits = part.startswith(start.skipped) and encoding.ids[: len(head)] == head
        """Whether ``part`` can be encoded so."""
        self.ids: list[int] = encoding.ids[len(head) :]
        self._part = part
        self._encoding = encoding
        self._head = len(head)
        self._shift = len(start.skipped) - len(start.prefix)

    def safe_token(self, encode: Encode, tail: int) -> tuple[int, int, _Start]:
        """A token before the last ``tail`` characters that can begin the next window: its number, place and start."""
        places = list(islice(self._places(tail), 64 * TRIES))
        spaced = [(index, place) for index, place in places if self._part[place] in " \n"]
        for index, place in [*spaced[:TRIES], *places[:TRIES]]:
            for start in _STARTS:
                rest = _Window(encode, self._part[place:], start)
                if rest.fits and rest.ids == self.ids[index:]:
                    return index, place, start
        last = _Start(prefix="\n")
        index, place = places[0] if places else (len(self.ids), len(self._part))
        return index, place, last if _Window(encode, self._part[place:], last).fits else _WHOLE

    def _places(self, tail: int) -> Iterator[tuple[int, int]]:
        """Tokens that begin where the token before ends, and their places, from the last one back to half of the window."""
        following = len(self._part)
        for index in range(len(self.ids) - 1, 0, -1):
            begin, end = (place + self._shift for place in self._encoding.token_to_chars(self._head + index))
            if begin < len(self._part) // 2:
                return
            before = self._encoding.token_to_chars(self._head + index - 1)[1] + self._shift
            if before <= begin < min(end, following) and begin <= len(self._part) - tail:
                yield index, begin
            following = begin


def window_ids(encode: Encode, text: str, window: int = WINDOW) -> Iterator[list[int]]:
    """The ids of ``text``, at most ``window`` characters at a time."""
    at, start = 0, _WHOLE
    while len(text) - at > window:
        current = _Window(encode, text[at : at + window], start)
        index, place, start = current.safe_token(encode, tail=window // 8)
        yield current.ids[:index]
        at += place
    yield _Window(encode, text[at:], start).ids
