"""Texts in the four shapes of OpenAI's APIs: one or several, as strings or as token ids."""

from __future__ import annotations

from typing import Any

from edge_llm.engine.engine import Engine
from edge_llm.errors import UsageError
from edge_llm.server.host import ModelHost
from edge_llm.server.schemas import check_tokens, log

Texts = str | list[str] | list[int] | list[list[int]] | None


def token_lists(host: ModelHost, texts: Texts, param: str, most: int) -> list[list[int]]:
    """The token ids of every text in one of OpenAI's four shapes; token ids are checked, not trusted."""
    engine = host.engine
    items: list[Any] = texts if isinstance(texts, list) and not _is_tokens(texts) else [texts]
    if not 1 <= len(items) <= most:
        raise UsageError(f"{param} takes 1 to {most} texts, got `{len(items)}`", param=param)
    if any(isinstance(item, list) for item in items):
        log.warning("a client sends token ids; they must come from this model's own tokenizer")
    return [_tokens(host, engine, item, param) for item in items]


def _is_tokens(texts: list[Any]) -> bool:
    return bool(texts) and isinstance(texts[0], int)


def _tokens(host: ModelHost, engine: Engine, item: str | list[int], param: str) -> list[int]:
    if isinstance(item, str):
        host.check_length(item)
        tokens = engine.tokenizer.encode(item, add_bos=engine.tokenizer.add_bos, most=engine.runner.context)
    else:
        tokens = check_tokens(item, engine.config.vocab_size, param)
    if not tokens:
        raise UsageError(f"{param} is empty; give at least one character", param=param)
    return tokens
