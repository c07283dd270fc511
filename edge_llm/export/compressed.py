"""An imported model becomes a folder of compressed-tensors, a block at a time, and what that costs is measured beside."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edge_llm.convert.staging import Staging
from edge_llm.convert.trial import held_out_sequences
from edge_llm.errors import EdgeLLMError, UnsupportedModel, UsageError
from edge_llm.export.files import Shards, write_bytes, write_json
from edge_llm.export.forms import Floats, Stored, narrowed
from edge_llm.export.linears import Made, made_of
from edge_llm.export.modules import gain_of, modules_of
from edge_llm.export.settings import CONFIG, plain_config, published, quantization_settings
from edge_llm.export.trial import Cost, Trial
from edge_llm.files import folder_bytes, shown
from edge_llm.formats.bundle import Bundle
from edge_llm.formats.manifest import SIDE_FILES
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.models.weights import check_tensors
from edge_llm.operations.layer import Layer
from edge_llm.progress import StageProgress, ignore
from edge_llm.schemes import is_in_blocks
from edge_llm.schemes.tables import Table, float_rows
from edge_llm.sources import open_source
from edge_llm.sources.base import Source
from edge_llm.sources.lora_places import wishes_of
from edge_llm.text.tokenizer import Tokenizer
from edge_llm.weights.resident import layer_weights, table_weights

_ROWS = 8192
"""Rows of a table that are made at a time."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    nbytes: int
    """Of all files."""
    kinds: Mapping[str, int]
    """Modules of the layers by their kind, such as W8A8 per token."""
    losses: Mapping[str, tuple[str, ...]]
    """Keys of `edge_llm.export.linears.LOSSES`, and the linears that they are of."""
    cost: Cost | None
    """None where the model's vocabulary has no tokens for the text."""


def export_compressed(bundle: Bundle, folder: Path, weights: str | None = None, progress: StageProgress = ignore) -> Exported:
    """Write ``bundle`` into the new ``folder``.

    weights: INT8 or W4, for all that is quantized; None: as it is.
    The folder appears whole or not at all.  Raises `UsageError` (a folder that is there), `UnsupportedModel` (a family that is
    not written), `CorruptBundle` or `StorageError`.
    """
    folder = folder.absolute()
    if os.path.lexists(folder):
        raise _taken(folder)
    config = plain_config(bundle)
    with ExitStack() as stack:
        export = _Export(bundle, weights, progress)
        export.check(published(config).layers)
        source = _float_source(bundle)
        if source is not None:
            stack.enter_context(source)
        staging = stack.enter_context(Staging(folder))
        cost = export.write(staging.path, source)
        write_json(staging.path / CONFIG, config | quantization_settings(export.schemes))
        for name in SIDE_FILES:
            if name != CONFIG and bundle.has_file(name):
                write_bytes(staging.path / name, bundle.read_file(name))
        if not staging.publish(replace=False):
            raise _taken(folder)
    losses = {key: tuple(names) for key, names in export.losses.items()}
    return Exported(folder, folder_bytes(folder), export.kinds, losses, cost)


def _taken(folder: Path) -> UsageError:
    return UsageError(f"`{shown(folder)}` is there already; choose another `--out`, or remove it", param="out")


def _float_source(bundle: Bundle) -> Source | None:
    """What ``bundle`` was made of, where that is still there; the trial does without it."""
    place = bundle.float_source()
    try:
        source = None if place is None else open_source(place, lora=wishes_of(bundle.manifest["source"]))
    except EdgeLLMError:
        return None
    if source is None or _fits(source, bundle.decoder):
        return source
    source.close()
    return None


def _fits(source: Source, decoder: Decoder) -> bool:
    """Whether ``source`` is a model of the shapes of ``decoder``: another one may lie in its place by now."""
    try:
        theirs = describe(source.config)
        check_tensors(source, theirs)
    except EdgeLLMError:
        return False
    tables = (theirs.vocab_size, theirs.hidden_size) == (decoder.vocab_size, decoder.hidden_size)
    return tables and [_shapes(layer) for layer in theirs.layers] == [_shapes(layer) for layer in decoder.layers]


@dataclass
class _Export:
    """One export on its way."""

    bundle: Bundle
    weights: str | None
    progress: StageProgress
    schemes: dict[str, dict[str, object] | None] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    losses: dict[str, list[str]] = field(default_factory=dict)
    _biased: list[frozenset[str]] = field(default_factory=list)

    def check(self, layers: tuple[Layer, ...]) -> None:
        """Hold the bundle against the ``layers`` that config.json makes, which may have no place for its biases."""
        ours = self.bundle.decoder.layers
        if [_shapes(layer) for layer in layers] != [_shapes(layer) for layer in ours]:
            raise UnsupportedModel(f"the config.json of `{shown(self.bundle.folder.name)}` is not that of its weights")
        self._biased = [frozenset(linear.name for linear in layer.linears if linear.bias) for layer in layers]

    def write(self, folder: Path, source: Source | None) -> Cost | None:
        """Write the weights; what they cost."""
        bundle, decoder = self.bundle, self.bundle.decoder
        shards = Shards(folder, len(decoder.layers) + 2)
        names = ("embedding",) if decoder.tied else ("embedding", "output")
        tensors = {name: array for block in names for name, array in bundle.read_block(block).items()}
        embedding, output = table_weights(bundle, tensors)
        factor = 1.0 if is_in_blocks(decoder.table.scheme) else decoder.embedding.factor
        table = _in_float(embedding, factor)
        shards.add({decoder.embedding.source: table.tensors()["weight"]})
        trial = self._trial(embedding, table, factor, source)
        for index, layer in enumerate(decoder.layers):
            self.progress("layers", index, len(decoder.layers))
            block = layer_weights(bundle, bundle.read_block(f"layers.{index}"), index)
            made = self._made(index, layer, block.linears)
            shards.add(self._tensors(layer, made, block.gains))
            if trial is not None:
                trial.run_layer(index, block, made)
        self.progress("layers", len(decoder.layers), len(decoder.layers))
        vectors, head = bundle.read("final_norm"), table if decoder.tied else _in_float(output, 1.0)
        last = self._last_norm(vectors)
        shards.add(last if decoder.tied else last | {f"{decoder.output.sources[0].source}.weight": head.tensors()["weight"]})
        shards.finish()
        return None if trial is None else trial.cost(vectors, output, head.weight, factor if decoder.tied else 1.0)

    def _trial(self, embedding: Table, table: Floats, factor: float, source: Source | None) -> Trial | None:
        bundle = self.bundle
        sequences = held_out_sequences(Tokenizer.from_folder(bundle.folder, bundle.config.vocab_size), bundle.config)
        if not sequences:
            return None
        ids, whole = np.concatenate(sequences), bundle.decoder.embedding.factor
        begun = float_rows(embedding, ids, whole / factor)
        written = table.weight[ids].astype(np.float32) * np.float32(whole)
        return Trial(bundle.decoder, sequences, begun, written, source)

    def _made(self, index: int, layer: Layer, weights: Mapping[str, object]) -> dict[str, Made]:
        made = {}
        for linear in layer.linears:
            name = f"layers.{index}.{linear.name}"
            one = made_of(linear, weights[linear.name], self.bundle.facts[name], self.weights)  # type: ignore[arg-type]
            if one.bias is not None and linear.name not in self._biased[index]:
                one = _without_bias(one, name)
            made[linear.name] = one
            for loss in one.losses:
                self.losses.setdefault(loss, []).append(name)
        return made

    def _tensors(self, layer: Layer, made: Mapping[str, Made], gains: Mapping[str, np.ndarray]) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        for module in modules_of(layer, made):
            self.schemes[module.name] = module.form.scheme()
            self.kinds[module.form.kind] = self.kinds.get(module.form.kind, 0) + 1
            found |= {f"{module.name}.{part}": stored for part, stored in module.form.tensors().items()}
            if module.bias is not None:
                found[f"{module.name}.bias"] = "F32", module.bias
        return found | {layer.prefix + one.source: ("F32", gain_of(one, gains[one.name])) for one in layer.gains}

    def _last_norm(self, vectors: np.ndarray) -> dict[str, Stored]:
        decoder = self.bundle.decoder
        if decoder.tied and is_in_blocks(decoder.table.scheme):  # its gain has the factor that the table has not
            vectors = vectors / np.float32(decoder.embedding.factor)
        named = decoder.norm.named(vectors)
        return {gain.source: ("F32", gain_of(gain, named[gain.name])) for gain in decoder.norm.gains}


def _shapes(layer: Layer) -> tuple[object, ...]:
    """What the checkpoint of ``layer`` has."""
    linears = [(one.name, one.sources, one.columns) for one in layer.linears]
    return layer.prefix, tuple(linears), layer.gains


def _without_bias(made: Made, name: str) -> Made:
    if made.bias is not None and made.bias.any():
        raise UnsupportedModel(f"`{name}` has a bias, for which the model's architecture has no place; it cannot be written")
    return Made(made.form, None, made.losses)


def _in_float(table: Table, factor: float) -> Floats:
    """``table`` divided by ``factor``, in float16 where that holds it."""
    first = np.float32(factor)
    numbers = [np.arange(start, min(start + _ROWS, table.rows)) for start in range(0, table.rows, _ROWS)]
    runs = [float_rows(table, some, 1.0) / first for some in numbers]
    forms = [narrowed(run) for run in runs]
    if len({one.weight.dtype for one in forms}) > 1:
        return Floats(np.concatenate(runs))
    return forms[0].stacked(forms[1:])
