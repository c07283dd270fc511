"""What an import that goes on layer by layer hands from one layer to the next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Arrays = Mapping[str, np.ndarray]
"""The tensors of a linear in a bundle, by their names."""


@dataclass
class Position:
    """The hidden states between two layers."""

    float_states: list[np.ndarray]
    """Of the float model, float32 [T, hidden] of each sequence."""
    bundle_states: np.ndarray
    """Of the bundle, float32 [tokens, hidden] of all sequences."""
