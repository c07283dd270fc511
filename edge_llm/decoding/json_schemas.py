"""JSON schemas in the keywords that the grammar library has: the others are expressed by these, or named and left loose.

    held({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True})   # an enum of every arrangement, ()
    held({"type": "array", "uniqueItems": True})                              # {"type": "array"}, ("uniqueItems",)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from edge_llm.errors import UsageError
from edge_llm.files import shown

MAX_DEPTH = 120
"""Schemas inside of one another; the library takes no deeper JSON."""
_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)  # fmt: skip
"""What the library can hold a string to."""
_MOST_ARRANGED = 5
"""Values of which all arrangements are written out: 326."""
_DEFINITIONS = ("$defs", "definitions")
_POINTERS = ("#/$defs/", "#/definitions/")
_OF_NAMES = ("properties", "patternProperties", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_SINGLE = (
    "items", "additionalItems", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames",
    "unevaluatedItems", "unevaluatedProperties",
)  # fmt: skip

_OWN = frozenset(("properties", "patternProperties", "additionalProperties", "required", "propertyNames"))
_MOST_PASSES = 8

Schema = dict[str, Any]
Change = Callable[[Schema, bool], Schema]
"""What becomes of a schema, and whether others hold for the same value, by ``allOf`` or beside a ``$ref``."""


def held(schema: Schema) -> tuple[Schema, tuple[str, ...]]:
    """``schema`` in the library's keywords, and those of its keywords that an answer is not held to.

    An object has no other properties than the declared ones, unless it has ``additionalProperties``, or other schemas hold
    for it too: an answer that fits what is declared fits the schema, and a small model adds nothing of its own.
    Raises `UsageError` for a schema that nests deeper than `MAX_DEPTH`.
    """
    loose: list[str] = []

    def rewritten(one: Schema, joined: bool) -> Schema:
        return _closed(_unique(_named(_formatted(one, loose), loose), loose), joined)

    return _everywhere(schema, rewritten, _joined_definitions(schema)), tuple(dict.fromkeys(loose))


def _everywhere(schema: Schema, change: Change, joined_refs: set[str], joined: bool = False, depth: int = 0) -> Schema:
    """``schema`` with every schema in it changed, the inner ones first."""
    if depth > MAX_DEPTH:
        raise UsageError(f"the JSON schema nests more than {MAX_DEPTH} schemas in one another")
    joined = joined or _parts(schema) > 1 or "#" in joined_refs

    def inner(value: Any, joined: bool) -> Any:
        return _everywhere(value, change, joined_refs, joined, depth + 1) if isinstance(value, dict) else value

    changed = dict(schema)
    for keyword, value in schema.items():
        if keyword in _DEFINITIONS and isinstance(value, dict):
            changed[keyword] = {name: inner(one, f"#/{keyword}/{name}" in joined_refs) for name, one in value.items()}
        elif keyword in _OF_NAMES and isinstance(value, dict):
            changed[keyword] = {name: inner(one, joined) for name, one in value.items()}
        elif keyword in _LISTS and isinstance(value, list):
            changed[keyword] = [inner(one, joined) for one in value]
        elif keyword in _SINGLE:
            changed[keyword] = inner(value, joined)
    return change(changed, joined)


def _parts(schema: Schema) -> int:
    """How many parts of ``schema`` say something of one object."""
    branches = schema.get("allOf")
    return (
        (not _OWN.isdisjoint(schema))
        + (len(branches) if isinstance(branches, list) else 0)
        + sum(keyword in schema for keyword in ("anyOf", "oneOf", "$ref"))
    )


def _joined_definitions(schema: Schema) -> set[str]:
    """References to the definitions that hold beside others somewhere; "#" for all of them, where that takes long to tell."""
    found: set[str] = set()

    def note(one: Schema, joined: bool) -> Schema:
        if joined and isinstance(reference := one.get("$ref"), str):
            found.add(reference if reference.count("/") == 2 and reference.startswith(_POINTERS) else "#")
        return one

    for _ in range(_MOST_PASSES):
        before = len(found)
        _everywhere(schema, note, set(found))
        if len(found) == before:
            return found
    return {"#"}


def _closed(schema: Schema, joined: bool) -> Schema:
    """An object of its declared properties only, if nothing else is said."""
    declared, required = schema.get("properties"), schema.get("required", [])
    if joined or "additionalProperties" in schema or not isinstance(declared, dict) or not isinstance(required, list):
        return schema
    undeclared = [name for name in required if not isinstance(name, str) or name not in declared]
    return schema if undeclared else schema | {"additionalProperties": False}


def _formatted(schema: Schema, loose: list[str]) -> Schema:
    """Without a format that is unknown, which JSON schema takes for a remark."""
    name = schema.get("format")
    if not isinstance(name, str) or name in _FORMATS:
        return schema
    kinds = schema.get("type", "string")
    if kinds == "string" or (isinstance(kinds, list) and "string" in kinds):
        loose.append(f"format {shown(name, 40)}")
    return _without(schema, "format")


def _unique(schema: Schema, loose: list[str]) -> Schema:
    """Without ``uniqueItems``: all arrangements where the items are one of a few values."""
    if "uniqueItems" not in schema:
        return schema
    plain = _without(schema, "uniqueItems")
    least, most = schema.get("minItems", 0), schema.get("maxItems", _MOST_ARRANGED)
    if schema["uniqueItems"] is not True or (isinstance(most, int) and most <= 1):
        return plain
    values = _few_values(schema.get("items"))
    if values is None or "prefixItems" in schema or schema.get("type") != "array" or not isinstance(least, int):
        loose.append("uniqueItems")
        return plain
    counts = range(max(0, least), min(len(values), most if isinstance(most, int) else len(values)) + 1)
    arranged = [list(some) for count in counts for some in itertools.permutations(values, count)]
    return _without(plain, "items", "minItems", "maxItems") | {"enum": arranged}


def _few_values(items: Any) -> list[Any] | None:
    """The values that ``items`` allows, each once, if they are few."""
    if not isinstance(items, dict):
        return None
    values = [items["const"]] if "const" in items else [False, True] if items.get("type") == "boolean" else items.get("enum")
    plain = {"const", "enum", "type", "title", "description"}
    if not isinstance(values, list) or not set(items) <= plain or not 0 < len(values) <= _MOST_ARRANGED:
        return None
    kinds = items.get("type")
    if kinds is not None and not all(_is(value, kinds) for value in values):
        return None
    return [value for at, value in enumerate(values) if not any(_same(value, other) for other in values[:at])]


def _is(value: Any, kind: Any) -> bool:
    types = {"string": str, "integer": int, "boolean": bool, "null": type(None)}
    return isinstance(kind, str) and type(value) is types.get(kind)


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and (isinstance(one, bool) == isinstance(other, bool))


def _named(schema: Schema, loose: list[str]) -> Schema:
    """Without ``propertyNames``: names of a list are declared, names of a pattern have the schema of undeclared ones."""
    if "propertyNames" not in schema:
        return schema
    plain, names = _without(schema, "propertyNames"), _name_keywords(schema["propertyNames"])
    others, declared = schema.get("additionalProperties", {}), schema.get("properties", {})
    if names == {}:
        return plain
    if names is None or schema.get("patternProperties") or not isinstance(declared, dict):
        loose.append("propertyNames")
        return plain
    if set(names) == {"enum"} and isinstance(names["enum"], list):
        wanted = {name: others for name in names["enum"] if isinstance(name, str)} | declared
        allowed = {name: one if name in names["enum"] else False for name, one in wanted.items()}
        return plain | {"properties": allowed, "additionalProperties": False}
    pattern = _pattern(names)
    if pattern is None or declared:
        loose.append("propertyNames")
        return plain
    return plain | {"patternProperties": {pattern: others}, "additionalProperties": False}


def _name_keywords(names: Any) -> Schema | None:
    """What the schema ``names`` asks of a string; None where it allows no strings."""
    if names is True:
        return {}
    if not isinstance(names, dict) or names.get("type", "string") != "string":
        return None
    return _without(names, "type", "title", "description")


def _pattern(names: Schema) -> str | None:
    """The regular expression of names that are described by a pattern or by their lengths."""
    if set(names) == {"pattern"} and isinstance(names["pattern"], str):
        return str(names["pattern"])
    if set(names) <= {"minLength", "maxLength"} and all(type(length) is int and length >= 0 for length in names.values()):
        return rf"^[\s\S]{{{names.get('minLength', 0)},{names.get('maxLength', '')}}}$"
    return None


def _without(schema: Schema, *keywords: str) -> Schema:
    return {keyword: value for keyword, value in schema.items() if keyword not in keywords}
