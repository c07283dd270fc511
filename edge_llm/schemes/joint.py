"""The names of schemes: one for a whole linear, or one for each of its sources, such as ``w4,w4,int8``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from edge_llm.config import INT8, W4
from edge_llm.kernels.types import TILE_CHANNELS, TILE_DEPTH

if TYPE_CHECKING:
    from edge_llm.operations.linear import Linear
    from edge_llm.operations.questions import AnyLinear

_SEPARATOR = ","


def schemes_in(name: str) -> tuple[str, ...]:
    """The schemes that a linear's scheme names: one, or one for each of its sources."""
    return tuple(name.split(_SEPARATOR))


def joint_name(schemes: Sequence[str]) -> str:
    """The scheme of a linear whose sources have these ``schemes``."""
    return schemes[0] if len(set(schemes)) == 1 else _SEPARATOR.join(schemes)


def is_multiplied_as_int8(scheme: str) -> bool:
    """Whether the products of linears of ``scheme`` are those of INT8 weights."""
    return {INT8, W4}.issuperset(schemes_in(scheme))


def has_codes(linear: Linear) -> bool:
    """Whether any of ``linear`` is kept in codes."""
    return W4 in schemes_in(linear.scheme)


def takes_codes(linear: Linear) -> bool:
    """Whether its columns are whole tiles, where any of ``linear`` is to be kept in codes."""
    return linear.columns % TILE_DEPTH == 0 or not has_codes(linear)


def sources_may_differ(linear: Linear) -> bool:
    """Whether the sources of ``linear`` may have schemes of their own: several, of whole panels but for the last."""
    whole = linear.columns % TILE_DEPTH == 0 and all(source.count % TILE_CHANNELS == 0 for source in linear.sources[:-1])
    return len(linear.sources) > 1 and whole


def gate_in_one_pass(linear: AnyLinear) -> bool:
    """`Int8Linear.swiglu_in_one_pass`, of any gate, before there is a weight."""
    return linear.rows % (2 * TILE_CHANNELS) == 0 and len(schemes_in(linear.scheme)) == 1


class Part(NamedTuple):
    """Rows of a linear that have one scheme."""

    scheme: str
    rows: slice

    @property
    def channels(self) -> int:
        return int(self.rows.stop - self.rows.start)


def parts_of(linear: Linear) -> list[Part]:
    """The parts of ``linear`` in order.  Raises ValueError where its scheme does not suit it."""
    if not takes_codes(linear) or not is_multiplied_as_int8(linear.scheme):
        raise ValueError(f"`{linear.name}` cannot have the scheme `{linear.scheme}`")
    return in_parts(linear)


def in_parts(linear: Linear) -> list[Part]:
    """`parts_of` of any schemes: sources that follow each other with one scheme are a part."""
    schemes = schemes_in(linear.scheme)
    suits = len(schemes) == 1 or (sources_may_differ(linear) and len(schemes) == len(linear.sources))
    if not suits or joint_name(schemes) != linear.scheme:
        raise ValueError(f"`{linear.name}` cannot have the scheme `{linear.scheme}`")
    if len(schemes) == 1:
        return [Part(linear.scheme, slice(0, linear.rows))]
    found: list[Part] = []
    for scheme, sources in groupby(zip(schemes, linear.sources, strict=True), key=lambda one: one[0]):
        first = found[-1].rows.stop if found else 0
        found.append(Part(scheme, slice(first, first + sum(source.count for _, source in sources))))
    return found
