"""Whether a schema holds for a value that is known: one of ``const`` or ``enum``, or the name of a property."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from edge_llm.decoding.schemas.patterns import UnheldPattern
from edge_llm.decoding.schemas.words import (
    MAX_DEPTH,
    REFERENCES,
    AnySchema,
    Own,
    Reader,
    Schema,
    dependents,
    item_of,
    number_fits,
    properties_of,
    same,
    string_fits,
    type_of,
    types_of,
    values_of,
)


def fits(schemas: Reader, value: Any, schema: AnySchema, depth: int = 0) -> bool:
    """Whether ``schema`` holds for ``value``; keywords that cannot be tried count as held."""
    schemas.step()
    if isinstance(schema, bool) or depth > MAX_DEPTH:
        return bool(schema)
    words, kind = schemas.words(schema), type_of(value)

    def inner(value: Any, one: AnySchema) -> bool:
        return fits(schemas, value, one, depth + 1)

    if kind not in types_of({k: v for k, v in words.items() if k in ("type", Own.TYPES)}):
        return False
    values = values_of(words)
    if values is not None and not any(same(value, one) for one in values):
        return False
    if any(same(value, one) for one in words.get(Own.EXCLUDED, ())):
        return False
    together = [schemas.resolved(words[keyword]) for keyword in REFERENCES if keyword in words] + words.get("allOf", [])
    if not all(inner(value, one) for one in together):
        return False
    if "anyOf" in words and not any(inner(value, one) for one in words["anyOf"]):
        return False
    if "oneOf" in words and sum(inner(value, one) for one in words["oneOf"]) != 1:
        return False
    if "not" in words and inner(value, words["not"]):
        return False
    if "if" in words and not inner(value, words.get("then" if inner(value, words["if"]) else "else", True)):
        return False
    if kind in ("integer", "fraction"):
        return number_fits(value, words)
    if kind == "string":
        return string_fits(value, words)
    if kind == "array":
        return _array_fits(value, words, inner)
    return kind != "object" or _object_fits(value, words, inner)


def _array_fits(value: list[Any], words: Schema, inner: Callable[[Any, AnySchema], bool]) -> bool:
    if not words.get("minItems", 0) <= len(value) <= words.get("maxItems", len(value)):
        return False
    if not all(inner(one, item_of(words, at)) for at, one in enumerate(value)):
        return False
    if words.get("uniqueItems") is True and any(same(a, b) for n, a in enumerate(value) for b in value[:n]):
        return False
    if "contains" in words:
        count = sum(inner(one, words["contains"]) for one in value)
        return bool(words.get("minContains", 1) <= count <= words.get("maxContains", count))
    return True


def _object_fits(value: dict[str, Any], words: Schema, inner: Callable[[Any, AnySchema], bool]) -> bool:
    if not words.get("minProperties", 0) <= len(value) <= words.get("maxProperties", len(value)):
        return False
    if not set(words.get("required", ())) <= set(value) or set(words.get(Own.ABSENT, ())) & set(value):
        return False
    for more in map(dependents, (words.get(keyword, {}) for keyword in ("dependentRequired", "dependentSchemas"))):
        if not all(any(inner(value, one) for one in options) for options in more):
            return False
    for name, one in value.items():
        if not inner(name, words.get("propertyNames", True)):
            return False
        with suppress(UnheldPattern):
            if not all(inner(one, each) for each in properties_of(words, name)):
                return False
    return True
