"""A model's tokens in the shape that llguidance reads, and how it writes a text in the middle of another."""

from __future__ import annotations

import weakref
from functools import cached_property
from typing import Protocol

_BEFORE = "\x02"
"""Stands before a text, so that a tokenizer that puts a space before the first word puts it there."""


class Vocabulary(Protocol):
    """What guided decoding needs of a tokenizer (`edge_llm.text.tokenizer.Tokenizer` has it)."""

    vocab_size: int
    eos_ids: frozenset[int]

    def token_bytes(self, token: int) -> bytes: ...
    def is_special(self, token: int) -> bool: ...
    def token_text(self, token: int) -> str: ...
    def encode(self, text: str) -> list[int]: ...


class TokenTable:
    """The tokens of a vocabulary, as bytes.

    One token more than the model has stands for the end where a model has no end token.
    """

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Vocabulary) -> None:
        ids = range(tokenizer.vocab_size)
        self._tokenizer = weakref.ref(tokenizer)  # the tables are kept per tokenizer, and must not keep it alive
        self.tokens = [_written(tokenizer, token) for token in ids] + [b"<end of the answer>"]
        self.special_token_ids = [*(token for token in ids if tokenizer.is_special(token)), tokenizer.vocab_size]
        self.end_ids = sorted(tokenizer.eos_ids) or [tokenizer.vocab_size]
        self.eos_token_id = self.end_ids[0]
        self.bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokens whose bytes are exactly those of ``text``: the model's own choice, or the longest ones where it has none."""
        tokenizer = self._tokenizer()
        assert tokenizer is not None, "a matcher lives no longer than its model's tokenizer"
        text = text if isinstance(text, str) else text.decode("utf-8", "replace")
        before = tokenizer.encode(_BEFORE)
        for ids, start in ((tokenizer.encode(text), []), (tokenizer.encode(_BEFORE + text), before)):
            rest = ids[len(start) :]
            if ids[: len(start)] == start and b"".join(self.tokens[token] for token in rest) == text.encode():
                return rest
        return self.longest(text.encode())

    def longest(self, data: bytes) -> list[int]:
        """``data`` by the longest token at each place, up to a byte that no token begins with."""
        found: list[int] = []
        while data:
            lengths = range(min(len(data), self._longest_token), 0, -1)
            token = next((token for n in lengths if (token := self._by_bytes.get(data[:n])) is not None), None)
            if token is None:
                break
            found.append(token)
            data = data[len(self.tokens[token]) :]
        return found

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {data: token for token, data in enumerate(self.tokens) if data and token not in special}

    @cached_property
    def _longest_token(self) -> int:
        return max(map(len, self._by_bytes), default=0)


class ByteTable:
    """A vocabulary with the size and the control tokens of a model's, in which every other text is written in bytes."""

    is_tokenizer_wrapper = True

    def __init__(self, size: int, control: dict[int, bytes], ends: list[int]) -> None:
        plain = (token for token in range(size) if token not in control)
        written = {token: bytes([byte]) for byte, token in zip(range(256), plain, strict=False)}
        self.of_byte = {data[0]: token for token, data in written.items()}
        self.control = frozenset(control)
        written |= control
        self.tokens = [written.get(token, b"") for token in range(size)]
        self.special_token_ids = list(control)
        self.eos_token_id = ends[0]
        self.bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        """The bytes of ``text``, as far as the vocabulary has them."""
        data = text.encode() if isinstance(text, str) else text
        return [self.of_byte[byte] for byte in data if byte in self.of_byte]


def _written(tokenizer: Vocabulary, token: int) -> bytes:
    return tokenizer.token_text(token).encode() if tokenizer.is_special(token) else tokenizer.token_bytes(token)
