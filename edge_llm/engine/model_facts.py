"""What a face shows of a loaded model that never changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ModelFacts:
    """What stays as it is as long as a model is loaded."""

    hot_channels: int = 0
    """Input channels that are computed in float beside the INT8 products, over all linears."""
    shadowed_linears: int = 0
    """Linears that add back what INT8 does not hold: hot channels, or what overflows, or both."""
    linears: int = 0
    budget: int | None = None
    """Bytes that weights may take; None: no limit."""
    precision: str = ""
    """The schemes of the weights, such as `w4+int8`."""
    weights_bytes: int = 0
    """Of all weights."""
    bits_per_weight: float | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What was planned when it was opened: where it runs, context, threads, memory; sizes in bytes."""
