"""The contract between a model and a device: what a subgraph is, what it runs on, what a device must do.

A `Subgraph` is a short list of known operations over named buffers of a static number of rows.  It holds no weights
and no layer number: those come in when it runs, so one subgraph serves every chunk and every layer
(llm.npu, arXiv 2407.05858, §3.2, carried on to layers).
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.kv.store import LayerPages
from edge_llm.quant.linear import BlockWeights, LinearWeights
from edge_llm.weights.base import Weights


@dataclass(frozen=True)
class Op:
    """One operation: ``kind`` reads a buffer and writes a buffer, with the weights called ``weights``."""

    kind: str
    """On the host: rms_norm, linear, linear_swiglu, rope_append, attention.  A linear that a card multiplies is cut into
    quantize (float to INT8, overflow apart), matmul (on the card: INT8 to float), shadow (hot channels) and merge, and
    swiglu then stands alone."""
    reads: str
    writes: str
    weights: str = ""
    adds: str = ""
    """Buffer that is added to a linear's result (the residual stream)."""
    norm: str = ""
    """Gain that a linear's (or quantize's) rows are normed with first."""


@dataclass(frozen=True)
class Part:
    """One task of every chunk and layer: what it does, on which lane, and which parts of its layer it waits for."""

    name: str
    lane: str
    """cpu or npu."""
    ops: tuple[Op, ...]
    after: tuple[str, ...] = ()
    """None: it waits for the last part of the layer before."""


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

    def weights(self, weights: Weights, layers: int) -> Weights:
        """``weights`` of ``layers`` layers as subgraphs of this device take them.

        A card copies what it multiplies into its own memory; raises `DeviceError` when they do not fit there.
        """
        ...

    def buffers(self, config: ModelConfig, rows: int) -> Buffers:
        """Activations for one chunk of at most ``rows`` rows."""
        ...

    def build(self, subgraph: Subgraph, config: ModelConfig, rope: tuple[np.ndarray, np.ndarray]) -> RunSubgraph:
        """Build a subgraph once; ``rope`` is (cos, sin), each float32 [context, head_dim / 2]."""
        ...

    def embed(self, table: LinearWeights, rows: Rows, hidden: np.ndarray) -> None:
        """Write the embedding of every valid row's token to ``hidden`` float32 [rows, hidden_size]."""
        ...


def buffer_widths(config: ModelConfig) -> dict[str, int]:
    """Width of every float buffer that the subgraphs of a decoder name on any device."""
    return {
        "hidden": config.hidden_size,
        "qkv": config.qkv_size,
        "attended": config.q_size,
        "activated": config.intermediate_size,
    }
