"""The words of JSON schemas: which there are, what they may be, and what they say of a value that is known."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, Protocol

from edge_llm.decoding.schemas.patterns import UnheldPattern, found_in, parsed
from edge_llm.errors import UsageError
from edge_llm.files import shown

MAX_DEPTH = 120
"""Schemas inside of one another."""

Schema = dict[Any, Any]
AnySchema = Schema | bool
Leaf = dict[Any, Any]
TYPES = frozenset(("null", "boolean", "integer", "fraction", "string", "array", "object"))
"""A ``fraction`` is a number that is no integer."""
TYPES_OF = {"number": frozenset(("integer", "fraction"))} | {name: frozenset((name,)) for name in TYPES - {"fraction"}}


class Own(enum.Enum):
    """Keywords of our own, which no client can write."""

    TYPES = "types"
    """Types of `TYPES` that are left."""
    EXCLUDED = "excluded"
    """Values that are not allowed."""
    NO_PATTERNS = "no patterns"
    """Patterns that a string must not match."""
    ABSENT = "absent"
    """Names of properties that an object must not have."""
    PROPERTIES = "properties"
    """As ``properties``, but nothing is declared by it."""


VALUES = ("const", "enum")
_OWN_KINDS: dict[str, tuple[str, ...]] = {
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "count": ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains"),
    "string": ("pattern", "format", "$ref", "$dynamicRef", "$recursiveRef"),
    "schemas": ("allOf", "anyOf", "oneOf", "prefixItems"),
    "schema": ("additionalItems", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames",
               "unevaluatedItems", "unevaluatedProperties"),
    "names": ("properties", "patternProperties", "dependentSchemas", "dependencies"),
}  # fmt: skip
_KIND_OF = {keyword: kind for kind, keywords in _OWN_KINDS.items() for keyword in keywords}
LEAF = frozenset((
    "type", "const", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "pattern", "format", "items", "prefixItems", "additionalItems", "minItems", "maxItems", "contains",
    "minContains", "maxContains", "uniqueItems", "unevaluatedItems", "properties", "patternProperties",
    "additionalProperties", "required", "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties", *Own,
))  # fmt: skip
REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
COMBINED = (*REFERENCES, "allOf", "anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas", "dependencies")


# ---- values


def type_of(value: Any) -> str:
    """The type of a JSON value, of `TYPES`."""
    if isinstance(value, bool) or value is None:
        return "null" if value is None else "boolean"
    if isinstance(value, int | float):
        return "integer" if isinstance(value, int) or value.is_integer() else "fraction"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal; true is not 1."""
    if type_of(one) != type_of(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    return bool(one == other)


def types_of(words: Schema) -> frozenset[str]:
    """The types that a schema leaves by its ``type``, ``const`` and ``enum``."""
    types = TYPES
    if "type" in words:
        names = words["type"] if isinstance(words["type"], list) else [words["type"]]
        types = frozenset().union(*(TYPES_OF[name] for name in names))
    if Own.TYPES in words:
        types &= frozenset(words[Own.TYPES])
    values = values_of(words)
    return types if values is None else types & frozenset(map(type_of, values))


def values_of(words: Schema) -> list[Any] | None:
    """The values that ``const`` and ``enum`` leave; None where neither is there."""
    if "const" in words:
        return [one for one in [words["const"]] if "enum" not in words or any(same(one, other) for other in words["enum"])]
    return words.get("enum")


def fraction(number: float) -> Fraction:
    """A number of a schema, as it is written."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def excluded_values(leaves: list[Leaf]) -> list[Any]:
    """The values that none of ``leaves`` allows."""
    return [one for leaf in leaves for one in leaf.get(Own.EXCLUDED, ())]


def number_fits(value: float, words: Schema) -> bool:
    """Whether ``value`` keeps the bounds of ``words``, and is a multiple where they say so."""
    least, most = words.get("minimum", value), words.get("maximum", value)
    above, below = words.get("exclusiveMinimum"), words.get("exclusiveMaximum")
    inside = least <= value <= most and (above is None or value > above) and (below is None or value < below)
    step = words.get("multipleOf")
    return inside and (step is None or (fraction(value) / fraction(step)).denominator == 1)


def string_fits(value: str, words: Schema) -> bool:
    """Whether ``value`` has the length and the patterns that ``words`` ask for, as far as that can be told."""
    if not words.get("minLength", 0) <= len(value) <= words.get("maxLength", len(value)):
        return False
    patterns = [(one, True) for one in ([words["pattern"]] if "pattern" in words else [])]
    patterns += [(one, False) for one in words.get(Own.NO_PATTERNS, ())]
    for pattern, wanted in patterns:
        try:
            if found_in(parsed(pattern), value) is not wanted:
                return False
        except UnheldPattern:
            continue
    return True


def item_of(words: Schema, at: int) -> AnySchema:
    """The schema of the item at ``at``."""
    first = words.get("prefixItems", ())
    found: AnySchema = first[at] if at < len(first) else words.get("items", True)
    return found


def properties_of(words: Schema, name: str) -> list[AnySchema]:
    """The schemas that ``words`` have for the property ``name``."""
    found = [words[keyword][name] for keyword in ("properties", Own.PROPERTIES) if name in words.get(keyword, {})]
    declared = name in words.get("properties", {})
    for pattern, one in words.get("patternProperties", {}).items():
        if found_in(parsed(pattern), name):
            found.append(one)
            declared = True
    if not declared and "additionalProperties" in words:
        found.append(words["additionalProperties"])
    return found


# ---- reading a schema


def walk(root: Schema) -> Iterator[tuple[Schema, int]]:
    """Every schema in ``root`` and how deep it lies."""
    todo: list[tuple[Any, int]] = [(root, 0)]
    while todo:
        one, depth = todo.pop()
        if not isinstance(one, dict):
            continue
        yield one, depth
        for keyword, value in one.items():
            if keyword in ("$defs", "definitions") or _KIND_OF.get(keyword) == "names":
                todo += [(inner, depth + 1) for inner in value.values()] if isinstance(value, dict) else []
            elif isinstance(value, list) and (keyword == "items" or _KIND_OF.get(keyword) == "schemas"):
                todo += [(inner, depth + 1) for inner in value]
            elif keyword == "items" or _KIND_OF.get(keyword) == "schema":
                todo.append((value, depth + 1))


def checked(schema: Schema) -> Schema:
    words = {keyword: value for keyword, value in schema.items() if value is not None or keyword == "const"}
    for keyword, value in words.items():
        _check(keyword, value)
    words = {k: _plain_value(k, v) for k, v in words.items() if k not in ("title", "description", "default", "examples")}
    if isinstance(words.get("items"), list):  # before draft 2020-12
        words["prefixItems"] = words.pop("items")
        if "additionalItems" in words:
            words["items"] = words["additionalItems"]
    words.pop("additionalItems", None)
    for strict, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):  # draft 4
        if words.get(strict) is True and bound in words:
            words[strict] = words.pop(bound)
        elif isinstance(words.get(strict), bool):
            del words[strict]
    known = {keyword for keyword in words if keyword in LEAF or keyword in COMBINED or keyword in ("then", "else")}
    return {keyword: value for keyword, value in words.items() if keyword in known}


def _plain_value(keyword: Any, value: Any) -> Any:
    """``value``, with what it leaves open as a schema for everything."""
    kind = _KIND_OF.get(keyword)
    if kind == "names":
        return {name: True if one is None else one for name, one in value.items()}
    if kind == "count":
        return int(value)
    return value


def _check(keyword: Any, value: Any) -> None:
    kind = _KIND_OF.get(keyword, keyword)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    fine = True
    if kind == "number":
        draft_4 = keyword in ("exclusiveMinimum", "exclusiveMaximum") and isinstance(value, bool)
        fine = draft_4 or (number and abs(value) != float("inf") and value == value and (keyword != "multipleOf" or value > 0))
    elif kind == "count":
        fine = number and value == value and abs(value) != float("inf") and value >= 0 and int(value) == value
    elif kind == "string":
        fine = isinstance(value, str)
    elif kind == "schema":
        fine = isinstance(value, dict | bool)
    elif kind == "schemas":
        fine = isinstance(value, list) and all(isinstance(one, dict | bool) for one in value)
        fine = fine and (bool(value) or keyword == "prefixItems")
    elif kind == "names":
        names = (dict, bool, list, type(None)) if keyword == "dependencies" else (dict, bool, type(None))
        fine = isinstance(value, dict) and all(isinstance(one, names) for one in value.values())
        if fine and keyword == "dependencies":
            fine = all(not isinstance(one, list) or _is_names(one) for one in value.values())
    elif kind == "items":
        fine = all(isinstance(one, dict | bool) for one in (value if isinstance(value, list) else [value]))
    elif kind == "type":
        fine = (isinstance(value, str) and value in TYPES_OF) or (
            isinstance(value, list) and bool(value) and all(isinstance(one, str) and one in TYPES_OF for one in value)
        )
    elif kind == "enum":
        fine = isinstance(value, list)
    elif kind == "required":
        fine = _is_names(value)
    elif kind == "dependentRequired":
        fine = isinstance(value, dict) and all(map(_is_names, value.values()))
    elif kind == "uniqueItems":
        fine = isinstance(value, bool)
    if not fine:
        raise UsageError(f"`{shown(keyword, 40)}` of a JSON schema cannot be `{shown(value, 80)}`")


def _is_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def dependents(value: Schema) -> list[list[AnySchema]]:
    """What goes along with properties: for each of them, that it is absent, or that the other schema holds."""
    found: list[list[AnySchema]] = []
    for name, other in value.items():
        there: Schema = {"type": "object", "required": [name, *other]} if isinstance(other, list) else {
            "allOf": [{"type": "object", "required": [name]}, other]}  # fmt: skip
        absent: list[AnySchema] = [{Own.TYPES: sorted(TYPES - {"object"})}, {"type": "object", Own.ABSENT: [name]}]
        found.append([*absent, there])
    return found


# ---- items that are all different

_MOST_ARRANGED = 5
"""Values of which all arrangements are written out: 326."""


def without_unique(leaf: Leaf, loose: dict[str, None]) -> Leaf:
    """Without ``uniqueItems``: all arrangements where the items are one of a few values."""
    if "uniqueItems" not in leaf:
        return leaf
    plain = {keyword: value for keyword, value in leaf.items() if keyword != "uniqueItems"}
    least, most = leaf.get("minItems", 0), leaf.get("maxItems")
    if leaf["uniqueItems"] is not True or (most is not None and most <= 1):
        return plain
    values = _few_values(leaf.get("items"))
    if values is None or leaf.get("type") != "array" or {"prefixItems", "contains", "enum", "const"} & set(leaf):
        loose["uniqueItems"] = None
        return plain
    counts = range(least, min(len(values), len(values) if most is None else most) + 1)
    arranged = [list(some) for count in counts for some in itertools.permutations(values, count)]
    return {"type": "array", "enum": arranged}


def _few_values(items: Any) -> list[Any] | None:
    """The values that ``items`` allows, each once, if they are few."""
    if not isinstance(items, dict):
        return None
    values = [items["const"]] if "const" in items else [False, True] if items.get("type") == "boolean" else items.get("enum")
    if not isinstance(values, list) or not set(items) <= {"const", "enum", "type", "title", "description"}:
        return None
    if not 0 < len(values) <= _MOST_ARRANGED or not _all_of_type(values, items.get("type")):
        return None
    return [value for at, value in enumerate(values) if not any(same(value, other) for other in values[:at])]


def _all_of_type(values: list[Any], name: Any) -> bool:
    types = TYPES_OF.get(name, frozenset()) if isinstance(name, str) else TYPES
    return (name is None or isinstance(name, str)) and all(type_of(one) in types for one in values)


class Reader(Protocol):
    """Who reads a schema's words and follows its references (`edge_llm.decoding.schemas.reading.Schemas`)."""

    def words(self, schema: Schema) -> Schema: ...
    def resolved(self, reference: str) -> AnySchema: ...
    def kept_of(self, of: Any, what: str, make: Callable[[], Any]) -> Any: ...
    def step(self) -> None: ...
