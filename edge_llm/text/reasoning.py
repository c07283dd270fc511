"""What a model thinks before it answers: ``<think> ... </think>`` at the beginning of a text, told apart from the answer.

Some templates have variables that turn thoughts on and off; `Wish` says what a user wants, for any template.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

OPEN, CLOSE = "<think>", "</think>"
SWITCHES = ("enable_thinking", "thinking")
"""Template variables that turn thoughts on and off."""
EFFORT, BUDGET = "reasoning_effort", "thinking_budget"
"""Template variables for how hard (low, medium, high) and how long (tokens) a model thinks."""

_CODE = re.compile(r"\{[{%](.*?)[%}]\}", re.DOTALL)
_LITERAL = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_VARIABLE = re.compile(r"(?<![\w.])[^\W\d]\w*")


@dataclass(frozen=True)
class Thought:
    """A piece of what the model thinks."""

    text: str


@dataclass(frozen=True)
class Wish:
    """Whether a model is to think, how hard (low, medium or high) and for how many tokens."""

    on: bool
    effort: str | None = None
    budget: int | None = None

    def variables(self, template: str) -> dict[str, Any]:
        """What to tell the chat template ``template`` in the variables that it has."""
        has = template_names(template)
        found: dict[str, Any] = {name: self.on for name in SWITCHES if name in has}
        if self.effort is not None and EFFORT in has:
            found[EFFORT] = self.effort
        if BUDGET in has and (self.budget is not None or not self.on):
            found[BUDGET] = self.budget if self.on else 0
        return found

    def fulfilled(self, template: str) -> bool:
        """Whether a model with ``template`` fulfils the wish, because a variable says so or because it always does."""
        has = template_names(template)
        told = self.variables(template)
        thinks = OPEN in template or CLOSE in template or EFFORT in has
        if not self.on:
            return bool(told) or not thinks
        by_level = self.effort in (None, "medium") or EFFORT in has
        return (bool(told) or thinks) and by_level and (self.budget is None or BUDGET in has)


@lru_cache(maxsize=16)
def template_names(template: str) -> frozenset[str]:
    """Names that the code of ``template`` uses, without attributes and what stands in strings."""
    return frozenset(name for code in _CODE.findall(template) for name in _VARIABLE.findall(_LITERAL.sub("''", code)))


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
