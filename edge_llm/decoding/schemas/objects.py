"""Objects of a schema, as rules: declared properties in their order, then others."""

from __future__ import annotations

from edge_llm.decoding.schemas.patterns import Reading, UnheldPattern, found_in, parsed
from edge_llm.decoding.schemas.scalars import inside
from edge_llm.decoding.schemas.symbols import CLOSE, COLON, COMMA, OPEN, Rule, Rules, Symbol, Symbols, Term, key, many
from edge_llm.decoding.schemas.terminals import QUOTE, STRING, complement, either, quoted_text, terminal
from edge_llm.decoding.schemas.words import AnySchema, Leaf, Own, excluded_values, properties_of

_MOST_STATES = 3000
"""Of one object whose properties are counted."""
_FEW_PATTERNS = 3
_BLOCK = 24
"""Properties of one rule; a rule refers to the next one."""


def object_(w: Rules, leaves: list[Leaf]) -> list[Symbols]:
    """The objects for which all of ``leaves`` hold."""
    if any(isinstance(one, dict) for one in excluded_values(leaves)):
        w.loose("not")
    asked = [leaf["propertyNames"] for leaf in leaves if "propertyNames" in leaf]
    listed, wanted = _names_asked_for(w, asked)
    names, required = _names(leaves, listed)
    patterns = list(dict.fromkeys(one for leaf in leaves for one in leaf.get("patternProperties", ())))
    closed = _is_closed(w, leaves, required, patterns)
    members = [(name, _property(w, leaves, name, patterns), name in required) for name in names]
    groups = [] if wanted is None else _others(w, leaves, wanted, [*names, *_absent(leaves)], patterns, closed)
    entry = w.rule(groups) if groups else None
    least = max((leaf.get("minProperties", 0) for leaf in leaves), default=0)
    most = min((leaf["maxProperties"] for leaf in leaves if "maxProperties" in leaf), default=None)
    if most is not None and most >= len(members) and entry is None:
        most = None
    if most is not None and most < max(least, len(required)):
        return []
    if least <= len(required) and most is None:
        return [(OPEN, *_members(w, members, entry), CLOSE)]
    count = max(least, most or 0)
    if entry is not None and least - len(required) > 1:  # the same name may come twice
        w.loose("minProperties")
    if not members and entry is not None:
        return [(OPEN, *one, CLOSE) for one in _entries(entry, least, most, begun=False)]
    if (len(members) + 1) * (count + 1) > _MOST_STATES:
        for word, held in (("minProperties", least <= len(required)), ("maxProperties", most is None)):
            if not held:
                w.loose(word)
        return [(OPEN, *_members(w, members, entry), CLOSE)]
    return [(OPEN, _counted_members(w, members, entry, least, most), CLOSE)]


def _names(leaves: list[Leaf], listed: list[str]) -> tuple[list[str], set[str]]:
    """The names that are spoken of, in order, and those that are required."""
    words = ("properties", Own.PROPERTIES)
    names = dict.fromkeys(name for leaf in leaves for word in words for name in leaf.get(word, ()))
    required = dict.fromkeys(name for leaf in leaves for name in leaf.get("required", ()))
    return list(names | required | dict.fromkeys(listed)), set(required)


def _is_closed(w: Rules, leaves: list[Leaf], required: set[str], patterns: list[str]) -> bool:
    if any("additionalProperties" in leaf for leaf in leaves):
        return False
    if any(leaf.get("unevaluatedProperties") is False for leaf in leaves):
        return True
    declared = {name for leaf in leaves for name in leaf.get("properties", ())}
    declared |= {name for name in required for one in patterns if _is_found(w, one, name)}
    named = any("propertyNames" in leaf for leaf in leaves)
    return any("properties" in leaf for leaf in leaves) and required <= declared and not named


def _is_found(w: Rules, pattern: str, name: str) -> bool:
    try:
        return found_in(parsed(pattern), name)
    except UnheldPattern:
        w.loose("patternProperties")
        return False


def _property(w: Rules, leaves: list[Leaf], name: str, patterns: list[str]) -> Symbol:
    schemas: list[AnySchema] = []
    for leaf in leaves:
        try:
            schemas += properties_of(leaf, name)
        except UnheldPattern:
            w.loose("patternProperties")
        if not w.schemas.fits(name, [leaf.get("propertyNames", True)]) or name in leaf.get(Own.ABSENT, ()):
            schemas.append(False)
    undeclared = not any(name in leaf.get("properties", ()) for leaf in leaves)
    if undeclared and not any(_is_found(w, one, name) for one in patterns):
        schemas += [leaf["unevaluatedProperties"] for leaf in leaves if "unevaluatedProperties" in leaf]
    return w.value(schemas)


def _others(
    w: Rules, leaves: list[Leaf], wanted: list[str], names: list[str], patterns: list[str], closed: bool
) -> list[Symbols]:
    """Properties that are not declared, by the patterns that their names match."""
    known: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for one in patterns:
        try:
            known[one] = terminal(parsed(one, Reading.ALL)) or complement(complement(None))
            unknown[one] = complement(terminal(parsed(one, Reading.ANY)))
        except UnheldPattern:
            w.loose("patternProperties")
    if names:
        wanted = [*wanted, complement(either(map(quoted_text, dict.fromkeys(names))))]
    options: list[Symbols] = []
    for matched in _groups(list(known)):
        schemas = _schemas_of_others(leaves, matched, closed)
        if any(one is False for one in schemas):
            continue
        parts = [*wanted, *(known[one] if one in matched else unknown[one] for one in known)]
        name = Term(STRING) if not parts else w.terminal(f"{QUOTE} ({' & '.join(parts)}) {QUOTE}")
        if name is not None:
            options.append((name, COLON, w.value(schemas)))
    return options


def _schemas_of_others(leaves: list[Leaf], matched: list[str], closed: bool) -> list[AnySchema]:
    found: list[AnySchema] = [False] if closed and not matched else []
    for leaf in leaves:
        here = [one for pattern, one in leaf.get("patternProperties", {}).items() if pattern in matched]
        found += here or ([leaf["additionalProperties"]] if "additionalProperties" in leaf else [])
    if not matched and not any("additionalProperties" in leaf for leaf in leaves):
        found += [leaf["unevaluatedProperties"] for leaf in leaves if "unevaluatedProperties" in leaf]
    return found


def _names_asked_for(w: Rules, schemas: list[AnySchema]) -> tuple[list[str], list[str] | None]:
    """Names for which all of ``schemas`` hold: those that they list, and expressions that hold together for all others.

    None where there are no others.
    """
    if not schemas:
        return [], []
    listed: list[str] = []
    options: list[str] = []
    for leaves, types in w.schemas.choices(tuple(schemas)):
        values = w.given(leaves, types)
        if values is not None:
            listed += [one for one in values if isinstance(one, str)]
        elif "string" in types:
            if any("format" in leaf for leaf in leaves):
                w.loose("propertyNames")
            found = inside(w, leaves)
            if found is None:
                return listed, []
            options += [found] if found else []
    return listed, [f"({' | '.join(options)})"] if options else None


def _members(w: Rules, members: list[tuple[str, Symbol, bool]], entry: Rule | None) -> Symbols:
    """Declared properties in their order, then others."""
    pairs = [(*key(name), value) for name, value, _ in members]
    tails: dict[int, Symbols] = {len(members): () if entry is None else many((COMMA, entry), 0, None)}
    for start in range((max(0, len(members) - 1) // _BLOCK) * _BLOCK, -1, -_BLOCK):
        end = min(len(members), start + _BLOCK)
        parts = [w.rule([(COMMA, *pairs[n])] + ([] if members[n][2] else [()])) for n in range(start, end)]
        for at in range(end - 1, start, -1):
            tails[at] = (w.rule([(parts[at - start], *tails[at + 1])]),)
        tails[start] = (w.rule([(*parts, *tails[end])]),)
    options: list[Symbols] = []
    for at, pair in enumerate(pairs):
        options.append((*pair, *tails[at + 1]))
        if members[at][2]:
            break
    else:
        options += [()] if entry is None else [(), (entry, *tails[len(members)])]
    return options[0] if len(options) == 1 else (w.rule(options),)


def _counted_members(
    w: Rules, members: list[tuple[str, Symbol, bool]], entry: Rule | None, least: int, most: int | None
) -> Symbol:
    count = least if most is None else most
    states: dict[tuple[int, int], Rule] = {}
    # whether any stands before is told apart from how many count
    for at in range(len(members), -1, -1):
        for have in range(max(1, count), -1, -1):
            begun = have > 0
            options: list[Symbols] = []
            if at == len(members):
                room = None if most is None else most - have
                if room is None or room >= 0:
                    options = _entries(entry, max(0, least - have), room, begun=begun)
            else:
                name, value, needed = members[at]
                if most is None or have < most:
                    after = states[at + 1, min(max(1, count), have + 1)]
                    options.append((*((COMMA,) if begun else ()), *key(name), value, after))
                if not needed:
                    options.append((states[at + 1, have],))
            states[at, have] = w.rule(options)
    return states[0, 0]


def _absent(leaves: list[Leaf]) -> list[str]:
    return [one for leaf in leaves for one in leaf.get(Own.ABSENT, ())]


def _groups(patterns: list[str]) -> list[list[str]]:
    """The patterns that a name may match together: any of them, or one at most where there are many."""
    if len(patterns) > _FEW_PATTERNS:
        return [[], *([one] for one in patterns)]
    groups: list[list[str]] = [[]]
    for one in patterns:
        groups += [[*group, one] for group in groups]
    return groups


def _entries(entry: Rule | None, least: int, most: int | None, *, begun: bool) -> list[Symbols]:
    """Properties that are not declared, so many of them."""
    if entry is None or most == 0:
        return [()] if least == 0 else []
    if begun:
        return [many((COMMA, entry), least, most)]
    some: Symbols = (entry, *many((COMMA, entry), max(0, least - 1), None if most is None else most - 1))
    return [(), some] if least == 0 else [some]
