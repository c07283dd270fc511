"""The last sweep of an import: every layer is read, quantized as was chosen, and written.

Weights are fitted to the calibration text on the way (`coding`), and what the bundle costs is measured beside (`trial`).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edge_llm.config import W4
from edge_llm.convert.coding import Coder
from edge_llm.convert.parallel import workers
from edge_llm.convert.position import Arrays, Position
from edge_llm.convert.saved import Saved
from edge_llm.convert.survey import Survey
from edge_llm.convert.taken import Taken
from edge_llm.convert.turns import quantizable
from edge_llm.formats.bundle_writer import BundleWriter, holds
from edge_llm.formats.layout import HEAD, TensorRange, layer_tensors
from edge_llm.formats.manifest import WEIGHTS
from edge_llm.formats.output import storage_errors
from edge_llm.models.layer import Decoder
from edge_llm.models.weights import WeightSource, read_embedding, read_final_norm, read_head, read_output
from edge_llm.operations.attention import KEY_OFFSET
from edge_llm.operations.base import LayerWeights
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear
from edge_llm.progress import StageProgress
from edge_llm.quant.channels import NO_CHANNELS
from edge_llm.quant.quality import Closeness, Quality
from edge_llm.quant.shadow import Treatment
from edge_llm.quant.turning import turn_columns, turned
from edge_llm.schemes import int8, scheme_of

if TYPE_CHECKING:
    from edge_llm.convert.trial import Trial

_WRITTEN = "progress"  # not "written": earlier versions saved another form under that name


@dataclass(frozen=True)
class Written:
    """How far the weights of a bundle are written."""

    tensors: Sequence[TensorRange] = ()
    layers: int = 0
    coder: Any = None
    """Its position after these layers, and that of the trial, where there are any."""
    trial: Any = None


NOTHING_WRITTEN = Written()


def written_before(folder: Path, saved: Saved) -> Written:
    """What another process wrote of the bundle in ``folder``; whatever else lies there is removed."""
    written = saved.load(_WRITTEN, Written, TensorRange, Position)
    if written is None or not holds(folder, written.tensors):
        written = NOTHING_WRITTEN
    for path in folder.iterdir():
        with storage_errors(path):
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != WEIGHTS or written is NOTHING_WRITTEN:
                path.unlink()
    return written


def write_weights(
    writer: BundleWriter,
    source: WeightSource,
    decoder: Decoder,
    survey: Survey,
    kept: Mapping[str, Treatment],
    coder: Coder | None,
    trial: Trial | None,
    progress: StageProgress,
    saved: Saved,
    written: Written = NOTHING_WRITTEN,
    taken: Taken | None = None,
) -> Quality | Closeness | None:
    """Write the weights of ``decoder``, whose linears have the schemes of what is ``kept``; ``coder`` fits them, but for those
    that are ``taken`` over.

    Goes on after the layers that are ``written``; how far it gets is ``saved`` after each.
    Returns how near the bundle is to the float model on the text of the ``trial``, None without one.
    """
    if written.layers and coder:
        coder.go_on(written.coder)
    if written.layers and trial:
        trial.position = written.trial
    if not decoder.tied and not written.tensors:
        _add(writer, "embedding", int8.convert(read_embedding(source, decoder), NO_CHANNELS, "the embedding"))
    with workers() as pool:
        for index in range(written.layers, len(decoder.layers)):
            progress("layers", index, len(decoder.layers))
            layer = decoder.layers[index]
            weights = survey.folded_layer(source, decoder, index, pool)
            name = f"layers.{index}"
            ready = LayerWeights(quantizable(weights, layer, pool), weights.gains)
            coded = coder.run(layer, weights, ready.linears, kept, name, pool) if coder else {}
            if taken is not None:
                ready = LayerWeights({one: taken.ready(f"{name}.{one}", it) for one, it in ready.linears.items()}, ready.gains)
                coded = {one: taken.arrays(f"{name}.{one}") for one in ready.linears if f"{name}.{one}" in taken}
            made = _made_of(name, layer, ready, coded, kept, pool)
            _write_layer(writer, name, layer, ready, made, kept, survey.key_offsets[index])
            if trial:
                trial.run_layer(index, weights, ready.linears, made, pool)
            positions = coder and coder.position(), trial and trial.position
            saved.save(_WRITTEN, Written(writer.written(), index + 1, *positions))
        progress("layers", len(decoder.layers), len(decoder.layers))
        progress("output", 0, 1)
        gain = read_final_norm(source, decoder)
        whole = taken.arrays("output") if taken is not None and "output" in taken else None
        head = whole or _head(source, decoder, survey, kept["output"].hot, gain, coder, pool)
        quality = None if trial is None else _measured(trial, source, decoder, gain, head)
        writer.add("final_norm", gain / survey.output_fold)
        _add(writer, "embedding" if decoder.tied else "output", head)
        _add(writer, HEAD, read_head(source, decoder))
        progress("output", 1, 1)
    return quality


def _measured(
    trial: Trial, source: WeightSource, decoder: Decoder, gain: np.ndarray, head: Arrays
) -> Quality | Closeness:
    """Of an encoder what becomes of its vectors, of any other model what becomes of its predictions."""
    return trial.closeness(gain) if decoder.is_encoder else trial.quality(read_output(source, decoder), gain, head)


def _head(
    source: WeightSource,
    decoder: Decoder,
    survey: Survey,
    hot: np.ndarray,
    gain: np.ndarray,
    coder: Coder | None,
    pool: Executor,
) -> Arrays:
    """The arrays of the output matrix; ``gain`` is that of the last norm, not folded."""
    output = read_output(source, decoder)
    output *= survey.output_fold
    turn = decoder.output.turn
    turn_columns(output, turn)
    if coder is None or decoder.output.scheme != W4:
        return int8.convert(output, hot, "output")

    def read(states: np.ndarray) -> np.ndarray:
        return turned(decoder.norm.applied(states, gain / survey.output_fold), turn)

    return coder.head(output, hot, read, pool).arrays()


def _made_of(
    name: str,
    layer: Layer,
    weights: LayerWeights,
    coded: Mapping[str, Arrays],
    kept: Mapping[str, Treatment],
    pool: Executor,
) -> dict[str, Arrays]:
    """The arrays of the linears of layer ``name``, by the linears' names; some are ``coded`` already."""

    def convert(linear: Linear) -> Arrays:
        full_name = f"{name}.{linear.name}"
        found = weights.linears[linear.name].weight
        return coded.get(linear.name) or scheme_of(linear).convert(found, kept[full_name].hot, full_name)

    return dict(zip([one.name for one in layer.linears], pool.map(convert, layer.linears), strict=True))


def _write_layer(
    writer: BundleWriter,
    name: str,
    layer: Layer,
    weights: LayerWeights,
    made: Mapping[str, Arrays],
    kept: Mapping[str, Treatment],
    offset: np.ndarray,
) -> None:
    """The tensors of layer ``name`` in the order of the file; its linears are ``made``, its mean key is ``offset``."""
    hot = {linear.name: len(kept[f"{name}.{linear.name}"].hot) for linear in layer.linears}
    arrays = {**weights.gains, KEY_OFFSET: offset}
    for linear, found in weights.linears.items():
        beside = {} if found.bias is None else {"bias": found.bias}
        arrays |= {f"{linear}.{part}": array for part, array in {**made[linear], **beside}.items()}
    for tensor, _, _ in layer_tensors(layer, hot):
        writer.add(f"{name}.{tensor}", arrays[tensor])


def _add(writer: BundleWriter, place: str, arrays: Arrays) -> None:
    for part, array in arrays.items():
        writer.add(f"{place}.{part}", array)
