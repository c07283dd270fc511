"""The first sweep of an import: calibration text through the float model, to see what each linear's input needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from edge_llm.config import ModelConfig
from edge_llm.convert.calibrate import LAYER_PARTS, key_offset, run_layer
from edge_llm.convert.folds import choose_folds, fold_linear, judged, unfolded
from edge_llm.convert.layer_folds import LayerFolds, fold_layer
from edge_llm.convert.parallel import workers
from edge_llm.convert.source import Progress
from edge_llm.formats.safetensors import SourceFolder
from edge_llm.models.reference import rms_norm
from edge_llm.models.rope import rope_tables
from edge_llm.models.weights import read_embedding, read_final_norm, read_layer, read_output
from edge_llm.quant.folding import Fold
from edge_llm.quant.profile import ChannelStatistics
from edge_llm.quant.shadow import Treatment

Treat = Callable[[ChannelStatistics, np.ndarray, np.ndarray], tuple[Treatment, ...]]
"""What can be done about a linear: from its input, its weight float32 [N, K], and the same as it is judged."""


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
    key_offsets: list[np.ndarray]
    """Per layer the mean key, float32 [kv heads, head_dim]."""
    folds: list[LayerFolds]
    """Per layer the factors that were folded into it before all that was found here."""
    output_fold: np.ndarray
    """Factors of the channels that the output matrix reads, float32 [hidden]; ones where it is the embedding."""
    found_folds: dict[str, Fold]
    """Per place what its fold is worth; empty when nothing was to be folded."""

    @property
    def tokens(self) -> int:
        return sum(len(ids) for ids in self.sequences)


def survey_model(
    source: SourceFolder,
    config: ModelConfig,
    sequences: list[np.ndarray],
    treat: Treat,
    progress: Progress,
    *,
    fold: bool = True,
) -> Survey:
    """Run ``sequences`` through the float model, a layer at a time; fold what pays, and see what is left to treat."""
    embedding = read_embedding(source, config)
    embedded = [embedding[ids] for ids in sequences]
    del embedding
    lengths = [len(ids) for ids in sequences]
    states = embedded
    treatments: dict[str, tuple[Treatment, ...]] = {}
    offsets = []
    folds = []
    found_folds: dict[str, Fold] = {}
    rope = rope_tables(config, max(lengths))
    with workers() as pool:
        for index in range(config.num_layers):
            progress("calibration", index, config.num_layers)
            name = f"layers.{index}"
            layer = read_layer(source, config, index)
            states, seen = run_layer(states, layer, config, *rope, name, pool)
            folded = choose_folds(layer, seen, lengths, config, rope, pool) if fold else unfolded(config)
            layer, seen = fold_layer(layer, folded.factors, config), folded.inputs(seen, config)
            found = {
                part: pool.submit(treat, seen[part], getattr(layer, part), judged(layer, part, seen[part]))
                for part in LAYER_PARTS
            }
            treatments |= {f"{name}.{part}": options.result() for part, options in found.items()}
            offsets.append(key_offset(layer, seen["qkv"], config))
            folds.append(folded.factors)
            found_folds |= {f"{name}.{place}": one for place, one in folded.found.items()}
        gain = read_final_norm(source, config)
        with np.errstate(all="ignore"):
            states = [rms_norm(state, gain, config.norm_eps) for state in states]
        last = ChannelStatistics(config.hidden_size, "output")
        for state in states:
            last.add(state)
        output = read_output(source, config)
        output_fold = np.ones(config.hidden_size, np.float32)
        if fold and not config.tied_embeddings:
            output_fold, found_folds["output"] = fold_linear(last, output)
        output *= output_fold  # in place: it may be the largest matrix of all
        treatments["output"] = treat(last.divided(output_fold), output, output)
    progress("calibration", config.num_layers, config.num_layers)
    return Survey(sequences, embedded, states, treatments, offsets, folds, output_fold, found_folds)
