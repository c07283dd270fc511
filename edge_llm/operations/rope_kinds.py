"""Rotary position embedding and its kinds: the waves of ``dim`` rotated channels, and what cosines and sines are multiplied by.

A kind has two members.  ``frequencies(theta, dim)`` gives radians per position of every wave, float64 [dim / 2].  ``factor`` is
that of all cosines and sines.  Both have the same bits on every machine: powers and logarithms are rounded from 40 digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from decimal import Context, Decimal
from fractions import Fraction
from typing import ClassVar

import numpy as np

_EXACT = Context(prec=40)


@dataclass(frozen=True)
class Plain:
    """``theta^(-2i / dim)``."""

    KIND: ClassVar[str] = "plain"

    factor = 1.0

    def frequencies(self, theta: float, dim: int) -> np.ndarray:
        return _powers(Decimal(theta), dim)


@dataclass(frozen=True)
class Stretched:
    """All waves are ``stretch`` times as long."""

    KIND: ClassVar[str] = "linear"

    stretch: float
    factor = 1.0

    def frequencies(self, theta: float, dim: int) -> np.ndarray:
        return _powers(Decimal(theta), dim) / self.stretch


@dataclass(frozen=True)
class Dynamic:
    """A larger base for sequences longer than ``original_context``, fixed by the longest one (NTK-aware scaling)."""

    KIND: ClassVar[str] = "dynamic"

    stretch: float
    original_context: int
    length: int = 0
    """Of the longest sequence; at most ``original_context``: nothing changes."""
    factor = 1.0

    def frequencies(self, theta: float, dim: int) -> np.ndarray:
        longest = Fraction(max(self.length, self.original_context), self.original_context)
        grown = Fraction(self.stretch) * (longest - 1) + 1
        return _powers(_grown_base(theta, grown, dim), dim)


@dataclass(frozen=True)
class Alpha:
    """A larger base for all sequences: that of `Dynamic` at a fixed ``alpha``."""

    KIND: ClassVar[str] = "alpha"

    alpha: float
    factor = 1.0

    def frequencies(self, theta: float, dim: int) -> np.ndarray:
        return _powers(_grown_base(theta, Fraction(self.alpha), dim), dim)


@dataclass(frozen=True)
class Proportional:
    """The first ``part`` of the waves of the whole head, ``stretch`` times as long; the others do not turn."""

    KIND: ClassVar[str] = "proportional"

    part: float
    stretch: float = 1.0
    factor = 1.0

    def frequencies(self, theta: float, dim: int) -> np.ndarray:
        frequency = _powers(Decimal(theta), dim) / self.stretch
        frequency[int(self.part * dim // 2) :] = 0.0
        return frequency


@dataclass(frozen=True)
class Llama3:
    """Slow waves are ``stretch`` times as long, fast ones stay, those between are mixed by their turns in the first context."""

    KIND: ClassVar[str] = "llama3"

    stretch: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_context: int
    factor = 1.0

    def frequencies(self, theta: float, dim: int) -> np.ndarray:
        frequency = _powers(Decimal(theta), dim)
        turns = self.original_context * frequency / (2 * math.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return np.asarray(keep * frequency + (1.0 - keep) * frequency / self.stretch)


@dataclass(frozen=True)
class Yarn:
    """Mixed by the number of a wave, between those that turn ``beta_fast`` and ``beta_slow`` times in the first context.

    Peng et al., 2023, arXiv 2309.00071.
    """

    KIND: ClassVar[str] = "yarn"

    stretch: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """Whether both ends of the ramp are whole waves."""
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None

    @property
    def factor(self) -> float:
        """`attention_factor`, or what the stretch and both scales say."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return yarn_scale(self.stretch, self.mscale) / yarn_scale(self.stretch, self.mscale_all_dim)
        return yarn_scale(self.stretch)

    def frequencies(self, theta: float, dim: int) -> np.ndarray:
        frequency = _powers(Decimal(theta), dim)
        low, high = self._wave(self.beta_fast, theta, dim), self._wave(self.beta_slow, theta, dim)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        high = high + 0.001 if low == high else high
        ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0.0, 1.0)
        return np.asarray(frequency * (1.0 - ramp) + frequency / self.stretch * ramp)

    def _wave(self, turns: float, theta: float, dim: int) -> float:
        """The number of the wave that turns so often in the first context."""
        return dim * _log(self.original_context / (turns * 2 * math.pi)) / (2 * _log(theta))


@dataclass(frozen=True)
class LongRope:
    """Every wave has a divisor of its own: one set for texts up to ``original_context``, one for longer ones.

    The longest sequence chooses, once, because keys that were kept fit only the set that turned them.
    Ding et al., 2024, arXiv 2402.13753.
    """

    KIND: ClassVar[str] = "longrope"

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int
    context: int
    """The longest sequence that the model was made for."""
    length: int = 0
    """Of the longest sequence here."""
    attention_factor: float | None = None
    short_scale: float | None = None
    long_scale: float | None = None
    """Of cosines and sines by the set, in the place of the one that the contexts say."""

    def __post_init__(self) -> None:
        if len(self.short) != len(self.long):
            raise ValueError(f"{len(self.short)} divisors for short texts, and {len(self.long)} for long ones")

    @property
    def is_long(self) -> bool:
        return self.length > self.original_context

    @property
    def factor(self) -> float:
        """That of the set that was chosen, `attention_factor`, or what the contexts say."""
        own = self.long_scale if self.is_long else self.short_scale
        if own is not None:
            return own
        if self.attention_factor is not None:
            return self.attention_factor
        stretch = self.context / self.original_context
        return 1.0 if stretch <= 1 else math.sqrt(1 + _log(stretch) / _log(self.original_context))

    def frequencies(self, theta: float, dim: int) -> np.ndarray:
        """Raises ValueError where the divisors are not as many as the waves."""
        divisors = np.array(self.long if self.is_long else self.short, np.float64)
        if len(divisors) != dim // 2:
            raise ValueError(f"{dim} rotated channels have {dim // 2} waves; got {len(divisors)} divisors")
        return np.asarray(_powers(Decimal(theta), dim) / divisors)


RopeKind = Plain | Stretched | Dynamic | Alpha | Proportional | Llama3 | Yarn | LongRope
"""How the waves of a rotary position embedding are made."""


def check_waves(kind: RopeKind, theta: float, dim: int) -> None:
    """Raises ValueError where ``kind`` gives no waves that can be computed with."""
    if dim < 2 or dim % 2 or not theta > 0:
        return
    ways = [kind, replace(kind, length=kind.original_context + 1)] if isinstance(kind, LongRope) else [kind]
    try:
        with np.errstate(all="ignore"):
            values = [value for way in ways for value in (*way.frequencies(theta, dim), way.factor)]
    except ArithmeticError:
        values = [math.nan]
    if not all(map(math.isfinite, values)):
        raise ValueError(f"a rotation of {dim} channels by theta {theta:g} has no waves of the kind {kind.KIND}")


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of the first ``dim`` channels of heads (Su et al., 2021, arXiv 2104.09864); 0: of none."""

    dim: int
    theta: float
    scaling: RopeKind | None = None
    """How its waves are stretched."""

    def __post_init__(self) -> None:
        if self.scaling is not None:
            check_waves(self.scaling, self.theta, self.dim)


def yarn_scale(stretch: float, mscale: float = 1.0) -> float:
    """What `Yarn` multiplies scores' roots by."""
    return 1.0 if stretch <= 1 else 0.1 * mscale * _log(stretch) + 1.0


def _powers(theta: Decimal, dim: int) -> np.ndarray:
    powers = [_EXACT.power(theta, _EXACT.divide(Decimal(-channel), Decimal(dim))) for channel in range(0, dim, 2)]
    return np.array(powers, np.float64)


def _grown_base(theta: float, growth: Fraction, dim: int) -> Decimal:
    grown = _EXACT.divide(Decimal(growth.numerator), Decimal(growth.denominator))
    return _EXACT.multiply(Decimal(theta), _EXACT.power(grown, _EXACT.divide(Decimal(dim), Decimal(dim - 2))))


def _log(x: float) -> float:
    return float(_EXACT.ln(Decimal(x)))
