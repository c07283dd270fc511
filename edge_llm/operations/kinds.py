"""Every kind of operation that a bundle may name."""

from __future__ import annotations

from collections.abc import Mapping

from edge_llm.operations.activation import Activate
from edge_llm.operations.attention import Attention
from edge_llm.operations.base import Operation
from edge_llm.operations.experts import Experts
from edge_llm.operations.gated_delta import GatedDelta
from edge_llm.operations.glu import GLU
from edge_llm.operations.linear import Linear
from edge_llm.operations.mamba2 import Mamba2
from edge_llm.operations.norm import Norm
from edge_llm.operations.positions import Positions
from edge_llm.operations.row_gate import RowGate
from edge_llm.operations.short_convolution import ShortConvolution
from edge_llm.operations.wide_gate import WideGate

_OURS: tuple[type[Operation], ...] = (
    Norm, Linear, Attention, GLU, Activate, Experts, RowGate, Positions, ShortConvolution, GatedDelta, Mamba2, WideGate,
)  # fmt: skip
_KINDS = {kind.KIND: kind for kind in _OURS}


def kinds() -> Mapping[str, type[Operation]]:
    """The kinds by their names."""
    return _KINDS


def add_kind(kind: type[Operation]) -> None:
    """Have bundles name one more ``kind``, a frozen dataclass."""
    _KINDS[kind.KIND] = kind
