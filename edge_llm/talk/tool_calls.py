"""Calls of tools in a text: the parser that finds them while it comes.

Models write calls in many ways, whatever their templates show; all that are known are read:

    <tool_call>{"name": "f", "arguments": {}}</tool_call>      and a list, a block of code, or <function=f> between the tags
    [TOOL_CALLS][{"name": "f", "arguments": {}}]               and [TOOL_CALLS]f[ARGS]{}; <|tool_call|>[{"name": ...}]
    <|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>
    {"name": "f", "parameters": {}}                            at the beginning, where the template shows no tags
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edge_llm.talk.call_objects import ArgumentsObject, CallObject, TaggedArguments
from edge_llm.talk.pieces import CallArguments, CallBegun, Said
from edge_llm.talk.tool_formats import CALL_BEGIN, CALLS_BEGIN, CLOSERS, FENCE, FUNCTION, OPENERS, SEPARATOR, ToolFormat
from edge_llm.text.reasoning import held_back

MAX_HEAD = 400
"""Characters between a mark and what it marks, white space counted once."""


SpokenPiece = Said | CallBegun | CallArguments


# ---- what stands between a mark and a call


@dataclass(frozen=True)
class _Beginning:
    """What may stand behind a mark, up to where a call begins."""

    whole: re.Pattern[str]
    partly: re.Pattern[str]
    kind: str
    opening: str
    """What of it belongs to the call."""
    unsure: bool
    """It may be a text: a call is one only of a known tool."""

    @classmethod
    def of(cls, kind: str, *parts: str, opening: str = "{", unsure: bool = False) -> _Beginning:
        """``parts`` are literal texts or, in parentheses, expressions; ``opening`` stands behind them."""
        steps = [part if part.startswith("(") else re.escape(part) for part in (*parts, *opening)]
        partly = ""
        for step in reversed(steps):
            partly = f"(?:{step}{partly})?"
        return cls(re.compile("".join(steps), re.DOTALL), re.compile(partly, re.DOTALL), kind, opening, unsure)


_SPACE, _NAME, _ID, _WORD, _BREAK = r"(?:\s?)", r"([A-Za-z0-9_.-]+)", r"(?:[A-Za-z0-9_-]*)", r"(?:[a-z_]*)", r"(?:\s)"
_OBJECT, _LIST, _ARGUMENTS, _PARAMETERS, _PAIRS = "object", "list", "arguments", "parameters", "pairs"
_BARE = (_Beginning.of(_OBJECT, _SPACE), _Beginning.of(_LIST, _SPACE, *"[", _SPACE))
"""Without a mark, where a call may stand at the beginning."""
_IN_TAGS = (
    *_BARE,
    _Beginning.of(_OBJECT, _SPACE, *FENCE, _WORD, _BREAK),
    _Beginning.of(_LIST, _SPACE, *FENCE, _WORD, _BREAK, *"[", _SPACE),
    _Beginning.of(_ARGUMENTS, _SPACE, _NAME, _SPACE, unsure=True),
    _Beginning.of(_ARGUMENTS, _SPACE, _NAME, _SPACE, *"[ARGS]", _SPACE),
    _Beginning.of(_ARGUMENTS, _SPACE, _NAME, _SPACE, *"[CALL_ID]", _ID, *"[ARGS]", _SPACE),
    _Beginning.of(_PARAMETERS, _SPACE, *FUNCTION, _NAME, *">", opening=""),
    _Beginning.of(_PAIRS, _SPACE, _NAME, _SPACE, opening="<arg_key>"),
    _Beginning.of(_PAIRS, _SPACE, _NAME, _SPACE, opening="</tool_call>", unsure=True),
)
_SEPARATED = [
    [_SPACE, *before, *between]
    for before in ([*SEPARATOR, _NAME], [*"function", *SEPARATOR, _NAME], [_NAME, *SEPARATOR])
    for between in ([_SPACE], [_SPACE, *FENCE, _WORD, _BREAK])
]
_BEGINNINGS = {
    FENCE: (_Beginning.of(_OBJECT, _WORD, _BREAK), _Beginning.of(_LIST, _WORD, _BREAK, *"[", _SPACE)),
    FUNCTION: (
        _Beginning.of(_ARGUMENTS, _NAME, *">", _SPACE),
        _Beginning.of(_PARAMETERS, _NAME, *">", _SPACE, opening="<parameter="),
        _Beginning.of(_PARAMETERS, _NAME, *">", _SPACE, opening="</function>"),
    ),
    CALL_BEGIN: tuple(_Beginning.of(_ARGUMENTS, *parts) for parts in _SEPARATED),
    CALLS_BEGIN: tuple(_Beginning.of(_ARGUMENTS, _SPACE, *CALL_BEGIN, *parts) for parts in _SEPARATED),
    "": _BARE,
}
"""By mark, where these are not those of `_IN_TAGS`."""
_UNSURE = (FENCE, FUNCTION, "")
"""Marks that mean other things, too: a call is one only of a known tool."""
_REPEATED = ("", "[TOOL_CALLS]", "<|python_tag|>")
"""Marks behind which several objects may stand without a list."""


class ToolCallParser:
    """Feed text with `push`, which gives the pieces of text and of calls that it completes.

    It goes character by character, so the calls are the same however the text is cut.  What only looks like a call, or is
    cut off before its name, is text.  ``names`` are the names of the tools; where only a JSON object marks a call, an
    object with another name is text.  ``only_calls`` says that a grammar allowed nothing but calls: then a call that is
    cut off before its name is dropped.  Behind ``most`` calls nothing is read.  ``schemas`` are those of the tools'
    arguments, ``controls`` the marks that are control tokens: they are never text.
    """

    def __init__(
        self,
        style: ToolFormat,
        names: frozenset[str],
        *,
        only_calls: bool = False,
        most: int | None = None,
        schemas: Mapping[str, Mapping[str, Any]] | None = None,
        controls: frozenset[str] = frozenset(),
    ) -> None:
        self._style = style
        self._only_calls = only_calls
        self._most = most
        self._names = names
        self._schemas = schemas or {}
        self._controls = controls
        self._marks = (*OPENERS, *(mark for mark in CLOSERS if mark in controls))
        self._firsts = frozenset(mark[0] for mark in self._marks)
        self._mark = ""
        """Behind which a call may begin."""
        self._step = self._head if style.is_bare else self._text
        self._space: list[str] = []
        self._begun = ""
        self._norm = ""
        """What came behind the mark, white space counted once."""
        self._passed: list[str] = []
        """All that came behind the mark, and the mark."""
        self._in_list = self._in_fence = False
        self._object: CallObject | ArgumentsObject | TaggedArguments = CallObject(None)
        self._pieces: list[SpokenPiece] = []
        self.calls = 0
        """Calls so far."""

    @property
    def over(self) -> bool:
        """Whether all calls that there may be are complete."""
        return self._step == self._drop

    def push(self, text: str) -> list[SpokenPiece]:
        """The pieces that ``text`` completes, in order."""
        for c in text:
            self._step(c)
        pieces, self._pieces = self._pieces, []
        return _joined(pieces)

    def finish(self) -> list[SpokenPiece]:
        """What was held back, when the text ends."""
        if self._only_calls:
            return self.push("")
        held = self._held
        if self._step == self._call:
            held = "" if self._object.name is not None else "".join(self._passed) + self._object.text
        elif self._step == self._head:
            held = "".join(self._passed)
        if self._step != self._behind and (held.strip() or not self.calls):
            self._say(self._without_control(held))
        self._held = ""
        return self.push("")

    @property
    def _held(self) -> str:
        """What may be the beginning of a mark: white space, kept apart as there may be much of it, and what follows it."""
        return "".join(self._space) + self._begun

    @_held.setter
    def _held(self, text: str) -> None:
        self._begun = text.lstrip()
        self._space = list(text[: len(text) - len(self._begun)])

    def _only_space(self, c: str) -> bool:
        """Whether ``c`` and all that is held is white space; it is held, too."""
        if self._begun or not c.isspace():
            return False
        self._space.append(c)
        return True

    # -- text, and marks in it

    def _text(self, c: str) -> None:
        if self._only_space(c):
            return
        if not self._begun and c not in self._firsts:
            self._say("".join(self._space) + c)
            self._space.clear()
            return
        self._begun += c
        if self._begun in self._marks:
            self._open(self._begun)
        elif not any(mark.startswith(self._begun) for mark in self._marks):
            held = self._held
            end = len(held) - max(held_back(held, mark) for mark in self._marks)
            self._say(held[:end])
            self._held = held[end:]
            if self._begun in self._marks:  # one within the beginning of another
                self._open(self._begun)

    def _open(self, mark: str) -> None:
        if mark not in OPENERS:  # the end of nothing
            self._held = ""
            return
        self._mark, self._norm, self._passed = mark, "", [self._held]
        self._held = ""
        self._step = self._head

    # -- what stands between a mark and a call

    def _head(self, c: str) -> None:
        self._passed.append(c)
        if c.isspace() and self._norm[-1:].isspace():
            return
        self._norm += c
        beginnings = _BEGINNINGS.get(self._mark, _IN_TAGS)
        for one in beginnings:
            if found := one.whole.fullmatch(self._norm):
                self._begin(one, found[1] if found.re.groups else "")
                return
        if len(self._norm) > MAX_HEAD or not any(one.partly.fullmatch(self._norm) for one in beginnings):
            self._no_call()

    def _begin(self, beginning: _Beginning, name: str) -> None:
        """A call begins with what came last."""
        kind, unsure = beginning.kind, beginning.unsure or self._mark in _UNSURE
        if name and unsure and name not in self._names:
            self._no_call()
            return
        self._in_fence = FENCE in self._mark + self._norm
        self._in_list = kind == _LIST or (kind == _OBJECT and self._mark in _REPEATED)
        self._step = self._call
        if kind in (_OBJECT, _LIST):
            self._object = CallObject(self._names if unsure else None)
            self._passed.pop()
        else:
            self._object = self._arguments(kind, name)
            self._begin_call(name)
        for c in beginning.opening:
            self._call(c)

    def _arguments(self, kind: str, name: str) -> ArgumentsObject | TaggedArguments:
        """The arguments of a call of ``name``, which has been read."""
        if kind == _ARGUMENTS:
            return ArgumentsObject(name)
        found = self._schemas.get(name, {}).get("properties")
        kinds = found if isinstance(found, dict) else {}
        if kind == _PARAMETERS:
            return TaggedArguments(name, kinds, r"<parameter=([^>]*)>", "</parameter>", "</function>")
        return TaggedArguments(name, kinds, r"<arg_key>(.*?)</arg_key>\s*<arg_value>", "</arg_value>", "</tool_call>")

    def _no_call(self) -> None:
        """What came behind the mark makes no call; there may be another mark in it."""
        mark, rest = (self._passed[0], self._passed[1:]) if self._mark else ("", self._passed)
        self._give_up(mark)
        for one in rest:
            self._step(one)

    # -- calls

    def _call(self, c: str) -> None:
        known = self._object.name is not None
        piece = self._object.push(c)
        if not known and self._object.name is not None:
            self._begin_call(self._object.name)
        if piece:
            self._pieces.append(CallArguments(self.calls - 1, piece))
        if self._object.ended:
            if self._object.name is None:
                self._give_up("".join(self._passed) + self._object.text)
            else:
                self._step = self._drop if self.calls == self._most else self._behind
                self._held = ""

    def _begin_call(self, name: str) -> None:
        self._pieces.append(CallBegun(self.calls, self._new_id(), name))
        self.calls += 1

    def _behind(self, c: str) -> None:
        """Behind a call: what ends it, and in a list the next one."""
        if self._only_space(c):
            return
        if c == "{" and self._in_list and not self._begun:
            self._object = CallObject(self._names if self._mark in _UNSURE else None)
            self._passed, self._step = [self._held], self._call
            self._held = ""
            self._call(c)
            return
        if c in ",;]" and self._in_list and not self._begun:
            self._in_list = c != "]" or not self._mark
            self._held = ""
            return
        self._begun += c
        closers = CLOSERS if self._in_fence else CLOSERS[:-1]
        if self._begun in closers:
            self._in_fence = self._in_fence and self._begun != FENCE
            self._held, self._in_list = "", self._in_list and not self._mark
        elif not any(closer.startswith(self._begun) for closer in closers):
            held, self._held = self._held, ""
            self._step = self._text
            for one in held:
                self._step(one)

    def _drop(self, c: str) -> None:
        """Behind the last call that may be."""

    def _give_up(self, text: str) -> None:
        """``text`` was no call."""
        self._held, self._mark = "", ""
        self._step = self._text
        self._say(self._without_control(text))

    def _without_control(self, text: str) -> str:
        """``text`` without the mark that it begins with, if that is a control token."""
        begun = text.lstrip()
        mark = next((mark for mark in self._controls if begun.startswith(mark)), "")
        return text[: len(text) - len(begun)] + begun[len(mark) :]

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(Said(text))

    def _new_id(self) -> str:
        length = self._style.id_length
        letters = secrets.token_hex((length + 1) // 2)[:length]
        return letters if length < 16 else f"call_{letters}"


def _joined(pieces: list[SpokenPiece]) -> list[SpokenPiece]:
    """``pieces`` with the neighbours that go on with each other put together."""
    joined: list[SpokenPiece] = []
    for _, group in itertools.groupby(pieces, key=lambda one: (type(one), getattr(one, "index", 0), getattr(one, "id", ""))):
        first, *more = group
        joined.append(first if isinstance(first, CallBegun) else replace(first, text=first.text + _text_of(more)))
    return joined


def _text_of(pieces: list[SpokenPiece]) -> str:
    return "".join(piece.text for piece in pieces if not isinstance(piece, CallBegun))
