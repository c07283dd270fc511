"""The patterns of JSON schemas as terminals: what is written between the quotes of a JSON string.

    terminal(parsed("^a+$"))      # the Lark expression of the strings that the pattern is found in

Look-around, word boundaries and anchors become intersections and complements, where they stand outside of repetitions.
Characters have one spelling each in these strings, so that a complement is one.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

from edge_llm.decoding.schemas.patterns import (
    ANY,
    LETTERS,
    MAX_DEPTH,
    OTHER_CHAR,
    REST,
    WORD_CHAR,
    Chars,
    Edge,
    Either,
    Look,
    Node,
    Ranges,
    Repeat,
    Sequence,
    UnheldPattern,
    counts,
    joined,
    others,
    without,
)

# ---- characters in JSON

_SHORT = {0x22: r"\"", 0x5C: r"\\", 8: r"\b", 9: r"\t", 10: r"\n", 12: r"\f", 13: r"\r"}
_SPECIAL = ((0, 31), (0x22, 0x22), (0x5C, 0x5C), (0x7F, 0x7F))
"""Characters that are written as escapes."""


def written(code: int) -> str:
    """The character in the one spelling that terminals of patterns know."""
    if code in _SHORT:
        return _SHORT[code]
    return rf"\u{code:04x}" if code < 32 or code == 0x7F else chr(code)


def quoted_text(text: str) -> str:
    """A regular expression of ``text`` between the quotes of a JSON string."""
    return "".join(_escaped(written(ord(c))) for c in text)


def _escaped(text: str) -> str:
    return "".join(c if c.isascii() and c.isalnum() else rf"\x{{{ord(c):x}}}" for c in text)


def _char(chars: Chars) -> str | None:
    """A regular expression of one of ``chars`` in a JSON string."""
    ranges = joined(chars.ranges) if not chars.negated or chars.properties else others(chars.ranges)
    if chars.properties:
        inside = "".join(chars.properties) + _class_text(ranges)
        plain = f"[{'^' if chars.negated else ''}{inside}]"
        plain = f"[{plain}&&[^{_class_text(_SPECIAL)}]]"
        codes = [code for first, last in _SPECIAL for code in range(first, last + 1) if _is_one(chars, code)]
    else:
        rest = without(ranges, _SPECIAL)
        plain = f"[{_class_text(rest)}]" if rest else ""
        codes = [code for first, last in _SPECIAL for code in range(first, last + 1) if _holds(ranges, code)]
    options = ([plain] if plain else []) + _special_options(codes)
    return None if not options else options[0] if len(options) == 1 else f"({'|'.join(options)})"


def _special_options(codes: list[int]) -> list[str]:
    short = "".join(rf"\x{{{ord(_SHORT[code][1]):x}}}" for code in codes if code in _SHORT)
    long = [f"{code:02x}" for code in codes if code not in _SHORT]
    rows = [f"{row}[{''.join(one[1] for one in long if one[0] == row)}]" for row in dict.fromkeys(one[0] for one in long)]
    both = ([f"[{short}]"] if short else []) + ([f"u00({'|'.join(rows)})"] if rows else [])
    return [rf"\x{{5c}}({'|'.join(both)})"] if both else []


def _is_one(chars: Chars, code: int) -> bool:
    """Whether a special character is one of ``chars``, properties counted."""
    found = _holds(chars.ranges, code) or any(_has_property(one, code) for one in chars.properties)
    return found is not chars.negated


def _has_property(name: str, code: int) -> bool:
    negated, wanted = name.startswith(r"\P"), name[3:-1]
    if len(wanted) > 2 or wanted[0] not in "LMNPSZC":  # a script or another property
        raise UnheldPattern
    return unicodedata.category(chr(code)).startswith(wanted) is not negated


def _holds(ranges: Ranges, code: int) -> bool:
    return any(first <= code <= last for first, last in ranges)


def _class_text(ranges: Ranges) -> str:
    return "".join(rf"\x{{{a:x}}}" if a == b else rf"\x{{{a:x}}}-\x{{{b:x}}}" for a, b in ranges)


# ---- terminals

_PAIR = r"u[dD][89abAB][0-9a-fA-F]{2}\x{5c}u[dD][c-fC-F][0-9a-fA-F]{2}"
CHAR = (
    r"([^\x{22}\x{5c}\x{0}-\x{1f}\x{7f}]"
    rf"|\x{{5c}}([\x{{22}}\x{{5c}}\x{{2f}}bfnrt]|u([0-9a-cA-CefEF][0-9a-fA-F]|[dD][0-7])[0-9a-fA-F]{{2}}|{_PAIR}))"
)
"""A character of a JSON string, escaped as one likes; no half of a surrogate pair."""
STRING = rf"/\x{{22}}{CHAR}*\x{{22}}/"
QUOTE = r'"\""'
_MAX_OPTIONS = 200


def terminal(node: Node, *, search: bool = True) -> str | None:
    """The Lark expression of what ``node`` matches, or of what it is found in; None where it is nothing.

    Raises `UnheldPattern` for what cannot be expressed.
    """
    items = (REST, node, REST) if search else (node,)
    return _language(_flat(items), 0)


def complement(expression: str | None) -> str:
    """The strings that ``expression`` does not match."""
    everything = f"/{_char(ANY)}*/"
    return everything if expression is None else f"({everything} & ~({expression}))"


def _language(items: tuple[Node, ...], depth: int) -> str | None:
    if depth > MAX_DEPTH:
        raise UnheldPattern
    at = next((at for at, one in enumerate(items) if not isinstance(one, Edge | Look) and _has_edges(one)), None)
    if at is not None:
        return _any(_language(_flat((*items[:at], option, *items[at + 1 :])), depth + 1) for option in _options(items[at]))
    for at, one in enumerate(items):
        if isinstance(one, Edge) and one.kind == "^":
            return _language((*_edges(items[:at]), *items[at + 1 :]), depth + 1) if _may_be_empty(items[:at]) else None
        if isinstance(one, Edge) and one.kind == "$":
            return _language((*items[:at], *_edges(items[at + 1 :])), depth + 1) if _may_be_empty(items[at + 1 :]) else None
    at = next((at for at, one in enumerate(items) if isinstance(one, Edge | Look)), None)
    if at is None:
        found = _plain(Sequence(items))
        return None if found is None else f"/{found}/" if found else '""'
    return _split(items, at, depth)


def _split(items: tuple[Node, ...], at: int, depth: int) -> str | None:
    """``items`` with places at ``at``: what stands before them, held to what they ask for, and what stands behind them."""
    end = next((n for n in range(at, len(items)) if not isinstance(items[n], Edge | Look)), len(items))
    places, before, after = items[at:end], items[:at], items[end:]
    _check_behind(after)
    behind = [one for one in places if isinstance(one, Look) and not one.ahead]
    ahead = [one for one in places if isinstance(one, Look) and one.ahead]
    edges = {one.kind for one in places if isinstance(one, Edge)}
    plain = any(one.plain for one in places if isinstance(one, Edge))
    left = _all([_language(before, depth + 1), *(_looked(one, depth) for one in behind)])
    right = _all([_language(after, depth + 1), *(_looked(one, depth) for one in ahead)])
    if not edges:
        return _then(left, right)
    if len(edges) == 2:
        return None
    ends, begins = _language((REST, WORD_CHAR), depth + 1), _language((WORD_CHAR, REST), depth + 1)
    other = Chars(WORD_CHAR.ranges, LETTERS, negated=True) if plain else OTHER_CHAR
    no_ends = _language((_maybe((REST, other)),), depth + 1)
    no_begins = _language((_maybe((other, REST)),), depth + 1)
    sides = [(ends, no_begins), (no_ends, begins)] if "b" in edges else [(ends, begins), (no_ends, no_begins)]
    return _any(_then(_all([left, one]), _all([right, other])) for one, other in sides)


def _maybe(items: tuple[Node, ...]) -> Node:
    return Repeat(Sequence(items), 0, 1)


def _looked(look: Look, depth: int) -> str | None:
    items = (look.item, REST) if look.ahead else (REST, look.item)
    found = _language(_flat(items), depth + 1)
    return found if look.wanted else complement(found)


def _check_behind(items: tuple[Node, ...]) -> None:
    """Places further on must not look behind where ``items`` begin."""
    width = 0
    for one in items:
        if isinstance(one, Edge) and width < 1:
            raise UnheldPattern
        if isinstance(one, Look) and not one.ahead:
            needed = _widths(one.item)[1]
            if needed is None or needed > width:
                raise UnheldPattern
        width += _widths(one)[0]


def _any(options: Iterator[str | None]) -> str | None:
    found = [one for one in options if one is not None]
    if len(found) > _MAX_OPTIONS:
        raise UnheldPattern
    return None if not found else found[0] if len(found) == 1 else "(" + " | ".join(f"({one})" for one in found) + ")"


def _all(parts: list[str | None]) -> str | None:
    return None if None in parts else parts[0] if len(parts) == 1 else "(" + " & ".join(f"({one})" for one in parts) + ")"


def _then(left: str | None, right: str | None) -> str | None:
    return None if left is None or right is None else f"(({left}) ({right}))"


def _flat(items: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(one for item in items for one in (_flat(item.items) if isinstance(item, Sequence) else (item,)))


def _has_edges(node: Node) -> bool:
    if isinstance(node, Edge | Look):
        return True
    if isinstance(node, Sequence | Either):
        return any(map(_has_edges, node.items if isinstance(node, Sequence) else node.options))
    return isinstance(node, Repeat) and _has_edges(node.item)


def _options(node: Node) -> tuple[Node, ...]:
    """What ``node``, in which there are places, may be."""
    if isinstance(node, Either):
        return node.options
    if isinstance(node, Repeat) and (node.least, node.most) in ((0, 1), (1, 1), (0, 0)):
        return ((Sequence(()),) if node.least == 0 else ()) + ((node.item,) if node.most else ())
    raise UnheldPattern


def _edges(items: tuple[Node, ...]) -> tuple[Node, ...]:
    return tuple(one for one in items if isinstance(one, Edge | Look))


def _may_be_empty(items: tuple[Node, ...]) -> bool:
    return all(_widths(one)[0] == 0 for one in items)


def _widths(node: Node) -> tuple[int, int | None]:
    """The fewest and the most characters."""
    if isinstance(node, Chars):
        return 1, 1
    if isinstance(node, Edge | Look):
        return 0, 0
    if isinstance(node, Repeat):
        least, most = _widths(node.item)
        return least * node.least, None if most is None or node.most is None else most * node.most
    sizes = [_widths(one) for one in (node.items if isinstance(node, Sequence) else node.options)]
    ends = [high for _, high in sizes if high is not None]
    whole = len(ends) == len(sizes)
    if isinstance(node, Sequence):
        return sum(low for low, _ in sizes), sum(ends) if whole else None
    return min(low for low, _ in sizes), max(ends) if whole else None


def _plain(node: Node) -> str | None:
    """The regular expression of ``node``, in which there are no places, in a JSON string; None for nothing."""
    if isinstance(node, Chars):
        return _char(node)
    if isinstance(node, Sequence):
        parts = [_plain(one) for one in node.items]
        return None if None in parts else "".join(str(one) for one in parts)
    if isinstance(node, Either):
        options = [found for one in node.options if (found := _plain(one)) is not None]
        return f"({'|'.join(dict.fromkeys(options))})" if options else None  # the library fails over equal ones
    assert isinstance(node, Repeat)
    inner = _plain(node.item)
    if inner is None:
        return "" if node.least == 0 else None
    return f"({inner}){counts(node.least, node.most)}"


def either(expressions: Iterable[str]) -> str:
    """The expression of a choice between regular expressions."""
    return "/" + "|".join(f"({one})" for one in expressions) + "/"
