"""Every kind of operation that a bundle may name."""

from __future__ import annotations

from collections.abc import Mapping

from edge_llm.operations.activation import Activate
from edge_llm.operations.attention import Attention
from edge_llm.operations.base import Operation
from edge_llm.operations.experts import Experts
from edge_llm.operations.glu import GLU
from edge_llm.operations.linear import Linear
from edge_llm.operations.norm import Norm
from edge_llm.operations.positions import Positions
from edge_llm.operations.row_gate import RowGate
from edge_llm.operations.short_convolution import ShortConvolution

_KINDS: dict[str, type[Operation]] = {
    kind.KIND: kind for kind in (Norm, Linear, Attention, GLU, Activate, Experts, RowGate, Positions, ShortConvolution)
}


def kinds() -> Mapping[str, type[Operation]]:
    """The kinds by their names."""
    return _KINDS


def add_kind(kind: type[Operation]) -> None:
    """Have bundles name one more ``kind``, a frozen dataclass."""
    _KINDS[kind.KIND] = kind
