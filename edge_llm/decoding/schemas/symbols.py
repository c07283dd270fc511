"""What rules are made of, and what is written in them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from edge_llm.decoding.schemas.reading import Schemas
from edge_llm.decoding.schemas.words import AnySchema, Leaf, Schema

_COMPACT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}}


@dataclass(frozen=True)
class Text:
    """A text as it stands."""

    text: str


@dataclass(frozen=True)
class Term:
    """A terminal's expression."""

    expression: str


@dataclass(frozen=True)
class Rule:
    number: int


@dataclass(frozen=True)
class Json:
    """A schema that the library writes."""

    text: str


@dataclass(frozen=True)
class Many:
    """Symbols from ``least`` to ``most`` times."""

    symbols: tuple[Symbol, ...]
    least: int
    most: int | None


Symbol = Text | Term | Rule | Json | Many
Symbols = tuple[Symbol, ...]

OPEN, CLOSE, COMMA, COLON = Text("{"), Text("}"), Text(","), Text(":")
BEGIN, END = Text("["), Text("]")


def many(symbols: Symbols, least: int, most: int | None) -> Symbols:
    """``symbols`` so many times."""
    return () if most == 0 else (Many(symbols, least, most),)


def key(name: str) -> Symbols:
    """The name of a property."""
    return Text(_dumped(name)), COLON


def constant(value: Any) -> Symbols:
    """``value`` as it is written; objects and arrays in pieces, so that they begin like any other."""
    if isinstance(value, list):
        items = [(*((COMMA,) if at else ()), *constant(one)) for at, one in enumerate(value)]
        return (BEGIN, *(one for item in items for one in item), END)
    if isinstance(value, dict):
        pairs = [(*((COMMA,) if at else ()), *key(name), *constant(one)) for at, (name, one) in enumerate(value.items())]
        return (OPEN, *(one for pair in pairs for one in pair), CLOSE)
    return (Text(_dumped(value)),)


def _dumped(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or not any(0xD800 <= ord(c) < 0xE000 for c in text) else json.dumps(value)


def library(schema: Schema) -> Json:
    """What the library makes of ``schema``."""
    return Json(json.dumps(schema | _COMPACT))


class Rules(Protocol):
    """Who makes the rules of values (`edge_llm.decoding.schemas.writer.Writer`)."""

    schemas: Schemas

    def value(self, schemas: Iterable[AnySchema]) -> Rule: ...
    def rule(self, options: list[Symbols]) -> Rule: ...
    def loose(self, keyword: str) -> None: ...
    def given(self, leaves: list[Leaf], types: frozenset[str]) -> list[Any] | None: ...
    def terminal(self, expression: str) -> Term | None: ...
    def library(self, schema: Schema) -> Json | None: ...
