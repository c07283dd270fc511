"""What a device is given: the parts that a model is cut into, and the static subgraphs that are built of them.

A `Subgraph` is a short list of known operations over named buffers of a static number of rows.  It holds no weights
and no layer number: those come in when it runs, so one subgraph serves every chunk and every layer
(llm.npu, arXiv 2407.05858, §3.2, carried on to layers).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edge_llm.models.layer import HIDDEN, Attention, Embedding, Linear, Norm, Operation, SwiGLU

HOST_LANE, CARD_LANE = "cpu", "npu"
PAGES = "pages"
"""What operations call the keys and values of their layer."""
NORMED = "normed_rows"
"""Where quantize puts the rows that it normed."""
PRODUCT = "product_rows"
"""Where a linear puts its product when its SwiGLU is a pass of its own."""
QUANTIZED, HOT, RESIDUAL = "quantized", "hot", "residual"
"""Between a linear's float rows and its product: INT8 rows, hot channels, what the scale cut off."""
SHADOW, OVERFLOW = "shadow", "overflow"
"""Beside the product: that of the hot channels, and that of what the scale cut off."""
SHADOW_PART = ".shadow"
"""Behind the name of a linear: the part beside its product."""
DEVICE_BUFFERS = frozenset((PAGES, NORMED, PRODUCT, QUANTIZED, HOT, RESIDUAL, SHADOW, OVERFLOW))
"""Names that no buffer of a layer may have."""


@dataclass(frozen=True)
class Op:
    """One operation on a device: everything that it reads and writes, and what of the layer it does.

    In one pass: embedding, rms_norm, linear, linear_swiglu, swiglu, rope_append, attention.  A linear that a card multiplies is
    cut into quantize (float to INT8, overflow apart), matmul (on the card: INT8 to float), shadow (hot channels and overflow)
    and merge.
    """

    kind: str
    reads: tuple[str, ...]
    """The input comes first.  The last of a linear or a merge may be the buffer that is added to the result."""
    writes: tuple[str, ...]
    of: Operation | Embedding
    norm: Norm | None = None
    """The norm that a linear (or quantize) does first."""

    @property
    def linear(self) -> Linear:
        """What a linear, quantize, matmul, shadow or merge is a part of."""
        assert isinstance(self.of, Linear)
        return self.of

    @property
    def adds(self) -> str:
        """The buffer that is added to the result; empty when none is."""
        return self.reads[-1] if self.kind in ("linear", "merge") and self.linear.adds else ""


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
        for name, width in _op_widths(op).items():
            widths[name] = max(width, widths.get(name, 0))
    return widths


def _op_widths(op: Op) -> dict[str, int]:
    if isinstance(op.of, Embedding):
        return {op.writes[0]: op.of.columns}
    if isinstance(op.of, Attention):
        return {op.writes[0]: op.of.q_size} if op.kind == "attention" else {}
    if isinstance(op.of, SwiGLU):
        return {op.writes[0]: op.of.width}
    if isinstance(op.of, Norm):
        return {op.writes[0]: op.of.gain.size}
    if op.kind == "quantize":
        return {NORMED: op.of.columns} if op.norm else {}
    if op.kind == "shadow":  # behind a turn no channel is hot
        return dict.fromkeys((OVERFLOW,) if op.of.turn else (SHADOW, OVERFLOW), op.of.rows)
    if op.kind == "linear_swiglu":
        return {op.writes[0]: op.of.rows // 2} | ({PRODUCT: op.of.rows} if PRODUCT in op.writes else {})
    return {op.writes[0]: op.of.rows}
