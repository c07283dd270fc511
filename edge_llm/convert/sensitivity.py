"""What 4 bits cost in each matrix of a model, from one pass back through the float model.

    divergence ~ 1/2 mean over tokens of (gradient at an output * error of the output)^2, summed over the outputs

The gradient is that of the log-probability of tokens that the float model draws, the error that of the rounded weight on what
the linear reads.  Costs are in nats and add up, so whoever chooses takes what saves most per byte.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial

import numpy as np

from edge_llm.config import INT8, W4
from edge_llm.convert.calibrate import some_of
from edge_llm.convert.coding import QUANTIZERS
from edge_llm.convert.gradient import drawn_gradient, draws, layer_gradient
from edge_llm.convert.parallel import workers
from edge_llm.convert.survey import Survey
from edge_llm.convert.turns import quantizable
from edge_llm.kernels.floats import product
from edge_llm.models.layer import Decoder
from edge_llm.models.reference import layer_forward
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import WeightSource, read_embedding, read_final_norm, read_output
from edge_llm.operations.arithmetic import SAME_BITS
from edge_llm.operations.base import FloatLinear
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.progress import CountProgress
from edge_llm.quant.shadow import Treatment
from edge_llm.quant.turning import turned

TOKENS = 1024
"""Of the calibration text that are run, about."""

Costs = Mapping[str, list[float]]
"""Per linear, by name, what 4 bits cost in each of its matrices beyond INT8, in nats."""


def four_bit_costs(
    source: WeightSource,
    decoder: Decoder,
    survey: Survey,
    chosen: Mapping[str, Treatment],
    names: Collection[str],
    progress: CountProgress,
) -> dict[str, list[float]]:
    """What 4 bits cost in the linears ``names``, which are treated as ``chosen``; about `TOKENS` of the survey's are run."""
    sequences = some_of(survey.sequences, TOKENS)
    tables = RopeTables(max(map(len, sequences)))
    steps = 2 * len(decoder.layers)
    costs: dict[str, list[float]] = {}
    with workers() as pool:
        embedding = read_embedding(source, decoder)
        states = [[embedding[ids] for ids in sequences]]
        del embedding
        for index, layer in enumerate(decoder.layers):
            progress(index, steps)
            weights = survey.folded_layer(source, decoder, index, pool)
            forward = partial(layer_forward, layer=layer, weights=weights, tables=tables, arithmetic=SAME_BITS)
            states.append(list(pool.map(forward, states[-1])))
            del weights, forward  # before the next layer is read
        gradients = _at_the_end(source, decoder, states.pop(), pool)
        for index in reversed(range(len(decoder.layers))):
            progress(steps - 1 - index, steps)
            seen = _layer_gradients(source, decoder, survey, index, states.pop(), gradients, tables, pool)
            gradients, found = seen.before, _layer_costs(seen, decoder.layers[index], f"layers.{index}.", chosen, names, pool)
            costs |= found
            del seen
        progress(steps, steps)
    return costs


def _at_the_end(source: WeightSource, decoder: Decoder, states: list[np.ndarray], pool: Executor) -> list[np.ndarray]:
    """The gradients at the ``states`` behind the last layer."""
    gain, norm = read_final_norm(source, decoder), decoder.norm
    output, random = read_output(source, decoder), draws()
    normed = pool.map(lambda x: norm.applied(x, gain), states)
    found = [drawn_gradient(x, output, random, SAME_BITS, decoder.cap) for x in normed]
    return [norm.through(x, gain, one) for x, one in zip(states, found, strict=True)]


@dataclass(frozen=True)
class _LayerGradients:
    """One layer of the float model, seen from behind."""

    ready: Mapping[str, FloatLinear]
    """Its linears as they are quantized."""
    before: list[np.ndarray]
    """The gradients at its input, float32 [T, hidden] of each sequence."""
    seen: list[Mapping[str, tuple[np.ndarray, np.ndarray]]]
    """Of each sequence, per linear its input [T, K] and the gradient at its output [T, N]."""


def _layer_gradients(
    source: WeightSource,
    decoder: Decoder,
    survey: Survey,
    index: int,
    states: list[np.ndarray],
    gradients: list[np.ndarray],
    tables: RopeTables,
    pool: Executor,
) -> _LayerGradients:
    """Of layer ``index``, from the ``states`` before it and the ``gradients`` behind it."""
    layer = decoder.layers[index]
    weights = survey.folded_layer(source, decoder, index, pool)

    def back(x: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, dict[str, tuple[np.ndarray, np.ndarray]]]:
        seen: dict[str, tuple[np.ndarray, np.ndarray]] = {}

        def observe(name: str, read: np.ndarray, at_output: np.ndarray) -> None:
            seen[name] = read, at_output

        return layer_gradient(x, layer, weights, tables, gradient, observe, SAME_BITS), seen

    ran = list(pool.map(back, states, gradients))
    return _LayerGradients(quantizable(weights, layer, pool), [before for before, _ in ran], [seen for _, seen in ran])


def _layer_costs(
    gradients: _LayerGradients,
    layer: Layer,
    prefix: str,
    chosen: Mapping[str, Treatment],
    names: Collection[str],
    pool: Executor,
) -> dict[str, list[float]]:
    """The costs of the linears of ``layer`` that are among ``names``, which begin with ``prefix``."""
    judged = [linear for linear in layer.linears if prefix + linear.name in names]

    def costs_of(linear: Linear) -> list[float]:
        errors = weight_errors(linear, gradients.ready[linear.name].weight, chosen[prefix + linear.name].hot)
        felt, tokens = np.zeros((len(errors), linear.rows)), sum(map(len, gradients.before))
        for read, at_output in (seen[linear.name] for seen in gradients.seen if linear.name in seen):  # a sequence's experts
            rows = turned(read, linear.turn)
            felt += [np.square(at_output * product(rows, error), dtype=np.float64).sum(axis=0) for error in errors]
        more = (felt[0] - felt[1]) / (2 * tokens)
        ends = np.cumsum([one.count for one in linear.sources])[:-1]
        return [float(rows.sum()) for rows in np.split(more, ends)]

    return {prefix + linear.name: costs for linear, costs in zip(judged, pool.map(costs_of, judged), strict=True)}


def weight_errors(linear: Linear, weight: np.ndarray, hot: np.ndarray) -> list[np.ndarray]:
    """What rounding to 4 bits and to INT8 changes in ``weight`` [N, K], whose ``hot`` channels int32 [H] stay."""
    quantizers = [QUANTIZERS[scheme] for scheme in (W4, INT8)]
    return [one.dense(one.rounded(weight, hot, linear.name)) - weight for one in quantizers]
