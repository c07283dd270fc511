"""Grammars in the JSON text that llguidance compiles."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

from edge_llm.config import Grammar
from edge_llm.decoding.lark_text import quoted
from edge_llm.errors import UsageError
from edge_llm.files import shown

if TYPE_CHECKING:
    from edge_llm.decoding.trial import Trial

MAX_CHARACTERS = 1 << 20
"""Of one grammar, its parts counted."""
NAMES = {
    "json_schema": "the JSON schema", "json_object": "the JSON format", "regex": "the regular expression",
    "lark": "the grammar", "choice": "the choice",
}  # fmt: skip


def source_of(grammar: Grammar, trial: Trial) -> tuple[str, tuple[str, ...]]:
    """``grammar`` and its parts, and the keywords of its JSON schemas that an answer is not held to.

    Raises `UsageError` when it is malformed or too long.
    """
    if (size := sum(len(one.text) for one in _all(grammar))) > MAX_CHARACTERS:
        raise UsageError(f"the grammar has {size} characters; at most {MAX_CHARACTERS} are possible")
    loose: dict[str, None] = {}
    try:
        texts = {name: _lark(one, trial, loose) for name, one in [("", grammar), *grammar.parts]}
    except RecursionError:
        raise UsageError(f"{NAMES[grammar.kind]} nests too deeply") from None
    entries = [({"name": name} if name else {}) | {"lark_grammar": text} for name, text in texts.items()]
    return json.dumps({"grammars": entries}), tuple(loose)


def _lark(grammar: Grammar, trial: Trial, loose: dict[str, None]) -> str:
    """``grammar`` alone as Lark text; ``loose`` gets the keywords that are not held to."""
    if grammar.kind in ("json_schema", "json_object"):
        text, keywords = trial.schema(_ANY_OBJECT if grammar.kind == "json_object" else _schema(grammar.text))
        loose |= dict.fromkeys(keywords)
        return text
    if grammar.kind == "choice":
        return "start: " + " | ".join(quoted(text) for text in _choices(grammar.text))
    if grammar.kind == "regex":
        from llguidance import regex_to_lark

        return f"start: /{regex_to_lark(grammar.text, 'd')}/"
    return trial.lark_of(plain_escapes(grammar.text)) if "::=" in grammar.text else grammar.text


# ---- GBNF

_GBNF_PIECE = re.compile(r'#[^\n]*|"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]', re.DOTALL)
_GBNF_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))", re.DOTALL)


def plain_escapes(gbnf: str) -> str:
    """``gbnf`` with characters themselves in place of ``\\x41``, ``\\u00e9`` and ``\\U0001f600``, as the converter needs it.

    Raises `UsageError` for a character that is none.
    """

    def piece(found: re.Match[str]) -> str:
        return found[0] if found[0].startswith("#") else _GBNF_ESCAPE.sub(character, found[0])

    def character(found: re.Match[str]) -> str:
        if found[4]:
            return found[0]
        code = int(found[1] or found[2] or found[3], 16)
        if code > sys.maxunicode or 0xD800 <= code < 0xE000:
            raise UsageError(f"the grammar has `{found[0]}`, which is no character of Unicode")
        if code < 0x80 and not chr(code).isalnum():
            return f"\\x{code:02x}"
        return chr(code)

    return _GBNF_PIECE.sub(piece, gbnf)


# ---- JSON


_ANY_OBJECT = '{"type": "object"}'


def _schema(text: str) -> str:
    """``text``, which is a JSON object."""
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the JSON schema is not JSON: {shown(error)}") from None
    if not isinstance(schema, dict):
        raise UsageError("the JSON schema must be a JSON object")
    return text


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
