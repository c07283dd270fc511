"""Texts in the four shapes of OpenAI's APIs: one or several, as strings or as token ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edge_llm.errors import UsageError
from edge_llm.server.host import ModelHost
from edge_llm.server.schemas import check_tokens, log

Texts = str | list[str] | list[int] | list[list[int]] | None


Encode = Callable[[str], list[int]]


def items_of(texts: Texts) -> list[Any]:
    """Each text, or its token ids."""
    return texts if isinstance(texts, list) and not _is_tokens(texts) else [texts]


def token_lists(
    host: ModelHost, texts: Texts, param: str, most: int, encode: Encode, *, cut: bool = False
) -> list[list[int]]:
    """The token ids of every text in one of OpenAI's four shapes; token ids are checked, not trusted.

    ``encode`` makes those of a text, which may be too long where the tokens will be ``cut``.
    """
    items = items_of(texts)
    if not 1 <= len(items) <= most:
        raise UsageError(f"{param} takes 1 to {most} texts, got `{len(items)}`", param=param)
    if any(isinstance(item, list) for item in items):
        log.warning("a client sends token ids; they must come from this model's own tokenizer")
    return [_tokens(host, encode, item, param, cut) for item in items]


def _is_tokens(texts: list[Any]) -> bool:
    return bool(texts) and isinstance(texts[0], int)


def _tokens(host: ModelHost, encode: Encode, item: str | list[int], param: str, cut: bool) -> list[int]:
    if isinstance(item, str):
        if not cut:
            host.check_length(item)
        tokens = encode(item)
    else:
        tokens = check_tokens(item, host.engine.config.vocab_size, param)
    if not tokens:
        raise UsageError(f"{param} is empty; give at least one character", param=param)
    return tokens
