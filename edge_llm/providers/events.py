"""Server-sent events out of bytes that may be cut anywhere."""

from __future__ import annotations

import codecs

from edge_llm.errors import EdgeLLMError

MOST_CHARACTERS = 4 << 20
"""Of one event: a server that never ends one shall not take all memory."""


class EventParser:
    """Feed bytes with `push`, which gives the data of the events that they complete.

    Comments, names and numbers of events are passed over, and events without data.  Raises `EdgeLLMError` for an event
    that does not end.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._after_return = False
        """The line before was ended by a carriage return, to which a newline may belong."""
        self._line: list[str] = []
        """Pieces of a line that has no end yet."""
        self._data: list[str] = []
        self._size = 0
        """Characters of the event so far."""

    def push(self, data: bytes) -> list[str]:
        text = self._decoder.decode(data)
        if not text:
            return []
        if self._after_return:
            text = text.removeprefix("\n")
        self._after_return = text.endswith("\r")
        *ended, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        events: list[str] = []
        for line in ended:
            self._grow(line)
            events += self._end_line()
        self._grow(rest)
        return events

    def _grow(self, text: str) -> None:
        self._size += len(text)
        if self._size > MOST_CHARACTERS:
            raise EdgeLLMError(
                f"the server sent an event of more than {MOST_CHARACTERS >> 20} MiB; is it an OpenAI-compatible API?"
            )
        if text:
            self._line.append(text)

    def _end_line(self) -> list[str]:
        """The event that the line completes, if it does."""
        line = "".join(self._line)
        self._line.clear()
        if not line:
            data, self._data, self._size = "\n".join(self._data), [], 0
            return [data] if data.strip() else []
        field, _, value = line.partition(":")
        if field == "data":
            self._data.append(value.removeprefix(" "))
        else:
            self._size -= len(line)
        return []
