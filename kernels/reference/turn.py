"""The turn: blocks of neighbouring channels times Sylvester's Hadamard matrix, additions only."""

from __future__ import annotations

import numpy as np

from edge_llm.kernels.types import F32


def turn(x: F32, block: int) -> F32:
    """x[..., K], every ``block`` of neighbouring channels times H [block, block] of +1 and -1; a block of 0 changes nothing.

    Stages with the distances 1, 2, 4, ... make (a, b) to (a + b, a - b).  H is symmetric, and H H = block.
    """
    y = np.asarray(x, np.float32)
    distance = 1
    with np.errstate(over="ignore", invalid="ignore"):
        while distance < block:
            pairs = y.reshape(*x.shape[:-1], x.shape[-1] // (2 * distance), 2, distance)
            a, b = pairs[..., 0, :], pairs[..., 1, :]
            y = np.stack([a + b, a - b], axis=-2).reshape(x.shape)
            distance *= 2
    return y
