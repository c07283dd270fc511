"""Prompts in llama.cpp's shapes: texts, token ids, both in one list, objects, and lists of all of these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.server.host import ModelHost
from edge_llm.server.schemas import check_tokens

Encode = Callable[[str, bool], list[int]]
"""Token ids of a text; the flag says whether it begins its prompt."""


def prompts_of(
    host: ModelHost, given: Any, param: str, most: int, encode: Encode, *, cuts: bool = False
) -> list[list[int]]:
    """The token ids of each prompt in ``given``.

    One prompt is a text, an object with a text, or a list of token ids, among which texts may stand.  Raises `UsageError`
    for anything else, for none, for more than ``most``, and for a text that is too long, unless ``encode`` ``cuts`` it.
    """
    several = isinstance(given, list) and not any(type(item) is int for item in given)
    items = given if several else [given]
    if not 1 <= len(items) <= most:
        raise UsageError(f"{param} takes 1 to {most} texts, got `{len(items)}`", param=param)
    return [_tokens(host, item, param, encode, cuts) for item in items]


def text_of(item: Any, param: str) -> str:
    """The text of an object such as ``{"prompt_string": ...}`` or ``{"content": [{"type": "text", ...}]}``."""
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        if item.get("multimodal_data"):
            raise UsageError(f"{param}: this model reads text only; leave multimodal_data out", param=param)
        if isinstance(text := item.get("prompt_string"), str):
            return text
        if isinstance(parts := item.get("content"), list) and parts:
            return "".join(_part_text(part, param) for part in parts)
    raise UsageError(f"{param} must be a text, token ids, or a list of these, got `{shown(item, 40)}`", param=param)


def _part_text(part: Any, param: str) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(text := part.get("text"), str):
        return text
    kind = part.get("type") if isinstance(part, dict) else part
    raise UsageError(f"{param}: this model reads text only, not a part of type `{shown(kind, 40)}`", param=param)


def _tokens(host: ModelHost, item: Any, param: str, encode: Encode, cuts: bool) -> list[int]:
    pieces = item if isinstance(item, list) else [item]
    found: list[int] = []
    for at, piece in enumerate(pieces):
        if type(piece) is int:
            found += check_tokens([piece], host.engine.config.vocab_size, param)
        else:
            text = text_of(piece, param)
            if not cuts:
                host.check_length(text)
            found += encode(text, at == 0)
    if not found:
        raise UsageError(f"{param} is empty; give at least one character", param=param)
    return found
