"""How much longer a tokenizer.json can make a text before it becomes tokens, from its own description of its steps.

A tokenizer is untrusted: a few steps that each replace a letter by a thousand turn one line into gigabytes.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

from edge_llm.errors import InvalidTokenizer
from edge_llm.files import shown

MAX_GROWTH = 600
"""Bytes that one byte may become at most; 2 to 6 in the tokenizers of most models, some hundred with SentencePiece's tables."""
MAX_STEPS = 32
MAX_STEPS_BYTES = 8 << 20
"""JSON of all steps; the tables of SentencePiece have some 300 KB."""
MAX_AFFIX = 64
"""Characters that may be added to every word or piece of one."""

_FORMS = {"NFC": 3, "NFD": 3, "NFKC": 18, "NFKD": 18}
"""Largest growth of Unicode's normal forms; a second one grows nothing."""
_FACTORS = {"ByteLevel": 2, "Metaspace": 4, "BertNormalizer": 3, "Lowercase": 2}


def text_growth(backend: Any) -> int:
    """Bytes that one byte of a text may become in ``backend`` (a `tokenizers.Tokenizer`), an upper bound.

    Raises `InvalidTokenizer` where it is more than `MAX_GROWTH`.
    """
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if len(getattr(backend.model, name, None) or "") > MAX_AFFIX:
            raise InvalidTokenizer(f"the tokenizer's {name} has more than {MAX_AFFIX} characters")
    steps = [*_steps(backend.normalizer), *_steps(backend.pre_tokenizer)]
    if len(steps) > MAX_STEPS:
        raise InvalidTokenizer(f"the tokenizer changes a text in {len(steps)} steps; at most {MAX_STEPS} are taken")
    growth = max([1, *(_FORMS.get(step["type"], 1) for step in steps)])
    for step in steps:
        growth *= _factor(step)
        if growth > MAX_GROWTH:
            raise InvalidTokenizer(
                f"the tokenizer's step `{shown(json.dumps(step), 60)}` can make a text more than {MAX_GROWTH} times as long"
            )
    return growth


def window_for(growth: int, window: int) -> int:
    """Characters that are encoded at once where a byte may become ``growth`` bytes: ``window`` for all that is usual."""
    return min(window, 32 * window // growth)


def _steps(component: Any) -> list[dict[str, Any]]:
    """The steps of a normalizer or pre-tokenizer, those of sequences in sequences too."""
    if component is None:
        return []
    state = component.__getstate__()
    if len(state) > MAX_STEPS_BYTES:
        raise InvalidTokenizer(f"the tokenizer's normalizer has {len(state)} bytes; at most {MAX_STEPS_BYTES} are read")
    return list(_flat(json.loads(state)))


def _flat(step: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if step["type"] != "Sequence":
        yield step
    for inner in [*step.get("normalizers", ()), *step.get("pretokenizers", ())]:
        yield from _flat(inner)


def _factor(step: dict[str, Any]) -> int:
    kind = step["type"]
    if kind == "Replace":
        added = len(step["content"].encode())
        literal = step["pattern"].get("String")
        if not literal:  # a regex may match between any two letters
            return 1 + added
        return max(1, -(-added // len(literal.encode())))
    if kind == "Prepend":
        return 1 if len(step["prepend"]) <= MAX_AFFIX else MAX_GROWTH + 1
    if kind == "Precompiled":
        return _longest(base64.b64decode(step["precompiled_charsmap"]))
    return _FACTORS.get(kind, 1)


def _longest(table: bytes) -> int:
    """The longest text in SentencePiece's table: a trie behind its size, then the texts, each behind a zero byte."""
    texts = table[4 + int.from_bytes(table[:4], "little") :]
    return max([1, *map(len, texts.split(b"\0"))])
