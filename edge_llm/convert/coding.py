"""Fits the codes of W4 linears to what they read: calibration text through the folded float model, a layer at a time.

Part of the text is held out: a linear whose output GPTQ does not bring nearer there keeps weights that are rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from edge_llm.config import W4
from edge_llm.convert.calibrate import run_layer
from edge_llm.models.layer import Decoder, Layer
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import LayerWeights, WeightSource, read_embedding
from edge_llm.quant.channels import ChannelStatistics
from edge_llm.quant.gptq import damped_energy, damping, input_energy
from edge_llm.quant.shadow import Treatment
from edge_llm.quant.w4 import CodedWeight, dense, fit_weight, round_weight
from kernels.floats import product

HELD_OUT = 8
"""Every so many-th row is held out."""
_MOST_HELD_OUT = 256


@dataclass
class Coder:
    """The calibration sequences between two layers, and what was found so far."""

    states: list[np.ndarray]
    """float32 [T, hidden] of each."""
    tables: RopeTables
    fitted: int = 0
    """Linears whose codes were fitted."""
    rounded: int = 0
    """Those that are nearer when they are rounded."""

    @classmethod
    def begin(cls, source: WeightSource, decoder: Decoder, sequences: Sequence[np.ndarray]) -> Coder:
        """Before the first layer; ``sequences`` are token ids int64 [T]."""
        embedding = read_embedding(source, decoder)
        return cls([embedding[ids] for ids in sequences], RopeTables(max(len(ids) for ids in sequences)))

    def run(
        self, layer: Layer, weights: LayerWeights, kept: Mapping[str, Treatment], name: str, pool: Executor
    ) -> dict[str, dict[str, np.ndarray]]:
        """The arrays of the W4 linears of the layer ``name``, by the linears' names; its float ``weights`` are folded."""
        self.states, seen = run_layer(self.states, layer, weights, self.tables, name, pool)
        linears = [one.name for one in layer.linears if kept[f"{name}.{one.name}"].scheme == W4]

        def code(linear: str) -> tuple[CodedWeight, bool]:
            full_name = f"{name}.{linear}"
            return coded(seen[linear], weights.linears[linear].weight, kept[full_name].hot, full_name)

        found = dict(zip(linears, pool.map(code, linears), strict=True))
        self.fitted += sum(fitted for _, fitted in found.values())
        self.rounded += sum(not fitted for _, fitted in found.values())
        return {linear: weight.arrays() for linear, (weight, _) in found.items()}


def coded(seen: ChannelStatistics, weight: np.ndarray, hot: np.ndarray, name: str) -> tuple[CodedWeight, bool]:
    """``weight`` [N, K] in codes for the input ``seen``, and whether they are fitted, not rounded."""
    x = seen.rows()[~seen.sinks()]
    held_out, fitting = x[::HELD_OUT][:_MOST_HELD_OUT], np.delete(x, np.s_[::HELD_OUT], axis=0)
    energy = damped_energy(input_energy(fitting), damping(len(fitting), weight.shape[1]))
    near, fitted = round_weight(weight, hot, name), fit_weight(weight, hot, energy, name)
    better = _error(held_out, fitted, weight) < _error(held_out, near, weight)
    return (fitted, True) if better else (near, False)


def _error(x: np.ndarray, found: CodedWeight, weight: np.ndarray) -> float:
    """The squared length of what ``found`` changes in the output of ``weight`` [N, K] for rows [M, K]."""
    return float(np.square(product(x, dense(found) - weight), dtype=np.float64).sum())
