"""Tokens that somebody added to a vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import tokenizers


def is_mark(text: str) -> bool:
    """Whether an added token stands in brackets, as no word of an answer does."""
    return text[:1] + text[-1:] in ("<>", "[]") and len(text) > 2


def beyond_embedding(backend: Any, vocab_size: int) -> dict[int, str]:
    """Added tokens whose ids are beyond the embedding: somebody added one, for padding mostly, and no row for it.

    None where the vocabulary itself goes beyond: that is another model's.
    """
    added = {token: entry.content for token, entry in backend.get_added_tokens_decoder().items() if token >= vocab_size}
    if not added:
        return {}
    own = backend.get_vocab(False).values()
    return {} if any(token >= vocab_size and token not in added for token in own) else added


def without_added(backend: Any, left_out: Mapping[int, str]) -> Any:
    """``backend`` without these added tokens."""
    if not left_out:
        return backend
    described = json.loads(backend.to_str())
    described["added_tokens"] = [entry for entry in described["added_tokens"] if entry["id"] not in left_out]
    vocabulary = described["model"].get("vocab")
    if isinstance(vocabulary, dict):  # which some list added tokens in, too
        described["model"]["vocab"] = {text: token for text, token in vocabulary.items() if token not in left_out}
    return tokenizers.Tokenizer.from_str(json.dumps(described))
