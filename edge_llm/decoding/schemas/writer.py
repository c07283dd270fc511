"""JSON schemas as grammars in Lark's syntax: compact JSON, with the properties in the order in which they are declared.

    lark_of({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True})   # a grammar of every arrangement, ()
    lark_of({"type": "array", "uniqueItems": True})                              # a grammar of arrays, ("uniqueItems",)

An object has no other properties than the declared ones, unless ``additionalProperties`` says so or undeclared ones are
required: an answer that fits what is declared fits the schema, and a small model adds nothing of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from edge_llm.decoding.schemas.arrays import array
from edge_llm.decoding.schemas.objects import object_
from edge_llm.decoding.schemas.reading import Schemas
from edge_llm.decoding.schemas.scalars import number, string
from edge_llm.decoding.schemas.symbols import Json, Rule, Symbols, Term, Text, constant, library
from edge_llm.decoding.schemas.text import LarkText, fruitful_rules
from edge_llm.decoding.schemas.words import VALUES, AnySchema, Leaf, Schema, type_of, values_of
from edge_llm.errors import UsageError

MAX_RULES = 60_000
"""Of one schema."""
_MOST_TRIED = 30
"""Terminals that are looked at whether they match anything."""


def lark_of(schema: Schema, is_empty: Callable[[str], bool] = lambda lark: False) -> tuple[str, tuple[str, ...]]:
    """The grammar of ``schema``, and those of its keywords that an answer is not held to.

    ``is_empty`` says of a small grammar that it allows no text.  Raises `UsageError` for a schema that is malformed, too large,
    or that no value fits.
    """
    writer = Writer(schema, is_empty, exact=False)
    text = writer.text()
    if text is None and writer.schemas.opposites.partial:
        writer = Writer(schema, is_empty, exact=True)
        text = writer.text()
    if text is None:
        raise UsageError("the JSON schema is unsatisfiable: no value fits it")
    return text, tuple(writer.schemas.loose)


class Writer:
    """The rules of one schema.  ``is_empty`` says of a small grammar that it allows no text."""

    def __init__(self, schema: Schema, is_empty: Callable[[str], bool], *, exact: bool) -> None:
        self.schemas = Schemas(schema, exact=exact)
        self._is_empty = is_empty
        self._tried: dict[str, bool] = {}
        self._rules: list[list[Symbols] | None] = []
        self._numbers: dict[tuple[int, ...], int] = {}
        self._asked: list[tuple[AnySchema, ...]] = []  # what each rule is of; they stay, as rules are known by their ids
        self._todo: deque[int] = deque()
        self.value((schema,))

    def text(self) -> str | None:
        """All rules as Lark text; None where no value fits."""
        while self._todo:
            number = self._todo.popleft()
            self._rules[number] = list(dict.fromkeys(self._options_of(self._asked[number])))
        rules = [rule or [] for rule in self._rules]
        fruitful = fruitful_rules(rules)
        if not fruitful[0]:
            return None
        return LarkText(rules, fruitful).text()

    # ---- rules

    def value(self, schemas: Iterable[AnySchema]) -> Rule:
        """The rule of values for which all of ``schemas`` hold."""
        asked = tuple({id(one): one for one in schemas if one is not True}.values())
        key = tuple(map(id, asked))
        if key not in self._numbers:
            self._numbers[key] = self._new_rule(asked)
            self._todo.append(self._numbers[key])
        return Rule(self._numbers[key])

    def rule(self, options: list[Symbols]) -> Rule:
        """A rule of ``options``."""
        number = self._new_rule(())
        self._rules[number] = options
        return Rule(number)

    def _new_rule(self, asked: tuple[AnySchema, ...]) -> int:
        if len(self._rules) >= MAX_RULES:
            raise UsageError(f"the JSON schema takes more than {MAX_RULES} rules; make it smaller")
        self._rules.append(None)
        self._asked.append(asked)
        return len(self._rules) - 1

    def loose(self, keyword: str) -> None:
        """Name ``keyword`` as one that an answer is not held to."""
        self.schemas.loose[keyword] = None

    # ---- values

    def _options_of(self, schemas: tuple[AnySchema, ...]) -> Iterable[Symbols]:
        options = self.schemas.options(schemas)
        if options is not None:
            return [(self.value((one,)),) for one in options if one is not False]
        return [option for leaves, types in self.schemas.choices(schemas) for option in self._options(leaves, types)]

    def _options(self, leaves: list[Leaf], types: frozenset[str]) -> Iterable[Symbols]:
        given = self.given(leaves, types)
        if given is not None:
            return [constant(one) for one in given]
        options: list[Symbols] = []
        if "null" in types and self.fits(None, leaves, types):
            options.append((Text("null"),))
        if "boolean" in types:
            options += [(Text(word),) for word, value in (("true", True), ("false", False)) if self.fits(value, leaves, types)]
        if {"integer", "fraction"} & types:
            options += number(self, leaves, types)
        if "string" in types:
            options += string(self, leaves)
        if "array" in types:
            options += array(self, leaves)
        if "object" in types:
            options += object_(self, leaves)
        return options

    def given(self, leaves: list[Leaf], types: frozenset[str]) -> list[Any] | None:
        """The values of a choice of `Schemas.choices`, where it lists them."""
        at = next((at for at, leaf in enumerate(leaves) if values_of(leaf) is not None), None)
        if at is None:
            return None
        others = [*leaves[:at], {word: value for word, value in leaves[at].items() if word not in VALUES}, *leaves[at + 1 :]]
        return [one for one in values_of(leaves[at]) or [] if self.fits(one, others, types)]

    def fits(self, value: Any, leaves: list[Leaf], types: frozenset[str]) -> bool:
        """Whether a choice of `Schemas.choices` allows ``value``."""
        return type_of(value) in types and self.schemas.fits(value, leaves)

    def terminal(self, expression: str) -> Term | None:
        """The terminal ``expression``; None where it is plain that it matches nothing.

        Only what holds of several things together may be empty, and the first ones of them are tried.
        """
        return None if " & " in expression and self._allows_nothing(f"start: T\nT: {expression}") else Term(expression)

    def library(self, schema: Schema) -> Json | None:
        """What the library makes of ``schema``; None where it is plain that this allows nothing."""
        made = library(schema)
        return None if self._allows_nothing(f"start: %json {made.text}") else made

    def _allows_nothing(self, lark: str) -> bool:
        if lark not in self._tried and len(self._tried) < _MOST_TRIED:
            self._tried[lark] = self._is_empty(lark)
        return self._tried.get(lark, False)
