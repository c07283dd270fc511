"""How a GGUF file says that positions are scaled, as config.json has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from edge_llm.errors import UnsupportedModel
from edge_llm.files import shown
from edge_llm.formats.gguf import GgufModel
from edge_llm.formats.gguf_names import FREQUENCIES, LONG_FACTORS, SHORT_FACTORS

_LLAMA3_LENGTHS = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""What every scaled Llama 3 has; other numbers are worked out of the divisors."""
_NEAR = 1e-4
"""Of divisors, relative."""


def scaling_of(model: GgufModel, name: str, context: int) -> dict[str, Any] | None:
    """How the keys say that positions are scaled; None where they are not."""
    keys = f"{name}.rope.scaling."
    kind = "longrope" if model.has_tensor(LONG_FACTORS) else model.text(f"{keys}type", "linear")
    factor = model.number(f"{keys}factor", 0.0, 1e9, model.number(f"{name}.rope.scale_linear", 0.0, 1e9, 1.0)) or 1.0
    original = model.integer(f"{keys}original_context_length", 1, 1 << 27, context)
    attention = model.number(f"{keys}attn_factor", 0.0, 1e6, 1.0)
    if kind == "none" or (kind == "linear" and factor == 1.0):
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": decimal(factor)}
    if kind == "yarn":
        return _yarn(model, keys, decimal(factor), original, attention)
    if kind == "longrope":
        factors = {
            f"{length}_factor": [decimal(float(one)) for one in model.read(tensor).reshape(-1)]
            for length, tensor in (("long", LONG_FACTORS), ("short", SHORT_FACTORS))
        }
        said: dict[str, Any] = {"rope_type": "longrope", "original_max_position_embeddings": original} | factors
        return said if _is_near(attention, _longropes(context, original)) else said | {"attention_factor": decimal(attention)}
    raise UnsupportedModel(f"{model.where}: rotary scaling `{shown(kind)}` does not run here")


def _yarn(model: GgufModel, keys: str, factor: float, original: int, attention: float) -> dict[str, Any]:
    betas = {
        "beta_fast": model.number(f"{keys}yarn_beta_fast", 0.0, 1e6, 32.0),
        "beta_slow": model.number(f"{keys}yarn_beta_slow", 0.0, 1e6, 1.0),
    }
    said = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original} | betas
    if mscale := model.number(f"{keys}yarn_log_multiplier", 0.0, 1e6, 0.0):
        return said | {"mscale": 1.0, "mscale_all_dim": decimal(mscale)}
    usual = 1 + 0.1 * float(np.log(max(factor, 1.0)))
    whole = model.number(f"{keys}yarn_attn_factor", 0.0, 1e6, usual) * attention
    return said if _is_near(whole, usual) else said | {"attention_factor": decimal(whole)}


def _longropes(context: int, original: int) -> float:
    """What LongRoPE multiplies cosines and sines by where nothing is said."""
    stretch = context / original
    return 1.0 if stretch <= 1 or original < 2 else float(np.sqrt(1 + np.log(stretch) / np.log(original)))


def _is_near(one: float, other: float) -> bool:
    return abs(one - other) <= 1e-6 * other


def llama3_scaling(model: GgufModel, theta: float, head: int) -> dict[str, Any] | None:
    """Llama 3's rotary scaling, found again in the divisors that the file has in its place."""
    if not model.has_tensor(FREQUENCIES):
        return None
    divisors = model.read(FREQUENCIES).astype(np.float64)
    if divisors.shape == (head // 2,):
        if (divisors == 1).all():
            return None
        factor = float(divisors.max())
        for lengths in (_LLAMA3_LENGTHS, lengths_of(divisors, theta, head)):
            if factor > 1 and lengths and np.allclose(divisors, divisors_of(theta, head, factor, lengths), rtol=_NEAR):
                return {"rope_type": "llama3", "factor": decimal(factor)} | lengths
    raise UnsupportedModel(f"{model.where}: rotary frequencies that are not scaled as those of Llama 3 do not run here")


def divisors_of(theta: float, head: int, factor: float, lengths: dict[str, Any] = _LLAMA3_LENGTHS) -> np.ndarray:
    """What Llama 3's scaling divides the frequencies by: float64 [head / 2]."""
    low, high = lengths["low_freq_factor"], lengths["high_freq_factor"]
    turns = lengths["original_max_position_embeddings"] / _wave_lengths(theta, head)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return np.asarray(1 / ((1 - smooth) / factor + smooth), np.float64)


def lengths_of(divisors: np.ndarray, theta: float, head: int) -> dict[str, Any] | None:
    """Lengths that give ``divisors``, as far as they say: those of two waves between the slow and the fast ones do.

    Many are the same scaling; the one with Llama's low factor, 1, is taken.
    """
    factor = float(divisors.max())
    between = np.flatnonzero((divisors > 1 + _NEAR) & (divisors < factor * (1 - _NEAR)))
    if len(between) < 2:
        return None
    ends = between[[0, -1]]
    smooth = (1 / divisors[ends] - 1 / factor) / (1 - 1 / factor)
    turns = 1 / _wave_lengths(theta, head)[ends]
    if turns[0] == turns[1]:
        return None
    slope = (smooth[1] - smooth[0]) / (turns[1] - turns[0])
    at_zero = smooth[0] - slope * turns[0]
    if not slope > 0 > at_zero:
        return None
    original, high = round(float(-slope / at_zero)), float(1 - 1 / at_zero)
    if not (1 <= original <= 1 << 27 and 1 < high <= 1e6):
        return None
    return {"low_freq_factor": 1.0, "high_freq_factor": decimal(high), "original_max_position_embeddings": original}


def _wave_lengths(theta: float, head: int) -> np.ndarray:
    return np.asarray(2 * np.pi * theta ** (np.arange(0, head, 2) / head), np.float64)


def decimal(value: float) -> float:
    """The decimal number that became ``value`` in float32."""
    return float(f"{value:.7g}")
