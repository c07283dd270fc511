"""Which linears are W4 and which stay INT8 under a number of bits: where 4 bits cost the most per byte, there are 8.

What 4 bits cost is measured on the calibration text, with rounded codes, for every linear alone: all others are INT8.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from edge_llm.config import INT8, TABLE_SCHEMES, W4
from edge_llm.convert.sensitive import check_names
from edge_llm.convert.trial import Choice, Measure
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.models.layer import Decoder, Linear
from edge_llm.quant.shadow import Treatment
from edge_llm.quant.w4 import fits
from edge_llm.schemes import linear_tensors

DEFAULT_BITS = 4.6
AUTO = "auto"
KINDS = (INT8, W4, AUTO)


@dataclass(frozen=True)
class LayerBits:
    """How the weights of the layers are kept."""

    kind: str = INT8
    """int8 or w4, where it can be; auto: W4, and INT8 where that pays most, within ``bits``."""
    bits: float = DEFAULT_BITS
    """Per weight, everything counted, for auto."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """The schemes of linears that are not to have 4 bits, by the linears' names."""
    head: str = INT8
    """The scheme of the output matrix, which may be the embedding too."""
    fit: bool = False
    """Fit INT8 weights to the calibration text; those beside 4-bit ones always are."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"no weights `{shown(self.kind)}`; there are: {', '.join(KINDS)}", param="weights")
        if not 0 < self.bits <= 16:
            raise UsageError(f"the bits per weight must be above 0 and at most 16, got `{self.bits:g}`", param="bits")
        if self.head not in TABLE_SCHEMES:
            raise UsageError(f"no head `{shown(self.head)}`; there are: {', '.join(TABLE_SCHEMES)}", param="head")
        if self.head != INT8 and self.kind == INT8:
            raise UsageError(f"a head of 4 bits is for --weights {W4} and {AUTO}", param="head")

    def __str__(self) -> str:
        """As a manifest holds it."""
        said = [f"{self.kind} {self.bits:g}" if self.kind == AUTO else self.kind]
        said += [] if self.head == INT8 else [f"head {self.head}"]
        said += ["fitted"] if self.fit and self.kind == INT8 else []
        return ", ".join([*said, *(f"{scheme} {name}" for name, scheme in sorted(self.fixed.items()))])

    @property
    def fitted(self) -> bool:
        """Whether any weights are fitted."""
        return self.fit or self.kind != INT8

    def asked(self, decoder: Decoder) -> dict[str, str]:
        """The linears that are fixed to another scheme than INT8.

        Raises `UsageError` for a name that no linear has, and for bits that would not do without any outliers.
        """
        check_names(self.fixed, decoder)
        if self.kind == AUTO:
            _check_bits(self.bits, self._least_bits(decoder))
        return {name: scheme for name, scheme in self.fixed.items() if scheme != INT8}

    def _least_bits(self, decoder: Decoder) -> float:
        """Bits per weight of the layers where all that can be is in W4, and no channel is hot."""
        linears = {name: one for name, one in decoder.linears().items() if name != "output"}
        schemes = {name: self.fixed.get(name, W4 if fits(one.columns) else INT8) for name, one in linears.items()}
        taken = sum(_bits_of(one, 0, schemes[name]) for name, one in linears.items())
        return taken / sum(one.rows * one.columns for one in linears.values())


def coded(chosen: Choice, names: Iterable[str]) -> dict[str, Treatment]:
    """What was ``chosen`` for INT8, with the linears of these ``names`` in W4: outliers stay the same."""
    return {**chosen, **{name: replace(chosen[name], scheme=W4) for name in names}}


def that_fit(decoder: Decoder, chosen: Choice) -> list[str]:
    """The INT8 linears of the layers that can be coded."""
    linears = decoder.linears()
    return [name for name, one in chosen.items() if name != "output" and one.scheme == INT8 and fits(linears[name].columns)]


def allocate(
    decoder: Decoder, chosen: Choice, bits: float, measure: Measure, fixed: Container[str] = ()
) -> dict[str, Treatment]:
    """``chosen`` with as many linears in W4 as it takes for ``bits`` per weight of the layers, those that cost least.

    The linears that are ``fixed`` stay as they are.  Raises `UsageError` where all of them are not enough.
    """
    linears, names = decoder.linears(), [name for name in that_fit(decoder, chosen) if name not in fixed]
    weights = sum(one.rows * one.columns for name, one in linears.items() if name != "output")
    narrow = {name: _bits(linears[name], chosen[name], W4) for name in names}
    wide = {name: _bits(linears[name], chosen[name], INT8) for name in names}
    others = [name for name in linears if name not in narrow and name != "output"]
    least = sum(narrow.values()) + sum(_bits(linears[name], chosen[name], chosen[name].scheme) for name in others)
    _check_bits(bits, least / weights)
    left = bits * weights - least
    costs = _costs(chosen, names, measure)
    kept: set[str] = set()
    for name in sorted(names, key=lambda name: -costs[name] / (wide[name] - narrow[name])):
        if wide[name] - narrow[name] <= left:
            left -= wide[name] - narrow[name]
            kept.add(name)
    return coded(chosen, [name for name in names if name not in kept])


def _check_bits(bits: float, least: float) -> None:
    if bits < least:
        enough = math.ceil(100 * least) / 100
        ways_out = f"give --bits {enough:g} or more, or --weights {W4}"
        raise UsageError(f"the layers take {enough:g} bits per weight at least; {ways_out}", param="bits")


def _bits(linear: Linear, treatment: Treatment, scheme: str) -> int:
    """What a linear takes in a bundle, all counted."""
    return _bits_of(linear, len(treatment.hot), scheme)


def _bits_of(linear: Linear, hot: int, scheme: str) -> int:
    specs = linear_tensors(replace(linear, scheme=scheme), hot)
    return sum(8 * np.dtype(dtype).itemsize * math.prod(shape) for _, dtype, shape in specs)


def _costs(chosen: Choice, names: list[str], measure: Measure) -> dict[str, float]:
    """What W4 costs in each of the linears ``names`` alone, in percent of perplexity; below 0 where it cannot be told."""
    none, *costs = measure("4 bits alone", [dict(chosen), *(coded(chosen, [name]) for name in names)])
    return {name: cost - none for name, cost in zip(names, costs, strict=True)}
