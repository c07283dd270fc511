"""What a device is given: the parts that a model is cut into, and the static subgraphs that are built of them.

A `Subgraph` is a short list of known operations over named buffers of a static number of rows.  It holds no weights
and no layer number: those come in when it runs, so one subgraph serves every chunk and every layer
(llm.npu, arXiv 2407.05858, §3.2, carried on to layers).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edge_llm.operations.base import (
    HIDDEN,
    HOT,
    NORMED,
    OVERFLOW,
    PAGES,
    PRODUCT,
    QUANTIZED,
    RESIDUAL,
    SHADOW,
    Op,
)

HOST_LANE, CARD_LANE = "cpu", "npu"
SHADOW_PART = ".shadow"
"""Behind the name of a linear: the part beside its product."""
DEVICE_BUFFERS = frozenset((PAGES, NORMED, PRODUCT, QUANTIZED, HOT, RESIDUAL, SHADOW, OVERFLOW))
"""Names that no buffer of a layer may have."""


@dataclass(frozen=True, eq=False)
class Part:
    """One task of every chunk and layer: what it does, on which lane, and which parts it waits for.  Equal only to itself."""

    name: str
    lane: str
    """cpu or npu."""
    ops: tuple[Op, ...]
    after: tuple[str, ...] = ()
    """Parts of its layer.  If there are none, it waits for the layer before."""
    after_earlier: tuple[str, ...] = ()
    """Parts of the same layer in all earlier chunks."""


@dataclass(frozen=True)
class Subgraph:
    """A static unit of work: the part of a layer it is, its lane, its rows, and its operations in order."""

    part: str
    lane: str
    rows: int
    ops: tuple[Op, ...]


def buffer_widths(parts: Iterable[Part], hidden_size: int) -> dict[str, int]:
    """Values per row of every float buffer that ``parts`` work in."""
    widths = {HIDDEN: hidden_size}
    for op in (op for part in parts for op in part.ops):
        for name, width in op.of.op_widths(op).items():
            widths[name] = max(width, widths.get(name, 0))
    return widths
