"""What a model thinks before it answers: ``<think> ... </think>`` at the beginning of a text, told apart from the answer."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"


class ThoughtCounter:
    """Counts the tokens of a thought: from the one that completes the opening tag to the one that completes the closing tag.

    ``opened`` says that the prompt ends with an open ``<think>``.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self.count = 0
        self._inside = opened
        self._over = False
        self._tail = b""
        """The end of what came: as much of it as may belong to a tag."""

    def push(self, token: bytes) -> None:
        """The bytes of the next token."""
        if self._over:
            return
        self._tail += token
        if not self._inside:
            self._look_for_the_beginning()
        if self._inside:
            self.count += 1
            self._over = CLOSE.encode() in self._tail
            self._tail = self._tail[1 - len(CLOSE) :]

    def _look_for_the_beginning(self) -> None:
        opening = OPEN.encode()
        self._tail = self._tail.lstrip()
        self._inside = self._tail.startswith(opening)
        self._over = not self._inside and not opening.startswith(self._tail)


class ReasoningSplitter:
    """Feed text with `push`, which gives (thought, answer); the pieces are the same however the text is cut.

    ``opened`` says that the prompt ends with an open ``<think>``.  White space around the thought belongs to neither part;
    a tag in the middle of an answer is text.
    """

    def __init__(self, *, opened: bool = False) -> None:
        self._step = self._skip_space if opened else self._begin
        self._space: list[str] = []
        """White space before what is held, kept apart as there may be much of it."""
        self._held = ""
        self.thinking = opened

    def push(self, text: str) -> tuple[str, str]:
        """The thought and the answer that can be shown now."""
        self._held += text
        return self._step()

    def finish(self) -> tuple[str, str]:
        """What was held back, when the text ends."""
        held = self._with_space(self._held)
        self._held = ""
        if self._step == self._skip_space:
            return "", ""
        return (held, "") if self.thinking else ("", held)

    def _go_on(self, step: str, rest: str) -> tuple[str, str]:
        self._step, self._held = getattr(self, step), rest
        return self._step()

    def _begin(self) -> tuple[str, str]:
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self.thinking = True
            self._space.clear()
            return self._go_on("_skip_space", text[len(OPEN) :])
        if not OPEN.startswith(text):
            return self._go_on("_say", self._with_space(self._held))
        self._space.append(self._held[: len(self._held) - len(text)])
        self._held = text
        return "", ""

    def _skip_space(self) -> tuple[str, str]:
        """White space before the thought or the answer."""
        self._held = self._held.lstrip()
        return self._go_on("_think" if self.thinking else "_say", self._held) if self._held else ("", "")

    def _think(self) -> tuple[str, str]:
        before, tag, rest = self._held.partition(CLOSE)
        if tag:
            self.thinking = False
            thought = before.rstrip()
            shown = self._with_space(thought) if thought else ""
            self._space.clear()
            return shown, self._go_on("_skip_space", rest)[1]
        end = len(before) - held_back(before, CLOSE)
        shown = self._with_space(before[:end]) if end else ""
        self._held = before[end:].lstrip()
        self._space.append(before[end : len(before) - len(self._held)])
        return shown, ""

    def _say(self) -> tuple[str, str]:
        text, self._held = self._held, ""
        return "", text

    def _with_space(self, text: str) -> str:
        """``text`` behind the white space that was held before it."""
        held = "".join(self._space) + text
        self._space.clear()
        return held


def held_back(text: str, tag: str) -> int:
    """Length of the end of ``text`` that may be white space and the beginning of ``tag``."""
    begun = next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)
    return len(text) - len(text[: len(text) - begun].rstrip())
