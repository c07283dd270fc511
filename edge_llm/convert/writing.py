"""The last sweep of an import: every layer is read, quantized as was chosen, and written.

W4 linears are fitted to the calibration text on the way (`coding`), and what they cost is measured beside (`trial`).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor

import numpy as np

from edge_llm.convert.coding import Coder
from edge_llm.convert.parallel import workers
from edge_llm.convert.survey import NO_CHANNELS, Survey
from edge_llm.convert.trial import Trial
from edge_llm.formats.bundle_writer import BundleWriter
from edge_llm.formats.layout import KEY_OFFSET, layer_tensors
from edge_llm.models.layer import Decoder, Layer, Linear
from edge_llm.models.weights import LayerWeights, WeightSource, read_embedding, read_final_norm, read_output
from edge_llm.progress import StageProgress
from edge_llm.quant.shadow import Treatment
from edge_llm.schemes import int8, scheme_of

Arrays = Mapping[str, np.ndarray]


def write_weights(
    writer: BundleWriter,
    source: WeightSource,
    decoder: Decoder,
    survey: Survey,
    kept: Mapping[str, Treatment],
    coder: Coder | None,
    progress: StageProgress,
) -> float | None:
    """Write all weights of ``decoder``, whose linears have the schemes of what is ``kept``; ``coder`` fits its codes.

    Returns what the bundle costs in percent of perplexity on the calibration text where there is a coder, else None.
    """
    trial = Trial(decoder, survey, [kept]) if coder else None
    if not decoder.tied:
        _add(writer, "embedding", int8.convert(read_embedding(source, decoder), NO_CHANNELS, "the embedding"))
    with workers() as pool:
        for index, layer in enumerate(decoder.layers):
            progress("layers", index, len(decoder.layers))
            weights = survey.folded_layer(source, decoder, index, pool)
            coded = coder.run(layer, weights, kept, f"layers.{index}", pool) if coder else {}
            _write_layer(writer, f"layers.{index}", layer, weights, coded, kept, survey.key_offsets[index], pool)
            if trial:
                trial.run_layer(index, weights, pool, coded)
        progress("layers", len(decoder.layers), len(decoder.layers))
        progress("output", 0, 1)
        gain = read_final_norm(source, decoder)
        cost = trial.compare(read_output(source, decoder), gain, 0.0, pool)[0] if trial else None
        writer.add("final_norm", gain / survey.output_fold)
        output = read_output(source, decoder)
        output *= survey.output_fold
        _add(writer, "embedding" if decoder.tied else "output", int8.convert(output, kept["output"].hot, "output"))
        progress("output", 1, 1)
    return cost


def _write_layer(
    writer: BundleWriter,
    name: str,
    layer: Layer,
    weights: LayerWeights,
    coded: Mapping[str, Arrays],
    kept: Mapping[str, Treatment],
    offset: np.ndarray,
    pool: Executor,
) -> None:
    """The tensors of layer ``name`` in the order of the file; some are ``coded`` already; ``offset`` is its mean key."""
    hot = {linear.name: len(kept[f"{name}.{linear.name}"].hot) for linear in layer.linears}

    def convert(linear: Linear) -> Arrays:
        full_name, found = f"{name}.{linear.name}", weights.linears[linear.name]
        arrays = coded.get(linear.name) or scheme_of(linear).convert(found.weight, kept[full_name].hot, full_name)
        return arrays if found.bias is None else {**arrays, "bias": found.bias}

    arrays = {**weights.gains, KEY_OFFSET: offset}
    for linear, made in zip(layer.linears, pool.map(convert, layer.linears), strict=True):
        arrays |= {f"{linear.name}.{part}": array for part, array in made.items()}
    for tensor, _, _ in layer_tensors(layer, hot):
        writer.add(f"{name}.{tensor}", arrays[tensor])


def _add(writer: BundleWriter, place: str, arrays: Arrays) -> None:
    for part, array in arrays.items():
        writer.add(f"{place}.{part}", array)
