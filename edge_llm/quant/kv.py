"""Ways to keep keys and values, each as what is read back of what was written: float32 [tokens, kv heads, head_dim] both.

Nothing here is stored or attended to: `edge-llm perplexity --kv` puts a way into the float model, to see what it costs in
quality apart from the weights.  Keys come as attention keeps them: rotated, folded, less their offset.  Where a scale is shared
by several tokens, they are read as they are once all of them are there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from edge_llm.config import KV_ALIASES
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.operations.attention import Attention
from edge_llm.quant.scheme import MAX_FLOAT16, rounded_kv

BLOCK = 32
"""Channels of a head, or tokens, that share a scale of 4-bit codes."""
CHANNEL_TOKENS = 128
"""Tokens that share the INT8 scale of a channel: a page of a card."""
WORST = 8
"""One in so many tokens of a head has a residual."""
SCALE_BITS = 16
"""All scales are float16."""


@dataclass(frozen=True)
class KVForm:
    """A form that keys, or values, are kept in."""

    rounded: Callable[[np.ndarray], np.ndarray]
    """[tokens, kv heads, head_dim] -> what is read back."""
    bits: Callable[[int], float]
    """Bits per value of a head of so many channels, with all scales."""


def int6(x: np.ndarray) -> np.ndarray:
    """Codes -31..31 with a scale per token and head."""
    step = _float16(np.abs(x).max(axis=-1, keepdims=True) / np.float32(31))
    return np.asarray(np.clip(np.rint(_over(x, step)), -31, 31) * step)


def int8_by_channel(x: np.ndarray) -> np.ndarray:
    """INT8 with a scale per channel and `CHANNEL_TOKENS` tokens."""
    return _by_token_block(x, CHANNEL_TOKENS, lambda block: np.moveaxis(rounded_kv(np.moveaxis(block, 0, -1)), -1, 0))


def int8_with_residual(x: np.ndarray) -> np.ndarray:
    """INT8, and 4 bits more for one of every `WORST` tokens of a head: what the coarsest step left, in sixteenths of it."""
    once = rounded_kv(x)
    step = _float16(np.abs(x).max(axis=-1, keepdims=True) / np.float32(127))
    sixteenth = step / np.float32(16)
    rest = np.clip(np.rint(_over(x - once, sixteenth)), -8, 7) * sixteenth
    worst = _by_token_block(step, WORST, lambda block: block == block.max(axis=0, keepdims=True))
    return np.asarray(once + np.where(worst, rest, 0), np.float32)


def int4(x: np.ndarray) -> np.ndarray:
    """Codes -8..7 with a scale per `BLOCK` channels of a token; the loudest channel of a block has the code -8."""
    blocks = x.reshape(*x.shape[:-1], -1, min(BLOCK, x.shape[-1])) if x.shape[-1] % BLOCK == 0 else x[..., None, :]
    loudest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1)[..., None], axis=-1)
    step = _float16(loudest / np.float32(-8))
    return np.asarray(np.clip(np.rint(_over(blocks, step)), -8, 7) * step, np.float32).reshape(x.shape)


def int4_by_channel(x: np.ndarray) -> np.ndarray:
    """Codes 0..15 with a least value and a step per channel and `BLOCK` tokens."""

    def rounded(block: np.ndarray) -> np.ndarray:
        least = _float16(block.min(axis=0, keepdims=True))
        step = _float16((block.max(axis=0, keepdims=True) - least) / np.float32(15))
        return np.asarray(np.clip(np.rint(_over(block - least, step)), 0, 15) * step + least)

    return _by_token_block(x, BLOCK, rounded)


def turned(rounded: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """``rounded`` of the heads in other axes, in which no channel is louder than the others: a Hadamard matrix turns them."""
    matrix = hadamard(x.shape[-1])
    return np.asarray(rounded(x @ matrix) @ matrix.T, np.float32)


def hadamard(size: int) -> np.ndarray:
    """An orthogonal matrix float32 [size, size], blocks of the largest power of two that divides ``size``."""
    power = size & -size
    block = np.ones((1, 1), np.float32)
    while len(block) < power:
        block = np.concatenate([np.concatenate([block, block], 1), np.concatenate([block, -block], 1)])
    return np.kron(np.eye(size // power, dtype=np.float32), block / np.float32(math.sqrt(power)))


def _float16(x: np.ndarray) -> np.ndarray:
    return np.clip(x, -MAX_FLOAT16, MAX_FLOAT16).astype(np.float16).astype(np.float32)


def _over(x: np.ndarray, step: np.ndarray) -> np.ndarray:
    """x / step; 0 where the step is 0."""
    return np.divide(x, step, out=np.zeros(np.broadcast_shapes(x.shape, step.shape), np.float32), where=step != 0)


def _by_token_block(x: np.ndarray, tokens: int, rounded: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """``rounded`` of every ``tokens`` tokens of x [T, ...]."""
    return np.concatenate([rounded(x[start : start + tokens]) for start in range(0, len(x), tokens)])


def _block_bits(dim: int) -> float:
    return 4 + SCALE_BITS / (BLOCK if dim % BLOCK == 0 else dim)


FLOAT32 = "float32"
"""Kept as it is: to see what the other half costs alone."""
FORMS: Mapping[str, KVForm] = {
    "float16": KVForm(_float16, lambda dim: 16),
    "int8": KVForm(rounded_kv, lambda dim: 8 + SCALE_BITS / dim),
    "int8-channel": KVForm(int8_by_channel, lambda dim: 8 + SCALE_BITS / CHANNEL_TOKENS),
    "int8-residual": KVForm(int8_with_residual, lambda dim: 8 + SCALE_BITS / dim + (4 + math.log2(WORST) / dim) / WORST),
    "int6": KVForm(int6, lambda dim: 6 + SCALE_BITS / dim),
    "int4": KVForm(int4, _block_bits),
    "int4-channel": KVForm(int4_by_channel, lambda dim: 4 + 2 * SCALE_BITS / BLOCK),
    "int4-hadamard": KVForm(partial(turned, int4), _block_bits),
    FLOAT32: KVForm(lambda x: x, lambda dim: 32),
}


@dataclass(frozen=True)
class KVScheme:
    """A way to keep keys and one to keep values."""

    name: str
    keys: KVForm
    values: KVForm

    def token_bytes(self, attentions: Iterable[Attention]) -> float:
        """Of the keys and values of one token in the layers with ``attentions``."""
        return sum(
            one.kv_heads * one.head_dim * (self.keys.bits(one.head_dim) + self.values.bits(one.head_dim)) / 8
            for one in attentions
        )


def kv_schemes(text: str) -> list[KVScheme]:
    """The schemes in ``text``, separated by commas: KEYS/VALUES, of `FORMS`, one for both, or `all`.  Raises `UsageError`."""
    if text.strip().lower() == "all":
        return [_scheme(name) for name in FORMS if name != FLOAT32]
    return [_scheme(part) for part in text.split(",")]


def _scheme(text: str) -> KVScheme:
    names = [KV_ALIASES.get(part, part) for part in text.strip().lower().split("/")]
    if len(names) > 2 or not all(name in FORMS for name in names):
        forms = ", ".join(FORMS)
        raise UsageError(f"--kv `{shown(text)}`: there are {forms}, two of them as KEYS/VALUES, and `all`", param="kv")
    return KVScheme("/".join(dict.fromkeys(names)), FORMS[names[0]], FORMS[names[-1]])
