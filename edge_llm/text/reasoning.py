"""What a model thinks before it answers: ``<think> ... </think>`` at the beginning of a text, told apart from the answer."""

from __future__ import annotations

from enum import StrEnum

OPEN, CLOSE = "<think>", "</think>"


class Thinking(StrEnum):
    """Where an answer begins, as its prompt ends."""

    RAW = "raw"
    """In a text, or behind a thought that the prompt closes: no thought is looked for."""
    FREE = "free"
    """At its beginning, where a thought may stand."""
    OPEN = "open"
    """In a thought that the prompt opens."""
    @classmethod
    def behind(cls, text: str) -> Thinking:
        """For a prompt whose template puts ``text`` behind the last message."""
        if text.rfind(OPEN) > text.rfind(CLOSE):
            return cls.OPEN
        return cls.RAW if text.rstrip().endswith(CLOSE) else cls.FREE

    def after(self, begun: str) -> Thinking:
        """For an answer that goes on behind ``begun``, which begins as this says."""
        gate = ThoughtGate(self)
        gate.push(begun)
        return Thinking.RAW if gate.over else Thinking.OPEN if gate.inside else self


class ThoughtGate:
    """Feed text with `push`, which gives (thought with its tags, answer), both as they are.

    The pieces are the same however the text is cut; what may be the beginning of a tag is held back.
    """

    def __init__(self, thinking: Thinking) -> None:
        self.inside = thinking is Thinking.OPEN
        self.over = thinking is Thinking.RAW
        """No more of a thought comes."""
        self._space: list[str] = []
        """White space at the beginning, kept apart as there may be much of it."""
        self._held = ""
        self._closed = False
        """Behind a thought: white space there is not the answer's."""

    def push(self, text: str) -> tuple[str, str]:
        """What of the thought and what of the answer is known now."""
        if self.over:
            return self._behind(text) if self._closed else ("", text)
        self._held += text
        if not (self.inside or self._begin()):
            return "", ""
        held = self._all()
        if self.over:
            return "", held
        before, tag, rest = held.partition(CLOSE)
        if tag:
            self.inside, self.over, self._closed = False, True, True
            space, said = self._behind(rest)
            return before + tag + space, said
        end = len(before) - begun_tag(before, CLOSE)
        self._held = before[end:]
        return before[:end], ""

    def finish(self) -> tuple[str, str]:
        """What was held back, when the text ends."""
        return (self._all(), "") if self.inside else ("", self._all())

    def _behind(self, text: str) -> tuple[str, str]:
        said = text.lstrip()
        self._closed = not said
        return text[: len(text) - len(said)], said

    def _begin(self) -> bool:
        """Whether it is known if a thought begins."""
        begun = self._held.lstrip()
        self._space.append(self._held[: len(self._held) - len(begun)])
        self._held = begun
        self.inside = begun.startswith(OPEN)
        self.over = not (self.inside or OPEN.startswith(begun))
        return self.inside or self.over

    def _all(self) -> str:
        held = "".join(self._space) + self._held
        self._space.clear()
        self._held = ""
        return held


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

    @property
    def inside(self) -> bool:
        """Whether the next token belongs to the thought."""
        return self._inside and not self._over

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


def begun_tag(text: str, tag: str) -> int:
    """Length of the end of ``text`` that may be the beginning of ``tag``."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)


def held_back(text: str, tag: str) -> int:
    """Length of the end of ``text`` that may be white space and the beginning of ``tag``."""
    begun = begun_tag(text, tag)
    return len(text) - len(text[: len(text) - begun].rstrip())
