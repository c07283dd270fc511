"""Calibration text that the float model writes itself, for models whose own texts are not those that ship.

Many texts grow side by side, a token each at a step.  Each begins as the model begins a text and with a few tokens of the
shipped text, or, every second one, with a request in the model's own chat template; the rest is drawn at temperature 1 with a
fixed seed.  All is computed in the fixed order, so that a model writes the same on every processor.  (Data-free quantization:
Liu et al., 2023, arXiv 2305.17888, §3.1.)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from edge_llm.convert.calibrate import MAX_SEQUENCE_TOKENS, PASSAGE_BREAK
from edge_llm.errors import UsageError
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.floats import exp, product
from edge_llm.models.layer import Decoder
from edge_llm.models.reference import FloatCache, layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import WeightSource, read_embedding, read_final_norm, read_layer, read_output
from edge_llm.operations.arithmetic import SAME_BITS, soft_cap
from edge_llm.operations.attention import Attention
from edge_llm.operations.base import FloatLinear
from edge_llm.operations.float_kv import FloatKV
from edge_llm.progress import CountProgress
from edge_llm.text.chat import ChatTemplate, encode_chat
from edge_llm.text.tokenizer import Tokenizer

PRODUCTS_PER_SECOND = 6e10
"""Multiplications of a core, roughly."""
QUICK, MOST = (seconds * 2 * PRODUCTS_PER_SECOND for seconds in (30, 300))
"""Products in half a minute and in five minutes of two cores: fixed, so that what is written does not depend on the machine."""
_TEXTS = 64
"""Texts at a time."""
_SEED = 20
_OPENING = 4
"""Most tokens that a text begins with."""
_REQUESTS = (
    "Hello!", "Who are you?", "Tell me a short story.", "How do I boil an egg?", "What is 17 + 25?", "Thank you, goodbye.",
    "Explain how rain is made.", "Write a Python function that reverses a list.", "What is the capital of France?",
    "Give me three ideas for a rainy Sunday.", "Schreibe einen Satz über den Winter.", "Can you help me with an email?",
)  # fmt: skip


def widest(decoder: Decoder) -> int:
    """The most input channels of a linear in the layers."""
    return max(linear.columns for layer in decoder.layers for linear in layer.linears)


def tokens_worth_writing(decoder: Decoder, fewest: int, most: int) -> int:
    """How many tokens ``decoder`` writes: ``fewest`` where that does not take long, and up to ``most`` where they are quick."""
    quick, slow = (int(products / decoder.parameters) for products in (QUICK, MOST))
    return max(_TEXTS, min(most, slow, max(fewest, quick)))


def check_memory(decoder: Decoder) -> None:
    """Raises `UsageError` where the float model does not fit into memory."""
    needed, there = 4 * decoder.parameters, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > 0.6 * there:
        raise UsageError(
            f"to write its own calibration text the float model takes {needed / 1e9:.1f} GB of this machine's "
            f"{there / 1e9:.1f} GB; give a text with `--calibration FILE`",
            param="calibration",
        )


def openings(text: str, tokenizer: Tokenizer, template: ChatTemplate) -> Iterator[list[int]]:
    """How texts begin, without end: token ids, never none."""
    head = [tokenizer.bos_id] if tokenizer.add_bos and tokenizer.bos_id is not None else []
    passages = [tokenizer.encode(part[:400])[:64] for part in text.split(PASSAGE_BREAK)]
    asked = [] if template.is_default else [[{"role": "user", "content": request}] for request in _REQUESTS]
    chats = [encode_chat(template, tokenizer, messages) for messages in asked]
    for number in count():
        if chats and number % 2:
            yield chats[number // 2 % len(chats)]
            continue
        passage = passages[number % len(passages)]
        start = number // len(passages) * _OPENING % max(1, len(passage))
        yield head + passage[start : start + 1 + number % _OPENING]


def write_text(
    source: WeightSource,
    decoder: Decoder,
    context: int,
    ends: frozenset[int],
    beginnings: Iterator[list[int]],
    tokens: int,
    pool: ThreadPool,
    progress: CountProgress,
) -> list[np.ndarray]:
    """About ``tokens`` tokens in texts int64 [T], each drawn until one of ``ends`` comes; ``beginnings``: `openings`."""
    model, random = _Model(source, decoder, min(context, MAX_SEQUENCE_TOKENS), pool), np.random.default_rng(_SEED)
    texts = [_Text(next(beginnings), decoder) for _ in range(_TEXTS)]
    done: list[np.ndarray] = []
    steps = -(-tokens // _TEXTS)
    for step in range(steps):
        progress(step, steps)
        drawn = _drawn(model.logits(texts), random.random(_TEXTS))
        for number, (text, token) in enumerate(zip(texts, drawn.tolist(), strict=True)):
            text.go_on(token)
            if text.read >= model.longest or (text.ids[text.read - 1] in ends and text.read >= text.given):
                done.append(text.read_ids())
                texts[number] = _Text(next(beginnings), decoder)
    progress(steps, steps)
    return [ids for ids in [*done, *(text.read_ids() for text in texts)] if len(ids)]


class _Text:
    """A text in the making."""

    def __init__(self, opening: Sequence[int], decoder: Decoder) -> None:
        self.ids = list(opening)
        self.given = len(opening)
        self.read = 0
        """Tokens that the model has read."""
        self.cache = FloatCache(decoder)

    def go_on(self, token: int) -> None:
        """The model has read one more; ``token`` is what it drew then, which counts once the opening is read."""
        self.read += 1
        if self.read == len(self.ids):
            self.ids.append(token)

    def read_ids(self) -> np.ndarray:
        """What the model has read, int64 [T]."""
        return np.array(self.ids[: self.read], np.int64)


class _Model:
    """The float model, all in memory, on many texts at a time."""

    def __init__(self, source: WeightSource, decoder: Decoder, longest: int, pool: ThreadPool) -> None:
        self.longest = longest
        self._decoder = decoder
        self._pool = pool
        self._embedding = read_embedding(source, decoder)
        self._layers = [read_layer(source, layer) for layer in decoder.layers]
        self._gain = read_final_norm(source, decoder)
        self._output = self._embedding if decoder.tied else read_output(source, decoder)
        self._tables = RopeTables(longest)

    def logits(self, texts: Sequence[_Text]) -> np.ndarray:
        """Logits float32 [texts, V] after the next token of each, which the model reads."""
        x = self._embedding[[text.ids[text.read] for text in texts]]
        positions = np.array([text.read for text in texts])
        with np.errstate(all="ignore"):
            for index, (layer, weights) in enumerate(zip(self._decoder.layers, self._layers, strict=True)):
                pasts = [text.cache.layers[index] for text in texts]
                mix = self._mix(pasts, positions)
                how: dict[str, Any] = {"apply": self._product, "mix": mix, "pasts": pasts, "arithmetic": SAME_BITS}
                x = layer_forward(x, layer, weights, self._tables, **how)
            logits = product(self._decoder.norm.applied(x, self._gain), self._output, self._pool)
            return soft_cap(logits, self._decoder.cap, SAME_BITS)

    def _product(self, _: Any, weights: FloatLinear, x: np.ndarray) -> np.ndarray:
        y = product(x, weights.weight, self._pool)
        return y if weights.bias is None else y + weights.bias

    def _mix(
        self, pasts: Sequence[FloatKV], positions: np.ndarray
    ) -> Callable[[Attention, Mapping[str, np.ndarray], np.ndarray], np.ndarray]:
        """Attention where every row is the next token of a text of its own."""

        def mix(attention: Attention, gains: Mapping[str, np.ndarray], qkv: np.ndarray) -> np.ndarray:
            q, k, v = attention.split(gains, qkv, self._tables, positions)
            out = np.empty_like(q)
            for row, past in enumerate(pasts):
                one = slice(row, row + 1)
                keys, values = past.append(k[one], v[one])
                out[one] = attention.attend(gains, q[one], keys, values, past.length - 1, SAME_BITS)
            return out.reshape(len(qkv), -1)

        return mix


def _drawn(logits: np.ndarray, at: np.ndarray) -> np.ndarray:
    """A token of each of ``logits`` [n, V], at the shares ``at`` [n] of the probabilities from the first token on."""
    with np.errstate(all="ignore"):
        sums = np.cumsum(exp(logits - logits.max(axis=1, keepdims=True)), axis=1, dtype=np.float64)
    found = [np.searchsorted(row, share * row[-1], side="right") for row, share in zip(sums, at, strict=True)]
    return np.minimum(found, logits.shape[1] - 1)
