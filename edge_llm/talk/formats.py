"""What the answer must look like: the fields of OpenAI's, llama.cpp's and vLLM's requests that become a grammar."""

from __future__ import annotations

import json
from typing import Any

from edge_llm.config import Grammar
from edge_llm.decoding.guided import check_grammar
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.text.tokenizer import Tokenizer


def checked_grammar(found: dict[str, Grammar], tokenizer: Tokenizer) -> Grammar | None:
    """The only grammar of ``found``, which has them by the field they came in."""
    if len(found) > 1:
        raise UsageError(f"{' and '.join(found)} cannot be combined; leave all but one out", param=list(found)[1])
    for param, grammar in found.items():
        check_grammar(grammar, tokenizer, param=param)
        return grammar
    return None


def response_format(wanted: dict[str, Any] | None, param: str) -> Grammar | None:
    """The grammar of OpenAI's ``response_format``, or of ``text.format`` of a response request (its schema is not nested)."""
    kind = "text" if wanted is None else wanted.get("type")
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":  # llama.cpp and others take a schema here
        return Grammar("json_object") if wanted.get("schema") is None else _schema(wanted["schema"], f"{param}.schema")
    if kind != "json_schema":
        known = "text, json_object or json_schema"
        raise UsageError(f"{param}.type must be {known}, got `{shown(kind, 40)}`", param=f"{param}.type")
    named = wanted if "schema" in wanted else wanted.get("json_schema")
    if not isinstance(named, dict) or named.get("schema") is None:
        raise UsageError(f"{param}.json_schema.schema is missing", param=f"{param}.json_schema.schema")
    return _schema(named["schema"], f"{param}.json_schema.schema")


def kinds(given: dict[str, Any], param: str) -> dict[str, Grammar]:
    """Grammars by the kind that each of ``given`` is named after; ``param`` is where they came in."""
    makers = {"json": _schema, "json_schema": _schema, "regex": _text("regex"), "grammar": _text("lark"), "choice": _choice}
    found = {}
    for name, value in given.items():
        if value is None or (name == "json_object" and value is False):
            continue
        where = f"{param}.{name}" if param == "structured_outputs" else f"{param}_{name}" if param else name
        if name == "json_object" and value is True:
            found[name] = Grammar("json_object")
        elif name in makers:
            found[name] = makers[name](value, where)
        else:
            raise UsageError(f"{where} is not supported here", param=where)
    return found


def _schema(value: Any, where: str) -> Grammar:
    if isinstance(value, str):
        return Grammar("json_schema", value)
    if not isinstance(value, dict):
        raise UsageError(f"{where} must be a JSON schema", param=where)
    try:
        return Grammar("json_schema", json.dumps(value, ensure_ascii=False))
    except RecursionError:
        raise UsageError(f"{where} nests too deeply", param=where) from None


def _text(kind: Any) -> Any:
    def make(value: Any, where: str) -> Grammar:
        if not isinstance(value, str):
            raise UsageError(f"{where} must be a string", param=where)
        return Grammar(kind, value)

    return make


def _choice(value: Any, where: str) -> Grammar:
    if not isinstance(value, list):
        raise UsageError(f"{where} must be a list of strings", param=where)
    return Grammar("choice", json.dumps(value, ensure_ascii=False))
