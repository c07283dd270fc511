"""JSON schemas as they are read: references followed, and what a value may be as a choice between plain descriptions.

    schemas = Schemas({"oneOf": [{"type": "integer"}, {"type": "number"}]})
    schemas.choices((schemas.root,))     # one choice: numbers that are no integers
    schemas.loose                        # the keywords so far that an answer is not held to

A choice is a list of leaves, all of which hold, and the types that are left.  Leaves have keywords of values only: what
combines schemas (``allOf``, ``oneOf``, ``not``, ``if``, ...) has become more choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

from edge_llm.decoding.schemas.fitting import fits
from edge_llm.decoding.schemas.opposites import Opposites, Unheld
from edge_llm.decoding.schemas.words import (
    LEAF,
    MAX_DEPTH,
    REFERENCES,
    TYPES,
    VALUES,
    AnySchema,
    Leaf,
    Schema,
    checked,
    dependents,
    types_of,
    walk,
    without_unique,
)
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.strict_json import is_deeper

MAX_CHOICES = 400
"""Choices of one value, those counted that turn out impossible."""
_MOST_OPPOSITES = 4
"""Options of a ``oneOf`` that one of them must not match as well."""
_MOST_STEPS = 200_000

Choice = tuple[list[Leaf], frozenset[str]]
"""Leaves that all hold, and the types that they leave, of `TYPES`."""


@dataclass(frozen=True)
class _AsLeaf:
    leaf: Leaf


class Schemas:
    """One JSON schema with all that it refers to.  Raises `UsageError` for one that is malformed or nests too deeply.

    ``exact`` is that of `Opposites`.
    """

    def __init__(self, root: Schema, *, exact: bool = False) -> None:
        self.root = root
        self.opposites = Opposites(self, exact=exact)
        self.loose: dict[str, None] = {}
        """Keywords that an answer is not held to, in the order in which they were met."""
        self._named: dict[str, AnySchema] = {}
        self._kept: dict[tuple[int, str], tuple[Any, Any]] = {}  # what was made of an object, and the object, so that it stays
        self._steps = 0
        for one, depth in walk(root):
            if depth > MAX_DEPTH or any(is_deeper(one[keyword], MAX_DEPTH) for keyword in VALUES if keyword in one):
                raise UsageError(f"the JSON schema nests more than {MAX_DEPTH} schemas in one another")
            for keyword, mark in (("$id", ""), ("$anchor", "#"), ("$dynamicAnchor", "#")):
                if isinstance(name := one.get(keyword), str):
                    self._named.setdefault(mark + name, one)

    # ---- choices

    def options(self, schemas: tuple[AnySchema, ...]) -> list[AnySchema] | None:
        """The schemas of which one holds where ``schemas`` say nothing else; None where they say more."""
        if len(schemas) != 1 or isinstance(schemas[0], bool):
            return None
        self.step()
        parts, more = self._parts(schemas[0], True)
        if len(parts) + len(more) != 1 or any(isinstance(one, _AsLeaf) for one in parts):
            return None
        return parts or more[0]

    def choices(self, schemas: tuple[AnySchema, ...]) -> list[Choice]:
        """What a value may be for which all of ``schemas`` hold; () says that it may be anything."""
        found: list[Choice] = []
        alone = len(schemas) == 1
        stack: list[tuple[list[Any], list[list[AnySchema]], list[Leaf], frozenset[str], frozenset[int]]]
        stack = [(list(schemas), [], [], TYPES, frozenset())]
        tried = 0
        while stack:
            todo, open_, leaves, types, seen = stack.pop()
            alive = True
            while todo and alive:
                one = todo.pop(0)
                self.step()
                if isinstance(one, _AsLeaf):
                    types &= types_of(one.leaf)
                    alive = bool(types)
                    leaves = [*leaves, one.leaf]
                elif one is False:
                    alive = False
                elif one is not True and id(one) not in seen:
                    seen |= {id(one)}
                    parts, more = self._parts(one, alone)
                    todo, open_ = [*parts, *todo], [*open_, *more]
                    alone = alone and len(parts) + len(more) == 1
            if not alive:
                continue
            if not open_:
                found.append((leaves, types))
                continue
            tried += len(open_[0])
            if tried > MAX_CHOICES:
                raise UsageError("the JSON schema leaves too many choices for one value; make it simpler")
            for option in reversed(open_[0]):
                stack.append(([option], open_[1:], leaves, types, seen))
        return found

    def _parts(self, schema: Schema, alone: bool) -> tuple[list[Any], list[list[AnySchema]]]:
        """What all of ``schema`` says, in its order, and what it leaves to choose from."""
        words = self.words(schema)
        leaf = {keyword: value for keyword, value in words.items() if keyword in LEAF}
        if not alone:
            self._give_up_unevaluated(leaf)
        first = "properties" if "properties" in leaf else next(iter(leaf), None)
        parts: list[Any] = []
        more: list[list[AnySchema]] = []
        for keyword, value in words.items():
            if keyword == first:
                parts.append(_AsLeaf(self.kept_of(schema, "leaf", lambda: without_unique(leaf, self.loose))))
            if keyword in REFERENCES:
                parts.append(self.resolved(value))
            elif keyword == "allOf":
                parts += value
            elif keyword == "anyOf":
                more.append(value)
            elif keyword == "oneOf":
                more.append(self.kept_of(value, "one of", partial(self._one_of, value)))
            elif keyword == "not":
                parts.append(self._opposite_or_anything(value))
            elif keyword == "if":
                more += self.kept_of(schema, "if", lambda: self._conditions(words))
            elif keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
                more += self.kept_of(schema, keyword, partial(dependents, value))
        return parts, more

    def _give_up_unevaluated(self, leaf: Leaf) -> None:
        """Beside other schemas it cannot be told what none of them evaluates."""
        for keyword in ("unevaluatedProperties", "unevaluatedItems"):
            if leaf.pop(keyword, True) is not True:
                self.loose[keyword] = None

    def _one_of(self, options: list[AnySchema]) -> list[AnySchema]:
        """Each of ``options`` where no other one holds."""
        found: list[AnySchema] = []
        for at, one in enumerate(options):
            others = [other for n, other in enumerate(options) if n != at and not self.opposites.apart(one, other)]
            try:
                if len(others) > _MOST_OPPOSITES:
                    raise Unheld
                found.append({"allOf": [one, *map(self.opposites.of, others)]} if others else one)
            except Unheld:
                self.loose["oneOf"] = None
                found.append(one)
        return found

    def _conditions(self, words: Schema) -> list[list[AnySchema]]:
        condition, then, other = words["if"], words.get("then", True), words.get("else", True)
        if then is True and other is True:
            return []
        try:
            options: list[AnySchema] = [{"allOf": [condition, then]}, {"allOf": [self.opposites.of(condition), other]}]
        except Unheld:
            self.loose["if"] = None
            return []
        return [options]

    def _opposite_or_anything(self, schema: AnySchema) -> AnySchema:
        try:
            return self.opposites.of(schema)
        except Unheld:
            self.loose["not"] = None
            return True

    # ---- one schema

    def words(self, schema: Schema) -> Schema:
        """The keywords of ``schema`` that mean something, checked, those of older drafts as those of today."""
        found: Schema = self.kept_of(schema, "words", lambda: checked(schema))
        return found

    def resolved(self, reference: str) -> AnySchema:
        """What ``reference`` leads to; raises `UsageError`."""
        root_id = self.root.get("$id", "")
        place = reference.removeprefix(root_id.rstrip("#")) if isinstance(root_id, str) and root_id else reference
        found: Any = self.root
        if place in ("", "#"):
            return self.root
        if place in self._named:
            return self._named[place]
        if not place.startswith("#/"):
            out = f"the reference `{shown(reference, 80)}` leads out of the JSON schema"
            raise UsageError(f"{out}; put what it names into `$defs`")
        for part in place[2:].split("/"):
            name = unquote(part).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and name.isascii() and name.isdigit() and int(name[:9]) < len(found):
                found = found[int(name[:9])]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                raise UsageError(f"the reference `{shown(reference, 80)}` leads nowhere: there is no `{shown(name, 40)}`")
        if found is not None and not isinstance(found, dict | bool):
            raise UsageError(f"the reference `{shown(reference, 80)}` leads to no JSON schema")
        return True if found is None else found

    def kept_of(self, of: Any, what: str, make: Callable[[], Any]) -> Any:
        """What ``make`` gives, made once for the object ``of``: choices of the same schemas must be the same objects."""
        if (id(of), what) not in self._kept:
            made = make()
            self._kept[id(of), what] = (of, made)
        return self._kept[id(of), what][1]

    def step(self) -> None:
        self._steps += 1
        if self._steps > _MOST_STEPS:
            raise UsageError(f"the JSON schema takes more than {_MOST_STEPS} steps to read; make it simpler")

    def fits(self, value: Any, schemas: Iterable[AnySchema]) -> bool:
        """Whether all of ``schemas`` hold for ``value``; keywords that cannot be tried count as held."""
        return all(fits(self, value, one) for one in schemas)
