"""The contract between a model and a device: what a subgraph is, what it runs on, what a device must do.

A `Subgraph` is a short list of known operations over named buffers of a static number of rows.  It holds no weights
and no layer number: those come in when it runs, so one subgraph serves every chunk and every layer
(llm.npu, arXiv 2407.05858, §3.2, carried on to layers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edge_llm.kv.store import LayerPages
from edge_llm.models.layer import HIDDEN, Attention, Linear, Norm, Operation, SwiGLU
from edge_llm.models.rope import RopeTables
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.weights.base import Weights

PAGES = "pages"
"""What operations call the keys and values of their layer."""
NORMED = "normed_rows"
"""Where quantize puts the rows that it normed."""
QUANTIZED, HOT, RESIDUAL, SHADOW = "quantized", "hot", "residual", "shadow"
"""Between a linear's float rows and its result: INT8 rows, hot channels, what the scale cut off, the hot channels' product."""
DEVICE_BUFFERS = frozenset((PAGES, NORMED, QUANTIZED, HOT, RESIDUAL, SHADOW))
"""Names that no buffer of a layer may have."""


@dataclass(frozen=True)
class Op:
    """One operation on a device: everything that it reads and writes, and what of the layer it does.

    On the host: rms_norm, linear, linear_swiglu, swiglu, rope_append, attention.  A linear that a card multiplies is cut into
    quantize (float to INT8, overflow apart), matmul (on the card: INT8 to float), shadow (hot channels) and merge.
    """

    kind: str
    reads: tuple[str, ...]
    """The input comes first.  The last of a linear or a merge may be the buffer that is added to the result."""
    writes: tuple[str, ...]
    of: Operation
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


@dataclass(frozen=True)
class Rows:
    """What the rows of a chunk are.  The first ``count`` rows are valid; the rest only fill the static length.

    tokens int64 [count]; sequence int32 [count] (row of ``page_table``); position int32 [count];
    slots int64 [count] (where keys and values are written); page_table int32 [sequences, pages].
    """

    static: int
    tokens: np.ndarray
    sequence: np.ndarray
    position: np.ndarray
    slots: np.ndarray
    page_table: np.ndarray

    @property
    def count(self) -> int:
        return len(self.tokens)


Buffers = MutableMapping[str, Any]
"""Named activations of one chunk: float32 [rows, width], for a card INT8 too; `residual` is what the last quantize cut off."""

RunSubgraph = Callable[[BlockWeights, Buffers, Rows, "LayerPages | None"], None]
"""A built subgraph: weights and pages of the layer, buffers and rows of the chunk."""


class Device(Protocol):
    """Where subgraphs run."""

    name: str
    lanes: tuple[str, ...]
    """("cpu",), or ("cpu", "npu") where INT8 products run on a card."""
    placement: str
    """How a layer is cut into parts for it: one of `edge_llm.subgraphs.placement.PLACEMENTS`."""

    def weights(self, weights: Weights, layers: int) -> Weights:
        """``weights`` of ``layers`` layers as subgraphs of this device take them.

        A card copies what it multiplies into its own memory; raises `DeviceError` when they do not fit there.
        """
        ...

    def buffers(self, widths: Mapping[str, int], rows: int) -> Buffers:
        """Activations for one chunk of at most ``rows`` rows: the float buffers of these ``widths``."""
        ...

    def build(self, subgraph: Subgraph, tables: RopeTables) -> RunSubgraph:
        """Build a subgraph once; ``tables`` reach over the whole context."""
        ...

    def embed(self, table: Int8Weight, rows: Rows, hidden: np.ndarray) -> None:
        """Write the embedding of every valid row's token to ``hidden`` float32 [rows, hidden_size]."""
        ...


def buffer_widths(parts: Iterable[Part], hidden_size: int) -> dict[str, int]:
    """Values per row of every float buffer that ``parts`` work in."""
    widths = {HIDDEN: hidden_size}
    for op in (op for part in parts for op in part.ops):
        for name, width in _op_widths(op).items():
            widths[name] = max(width, widths.get(name, 0))
    return widths


def _op_widths(op: Op) -> dict[str, int]:
    if isinstance(op.of, Attention):
        return {op.writes[0]: op.of.q_size} if op.kind == "attention" else {}
    if isinstance(op.of, SwiGLU):
        return {op.writes[0]: op.of.width}
    if isinstance(op.of, Norm):
        return {op.writes[0]: op.of.gain.size}
    if op.kind == "quantize":
        return {NORMED: op.of.columns} if op.norm else {}
    return {op.writes[0]: op.of.rows // 2 if op.kind == "linear_swiglu" else op.of.rows}
