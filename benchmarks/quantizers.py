"""Ways to quantize one linear, as functions of float weights and of what the linear reads: nothing here runs a model.

    a linear  ->  its channels changed (scaled, rotated), so that they are easier to round
              ->  hot channels and input scale chosen as import chooses them
              ->  weights rounded to INT8 or W4
              ->  what stands for it: float weights that equal the codes, and how its inputs are rounded

A change is undone by the weights, so it changes nothing in float: x W^T = (x / f) (W f)^T = (x R) (W R)^T for an orthogonal R.
Here it is done to the input of each linear alone, when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from edge_llm.convert.coding import InputTally
from edge_llm.convert.folds import fold_linear
from edge_llm.quant import int8, w4
from edge_llm.quant.channels import NO_CHANNELS, ChannelStatistics
from edge_llm.quant.folding import column_energy
from edge_llm.quant.profile import EXACT_PRICE, ScaleSearch, choose_hot
from edge_llm.quant.scheme import LIMIT, MAX_FLOAT16, quantize_weight

SCHEMES = ("int8", "w4")
BLOCK = 32
"""Channels that a block rotation mixes, at most."""
_SAMPLE = 512
"""Rows on which AWQ measures its errors."""

Turn = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Linear:
    """A float linear, and how it differs from the model's."""

    name: str
    weight: np.ndarray
    """float32 [N, K]"""
    seen: ChannelStatistics
    """What it reads on calibration text."""
    turn: Turn = lambda x: x
    """What is done to its input [T, K] before it is rounded."""
    nbytes: int = 0
    """What that takes in memory."""

    def divided(self, factors: np.ndarray) -> Linear:
        """Every input channel divided by its factor [K]; what made the input may do that, so it takes no memory."""
        before = self.turn
        return Linear(
            self.name, self.weight * factors, self.seen.divided(factors), lambda x: before(x) / factors, self.nbytes
        )

    def rotated(self, rotation: np.ndarray, nbytes: int) -> Linear:
        """The input channels mixed by an orthogonal ``rotation`` [K, K] that ``nbytes`` are kept of."""
        before, seen = self.turn, ChannelStatistics(self.seen.columns, self.name)
        seen.add(self.seen.rows() @ rotation)
        return Linear(self.name, self.weight @ rotation, seen, lambda x: before(x) @ rotation, self.nbytes + nbytes)


Change = Callable[[Linear, str], Linear]
"""What is done to the channels of a linear that is to be quantized in a scheme."""


def smoothed(linear: Linear, scheme: str) -> Linear:
    """SmoothQuant (Xiao et al., 2022, arXiv 2211.10438): channels divided by sqrt(max |x| / max |w|)."""
    return linear.divided(_scales(linear.seen.peaks(), np.abs(linear.weight).max(axis=0), 0.5))


def activation_aware(linear: Linear, scheme: str) -> Linear:
    """AWQ (Lin et al., 2023, arXiv 2306.00978): the power of the mean |x| with which rounded weights give the least error."""
    level = np.abs(linear.seen.rows()).mean(axis=0)
    few = linear.seen.thinned(_SAMPLE).rows()

    def error(power: float) -> float:
        factors = _scales(level, np.ones_like(level), power)
        found, _ = nearest(linear.divided(factors), NO_CHANNELS, scheme)
        return float(np.square(few @ (found / factors - linear.weight).T).sum())

    return linear.divided(_scales(level, np.ones_like(level), min(np.linspace(0, 0.9, 10), key=error)))


def _scales(level: np.ndarray, length: np.ndarray, power: float) -> np.ndarray:
    """level^power / length^(1 - power), float32, about 1 in the middle; 1 for channels that are silent."""
    heard = (level > 0) & (length > 0)
    logs = np.zeros(len(level))
    logs[heard] = power * np.log(level[heard]) - (1 - power) * np.log(length[heard])
    return np.exp(logs - np.median(logs)).astype(np.float32)


def folded(linear: Linear, scheme: str) -> Linear:
    """What import folds into norms and into the rows before."""
    return linear.divided(fold_linear(linear.seen, linear.weight)[0])


def hadamard(linear: Linear, scheme: str) -> Linear:
    """QuaRot (Ashkboos et al., 2024, arXiv 2404.00456): all channels mixed evenly, with random signs."""
    return linear.rotated(_signed(even_rotation(linear.weight.shape[1])), 0)


def block_hadamard(linear: Linear, scheme: str) -> Linear:
    """The same among neighbours: in blocks of 32 channels, or of the power of two that divides their number."""
    columns = linear.weight.shape[1]
    block = even_rotation(np.gcd(columns, BLOCK))
    return linear.rotated(_signed(np.kron(np.eye(columns // len(block), dtype=np.float32), block)), 0)


def random_orthogonal(linear: Linear, scheme: str) -> Linear:
    """A random rotation, which has no fast form: the matrix is kept in float16."""
    columns = linear.weight.shape[1]
    q, r = np.linalg.qr(np.random.default_rng(columns).standard_normal((columns, columns)))
    return linear.rotated((q * np.sign(np.diag(r))).astype(np.float32), 2 * columns * columns)


def even_rotation(columns: int) -> np.ndarray:
    """An orthogonal mixture of ``columns`` channels: Hadamard's for the power of two in it, a cosine transform for the rest."""
    odd = columns // (columns & -columns)
    angles = np.outer(np.arange(odd), np.arange(odd) + 0.5) * np.pi / odd
    found = np.cos(angles) * np.sqrt(np.where(np.arange(odd) > 0, 2, 1) / odd)[:, None]
    while len(found) < columns:
        found = np.block([[found, found], [found, -found]]) / np.sqrt(2)
    return found.astype(np.float32)


def _signed(rotation: np.ndarray) -> np.ndarray:
    signs = np.random.default_rng(len(rotation)).integers(2, size=len(rotation)) * 2 - 1
    return np.asarray(signs[:, None] * rotation, np.float32)


Rounding = Callable[[Linear, np.ndarray, str], tuple[np.ndarray, int]]
"""(linear, hot channels int32 [H], scheme) -> what the quantized weights stand for, float32 [N, K], and their bytes."""


def nearest(linear: Linear, hot: np.ndarray, scheme: str) -> tuple[np.ndarray, int]:
    """Each weight for itself."""
    if scheme == "w4":
        coded = w4.round_weight(linear.weight, hot, linear.name)
        return w4.dense(coded), _nbytes(coded.arrays())
    wide = quantize_weight(linear.weight, hot, linear.name)
    return int8.dense(wide), _nbytes(wide.arrays())


def fitted(linear: Linear, hot: np.ndarray, scheme: str) -> tuple[np.ndarray, int]:
    """GPTQ and what import does behind it, on calibration rows."""
    tally = InputTally(linear.weight.shape[1])
    tally.add(linear.seen.rows()[~linear.seen.sinks()])
    energy = tally.inputs().energy
    if scheme == "w4":
        coded = w4.fit_weight(linear.weight, hot, energy, linear.name)
        return w4.dense(coded), _nbytes(coded.arrays())
    wide = int8.fit_weight(linear.weight, hot, energy, linear.name)
    return int8.dense(wide), _nbytes(wide.arrays())


def _nbytes(arrays: Mapping[str, np.ndarray]) -> int:
    return sum(array.nbytes for array in arrays.values())


@dataclass(frozen=True)
class Method:
    """A way to quantize: changes one after the other, then a rounding."""

    changes: tuple[Change, ...]
    rounding: Rounding


METHODS: Mapping[str, Method] = {
    "round to nearest": Method((), nearest),
    "SmoothQuant": Method((smoothed,), nearest),
    "AWQ": Method((activation_aware,), nearest),
    "GPTQ": Method((), fitted),
    "Hadamard": Method((hadamard,), nearest),
    "random orthogonal": Method((random_orthogonal,), nearest),
    "block Hadamard": Method((block_hadamard,), nearest),
    "AWQ, GPTQ": Method((activation_aware,), fitted),
    "folds": Method((folded,), nearest),
    "folds, GPTQ": Method((folded,), fitted),
    "Hadamard, GPTQ": Method((hadamard,), fitted),
    "folds, Hadamard, GPTQ": Method((folded, hadamard), fitted),
}


@dataclass(frozen=True)
class StandIn:
    """What stands for a linear: float weights that equal its codes, and how its inputs are rounded."""

    weight: np.ndarray
    turn: Turn
    step: np.float32
    hot: np.ndarray
    exact: bool
    """What overflows is added as it is; else it is clipped."""
    nbytes: int
    seen: ChannelStatistics
    """What it reads on calibration text, turned."""

    @property
    def exact_share(self) -> float:
        """The share of its input values that are not rounded, on calibration text."""
        if not self.exact:
            return 0.0
        over = np.abs(self.seen.rows()) > (LIMIT + 0.5) * self.step
        over[:, self.hot] = True
        return float(over.mean())

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """x float32 [T, K] -> [T, N]."""
        return np.asarray(self._rounded(self.turn(x)) @ self.weight.T)

    def _rounded(self, x: np.ndarray) -> np.ndarray:
        near = np.clip(np.rint(x / self.step), -LIMIT, LIMIT) * self.step
        if self.exact:
            near = np.where(np.abs(x) > (LIMIT + 0.5) * self.step, x, near)
        near[:, self.hot] = x[:, self.hot]
        return near


def quantized(linear: Linear, method: Method, scheme: str, shadow: bool) -> StandIn:
    """What stands for ``linear``; with a ``shadow`` its hot channels and its overflow are exact, else overflow is clipped."""
    for change in method.changes:
        linear = change(linear, scheme)
    hot = choose_hot(linear.seen) if shadow else NO_CHANNELS
    hot = hot[np.abs(linear.weight[:, hot]).max(axis=0, initial=0) <= MAX_FLOAT16]
    weight, nbytes = method.rounding(linear, hot, scheme)
    search = ScaleSearch(linear.seen, hot, column_energy(linear.weight))
    step = search.best(EXACT_PRICE) if shadow else search.best_clipped()
    return StandIn(weight, linear.turn, np.float32(step), hot, shadow, nbytes + linear.nbytes, linear.seen)
