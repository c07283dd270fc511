"""JSON schemas the other way round: of values for which a schema does not hold, for ``not``, ``if`` and ``oneOf``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

from edge_llm.decoding.schemas.words import REFERENCES, TYPES, VALUES, AnySchema, Own, Reader, Schema, same, types_of, values_of

_FLIPPED: dict[Any, tuple[str, str, Callable[[Any], Any]]] = {
    "minLength": ("string", "maxLength", lambda n: n - 1), "maxLength": ("string", "minLength", lambda n: n + 1),
    "minItems": ("array", "maxItems", lambda n: n - 1), "maxItems": ("array", "minItems", lambda n: n + 1),
    "minProperties": ("object", "maxProperties", lambda n: n - 1),
    "maxProperties": ("object", "minProperties", lambda n: n + 1),
    "minimum": ("number", "exclusiveMaximum", lambda n: n), "maximum": ("number", "exclusiveMinimum", lambda n: n),
    "exclusiveMinimum": ("number", "maximum", lambda n: n), "exclusiveMaximum": ("number", "minimum", lambda n: n),
}  # fmt: skip
"""The type and the bound of values that fail one."""
_MOST_PAIRS = 6
"""Of options that are tried together."""
_NEAR = 8
"""References and ``allOf`` that are followed to see whether two schemas exclude one another."""


class Unheld(Exception):
    """What cannot be said the other way round."""


class Opposites:
    """The opposites of ``schemas``: of all values for which a schema does not hold, or of some where not all can be described.

    ``exact`` says that an opposite of some values only is none.
    """

    def __init__(self, schemas: Reader, *, exact: bool) -> None:
        self._schemas = schemas
        self._exact = exact
        self.partial = False
        """Whether values were left out so far."""
        self._under_way: set[int] = set()

    def of(self, schema: AnySchema) -> AnySchema:
        """The opposite of ``schema``; raises `Unheld` where there is none."""
        if isinstance(schema, bool):
            return not schema
        if id(schema) in self._under_way:  # it is made of itself
            raise Unheld
        found: AnySchema | None = self._schemas.kept_of(schema, "opposite", lambda: self._made(schema))
        if found is None:
            raise Unheld
        return found

    def _made(self, schema: Schema) -> AnySchema | None:
        self._under_way.add(id(schema))
        try:
            return self._options(schema)
        finally:
            self._under_way.discard(id(schema))

    def _options(self, schema: Schema) -> AnySchema | None:
        words = self._schemas.words(schema)
        if not words:
            return False
        options: list[AnySchema] = []
        for keyword, value in words.items():
            try:
                options += self._failing(keyword, value, words)
            except Unheld:
                self.partial = True
                if self._exact:
                    return None
        return {"anyOf": options} if options else None

    def _failing(self, keyword: Any, value: Any, words: Schema) -> list[AnySchema]:
        """Schemas of values that fail ``keyword``; raises `Unheld`."""
        if keyword in ("type", Own.TYPES):
            left = TYPES - types_of({keyword: value})
            return [{Own.TYPES: sorted(left)}] if left else []
        if keyword in VALUES:
            return [{Own.EXCLUDED: value if keyword == "enum" else [value]}]
        if keyword in _FLIPPED:
            kind, other, change = _FLIPPED[keyword]
            bound = change(value)
            return [] if kind != "number" and bound < 0 else [{"type": kind, other: bound}]
        if keyword == "pattern":
            return [{"type": "string", Own.NO_PATTERNS: [value]}]
        if keyword == "required":
            return [{"type": "object", Own.ABSENT: [name]} for name in value]
        if keyword in ("properties", Own.PROPERTIES):
            return self._failing_properties(value)
        if keyword == "items" and isinstance(value, dict | bool) and "prefixItems" not in words:
            return [{"type": "array", "contains": self.of(value)}]
        if keyword == "contains" and words.get("minContains", 1) == 1 and "maxContains" not in words:
            return [{"type": "array", "items": self.of(value)}]
        named = words.get("properties") or words.get("patternProperties")
        if keyword == "additionalProperties" and value is False and not named:
            return [{"type": "object", "minProperties": 1}]
        if keyword == "anyOf":
            return [self._none_of(value)]
        if keyword == "oneOf":
            return [*self._two_of(value), self._none_of(value)]
        if keyword == "allOf":
            return [found for one in value if (found := self._where_told(one)) is not None]
        if keyword == "not":
            return [value]
        if keyword in REFERENCES:
            return [self.of(self._schemas.resolved(value))]
        if keyword == "dependentRequired":
            pairs = [(name, other) for name, others in value.items() for other in others]
            return [{"type": "object", "required": [name], Own.ABSENT: [other]} for name, other in pairs]
        raise Unheld

    def _none_of(self, options: list[AnySchema]) -> Schema:
        return {"allOf": [self.of(one) for one in options]}

    def _two_of(self, options: list[AnySchema]) -> list[AnySchema]:
        """Any two of ``options`` together, as far as they may hold together."""
        pairs: list[AnySchema] = [{"allOf": [*two]} for two in combinations(options, 2) if not self.apart(*two)]
        if len(pairs) > _MOST_PAIRS:
            self.partial = True
            if self._exact:
                raise Unheld
        return pairs[:_MOST_PAIRS]

    def _failing_properties(self, properties: Schema) -> list[AnySchema]:
        found: list[AnySchema] = []
        for name, one in properties.items():
            other = self._where_told(one)
            if other is not None and other is not False:
                found.append({"type": "object", "required": [name], Own.PROPERTIES: {name: other}})
        return found

    def tried(self, schema: AnySchema) -> AnySchema | None:
        """The opposite of ``schema``; None where there is none."""
        try:
            return self.of(schema)
        except Unheld:
            return None

    def _where_told(self, schema: AnySchema) -> AnySchema | None:
        """The opposite of ``schema``, one of several; None where it cannot be told.  Raises `Unheld` where all must be."""
        found = self.tried(schema)
        if found is None:
            self.partial = True
            if self._exact:
                raise Unheld
        return found

    # ---- schemas that exclude one another

    def apart(self, one: AnySchema, other: AnySchema) -> bool:
        """Whether it is plain that no value fits both."""
        if one is False or other is False:
            return True
        types = self._plain_types(one) & self._plain_types(other)
        if not types:
            return True
        values, more = self._plain_values(one), self._plain_values(other)
        if values is not None and more is not None and not any(same(a, b) for a in values for b in more):
            return True
        if types != {"object"}:
            return False
        marks = self._schemas.kept_of(one, "marks", lambda: self._plain_marks(one))
        others = self._schemas.kept_of(other, "marks", lambda: self._plain_marks(other))
        return any(
            not any(same(a, b) for a in marks[name] for b in others[name]) for name in marks.keys() & others.keys()
        )  # fmt: skip

    def _plain(self, schema: AnySchema, depth: int = 0) -> Iterator[Schema]:
        """``schema`` and what holds together with it by references and ``allOf``."""
        self._schemas.step()
        if isinstance(schema, bool) or depth > _NEAR:
            return
        words = self._schemas.words(schema)
        yield words
        for keyword in REFERENCES:
            if keyword in words:
                yield from self._plain(self._schemas.resolved(words[keyword]), depth + 1)
        for one in words.get("allOf", ()):
            yield from self._plain(one, depth + 1)

    def _plain_types(self, schema: AnySchema) -> frozenset[str]:
        def types() -> frozenset[str]:
            return TYPES.intersection(*map(types_of, self._plain(schema)))

        found: frozenset[str] = self._schemas.kept_of(schema, "types", types)
        return found

    def _plain_values(self, schema: AnySchema) -> list[Any] | None:
        def values() -> list[Any] | None:
            return next((given for words in self._plain(schema) if (given := values_of(words)) is not None), None)

        found: list[Any] | None = self._schemas.kept_of(schema, "values", values)
        return found

    def _plain_marks(self, schema: AnySchema) -> dict[str, list[Any]]:
        """The values of properties that an object must have, where they are few."""
        plain = list(self._plain(schema))
        required = {name for words in plain for name in words.get("required", ())}
        found = {}
        for words in plain:
            for name, one in words.get("properties", {}).items():
                if name in required and (values := self._plain_values(one)) is not None:
                    found[name] = values
        return found
