"""One call as its characters come: its name, and its arguments as JSON text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from edge_llm.strict_json import MAX_DEPTH, is_deeper, is_unicode

_STRING = r'"(?:[^"\\]|\\.)*"'
_HEAD = re.compile(
    rf'\{{\s*(?:"(?:type|id|tool_call_id)"\s*:\s*{_STRING}\s*,\s*)*"(?:tool_)?name"\s*:\s*({_STRING})\s*,\s*'
    r'"(?:arguments|parameters)"\s*:\s*\{'
)
"""A call's object up to the brace that opens its arguments."""
_KEYS = ("name", "arguments", "parameters", "type", "id", "function", "tool_name", "tool_call_id")
_TAIL = 400
"""Characters in which a tag and its key are looked for."""


class CallObject:
    """One call's JSON object as its characters come: its name, then its arguments as they are written.

    An object in another order gives both when it is complete.
    """

    def __init__(self, names: frozenset[str] | None) -> None:
        """Only of tools with ``names``, where there are some; then the first key must be one of a call."""
        self._names = names
        self.name: str | None = None
        self.ended = False
        self._characters: list[str] = []
        """All of the object until its name is known."""
        self._braces = _Braces()
        self._keyed = self._opened = self._in_arguments = False

    @property
    def text(self) -> str:
        """The object as far as it came, while its name is not known."""
        return "".join(self._characters)

    def push(self, c: str) -> str:
        """The text of the arguments that ``c`` adds."""
        if self.name is None:
            self._characters.append(c)
        opens, closes = self._braces.push(c)
        if c == ":" and self._names is not None and not self._keyed and not self._braces.in_string:
            self._keyed = True
            if _json_of(self.text[1:-1]) not in _KEYS:
                self.ended = True
                return ""
        if opens and self._braces.depth == 2 and not self._opened:  # only strings stand before the arguments of a known head
            self._opened = True
            head = _HEAD.fullmatch(self.text)
            self._in_arguments = head is not None and self._named(_json_of(head[1]))
        piece = c if self._in_arguments else ""
        if closes:
            self._in_arguments = self._in_arguments and self._braces.depth > 1
            self.ended = self._braces.depth == 0
        return piece if not self.ended or self.name is not None else self._whole()

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
        if not isinstance(arguments, dict) or not self._named(value.get("name", value.get("tool_name"))):
            return ""
        # half of a surrogate pair stays an escape, as which it came
        return json.dumps(arguments, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()


class _Braces:
    """How deep in braces and brackets a JSON text is."""

    def __init__(self) -> None:
        self.depth = 0
        self.in_string = self._escaped = False

    def push(self, c: str) -> tuple[bool, bool]:
        """Whether ``c`` opens or closes one."""
        structural = self._structural(c)
        opens, closes = structural and c in "{[", structural and c in "}]"
        self.depth += opens - closes
        return opens, closes

    def _structural(self, c: str) -> bool:
        """Whether ``c`` stands outside of strings."""
        if not self.in_string:
            self.in_string = c == '"'
            return True
        if self._escaped:
            self._escaped = False
        elif c == "\\":
            self._escaped = True
        else:
            self.in_string = c != '"'
        return False


class ArgumentsObject:
    """The JSON object of a call's arguments as it comes, behind the name."""

    def __init__(self, name: str) -> None:
        self.name: str | None = name
        self.ended = False
        self.text = ""
        self._braces = _Braces()

    def push(self, c: str) -> str:
        self._braces.push(c)
        self.ended = self._braces.depth == 0
        return c


class TaggedArguments:
    """Arguments in tags, a key and a value each: what comes is JSON, an argument at a time."""

    def __init__(self, name: str, kinds: Mapping[str, Any], key: str, value: str, end: str) -> None:
        self.name: str | None = name
        self.ended = False
        self.text = ""
        self._kinds = kinds
        self._key_tag, self._value_tag, self._end_tag = re.compile(key + r"\Z", re.DOTALL), value, end
        self._key: str | None = None
        self._came: list[str] = []
        self._first = True

    def push(self, c: str) -> str:
        self._came.append(c)
        if c != ">":
            return ""
        tail = "".join(self._came[-_TAIL:])
        if self._key is not None:
            if not tail.endswith(self._value_tag):
                return ""
            return self._argument("".join(self._came)[: -len(self._value_tag)])
        if tail.endswith(self._end_tag):
            self.ended = True
            return "{}" if self._first else "}"
        if found := self._key_tag.search(tail):
            self._key = found[1].strip()
            self._came.clear()
        return ""

    def _argument(self, value: str) -> str:
        text = value.removeprefix("\n").removesuffix("\n")
        pair = f"{json.dumps(self._key, ensure_ascii=False)}: {json.dumps(self._value(text), ensure_ascii=False)}"
        opening = "{" if self._first else ", "
        self._first, self._key = False, None
        self._came.clear()
        return opening + pair

    def _value(self, text: str) -> Any:
        """``text`` as the tool's schema has it: a string, or the JSON value that it is."""
        kind = self._kinds.get(self._key or "")
        kind = kind.get("type") if isinstance(kind, dict) else None
        if kind == "string" or (isinstance(kind, list) and "string" in kind):
            return text
        value = _json_of(text.strip())
        return value if text.strip() == "null" or (value is not None and _is_sayable(value)) else text


def _is_sayable(value: Any) -> bool:
    """Whether ``value`` can be written as JSON."""
    try:
        return is_unicode(json.dumps(value, ensure_ascii=False, allow_nan=False))
    except ValueError:
        return False


def _json_of(text: str) -> Any:
    """The JSON value that a model wrote; None if it is none."""
    try:
        value = json.loads(text, strict=False)
    except (ValueError, RecursionError):
        return None
    return None if is_deeper(value, MAX_DEPTH) else value
