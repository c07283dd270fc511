"""The gradient of the float path, a layer at a time: what its predictions feel of a change in a linear's output.

Every operation's vector-Jacobian product, in the order of `edge_llm.models.reference`, which defines the values.  Whoever
quantizes a linear asks for the gradient of the log-probability of tokens that the model itself draws: half the mean square of
gradient times error is then the divergence that the error causes, to first order (the diagonal of Fisher's information;
Amari, 1998).
"""

from __future__ import annotations

import numpy as np

from edge_llm.models.rope import RopeTables
from edge_llm.operations.arithmetic import soft_cap, soft_cap_slope
from edge_llm.operations.base import HIDDEN, NUMPY, Arithmetic, FloatRun, LayerWeights, ObserveGradient
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import row_blocks, through_weight

_DRAWS = 1
"""Seed of the tokens that are drawn."""


def layer_gradient(
    x: np.ndarray,
    layer: Layer,
    weights: LayerWeights,
    tables: RopeTables,
    gradient: np.ndarray,
    observe: ObserveGradient,
    arithmetic: Arithmetic = NUMPY,
) -> np.ndarray:
    """The gradient at the input x float32 [T, hidden] of ``layer``, of the ``gradient`` at its output; x is one sequence."""
    run = FloatRun(weights, tables, arithmetic=arithmetic, observe_back=observe)
    buffers, steps = {HIDDEN: x}, []
    for operation in layer.operations:
        written, back = operation.forward_and_back(buffers, run)
        steps.append((operation, back))
        buffers[operation.writes] = written
    felt = {HIDDEN: gradient}
    for operation, back in reversed(steps):
        for buffer, at_input in back(felt.pop(operation.writes)):
            _add(felt, buffer, at_input)
    return felt[HIDDEN]


def _add(felt: dict[str, np.ndarray], name: str, gradient: np.ndarray) -> None:
    felt[name] = felt[name] + gradient if name in felt else gradient


def drawn_gradient(
    states: np.ndarray,
    output: np.ndarray,
    random: np.random.Generator,
    arithmetic: Arithmetic = NUMPY,
    cap: float = 0.0,
) -> np.ndarray:
    """The gradient at ``states`` [T, hidden] of the log-probability of tokens that are drawn from what they predict.

    ``output`` [V, hidden] gives the logits, within ``cap``; one token is drawn behind every state.
    """
    logits = np.concatenate([arithmetic.product(states, output[rows]) for rows in row_blocks(len(output))], axis=1)
    logits = soft_cap(logits, cap, arithmetic)
    slopes = soft_cap_slope(logits, cap) if cap else None
    logits -= logits.max(axis=1, keepdims=True)
    likely = arithmetic.exp(logits)
    del logits  # as large as all that follows
    likely /= likely.sum(axis=1, keepdims=True)
    below = np.cumsum(likely, axis=1, dtype=np.float64)
    drawn = [
        int(np.searchsorted(row, at * row[-1])) for row, at in zip(below, random.random(len(below)), strict=True)
    ]
    likely *= -1
    likely[np.arange(len(drawn)), drawn] += 1
    return through_weight(output, arithmetic, likely if slopes is None else likely * slopes)


def draws() -> np.random.Generator:
    """The same draws every time."""
    return np.random.default_rng(_DRAWS)
