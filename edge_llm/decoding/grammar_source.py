"""Grammars in the JSON text that llguidance compiles."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from edge_llm.config import Grammar
from edge_llm.decoding.json_schemas import held
from edge_llm.errors import UsageError
from edge_llm.files import shown

MAX_CHARACTERS = 1 << 20
"""Of one grammar, its parts counted."""
NAMES = {
    "json_schema": "the JSON schema", "json_object": "the JSON format", "regex": "the regular expression",
    "lark": "the grammar", "choice": "the choice",
}  # fmt: skip
_COMPACT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"}}


def source_of(grammar: Grammar, lark_of: Callable[[str], str]) -> str:
    """``grammar`` and its parts; raises `UsageError` when it is malformed or too long.

    ``lark_of`` gives the Lark text of a GBNF text.
    """
    if (size := sum(len(one.text) for one in _all(grammar))) > MAX_CHARACTERS:
        raise UsageError(f"the grammar has {size} characters; at most {MAX_CHARACTERS} are possible")
    named = [("", grammar), *grammar.parts]
    try:
        return json.dumps({"grammars": [({"name": name} if name else {}) | _entry(one, lark_of) for name, one in named]})
    except RecursionError:
        raise UsageError(f"{NAMES[grammar.kind]} nests too deeply") from None


def loose_keywords(grammar: Grammar) -> tuple[str, ...]:
    """The keywords of ``grammar``'s JSON schemas that no answer is held to, such as ``uniqueItems``."""
    schemas = [_schema(one.text) for one in _all(grammar) if one.kind == "json_schema"]
    return tuple(dict.fromkeys(keyword for schema in schemas for keyword in held(schema)[1]))


def quoted(text: str) -> str:
    """``text`` as a Lark string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")  # the library takes no control character


def _entry(grammar: Grammar, lark_of: Callable[[str], str]) -> dict[str, Any]:
    if grammar.kind == "json_object":
        return {"json_schema": {"type": "object"} | _COMPACT}
    if grammar.kind == "json_schema":
        return {"json_schema": held(_schema(grammar.text))[0] | _COMPACT}
    if grammar.kind == "choice":
        return {"lark_grammar": "start: " + " | ".join(quoted(text) for text in _choices(grammar.text))}
    if grammar.kind == "regex":
        from llguidance import regex_to_lark

        return {"lark_grammar": f"start: /{regex_to_lark(grammar.text, 'd')}/"}
    return {"lark_grammar": lark_of(grammar.text) if "::=" in grammar.text else grammar.text}


def _schema(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is not JSON: {shown(error)}") from None
    if not isinstance(schema, dict):
        raise UsageError("the JSON schema must be a JSON object")
    return schema


def _choices(text: str) -> list[str]:
    try:
        choices = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the choice is not JSON: {shown(error)}") from None
    if not isinstance(choices, list) or not choices or not all(isinstance(one, str) and one for one in choices):
        raise UsageError("the choice must be a list of one or more strings, none of them empty")
    return choices


def _all(grammar: Grammar) -> Iterable[Grammar]:
    yield grammar
    for _, part in grammar.parts:
        yield from _all(part)
