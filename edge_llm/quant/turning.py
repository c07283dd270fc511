"""Turns of channels: which blocks a model gets, and weights that meet turned inputs.

    y = turned(x) @ turned_columns(W).T = x @ W.T      turned(x) = x H, turned_columns(W) = W H / block

A block of `block` channels of an input is turned by a Hadamard matrix H of +1 and -1 before it is rounded, so that no channel
stands out (QuaRot: Ashkboos et al., 2024, arXiv 2404.00456, §4; here behind folds, and of blocks, so that nothing has to be
folded out of the norms).  Values are turned in the weights alone: their rows by H, the columns of what reads them by H / block.
"""

from __future__ import annotations

import numpy as np

from edge_llm.kernels import ThreadPool
from edge_llm.kernels.pointwise import MAX_TURN, turn


def block_of(channels: int, most: int = MAX_TURN) -> int:
    """The largest block of at most ``most`` channels that divides ``channels``; 0 where that is 1."""
    block = min(channels & -channels, most)
    return block if block > 1 else 0


def turned(x: np.ndarray, block: int) -> np.ndarray:
    """A copy of x float32 [..., K] with its blocks turned."""
    found = np.array(x, np.float32, order="C")
    turn(found.reshape(-1, found.shape[-1]), block, ThreadPool(1))
    return found


def turned_back(x: np.ndarray, block: int) -> np.ndarray:
    """The x float32 [..., K] that `turned` makes this of."""
    found = turned(x, block)
    if block:
        found /= np.float32(block)
    return found


def turned_columns(weight: np.ndarray, block: int) -> np.ndarray:
    """The weight float32 [N, K] that does with turned rows what ``weight`` does with rows as they are."""
    return turned_back(weight, block)


def turn_columns(weight: np.ndarray, block: int) -> None:
    """`turned_columns` in place: an output matrix may be the largest of all."""
    if block:
        turn(weight, block, ThreadPool(1))
        weight /= np.float32(block)


def turned_rows(weight: np.ndarray, block: int) -> np.ndarray:
    """The weight [N, K], or bias [N], whose product is the turned product of ``weight``."""
    return np.ascontiguousarray(turned(weight.T, block).T)
