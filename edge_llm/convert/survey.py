"""The first sweep of an import: calibration text through the float model, to see what each linear's input needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from edge_llm.config import NEURONS
from edge_llm.convert.calibrate import key_offset, run_layer
from edge_llm.convert.even_folds import even_folds, even_linear
from edge_llm.convert.folds import FEW_ROWS, Calibration, FoldedLayer, choose_folds, fold_linear, judged, unfolded
from edge_llm.convert.layer_folds import fold_layer
from edge_llm.convert.parallel import workers
from edge_llm.convert.saved import Saved
from edge_llm.convert.turns import input_turn, quantizable, turn_values
from edge_llm.errors import InvalidModel
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.floats import product
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import WeightSource, read_embedding, read_final_norm, read_layer, read_output
from edge_llm.operations.base import Factors, LayerWeights
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.progress import StageProgress
from edge_llm.quant.channels import NO_CHANNELS, ChannelStatistics, spacing
from edge_llm.quant.folding import Fold
from edge_llm.quant.profile import output_error
from edge_llm.quant.shadow import NONE, Treatment
from edge_llm.quant.turning import turn_columns
from edge_llm.schemes import int8, scheme_of
from edge_llm.schemes.neurons import active_runs

Treat = Callable[[ChannelStatistics, np.ndarray, np.ndarray], tuple[Treatment, ...]]
"""Gives the treatments of a linear, from its input, its weight float32 [N, K], and that weight as `judged` changes it."""

Found = TypeVar("Found")


@dataclass(frozen=True)
class Survey:
    """What the float model did with the calibration sequences."""

    sequences: list[np.ndarray]
    """Token ids int64 [T] of each."""
    treatments: dict[str, tuple[Treatment, ...]]
    """Per linear what can be done about its outliers."""
    others: dict[str, Treatment]
    """Per linear of a layer for which another weight scheme is asked, what that makes of it."""
    key_offsets: list[np.ndarray]
    """Per layer the mean key, float32 [kv heads, head_dim]."""
    folds: list[Factors]
    """Per layer the factors that were folded into it before its treatments were found."""
    output_fold: np.ndarray
    """Factors of the channels that the output matrix reads, float32 [hidden]; ones where it is the embedding."""
    found_folds: dict[str, Fold]
    """Per place what its fold is worth; empty when nothing was to be folded."""

    def folded_layer(self, source: WeightSource, decoder: Decoder, index: int, pool: Executor) -> LayerWeights:
        """The float weights of layer ``index`` as they are to be quantized."""
        layer = decoder.layers[index]
        return turn_values(fold_layer(read_layer(source, layer), layer, self.folds[index], pool), layer)

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids in self.sequences)


@dataclass(frozen=True)
class Wishes:
    """How the model is to be treated."""

    treat: Treat
    fold: bool = True
    """Channels are made even, where that pays or in front of turns."""
    schemes: Mapping[str, str] = field(default_factory=dict)
    """Weight schemes of linears that are not to be INT8, by the linears' names."""
    turned: bool = False
    """Folds are those in front of turns, and what is treated is turned as the description says."""


@dataclass(frozen=True)
class _LayerSurvey:
    """What was found for one layer; linears and places by their names in the layer."""

    folded: FoldedLayer
    treatments: dict[str, tuple[Treatment, ...]]
    others: dict[str, Treatment]
    key_offset: np.ndarray


def survey_model(
    source: WeightSource,
    decoder: Decoder,
    context: int,
    sequences: list[np.ndarray],
    wishes: Wishes,
    saved: Saved,
    progress: StageProgress,
) -> Survey:
    """Run ``sequences`` through the float model, a layer at a time; fold what pays, and see what is left to treat.

    ``context`` is the longest sequence that the model was made for.  Goes on after the layers whose survey was ``saved``.
    """
    embedding = read_embedding(source, decoder)
    begun = [embedding[ids] for ids in sequences]
    del embedding
    lengths = [len(ids) for ids in sequences]
    tables = RopeTables(max(lengths))
    found, states = _saved_layers(saved) or ([], begun)
    with workers() as pool:
        for index in range(len(found), len(decoder.layers)):
            progress("calibration", index, len(decoder.layers))
            layer = decoder.layers[index]
            weights = read_layer(source, layer)
            run = run_layer(states, layer, weights, tables, f"layers.{index}", pool, spacing(sum(lengths), FEW_ROWS))
            states, calibration = run.states, Calibration(run.seen, run.products, lengths, tables, context)
            found.append(_survey_layer(layer, weights, calibration, wishes, f"layers.{index}", pool))
            _save_layer(saved, found, states)
        gain = read_final_norm(source, decoder)
        with np.errstate(all="ignore"):
            states = [decoder.norm.applied(state, gain) for state in states]
        output, output_fold, found_fold = _survey_output(source, decoder, states, wishes)
    progress("calibration", len(decoder.layers), len(decoder.layers))
    return Survey(
        sequences=sequences,
        treatments=_named(one.treatments for one in found) | {"output": output},
        others=_named(one.others for one in found),
        key_offsets=[one.key_offset for one in found],
        folds=[one.folded.factors for one in found],
        output_fold=output_fold,
        found_folds=_named(one.folded.found for one in found) | found_fold,
    )


def _save_layer(saved: Saved, found: list[_LayerSurvey], states: list[np.ndarray]) -> None:
    """Save the last survey that was ``found``, and the hidden ``states`` after its layer."""
    saved.save(f"survey {len(found) - 1}", found[-1])
    saved.save("survey", {"layers": len(found), "states": states})


def _saved_layers(saved: Saved) -> tuple[list[_LayerSurvey], list[np.ndarray]] | None:
    """The surveys of the first layers and the hidden states after them, if they were saved."""
    last = saved.load("survey")
    if last is None:
        return None
    kinds = (_LayerSurvey, FoldedLayer, Fold, Treatment)
    found = [saved.load(f"survey {index}", *kinds) for index in range(last["layers"])]
    return None if None in found else (found, last["states"])


def _named(of_layers: Iterable[Mapping[str, Found]]) -> dict[str, Found]:
    """What was found in each layer by full names."""
    return {f"layers.{index}.{name}": one for index, layer in enumerate(of_layers) for name, one in layer.items()}


def _survey_layer(
    layer: Layer, weights: LayerWeights, calibration: Calibration, wishes: Wishes, name: str, pool: Executor
) -> _LayerSurvey:
    """Fold the layer ``name``, then see what each of its linears needs."""
    if wishes.turned:
        return _survey_turned(layer, weights, calibration, wishes, name, pool)
    folded = choose_folds(layer, weights, calibration, pool) if wishes.fold else unfolded(layer)
    weights, seen = fold_layer(weights, layer, folded.factors, pool), folded.inputs(calibration.seen, layer)

    def products(linear: str) -> np.ndarray:
        return product(seen[linear].thinned(FEW_ROWS).rows(), weights.linears[linear].weight)

    judges = pool.map(lambda linear: judged(layer, weights, linear, products), layer.linears)
    matrices = {linear.name: judge for linear, judge in zip(layer.linears, judges, strict=True)}

    def treat(linear: Linear) -> tuple[Treatment, ...]:
        return wishes.treat(seen[linear.name], weights.linears[linear.name].weight, matrices[linear.name])

    names = [linear.name for linear in layer.linears]
    return _LayerSurvey(
        folded=folded,
        treatments=dict(zip(names, pool.map(treat, layer.linears), strict=True)),
        others=_treated_otherwise(layer, seen, matrices, wishes, name),
        key_offset=_key_offset(layer, weights, seen, calibration),
    )


def _key_offset(layer: Layer, weights: LayerWeights, seen: Mapping[str, ChannelStatistics], of: Calibration) -> np.ndarray:
    """`key_offset` of ``layer``; empty where it has no keys."""
    return key_offset(layer, weights, seen[layer.projection.name], of.context) if layer.attentions else np.zeros(0, np.float32)


def _survey_turned(
    layer: Layer, weights: LayerWeights, calibration: Calibration, wishes: Wishes, name: str, pool: Executor
) -> _LayerSurvey:
    """The same of a layer with turns: folds in closed form, and no channel that stands out."""
    folded = even_folds(layer, weights, calibration, pool) if wishes.fold else unfolded(layer)
    weights = turn_values(fold_layer(weights, layer, folded.factors, pool), layer)
    seen, ready = folded.inputs(calibration.seen, layer), quantizable(weights, layer, pool)
    offset = _key_offset(layer, weights, seen, calibration)

    def treat(linear: Linear) -> tuple[Treatment, ...]:
        matrix = ready[linear.name].weight
        return wishes.treat(seen[linear.name].turned(input_turn(layer, linear)), matrix, matrix)

    plain = {linear: parts.weight for linear, parts in weights.linears.items()}
    return _LayerSurvey(
        folded=folded,
        treatments={linear.name: found for linear, found in zip(layer.linears, pool.map(treat, layer.linears), strict=True)},
        others=_treated_otherwise(layer, seen, plain, wishes, name),
        key_offset=offset,
    )


def _survey_output(
    source: WeightSource, decoder: Decoder, states: list[np.ndarray], wishes: Wishes
) -> tuple[tuple[Treatment, ...], np.ndarray, dict[str, Fold]]:
    """What can be done about the output matrix, the factors of its channels, and what their fold is worth."""
    last = ChannelStatistics(decoder.hidden_size, "output")
    for state in states:
        last.add(state)
    output = read_output(source, decoder)
    factors, found = np.ones(decoder.hidden_size, np.float32), dict[str, Fold]()
    if wishes.fold and not decoder.tied and decoder.reading is None:  # a vector is made of states as they are
        factors, found["output"] = (even_linear if wishes.turned else fold_linear)(last, output)
    output *= factors  # in place: it may be the largest matrix of all
    turn_columns(output, decoder.output.turn)
    return wishes.treat(last.divided(factors).turned(decoder.output.turn), output, output), factors, found


def _treated_otherwise(
    layer: Layer, seen: Mapping[str, ChannelStatistics], matrices: Mapping[str, np.ndarray], wishes: Wishes, name: str
) -> dict[str, Treatment]:
    """The linears of the layer ``name`` for which another scheme is wished, and what that makes of their ``matrices``."""
    wished = {linear: wishes.schemes.get(f"{name}.{linear.name}") for linear in layer.linears}
    return {
        linear.name: other_treatment(linear, scheme, seen[linear.name], matrices[linear.name])
        for linear, scheme in wished.items()
        if scheme is not None
    }


def other_treatment(linear: Linear, scheme_name: str, seen: ChannelStatistics, weight: np.ndarray) -> Treatment:
    """What the scheme of that name makes of ``weight`` [N, K] on the input ``seen``: its error, and its cost beyond INT8.

    The error is infinite where the weight does not fit.
    """
    other = replace(linear, scheme=scheme_name, bias=False)
    scheme = scheme_of(other)
    treatment = Treatment(
        shadow=NONE,
        hot=NO_CHANNELS,
        input_scale=1.0,
        error=math.inf,
        cost=scheme.cost(linear) - int8.cost(linear),
        largest_cold=float(seen.peaks().max(initial=0.0)),
        scheme=scheme_name,
    )
    try:
        converted = scheme.convert(weight, NO_CHANNELS, seen.name)
        opened = scheme.open(other, converted, scheme.facts_of(treatment))
    except InvalidModel:
        return treatment
    active = active_runs(seen.rows(), linear) if scheme_name == NEURONS else 1.0
    return replace(treatment, error=output_error(seen, weight, lambda rows: opened.apply(rows, ThreadPool(1))), active=active)
