"""Rules as Lark text: those that have a text and are reachable, each terminal once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from edge_llm.decoding.lark_text import quoted
from edge_llm.decoding.schemas.symbols import Json, Many, Rule, Symbol, Symbols, Term, Text
from edge_llm.errors import UsageError

MAX_CHARACTERS = 4 << 20
"""Of the grammar that a schema becomes."""


def fruitful_rules(rules: list[list[Symbols]]) -> list[bool]:
    """Which rules have a text."""
    found = [False] * len(rules)
    users: dict[int, list[int]] = {}
    for number, options in enumerate(rules):
        for one in {one for option in options for one in _rules_in(option)}:
            users.setdefault(one, []).append(number)
    todo = deque(range(len(rules)))
    while todo:
        number = todo.pop()
        if not found[number] and any(_has_text(option, found) for option in rules[number]):
            found[number] = True
            todo.extend(one for one in users.get(number, ()) if not found[one])
    return found


def _has_text(symbols: Symbols, fruitful: list[bool]) -> bool:
    for one in symbols:
        if isinstance(one, Rule) and not fruitful[one.number]:
            return False
        if isinstance(one, Many) and one.least and not _has_text(one.symbols, fruitful):
            return False
    return True


class LarkText:
    def __init__(self, rules: list[list[Symbols]], fruitful: list[bool]) -> None:
        self._rules = rules
        self._fruitful = fruitful
        self._terms: dict[str, str] = {}
        self._lines: list[str] = []
        self._onlys: dict[int, Symbol | None] = {}
        self._size = 0

    def text(self) -> str:
        """What is reachable from the first rule."""
        todo, seen = deque([0]), {0}
        while todo:
            number = todo.popleft()
            options = [one for one in self._rules[number] if _has_text(one, self._fruitful)]
            written = [" ".join(map(self._written, filter(self._is_kept, option))) or '""' for option in options]
            self._add(f"{'start' if number == 0 else f'r{number}'}: {' | '.join(dict.fromkeys(written))}")
            for one in _rules_in(one for option in options for one in option):
                one = self._same_as(one)
                if one not in seen and self._fruitful[one]:
                    seen.add(one)
                    todo.append(one)
        return "\n".join((*self._lines, *(f"{name}: {expression}" for expression, name in self._terms.items())))

    def _add(self, line: str) -> None:
        self._lines.append(line)
        self._size += len(line)
        if self._size > MAX_CHARACTERS:
            raise UsageError("the JSON schema takes more than a grammar may hold; make it smaller")

    def _is_kept(self, symbol: Symbol) -> bool:
        return not isinstance(symbol, Many) or _has_text(symbol.symbols, self._fruitful)

    def _written(self, symbol: Symbol) -> str:
        if isinstance(symbol, Text):
            return quoted(symbol.text)
        if isinstance(symbol, Term):
            if symbol.expression not in self._terms:
                self._terms[symbol.expression] = f"T{len(self._terms)}"
                self._size += len(symbol.expression)
            return self._terms[symbol.expression]
        if isinstance(symbol, Json):
            return f"%json {symbol.text}"
        if isinstance(symbol, Rule):
            number = self._same_as(symbol.number)
            only = self._only(number)
            return self._written(only) if isinstance(only, Term | Text) else "start" if number == 0 else f"r{number}"
        inside = " ".join(map(self._written, filter(self._is_kept, symbol.symbols)))
        counts = {(0, None): "*", (0, 1): "?", (1, None): "+"}.get((symbol.least, symbol.most))
        most = "" if symbol.most is None else symbol.most
        return f"({inside})" + (counts or f"{{{symbol.least},{most}}}")

    def _only(self, number: int) -> Symbol | None:
        """What the rule ``number`` is, if it is one symbol."""
        if number not in self._onlys:
            options = [one for one in self._rules[number] if _has_text(one, self._fruitful)]
            self._onlys[number] = options[0][0] if len(options) == 1 and len(options[0]) == 1 else None
        return self._onlys[number]

    def _same_as(self, number: int) -> int:
        seen: set[int] = set()
        while isinstance(only := self._only(number), Rule) and number not in seen:
            seen.add(number)
            number = only.number
        return number


def _rules_in(symbols: Iterable[Symbol]) -> Iterable[int]:
    for one in symbols:
        if isinstance(one, Rule):
            yield one.number
        elif isinstance(one, Many):
            yield from _rules_in(one.symbols)
