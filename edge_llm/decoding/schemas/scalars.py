"""Numbers and strings of a schema, as terminals."""

from __future__ import annotations

import math
from fractions import Fraction

from edge_llm.decoding.schemas import numbers
from edge_llm.decoding.schemas.patterns import Reading, UnheldPattern, parsed
from edge_llm.decoding.schemas.symbols import Rules, Symbols, Term, library
from edge_llm.decoding.schemas.terminals import CHAR, QUOTE, STRING, complement, either, quoted_text, terminal
from edge_llm.decoding.schemas.words import Leaf, Own, Schema, excluded_values, fraction
from edge_llm.files import shown

_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)  # fmt: skip
"""What the library can hold a string to."""
_GREATEST = Fraction(10**40)
"""Bounds beyond it say nothing."""
_EXACT = 2**53 - 1


def number(w: Rules, leaves: list[Leaf], types: frozenset[str]) -> list[Symbols]:
    """The numbers of ``types`` for which all of ``leaves`` hold."""
    whole = "fraction" not in types
    least, above = _bound(w, leaves, "minimum", "exclusiveMinimum", 1)
    most, below = _bound(w, leaves, "maximum", "exclusiveMaximum", -1)
    steps = [fraction(leaf["multipleOf"]) for leaf in leaves if "multipleOf" in leaf]
    excluded = [fraction(one) for one in excluded_values(leaves) if isinstance(one, int | float) and not isinstance(one, bool)]
    if whole:
        low = None if least is None else math.floor(least) + 1 if above else math.ceil(least)
        high = None if most is None else math.ceil(most) - 1 if below else math.floor(most)
        return _integers(w, low, high, math.lcm(*(step.numerator for step in steps)), excluded)
    base = numbers.numbers(least, above, most, below)
    if base is None:
        return []
    parts = [base]
    for step in steps:
        fine = numbers.with_fractions(step)
        if fine is None:  # its integer multiples are multiples, too
            if "integer" not in types:
                w.loose("multipleOf")
                continue
            return number(w, leaves, frozenset(("integer",)))
        parts.append(fine)
    if "integer" not in types:
        parts.append(numbers.WITH_FRACTION)
    parts += [f"~{numbers.spellings(one)}" for one in excluded]
    if len(parts) > 1 and base == numbers.FREE_NUMBER:
        parts[0] = numbers.PLAIN_NUMBER
    return _terminal(w, " & ".join(parts))


def _integers(w: Rules, low: int | None, high: int | None, step: int, excluded: list[Fraction]) -> list[Symbols]:
    base = numbers.integers(low, high)
    if base is None:
        return []
    ends = numbers.multiples(step)
    if ends is not None:
        parts = [base] + ([ends] if step != 1 else []) + [f"~{numbers.spellings(one)}" for one in excluded]
        return _terminal(w, " & ".join(parts))
    low, high = max(-_EXACT, -_EXACT if low is None else low), min(_EXACT, _EXACT if high is None else high)
    if step >= 2**32 or low > high:
        w.loose("multipleOf")
        return [(Term(base),)]
    if any(one % step == 0 and low <= one <= high for one in excluded):
        w.loose("not")
    if -(-low // step) * step > high:
        return []
    return [(library({"type": "integer", "multipleOf": step, "minimum": low, "maximum": high}),)]


def _bound(w: Rules, leaves: list[Leaf], bound: str, strict: str, sign: int) -> tuple[Fraction | None, bool]:
    """The tightest bound on one side, and whether it is none of the numbers itself."""
    found = [(sign * fraction(leaf[word]), word == strict) for leaf in leaves for word in (bound, strict) if word in leaf]
    for one, _ in found:
        if one > _GREATEST:
            w.loose(bound)
    found = [(one, open_) for one, open_ in found if abs(one) <= _GREATEST]
    if not found:
        return None, False
    tightest, open_ = max(found)
    return sign * tightest, open_

# ---- strings


def string(w: Rules, leaves: list[Leaf]) -> list[Symbols]:
    """The strings for which all of ``leaves`` hold."""
    formats = [name for leaf in leaves if (name := leaf.get("format")) is not None]
    for name in formats:
        if name not in _FORMATS:
            w.loose(f"format {shown(name, 40)}")
    formats = [name for name in formats if name in _FORMATS]
    if formats:
        return _formatted(w, formats, leaves)
    found = inside(w, leaves)
    if found is None:
        return [(Term(STRING),)]
    return _terminal(w, f"{QUOTE} {found} {QUOTE}") if found else []


def _terminal(w: Rules, expression: str) -> list[Symbols]:
    found = w.terminal(expression)
    return [] if found is None else [(found,)]


def _formatted(w: Rules, formats: list[str], leaves: list[Leaf]) -> list[Symbols]:
    """Strings of a format are the library's; it knows plain patterns, too."""
    parts: list[Schema] = [{"format": name} for name in formats]
    for leaf in leaves:
        parts += [{word: leaf[word]} for word in ("minLength", "maxLength") if word in leaf]
        if "pattern" in leaf:
            if "(?" in leaf["pattern"] or "\\b" in leaf["pattern"].lower():
                w.loose("pattern")
            else:
                parts.append({"pattern": leaf["pattern"]})
        if Own.NO_PATTERNS in leaf or any(isinstance(one, str) for one in leaf.get(Own.EXCLUDED, ())):
            w.loose("not")
    schema = {"type": "string", "allOf": parts}
    found = w.library(schema) if len(parts) > 1 else library(schema)
    return [] if found is None else [(found,)]


def inside(w: Rules, leaves: list[Leaf]) -> str | None:
    """The expression of strings between their quotes; None for all of them, "" where there are none."""
    parts: list[str] = []
    for leaf in leaves:
        wanted = [(leaf["pattern"], True)] if "pattern" in leaf else []
        for pattern, held in wanted + [(one, False) for one in leaf.get(Own.NO_PATTERNS, ())]:
            try:
                found = terminal(parsed(pattern, Reading.ALL if held else Reading.ANY))
            except UnheldPattern:
                w.loose("pattern" if held else "not")
                continue
            if held and found is None:
                return ""
            parts.append(str(found) if held else complement(found))
    excluded = [one for one in excluded_values(leaves) if isinstance(one, str)]
    if excluded:
        parts.append(complement(either(quoted_text(one) for one in excluded)))
    least = max((leaf.get("minLength", 0) for leaf in leaves), default=0)
    most = min((leaf["maxLength"] for leaf in leaves if "maxLength" in leaf), default=None)
    if most is not None and least > most:
        return ""
    if least or most is not None:
        parts.append('""' if most == 0 else f"/{CHAR}{{{least},{'' if most is None else most}}}/")
    return None if not parts else parts[0] if len(parts) == 1 else f"({' & '.join(parts)})"
