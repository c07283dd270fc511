"""Stop strings over a stream of text pieces: emit what is safe, hold back what may still become a stop string."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Feed text with `push`; once `stopped` is true the text before the first stop string has been emitted."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self._hidden: list[tuple[int, int]] = []
        """Where in what is held stands text that only stop strings see."""
        self.stopped = False
        self.found: str | None = None
        """The stop string that ended the text."""

    def push(self, piece: str, *, hidden: bool = False) -> str:
        """Text that can be shown now; nothing after a stop string ever is, nor what is ``hidden``."""
        if self.stopped or (hidden and not self._stops):
            return ""
        text = self._held + piece
        if hidden:
            self._hidden.append((len(self._held), len(text)))
        # The stop string that is complete first, however the text was cut into pieces.
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.found = min(found)
            self.stopped = True
            self._held = ""
            return self._shown(text[:at])
        safe = len(text) - self._open_end(text)
        self._held = text[safe:]
        return self._shown(text[:safe])

    def finish(self) -> str:
        """The text still held back, when the stream ends without a stop string."""
        held, self._held = self._held, ""
        return self._shown(held)

    def _shown(self, text: str) -> str:
        """``text``, the beginning of what was held, without what is hidden."""
        if not self._hidden:
            return text
        hidden, end, at = self._hidden, len(text), 0
        shown = ""
        for first, behind in hidden:
            shown += text[at:first]
            at = behind
        self._hidden = [(max(0, first - end), behind - end) for first, behind in hidden if behind > end]
        return shown + text[at:]

    def _open_end(self, text: str) -> int:
        """Length of the longest end of ``text`` that some stop string begins with."""
        longest = 0
        for stop in self._stops if text else ():
            length = min(len(stop) - 1, len(text))
            while length > longest:
                length = stop.rfind(text[-1], longest, length) + 1  # only there can it end as the text does
                if length > longest and text.endswith(stop[:length]):
                    longest = length
                length -= 1
        return longest
