"""What is W4 and what stays INT8 under a number of bits: where 4 bits cost the most per byte, there are 8.

What 4 bits cost is known of every source of a linear, such as the values of a q | k | v (`sensitivity`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from edge_llm.config import BLOCKS, INT8, TABLE_SCHEMES, W4
from edge_llm.convert.sensitive import check_names
from edge_llm.errors import UsageError
from edge_llm.files import shown
from edge_llm.models.layer import Decoder
from edge_llm.operations.linear import Linear
from edge_llm.quant.shadow import Treatment
from edge_llm.quant.w4 import fits
from edge_llm.schemes import linear_tensors
from edge_llm.schemes.joint import is_multiplied_as_int8, joint_name, sources_may_differ

if TYPE_CHECKING:
    from edge_llm.convert.sensitivity import Costs

DEFAULT_BITS = 4.6
AUTO = "auto"
KINDS = (BLOCKS, INT8, W4, AUTO)
NOTHING_FIXED: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class LayerBits:
    """How the weights of the layers are kept."""

    kind: str = INT8
    """int8 or w4, where it can be; auto: W4, and INT8 where that pays most, within ``bits``; blocks: those of the source."""
    bits: float = DEFAULT_BITS
    """Per weight, everything counted, for auto."""
    fixed: Mapping[str, str] = field(default_factory=dict)
    """The schemes of linears that are not to have 4 bits, by the linears' names."""
    head: str = INT8
    """The scheme of the output matrix, which may be the embedding too."""
    fit: bool = False
    """Fit INT8 weights to the calibration text; those beside 4-bit ones always are."""
    or_blocks: bool = False
    """Keep the blocks of a source that has them in place of all this."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UsageError(f"no weights `{shown(self.kind)}`; there are: {', '.join(KINDS)}", param="weights")
        if not 0 < self.bits <= 16:
            raise UsageError(f"the bits per weight must be above 0 and at most 16, got `{self.bits:g}`", param="bits")
        if self.head not in TABLE_SCHEMES:
            raise UsageError(f"no head `{shown(self.head)}`; there are: {', '.join(TABLE_SCHEMES)}", param="head")
        if self.head != INT8 and self.kind in (INT8, BLOCKS):
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
        return self.kind != BLOCKS and (self.fit or self.kind != INT8)

    def asked(self, decoder: Decoder) -> dict[str, str]:
        """The linears that are fixed to a scheme that is not multiplied as INT8.

        Raises `UsageError` for a name that no linear has, and for bits that would not do without any outliers.
        """
        check_names(self.fixed, decoder)
        if self.kind == AUTO:
            _check_bits(self.bits, self._least_bits(decoder))
        return {name: scheme for name, scheme in self.fixed.items() if not is_multiplied_as_int8(scheme)}

    def _least_bits(self, decoder: Decoder) -> float:
        """Bits per weight of the layers where all that can be is in W4, and no channel is hot."""
        linears = {name: one for name, one in decoder.linears().items() if name != "output"}
        schemes = {name: self.fixed.get(name, W4 if fits(one.columns) else INT8) for name, one in linears.items()}
        taken = sum(_bits_of(one, 0, schemes[name]) for name, one in linears.items())
        return taken / sum(one.rows * one.columns for one in linears.values())


def in_schemes(chosen: Mapping[str, Treatment], schemes: Mapping[str, str]) -> dict[str, Treatment]:
    """What was ``chosen`` for INT8, with other schemes for some linears: outliers stay the same."""
    return {**chosen, **{name: replace(chosen[name], scheme=scheme) for name, scheme in schemes.items()}}


def that_fit(decoder: Decoder, chosen: Mapping[str, Treatment]) -> list[str]:
    """The INT8 linears of the layers that can be coded."""
    linears = decoder.linears()
    return [name for name, one in chosen.items() if name != "output" and one.scheme == INT8 and fits(linears[name].columns)]


@dataclass(frozen=True)
class _Source:
    """What may be W4 or INT8 by itself: source ``number`` of ``count`` of a linear; of 1 it is all of the linear."""

    linear: str
    number: int
    count: int

    def scheme(self, here: str, elsewhere: str) -> str:
        """The scheme of the linear with one scheme ``here`` and another in its other sources."""
        return joint_name([here if number == self.number else elsewhere for number in range(self.count)])

    def cost(self, costs: Costs) -> float:
        """What 4 bits cost in it."""
        found = costs[self.linear]
        return found[self.number] if self.count > 1 else sum(found)


def allocate(
    decoder: Decoder,
    chosen: Mapping[str, Treatment],
    bits: float,
    costs_of: Callable[[Collection[str]], Costs],
    fixed: Mapping[str, str] = NOTHING_FIXED,
) -> dict[str, Treatment]:
    """``chosen`` with W4 where it costs least, as much as it takes for ``bits`` per weight of the layers.

    ``costs_of`` linears is asked for what 4 bits cost in them.  ``fixed`` names the schemes of linears that are INT8 in
    ``chosen``.  Raises `UsageError` where ``bits`` are too few.
    """
    linears = decoder.linears()
    start = in_schemes(chosen, {name: scheme for name, scheme in fixed.items() if chosen[name].scheme == INT8})
    sources = [source for name in that_fit(decoder, start) if name not in fixed for source in _sources(decoder, name)]
    least = in_schemes(start, {source.linear: W4 for source in sources})
    weights = sum(one.rows * one.columns for name, one in linears.items() if name != "output")
    taken = sum(_bits(linears[name], one) for name, one in least.items() if name != "output")
    _check_bits(bits, taken / weights)
    if not sources:
        return start
    left = bits * weights - taken
    costs = costs_of({source.linear for source in sources})
    more = {source: _extra_bits(linears[source.linear], start[source.linear], source) for source in sources}
    wide: set[_Source] = set()
    for source in sorted(sources, key=lambda source: -source.cost(costs) / more[source]):
        if more[source] <= left:
            left -= more[source]
            wide.add(source)
    schemes = {
        name: joint_name([INT8 if source in wide else W4 for source in own])
        for name, own in groupby(sources, key=lambda source: source.linear)
    }
    return in_schemes(start, schemes)


def _sources(decoder: Decoder, name: str) -> list[_Source]:
    """The sources of a linear that may differ; gate and up stay one, which takes a single pass."""
    _, index, own_name = name.split(".", 2)
    layer = decoder.layers[int(index)]
    linear = layer.linear(own_name)
    inside = linear not in layer.operations  # an expert's
    joint = inside or any(reader.pairs_its_input for reader in layer.readers(linear))
    count = len(linear.sources) if sources_may_differ(linear) and not joint else 1
    return [_Source(name, number, count) for number in range(count)]


def _check_bits(bits: float, least: float) -> None:
    if bits < least:
        enough = math.ceil(100 * least) / 100
        ways_out = f"give --bits {enough:g} or more, or --weights {W4}"
        raise UsageError(f"the layers take {enough:g} bits per weight at least; {ways_out}", param="bits")


def _bits(linear: Linear, treatment: Treatment) -> int:
    """What a linear takes in a bundle, all counted."""
    return _bits_of(linear, len(treatment.hot), treatment.scheme)


def _bits_of(linear: Linear, hot: int, scheme: str) -> int:
    specs = linear_tensors(replace(linear, scheme=scheme), hot)
    return sum(8 * np.dtype(dtype).itemsize * math.prod(shape) for _, dtype, shape in specs)


def _extra_bits(linear: Linear, treatment: Treatment, source: _Source) -> int:
    """What ``source`` takes in INT8 more than in W4."""
    hot = len(treatment.hot)
    return _bits_of(linear, hot, source.scheme(INT8, W4)) - _bits_of(linear, hot, W4)
