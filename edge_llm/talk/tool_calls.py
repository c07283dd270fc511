"""Calls of tools in a text: the parser that finds them while it comes."""

from __future__ import annotations

import itertools
import json
import re
import secrets
from dataclasses import replace
from typing import Any

from edge_llm.strict_json import MAX_DEPTH, is_deeper, is_unicode
from edge_llm.talk.pieces import CallArguments, CallBegun, Said
from edge_llm.talk.reasoning import held_back
from edge_llm.talk.tool_formats import ToolFormat

_STRING = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(
    rf'\{{\s*(?:"(?:type|id)"\s*:\s*{_STRING}\s*,\s*)*"name"\s*:\s*({_STRING})\s*,\s*"(?:arguments|parameters)"\s*:\s*\{{'
)
"""A call's object up to the brace that opens its arguments."""


SpokenPiece = Said | CallBegun | CallArguments


class _CallObject:
    """One call's JSON object as its characters come: its name, then its arguments as they are written.

    An object in another order gives both when it is complete.
    """

    def __init__(self, names: frozenset[str] | None) -> None:
        self._names = names
        self.name: str | None = None
        self.ended = False
        self._characters: list[str] = []
        """All of the object until its name is known."""
        self._depth = 0
        self._opened = False
        self._in_string = self._escaped = self._in_arguments = False

    @property
    def text(self) -> str:
        """The object as far as it came, while its name is not known."""
        return "".join(self._characters)

    def push(self, c: str) -> str:
        """The text of the arguments that ``c`` adds."""
        if self.name is None:
            self._characters.append(c)
        structural = self._structural(c)
        if structural and c in "{[":
            self._depth += 1
            if self._depth == 2 and not self._opened:  # only strings stand before the arguments of a known head
                self._opened = True
                head = _HEAD.fullmatch(self.text)
                self._in_arguments = head is not None and self._named(_json_of(head[1]))
        piece = c if self._in_arguments else ""
        if structural and c in "}]":
            self._depth -= 1
            self._in_arguments = self._in_arguments and self._depth > 1
            self.ended = self._depth == 0
        return piece if not self.ended or self.name is not None else self._whole()

    def _structural(self, c: str) -> bool:
        """Whether ``c`` stands outside of strings."""
        if not self._in_string:
            self._in_string = c == '"'
            return True
        if self._escaped:
            self._escaped = False
        elif c == "\\":
            self._escaped = True
        else:
            self._in_string = c != '"'
        return False

    def _named(self, name: Any) -> bool:
        if isinstance(name, str) and is_unicode(name) and (self._names is None or name in self._names):
            self.name = name
        return self.name is not None

    def _whole(self) -> str:
        """The arguments of the complete object, if it is a call."""
        value = _json_of(self.text) or {}
        arguments = value.get("arguments", value.get("parameters", {}))
        if isinstance(arguments, str):
            arguments = _json_of(arguments)
        if not isinstance(arguments, dict) or not self._named(value.get("name")):
            return ""
        # half of a surrogate pair stays an escape, as which it came
        return json.dumps(arguments, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


def _json_of(text: str) -> Any:
    """The JSON value that a model wrote; None if it is none."""
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return None if is_deeper(value, MAX_DEPTH) else value


class ToolCallParser:
    """Feed text with `push`, which gives the pieces of text and of calls that it completes.

    It goes character by character, so the calls are the same however the text is cut.  What only looks like a call, or is
    cut off before its name, is text.  ``names`` are the names of the tools; where only a JSON object marks a call, an
    object with another name is text.  ``only_calls`` says that a grammar allowed nothing but calls: then a call that is
    cut off before its name is dropped.
    """

    def __init__(self, style: ToolFormat, names: frozenset[str], *, only_calls: bool = False) -> None:
        self._style = style
        self._only_calls = only_calls
        self._opener, self._closer = style.opener.strip(), style.closer.strip()
        self._names = None if self._opener else names
        self._step = self._text if self._opener else self._start
        self._space: list[str] = []
        self._begun = ""
        self._object = _CallObject(self._names)
        self._pieces: list[SpokenPiece] = []
        self.calls = 0
        """Calls so far."""

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
        if self._step == self._call:
            self._say("" if self._object.name is not None else self._held + self._object.text)
        elif self._step not in (self._close, self._between) and not (self.calls and not self._held.strip()):
            self._say(self._held)
        self._held = ""
        return self.push("")

    @property
    def _held(self) -> str:
        """What may be the beginning of a call: white space, kept apart as there may be much of it, and what follows it."""
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

    # -- calls between tags

    def _text(self, c: str) -> None:
        if self._only_space(c):
            return
        self._begun += c
        if self._begun == self._opener:
            self._step = self._open
        elif not self._opener.startswith(self._begun):
            held = self._held
            end = len(held) - held_back(held, self._opener)
            self._say(held[:end])
            self._held = held[end:]

    def _open(self, c: str) -> None:
        if c == "{":
            self._begin_object(c)
        elif c.isspace():
            self._begun += c
        else:
            self._give_up(self._held)
            self._text(c)

    def _close(self, c: str) -> None:
        if self._only_space(c):
            return
        self._begun += c
        if self._begun == self._closer:
            self._step, self._held = self._text, ""
        elif not self._closer.startswith(self._begun):
            held, self._held = self._held, ""
            self._step = self._text
            for one in held:
                self._step(one)

    # -- calls at the beginning

    def _start(self, c: str) -> None:
        if self._only_space(c):
            return
        begun = rest = self._begun + c
        if self._style.marker and rest.startswith(self._style.marker):
            rest = rest[len(self._style.marker) :].lstrip()
        bare = rest.removeprefix("[").lstrip()
        if bare == "{":
            self._begin_object(c)
        elif bare and not (self._style.marker and self._style.marker.startswith(rest)):
            self._give_up("".join(self._space) + begun)
        else:
            self._begun = begun

    def _between(self, c: str) -> None:
        if c == "{":
            self._begin_object(c)
        elif not c.isspace() and c not in ",;]":
            self._give_up(self._held + c)
        elif not self._only_space(c):
            self._begun += c

    def _rest(self, c: str) -> None:
        self._say(c)

    # -- both

    def _begin_object(self, c: str) -> None:
        self._object = _CallObject(self._names)
        self._step = self._call
        self._call(c)

    def _call(self, c: str) -> None:
        known = self._object.name is not None
        piece = self._object.push(c)
        if not known and self._object.name is not None:
            self._pieces.append(CallBegun(self.calls, self._new_id(), self._object.name))
            self.calls += 1
        if piece:
            self._add_arguments(piece)
        if self._object.ended:
            if self._object.name is None:
                self._give_up(self._held + self._object.text)
            else:
                self._step, self._held = self._close if self._opener else self._between, ""

    def _give_up(self, text: str) -> None:
        """``text`` was no call."""
        self._held = ""
        self._say(text)
        self._step = self._text if self._opener else self._rest

    def _say(self, text: str) -> None:
        if text:
            self._pieces.append(Said(text))

    def _add_arguments(self, text: str) -> None:
        self._pieces.append(CallArguments(self.calls - 1, text))

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
