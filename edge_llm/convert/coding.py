"""Fits weights to what their linears read: calibration text through the folded model, a layer at a time.

Where rows have scales of their own, the text goes through INT8 products, three times as fast as through float ones: in the
last layer of SmolLM2-135M the energies of inputs differ by 2 to 3.5 %, and the fit is as good.  Part of the text is held out: a
linear whose output GPTQ does not bring nearer there keeps weights that are rounded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edge_llm.config import INT8, ROW, W4
from edge_llm.convert.calibrate import float_product, run_layer
from edge_llm.convert.parallel import core_count
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.floats import product
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import WeightSource, read_embedding
from edge_llm.operations.base import FloatLinear, LayerWeights
from edge_llm.operations.early_router import mixture_of
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.operations.questions import AnyLinear
from edge_llm.quant import int8, w4
from edge_llm.quant.channels import NO_CHANNELS, ChannelStatistics
from edge_llm.quant.gptq import add_energy, damp, damping, mirror
from edge_llm.quant.scheme import quantize_weight
from edge_llm.quant.shadow import Treatment
from edge_llm.quant.turning import turned
from edge_llm.quant.w4 import CodedWeight, stacked
from edge_llm.schemes import Weight, scheme_of
from edge_llm.schemes.joint import is_multiplied_as_int8, parts_of
from edge_llm.schemes.parts import joined

HELD_OUT = 8
"""Every so many-th row is held out."""
FEWEST = 32
"""Rows that a linear reads, at least, if its weights are to be fitted: few rows go to a rare expert."""
_MOST_HELD_OUT = 256
_SEQUENCES = 8
"""Sequences that run at a time: what the linears read of these is in memory together."""
_EXPERT_ENERGIES = 384 << 20
"""Most bytes of energies of a layer's experts that are in memory together."""
_HEAD_ROWS = 8192
"""Rows of the output matrix that are coded at a time; whole panels."""


@dataclass(frozen=True)
class Quantizer:
    """The ways to make a weight of one scheme, each with hot channels int32 [H] and a name for messages."""

    rounded: Callable[[np.ndarray, np.ndarray, str], Any]
    """Of float32 [N, K]."""
    fitted: Callable[[np.ndarray, np.ndarray, np.ndarray, str, Any], Any]
    """Of float32 [N, K], the energy [K, K] of what is read, and, last, the rounded one."""
    dense: Callable[[Any], np.ndarray]
    """What a weight multiplies with: float32 [N, K]."""


QUANTIZERS = {
    W4: Quantizer(w4.round_weight, w4.fit_weight, w4.dense),
    INT8: Quantizer(quantize_weight, int8.fit_weight, int8.dense),
}


@dataclass(frozen=True)
class Inputs:
    """What a linear of K input channels reads."""

    energy: np.ndarray
    """x^T x / tokens, damped: float32 [K, K]."""
    held_out: np.ndarray
    """Some rows that the energy is not of, float32 [rows, K]."""
    tokens: int
    """Rows that the energy is of."""


class InputTally:
    """Collects the `Inputs` of a linear of ``columns`` input channels."""

    def __init__(self, columns: int) -> None:
        self._energy = np.zeros((columns, columns), np.float32)
        self._held_out: list[np.ndarray] = []
        self._tokens = 0

    def add(self, x: np.ndarray, threads: ThreadPool | None = None) -> None:
        """Add rows float32 [M, K]; the ``threads`` share the work."""
        fitting = np.delete(x, np.s_[::HELD_OUT], axis=0)
        self._held_out.append(x[::HELD_OUT].copy())  # not all of x
        add_energy(self._energy, fitting, threads)
        self._tokens += len(fitting)

    def inputs(self) -> Inputs:
        """What was read; the tally ends, because its energy, which may be large, becomes that of the result."""
        energy, self._energy = self._energy, np.zeros((0, 0), np.float32)
        energy /= np.float32(max(1, self._tokens))
        mirror(energy)
        damp(energy, damping(self._tokens, len(energy)))
        rows = np.concatenate(self._held_out)
        return Inputs(energy, rows[:: max(1, len(rows) // _MOST_HELD_OUT)], self._tokens)


@dataclass
class Coder:
    """The calibration sequences between two layers, and what was found so far."""

    states: list[np.ndarray]
    """float32 [T, hidden] of each."""
    tables: RopeTables
    fitted: int = 0
    """Linears of which at least half was fitted."""
    rounded: int = 0
    """The others, which are nearer when they are rounded."""
    scarce: int = 0
    """Of these, linears that read fewer rows than `FEWEST`."""

    @classmethod
    def begin(cls, source: WeightSource, decoder: Decoder, sequences: Sequence[np.ndarray]) -> Coder:
        """Before the first layer; ``sequences`` are token ids int64 [T]."""
        embedding = read_embedding(source, decoder)
        return cls([embedding[ids] for ids in sequences], RopeTables(max(len(ids) for ids in sequences)))

    def position(self) -> dict[str, object]:
        """What has been done so far, for `go_on`."""
        return {"states": self.states, "fitted": self.fitted, "rounded": self.rounded, "scarce": self.scarce}

    def go_on(self, position: Mapping[str, Any]) -> None:
        """Go on from a `position`."""
        self.states, self.fitted, self.rounded = position["states"], position["fitted"], position["rounded"]
        self.scarce = position.get("scarce", 0)

    def run(
        self,
        layer: Layer,
        weights: LayerWeights,
        ready: Mapping[str, FloatLinear],
        kept: Mapping[str, Treatment],
        name: str,
        pool: Executor,
    ) -> dict[str, dict[str, np.ndarray]]:
        """The arrays of the W4 and INT8 linears of the layer ``name``, by the linears' names.

        ``weights`` are folded, and their linears ``ready`` to be quantized: turned where inputs are.
        """
        linears = [one for one in layer.linears if is_multiplied_as_int8(kept[f"{name}.{one.name}"].scheme)]
        rounded = _rounded_products(linears, ready, kept, name, pool)

        def quantize(linear: Linear, read: Inputs) -> tuple[dict[str, np.ndarray], bool]:
            full_name = f"{name}.{linear.name}"
            how, weight = kept[full_name], ready[linear.name].weight
            parts = parts_of(replace(linear, scheme=how.scheme))
            made = [quantized(read, QUANTIZERS[part.scheme], weight[part.rows], how.hot, full_name) for part in parts]
            return joined([one.arrays() for one, _ in made]), _mostly([fitted for _, fitted in made])

        arrays: dict[str, dict[str, np.ndarray]] = {}
        groups = _within_memory(layer, linears)
        for some in groups:
            inputs = self._through(layer, weights, some, rounded, name, pool, last=some is groups[-1])
            longest_first = sorted(some, key=lambda one: one.columns, reverse=True)
            found = list(pool.map(quantize, longest_first, [inputs[one.name] for one in longest_first]))
            arrays |= {linear.name: made for linear, (made, _) in zip(longest_first, found, strict=True)}
            self.fitted += sum(fitted for _, fitted in found)
            self.rounded += sum(not fitted for _, fitted in found)
            self.scarce += sum(one.tokens < FEWEST for one in inputs.values())
        return arrays

    def _through(
        self,
        layer: Layer,
        weights: LayerWeights,
        linears: Sequence[Linear],
        rounded: Mapping[str, Weight],
        name: str,
        pool: Executor,
        *,
        last: bool,
    ) -> dict[str, Inputs]:
        """What the ``linears`` of the layer read; the ``last`` time the states are carried through it.

        Those that are ``rounded`` multiply so.
        """

        def multiply(linear: AnyLinear, parts: FloatLinear, x: np.ndarray) -> np.ndarray:
            one = rounded.get(linear.name)
            if one is None or not np.isfinite(x).all():  # the statistics refuse such an input by name
                return float_product(linear, parts, x)
            return one.apply(x, ThreadPool(1))

        read, threads = {one.name: InputTally(one.columns) for one in linears}, ThreadPool(core_count())
        turns = {one.name: one.turn for one in linears}
        for start in range(0, len(self.states), _SEQUENCES):
            some = slice(start, start + _SEQUENCES)
            ran = run_layer(self.states[some], layer, weights, self.tables, name, pool, sys.maxsize, multiply)
            if last:
                self.states[some] = ran.states
            for linear, tally in read.items():
                tally.add(turned(_ordinary(ran.seen[linear]), turns[linear]), threads)
        return {linear: tally.inputs() for linear, tally in read.items()}

    def head(
        self, output: np.ndarray, hot: np.ndarray, read: Callable[[np.ndarray], np.ndarray], pool: Executor
    ) -> CodedWeight:
        """The output matrix ``output`` [V, hidden] in codes, behind all layers; ``read`` makes its input of states [T, hidden].

        `_HEAD_ROWS` rows at a time are fitted or rounded, because a vocabulary is large.
        """
        tally, threads = InputTally(output.shape[1]), ThreadPool(core_count())
        for state in self.states:
            tally.add(read(state), threads)
        inputs = tally.inputs()

        def code(first: int) -> tuple[CodedWeight, bool]:
            return quantized(inputs, QUANTIZERS[W4], output[first : first + _HEAD_ROWS], hot, "output")

        found = list(pool.map(code, range(0, len(output), _HEAD_ROWS)))
        fitted = _mostly([one for _, one in found])
        self.fitted += fitted
        self.rounded += not fitted
        return stacked([weight for weight, _ in found])


def _within_memory(layer: Layer, linears: Sequence[Linear]) -> list[list[Linear]]:
    """``linears`` of ``layer`` in groups whose energies are in memory together: experts may be too many for that at once.

    For each group the states go through the layer again.
    """
    mixture, held = mixture_of(layer), 0
    groups: list[list[Linear]] = [[]]
    of_experts = frozenset(one.name for one in mixture.linears) if mixture is not None else frozenset()
    for linear in sorted(linears, key=lambda one: one.name in of_experts):
        held += 4 * linear.columns**2 if linear.name in of_experts else 0
        if held > _EXPERT_ENERGIES:
            groups.append([])
            held = 4 * linear.columns**2
        groups[-1].append(linear)
    return groups


def _rounded_products(
    linears: Sequence[Linear], ready: Mapping[str, FloatLinear], kept: Mapping[str, Treatment], name: str, pool: Executor
) -> dict[str, Weight]:
    """Those of ``linears`` of the layer ``name`` whose rows have scales of their own, rounded to INT8, without bias."""
    some = [one for one in linears if kept[f"{name}.{one.name}"].activations == ROW]

    def rounded(linear: Linear) -> Weight:
        full_name = f"{name}.{linear.name}"
        linear = replace(linear, scheme=INT8, bias=False)
        arrays = quantize_weight(ready[linear.name].weight, NO_CHANNELS, full_name).arrays()
        scheme = scheme_of(linear)
        return scheme.open(linear, arrays, scheme.facts_of(replace(kept[full_name], scheme=INT8)))

    return dict(zip([one.name for one in some], pool.map(rounded, some), strict=True))


def _mostly(fitted: Sequence[bool]) -> bool:
    """Whether a linear counts as fitted, of whose rows these were."""
    return 2 * sum(fitted) >= len(fitted)


def _ordinary(seen: ChannelStatistics) -> np.ndarray:
    """The rows of ``seen`` without those that stand out as a whole."""
    return seen.rows()[~seen.sinks()]


def quantized(
    inputs: Inputs, quantizer: Quantizer, weight: np.ndarray, hot: np.ndarray, name: str
) -> tuple[Any, bool]:
    """``weight`` [N, K] quantized for its ``inputs``, and whether it is fitted, not rounded."""
    near = quantizer.rounded(weight, hot, name)
    if inputs.tokens < FEWEST:
        return near, False
    fitted = quantizer.fitted(weight, hot, inputs.energy, name, near)
    better = _error(inputs.held_out, quantizer.dense(fitted), weight) < _error(inputs.held_out, quantizer.dense(near), weight)
    return (fitted, True) if better else (near, False)


def _error(x: np.ndarray, found: np.ndarray, weight: np.ndarray) -> float:
    """The squared length of what ``found``, which is lost, changes in the output of ``weight`` [N, K] for rows [M, K]."""
    found -= weight
    return float(np.square(product(x, found), dtype=np.float64).sum())
