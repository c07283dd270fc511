"""Arrays of a schema, as rules."""

from __future__ import annotations

from typing import Any

from edge_llm.decoding.schemas.symbols import BEGIN, COMMA, END, Many, Rule, Rules, Symbol, Symbols, many
from edge_llm.decoding.schemas.words import AnySchema, Leaf, excluded_values, item_of

_MOST_STATES = 3000
"""Of one array whose items are counted."""


def array(w: Rules, leaves: list[Leaf]) -> list[Symbols]:
    """The arrays for which all of ``leaves`` hold."""
    least = max(leaf.get("minItems", 0) for leaf in leaves) if leaves else 0
    most = min((leaf["maxItems"] for leaf in leaves if "maxItems" in leaf), default=None)
    first = max((len(leaf.get("prefixItems", ())) for leaf in leaves), default=0)
    others = [leaf["unevaluatedItems"] for leaf in leaves if leaf.get("unevaluatedItems", True) is not True]
    others = [] if any("items" in leaf for leaf in leaves) else others
    if any(isinstance(one, list) for one in excluded_values(leaves)):
        w.loose("not")


    def item(at: int) -> tuple[AnySchema, ...]:
        return (*(item_of(leaf, at) for leaf in leaves), *(others if at >= first else ()))

    holders = [leaf for leaf in leaves if "contains" in leaf and (leaf.get("minContains", 1) or "maxContains" in leaf)]
    if len(holders) > 1:
        w.loose("contains")
    if most is not None and least > most:
        return []
    if holders:
        found = _containing(w, holders[0], item, first, least, most)
        if found is not None:
            return found
    rest = w.value(item(first))
    after: Symbols = ()
    for at in range(min(first, _MOST_STATES if most is None else most), -1, -1):
        here, comma = (rest if at == first else w.value(item(at))), (COMMA,) if at else ()
        options: list[Symbols] = [()] if at >= least else []
        if at == first and most != first:
            more = None if most is None else most - at - 1
            options.append((*comma, here, *many((COMMA, here), max(0, least - at - 1), more)))
        elif at < first and (most is None or at < most):
            options.append((*comma, here, *after))
        after = (w.rule(options),)
    return [(BEGIN, *after, END)]


def _containing(w: Rules, holder: Leaf, item: Any, first: int, least: int, most: int | None) -> list[Symbols] | None:
    """Arrays of which some items fit ``contains``; None where that cannot be held."""
    wanted, need, limit = holder["contains"], holder.get("minContains", 1), holder.get("maxContains")
    other: tuple[AnySchema, ...] = ()
    if limit is not None:
        refused = w.schemas.opposites.tried(wanted)
        if refused is None:
            w.loose("maxContains")
            limit = None
        else:
            other = (refused,)
    length = max(first, least) if most is None else most
    count = need if limit is None else limit
    if (limit is not None and limit < need) or (length + 1) * (count + 1) > _MOST_STATES:
        if limit is not None and limit < need:
            return []
        w.loose("contains")
        return None

    def plain(at: int) -> Symbol:
        return w.value((*item(at), *other))

    def counted(at: int) -> Symbol:
        return w.value((*item(at), wanted))

    states: dict[tuple[int, int], Rule] = {}
    for at in range(length, -1, -1):
        for have in range(count, -1, -1):
            comma = (COMMA,) if at else ()
            whole = at >= least and have >= need
            options: list[Symbols] = [()] if whole else []
            if at < length:
                options.append((*comma, plain(at), states[at + 1, have]))
                if have < count or limit is None:
                    options.append((*comma, counted(at), states[at + 1, min(count, have + 1)]))
            elif most is None:
                options = _endless(plain(at), counted(at), need - have, None if limit is None else limit - have, bool(at))
            states[at, have] = w.rule(options)
    return [(BEGIN, states[0, 0], END)]


def _endless(plain: Symbol, counted: Symbol, need: int, limit: int | None, begun: bool) -> list[Symbols]:
    """Items without an end, ``need`` to ``limit`` of them counted; ``begun`` says that others stand before them."""
    before = Many((COMMA, plain) if begun else (plain, COMMA), 0, None)
    after = Many((COMMA, plain), 0, None)
    again: Symbols = (COMMA, counted, after)
    one = (before, *((COMMA,) if begun else ()), counted, after)
    options: list[Symbols] = []
    if need <= 0:
        options.append((after,) if begun else ())
        if not begun:
            options.append((plain, after))
    if limit is None and need <= 0 and begun:
        return options
    if limit is None or limit > 0:
        options.append((*one, *many(again, max(0, need - 1), max(0, (need if limit is None else limit) - 1))))
    return options
