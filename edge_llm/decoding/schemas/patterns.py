"""The regular expressions of JSON schemas (ECMA-262), read into nodes.

    found_in(parsed("^a+$"), "aa")     # whether the pattern is found in a text that is known

Readers of Python, Rust and others take more for letters, digits and spaces than ECMA-262 does.  `Reading` says for whom a
pattern is read: what all of them find, or what any of them finds.
"""

from __future__ import annotations

import enum
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from edge_llm.errors import UsageError
from edge_llm.files import shown


class UnheldPattern(Exception):
    """A regular expression that is fine, and that no terminal can express."""


Ranges = tuple[tuple[int, int], ...]
"""Characters, by the first and the last one of each range."""


@dataclass(frozen=True)
class Chars:
    """One character of some ranges, or of Unicode properties in Rust's syntax, or none of them."""

    ranges: Ranges
    properties: tuple[str, ...] = ()
    negated: bool = False


@dataclass(frozen=True)
class Sequence:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Either:
    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    item: Node
    least: int
    most: int | None


@dataclass(frozen=True)
class Edge:
    """A place without width: ``^``, ``$``, ``b`` (a word's edge) or ``B``."""

    kind: str
    plain: bool = False
    """Letters of other alphabets stand at no edge, as readers differ about them."""


@dataclass(frozen=True)
class Look:
    """What must, or must not, stand ahead of a place or behind it."""

    item: Node
    ahead: bool
    wanted: bool


Node = Chars | Sequence | Either | Repeat | Edge | Look

ALL = ((0, 0xD7FF), (0xE000, 0x10FFFF))
_DIGITS = ((0x30, 0x39),)
_WORD = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE = ((9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029), (0x202F, 0x202F),
          (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF))  # fmt: skip
_LINE_ENDS = ((10, 10), (13, 13), (0x2028, 0x2029))
_MORE_SPACE = ((0x1C, 0x1F), (0x85, 0x85))
_LESS_SPACE = ((9, 13), (32, 32))
LETTERS = (r"\p{L}", r"\p{M}", r"\p{N}", r"\p{Pc}")


class Reading(enum.Enum):
    """Who reads a pattern."""

    ECMA = 0
    ALL = 1
    """What every reader finds: for texts that are wanted."""
    ANY = 2
    """What some reader finds: for texts that are not wanted."""


_CLASSES: dict[str, tuple[Ranges, Ranges, tuple[str, ...]]] = {
    "d": (_DIGITS, _DIGITS, (r"\p{Nd}",)), "w": (_WORD, _WORD, LETTERS), "s": (_SPACE, _LESS_SPACE, (r"\p{Z}",)),
}  # fmt: skip
"""What ECMA-262 takes for such a class, what all readers do, and the properties that some add."""
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
ANY = Chars(ALL)
REST = Repeat(ANY, 0, None)
WORD_CHAR, OTHER_CHAR = Chars(_WORD), Chars(_WORD, negated=True)
MAX_DEPTH = 100
_MAX_COUNT = 100_000


def joined(ranges: Ranges) -> Ranges:
    """``ranges`` in order, none of them touching another, without surrogates."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(_without_surrogates(ranges)):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def _without_surrogates(ranges: Ranges) -> Iterator[tuple[int, int]]:
    for first, last in ranges:
        for low, high in ALL:
            if max(first, low) <= min(last, high):
                yield max(first, low), min(last, high)


def others(ranges: Ranges) -> Ranges:
    """All other characters."""
    return without(ALL, joined(ranges))


def without(ranges: Ranges, taken: Ranges) -> Ranges:
    """``ranges`` without what is in ``taken``; both are as `joined` gives them."""
    found = []
    for first, last in ranges:
        for low, high in taken:
            if low > last or high < first:
                continue
            if first < low:
                found.append((first, low - 1))
            first = high + 1
        if first <= last:
            found.append((first, last))
    return tuple(found)


# ---- reading


def parsed(text: str, reading: Reading = Reading.ECMA) -> Node:
    """The pattern ``text``; raises `UsageError` for one that is malformed, `UnheldPattern` for one that goes beyond these."""
    reader = _Reader(text, reading)
    try:
        node = reader.either(0)
    except IndexError:
        raise reader.error("ends too early") from None
    if reader.at < len(text):
        raise reader.error("has a `)` too many")
    return node


_CODES = {"x": re.compile(r"([0-9A-Fa-f]{2})"), "u": re.compile(r"([0-9A-Fa-f]{4})|\{([0-9A-Fa-f]{1,6})\}")}


class _Reader:
    def __init__(self, text: str, reading: Reading) -> None:
        self.text = text
        self.reading = reading
        self.at = 0

    def error(self, what: str) -> UsageError:
        return UsageError(f"the regular expression `{shown(self.text, 80)}` {what}, at character {self.at + 1}")

    def either(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise self.error(f"nests more than {MAX_DEPTH} groups in one another")
        options = [self._sequence(depth)]
        while self._take("|"):
            options.append(self._sequence(depth))
        return options[0] if len(options) == 1 else Either(tuple(options))

    def _sequence(self, depth: int) -> Node:
        items: list[Node] = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            items.append(self._repeated(self._atom(depth)))
        return items[0] if len(items) == 1 else Sequence(tuple(items))

    def _repeated(self, item: Node) -> Node:
        for sign, (least, most) in {"*": (0, None), "+": (1, None), "?": (0, 1)}.items():
            if self._take(sign):
                return self._only_once(Repeat(item, least, most))
        found = re.compile(r"\{(\d+)(?:(,)(\d*))?\}").match(self.text, self.at)
        if found is None:
            return item
        if len(found[0]) > 20:
            raise self.error("repeats too often")
        self.at = found.end()
        least = int(found[1])
        most = least if found[2] is None else int(found[3]) if found[3] else None
        if max(least, most or 0) > _MAX_COUNT:
            raise self.error("repeats too often")
        if most is not None and most < least:
            raise self.error("has a repetition whose ends are turned round")
        return self._only_once(Repeat(item, least, most))

    def _only_once(self, node: Node) -> Node:
        if self._take("?"):  # a lazy repetition finds the same texts
            return node
        if self.at < len(self.text) and self.text[self.at] in "*+":
            raise self.error("repeats a repetition")
        return node

    def _atom(self, depth: int) -> Node:
        c = self.text[self.at]
        if c == "(":
            return self._group(depth)
        if c == "[":
            return self._class()
        if c == "\\":
            return self._escape()
        if c in "*+?":
            raise self.error("repeats nothing")
        self.at += 1
        if c == ".":
            return Chars(_LINE_ENDS, negated=True)
        return Edge(c) if c in "^$" else Chars(((ord(c), ord(c)),))

    def _group(self, depth: int) -> Node:
        self.at += 1
        looks = {"?=": (True, True), "?!": (True, False), "?<=": (False, True), "?<!": (False, False)}
        begun = next((one for one in looks if self.text.startswith(one, self.at)), "")
        named = re.compile(r"\?P?<[A-Za-z_$][\w$]*>|\?:").match(self.text, self.at)
        if begun:
            self.at += len(begun)
        elif named is not None:
            self.at = named.end()
        elif self.text.startswith("?", self.at):
            raise UnheldPattern
        before = self.reading
        if begun and not looks[begun][1]:  # what is not wanted inside of what is wanted, and the other way round
            self.reading = {Reading.ALL: Reading.ANY, Reading.ANY: Reading.ALL}.get(before, before)
        inner = self.either(depth + 1)
        self.reading = before
        if not self._take(")"):
            raise self.error("has an unclosed group")
        return Look(inner, *looks[begun]) if begun else inner

    def _escape(self) -> Node:
        c = self.text[self.at + 1]
        if c in "bB":
            self.at += 2
            return Edge(c, self.reading is Reading.ALL)
        if c in "123456789k":
            raise UnheldPattern
        return self._escaped(self.reading)

    def _shorthand(self, c: str, reading: Reading) -> Chars:
        """A class like ``\\d`` or ``\\D``."""
        ecma, least, properties = _CLASSES[c.lower()]
        more = joined((*ecma, *(_MORE_SPACE if c in "sS" else ())))
        if reading is Reading.ECMA:
            return Chars(ecma, (), c.isupper())
        wide = c.isupper() is (reading is Reading.ALL)
        return Chars(more if wide else least, properties if wide else (), c.isupper())

    def _escaped(self, reading: Reading) -> Chars:
        """What an escape stands for."""
        c = self.text[self.at + 1]
        self.at += 2
        if c.lower() in _CLASSES:
            return self._shorthand(c, reading)
        if c in _CONTROLS:
            return Chars(((_CONTROLS[c], _CONTROLS[c]),))
        if c in "pP":
            found = re.compile(r"\{(?:(?:General_Category|gc)=)?([A-Za-z_]+)\}|([A-Z])").match(self.text, self.at)
            if found is None:
                raise UnheldPattern
            self.at = found.end()
            return Chars((), (rf"\{c}{{{found[1] or found[2]}}}",))
        if c == "c" and self.text[self.at].isalpha():
            self.at += 1
            return Chars(((ord(self.text[self.at - 1]) % 32,) * 2,))
        digits = _CODES[c].match(self.text, self.at) if c in _CODES else None
        if digits is None:
            return Chars(((ord(c), ord(c)),))
        self.at = digits.end()
        code = int(next(one for one in digits.groups() if one), 16)
        low = re.compile(r"\\u([Dd][C-Fc-f][0-9A-Fa-f]{2})").match(self.text, self.at)
        if 0xD800 <= code < 0xDC00 and low is not None:
            self.at = low.end()
            code = 0x10000 + (code - 0xD800) * 0x400 + int(low[1], 16) - 0xDC00
        if code > sys.maxunicode:
            raise self.error("has a character beyond Unicode")
        return Chars(((code, code),))

    def _class(self) -> Node:
        self.at += 1
        negated = self._take("^")
        members: list[Chars] = []
        while not self._take("]"):
            first = self._member(negated)
            members.append(first)
            if _code(first) is None or self.text[self.at] != "-" or self.text[self.at + 1] == "]":
                continue
            self.at += 1
            last = self._member(negated)
            low, high = _code(first), _code(last)
            if low is None or high is None:
                members += [Chars(((ord("-"), ord("-")),)), last]
            elif high < low:
                raise self.error("has a range whose ends are turned round")
            else:
                members.append(Chars(((low, high),)))
        ranges = tuple(pair for one in members for pair in (others(one.ranges) if one.negated else one.ranges))
        if any(one.negated and one.properties for one in members):  # not all that readers differ about can be told here
            members = [Chars(one.ranges) if one.negated else one for one in members]
        return Chars(ranges, tuple(name for one in members for name in one.properties), negated)

    def _member(self, negated: bool) -> Chars:
        """One member of a class."""
        c = self.text[self.at]
        if c != "\\":
            self.at += 1
            return Chars(((ord(c), ord(c)),))
        if self.text[self.at + 1] == "b":
            self.at += 2
            return Chars(((8, 8),))
        flipped = {Reading.ALL: Reading.ANY, Reading.ANY: Reading.ALL}.get(self.reading, self.reading)
        return self._escaped(flipped if negated else self.reading)

    def _take(self, text: str) -> bool:
        taken = self.text.startswith(text, self.at)
        self.at += len(text) if taken else 0
        return taken


def _code(chars: Chars) -> int | None:
    """The character that ``chars`` are, if they are one."""
    one = len(chars.ranges) == 1 and not chars.properties and not chars.negated and chars.ranges[0][0] == chars.ranges[0][1]
    return chars.ranges[0][0] if one else None


# ---- for Python's re


def python(node: Node) -> str:
    """``node`` in the syntax of `re`; raises `UnheldPattern` for what it does not have."""
    if isinstance(node, Chars):
        if node.properties:
            raise UnheldPattern
        inside = "".join(rf"\U{a:08x}-\U{b:08x}" for a, b in node.ranges)
        return f"[{'^' if node.negated else ''}{inside}]" if inside else r"[\s\S]" if node.negated else "(?!)"
    if isinstance(node, Sequence):
        return "".join(map(python, node.items))
    if isinstance(node, Either):
        return f"(?:{'|'.join(map(python, node.options))})"
    if isinstance(node, Repeat):
        return f"(?:{python(node.item)}){counts(node.least, node.most)}"
    if isinstance(node, Edge):
        edges = {"^": r"\A", "$": r"\Z", "b": r"(?a:\b)", "B": r"(?a:\B)"}
        return edges[node.kind]
    return f"(?{'' if node.ahead else '<'}{'=' if node.wanted else '!'}{python(node.item)})"


def found_in(node: Node, text: str) -> bool:
    """Whether the pattern ``node`` is found in ``text``; raises `UnheldPattern` where that cannot be told."""
    try:
        return re.search(python(node), text) is not None
    except (re.error, OverflowError, RecursionError):
        raise UnheldPattern from None


def counts(least: int, most: int | None) -> str:
    """How often, as regular expressions say it."""
    return f"{{{least},{'' if most is None else most}}}" if (least, most) != (0, None) else "*"
