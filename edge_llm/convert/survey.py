"""The first sweep of an import: calibration text through the float model, to see what each linear's input needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from edge_llm.convert.calibrate import key_offset, run_layer
from edge_llm.convert.folds import Calibration, choose_folds, fold_linear, judged, unfolded
from edge_llm.convert.layer_folds import Factors, fold_layer
from edge_llm.convert.parallel import workers
from edge_llm.errors import InvalidModel
from edge_llm.models.layer import Decoder, Linear
from edge_llm.models.reference import rms_norm
from edge_llm.models.rope import RopeTables
from edge_llm.models.weights import WeightSource, read_embedding, read_final_norm, read_layer, read_output
from edge_llm.quant.folding import Fold
from edge_llm.quant.profile import ChannelStatistics, output_error
from edge_llm.quant.shadow import NONE, Treatment
from edge_llm.schemes import float16, int8, scheme_of
from edge_llm.sources import Progress
from kernels import ThreadPool

Treat = Callable[[ChannelStatistics, np.ndarray, np.ndarray], tuple[Treatment, ...]]
"""Gives the treatments of a linear, from its input, its weight float32 [N, K], and that weight as `judged` changes it."""

NO_CHANNELS = np.empty(0, np.int32)


@dataclass(frozen=True)
class Survey:
    """What the float model did with the calibration sequences."""

    sequences: list[np.ndarray]
    """Token ids int64 [T] of each."""
    embedded: list[np.ndarray]
    """Their embeddings, float32 [T, hidden]."""
    states: list[np.ndarray]
    """Their last hidden states, normed, float32 [T, hidden]."""
    treatments: dict[str, tuple[Treatment, ...]]
    """Per linear what can be done about its outliers."""
    others: dict[str, Treatment]
    """Per linear of a layer what another weight scheme makes of it: the one that is asked for, else float16."""
    key_offsets: list[np.ndarray]
    """Per layer the mean key, float32 [kv heads, head_dim]."""
    folds: list[Factors]
    """Per layer the factors that were folded into it before its treatments were found."""
    output_fold: np.ndarray
    """Factors of the channels that the output matrix reads, float32 [hidden]; ones where it is the embedding."""
    found_folds: dict[str, Fold]
    """Per place what its fold is worth; empty when nothing was to be folded."""

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids in self.sequences)


def survey_model(
    source: WeightSource,
    decoder: Decoder,
    context: int,
    sequences: list[np.ndarray],
    treat: Treat,
    progress: Progress,
    *,
    fold: bool = True,
    asked: Mapping[str, str] = MappingProxyType({}),
) -> Survey:
    """Run ``sequences`` through the float model, a layer at a time; fold what pays, and see what is left to treat.

    ``context`` is the longest sequence that the model was made for; ``asked`` gives the weight schemes of linears that are
    not to be INT8.
    """
    embedding = read_embedding(source, decoder)
    embedded = [embedding[ids] for ids in sequences]
    del embedding
    lengths = [len(ids) for ids in sequences]
    states = embedded
    treatments: dict[str, tuple[Treatment, ...]] = {}
    others: dict[str, Treatment] = {}
    offsets = []
    folds = []
    found_folds: dict[str, Fold] = {}
    tables = RopeTables(max(lengths))
    with workers() as pool:
        for index, layer in enumerate(decoder.layers):
            progress("calibration", index, len(decoder.layers))
            name = f"layers.{index}"
            weights = read_layer(source, layer)
            states, seen = run_layer(states, layer, weights, tables, name, pool)
            calibration = Calibration(seen, lengths, tables, context)
            folded = choose_folds(layer, weights, calibration, pool) if fold else unfolded(layer)
            weights, seen = fold_layer(weights, layer, folded.factors), folded.inputs(seen, layer)
            matrices = {linear.name: judged(layer, weights, linear, seen) for linear in layer.linears}
            found = {
                linear.name: pool.submit(treat, seen[linear.name], weights.linears[linear.name].weight, matrices[linear.name])
                for linear in layer.linears
            }
            others |= {
                f"{name}.{linear.name}": pool.submit(
                    other_treatment, linear, asked.get(f"{name}.{linear.name}", float16.NAME), seen[linear.name],
                    matrices[linear.name],
                ).result()
                for linear in layer.linears
            }  # fmt: skip
            treatments |= {f"{name}.{part}": options.result() for part, options in found.items()}
            offsets.append(key_offset(layer, weights, seen[layer.projection.name], context))
            folds.append(folded.factors)
            found_folds |= {f"{name}.{place}": one for place, one in folded.found.items()}
        gain = read_final_norm(source, decoder)
        with np.errstate(all="ignore"):
            states = [rms_norm(state, gain, decoder.norm.eps) for state in states]
        last = ChannelStatistics(decoder.hidden_size, "output")
        for state in states:
            last.add(state)
        output = read_output(source, decoder)
        output_fold = np.ones(decoder.hidden_size, np.float32)
        if fold and not decoder.tied:
            output_fold, found_folds["output"] = fold_linear(last, output)
        output *= output_fold  # in place: it may be the largest matrix of all
        treatments["output"] = treat(last.divided(output_fold), output, output)
    progress("calibration", len(decoder.layers), len(decoder.layers))
    return Survey(sequences, embedded, states, treatments, others, offsets, folds, output_fold, found_folds)


def other_treatment(linear: Linear, scheme_name: str, seen: ChannelStatistics, weight: np.ndarray) -> Treatment:
    """What the scheme of that name makes of ``weight`` [N, K] on the input ``seen``: its error, and its cost beyond INT8.

    The error is infinite where the weight does not fit.
    """
    linear = replace(linear, scheme=scheme_name, bias=False)
    scheme = scheme_of(linear)
    treatment = Treatment(
        shadow=NONE,
        hot=NO_CHANNELS,
        input_scale=1.0,
        error=math.inf,
        cost=scheme.cost(linear) - int8.cost(linear),
        largest_cold=float(np.abs(seen.rows()).max(initial=0.0)),
        scheme=scheme_name,
    )
    try:
        opened = scheme.open(linear, scheme.convert(weight, NO_CHANNELS, seen.name), scheme.facts_of(treatment))
    except InvalidModel:
        return treatment
    return replace(treatment, error=output_error(seen, weight, lambda rows: opened.apply(rows, ThreadPool(1))))
