"""Import of a GGUF file that keeps its blocks: every matrix is re-laid for the kernels in one pass, a run of rows at a time.

Nothing is measured, folded or turned.  Matrices of types that no kernel multiplies become Q8_0 as ggml rounds it, and a linear
whose columns are not whole blocks is kept in float16.  Norms and biases are float32, as in every bundle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import numpy as np

from edge_llm.config import BLOCKS, FLOAT16
from edge_llm.convert.calibrate import OFFSET_CONTEXT
from edge_llm.convert.parallel import core_count
from edge_llm.convert.turns import with_turns
from edge_llm.errors import InvalidModel, UsageError
from edge_llm.files import shown
from edge_llm.formats.bundle_writer import BundleWriter
from edge_llm.formats.gguf import is_gguf, open_gguf
from edge_llm.formats.gguf_blocks import decode
from edge_llm.formats.layout import HEAD, TensorRange, layer_tensors, tensor_layout
from edge_llm.kernels import ThreadPool
from edge_llm.kernels.blocks import GROUP, KINDS, BlockKind, lay_out
from edge_llm.kernels.types import TILE_CHANNELS
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import rope_tables
from edge_llm.models.weights import read_bias, read_final_norm, read_gains, read_head, read_linear
from edge_llm.operations.attention import KEY_OFFSET
from edge_llm.operations.base import HeadTurns
from edge_llm.operations.layer import Layer
from edge_llm.operations.linear import Linear, SourceRows
from edge_llm.progress import StageProgress
from edge_llm.quant.blocks import Q8_0, can_scale, scaled, to_q8_0
from edge_llm.schemes import float16, scheme_of
from edge_llm.schemes.blocks import check_scales, panels_shape
from edge_llm.schemes.joint import joint_name, schemes_in, sources_may_differ
from edge_llm.sources.base import BlockSource
from edge_llm.sources.gguf_config import config_of

RUN_BYTES = 8 << 20
"""About as many bytes of panels are made at once."""
_T = TypeVar("_T")


class KeptBlocks:
    """The weights of ``source`` for a bundle of ``plain``, the model that it describes.

    Raises `UsageError` for a model whose embedding cannot be in blocks.
    """

    def __init__(self, source: BlockSource, plain: Decoder) -> None:
        self._source = source
        self._context = source.config.context
        self._pool = ThreadPool(core_count())
        self._rounded: dict[str, str] = {}
        if plain.hidden_size % GROUP:
            raise UsageError(
                f"a model of {plain.hidden_size} hidden channels cannot be kept in blocks of {GROUP}; leave --weights {BLOCKS} "
                "out, or give --weights int8",
                param="weights",
            )
        prefixes = {
            f"layers.{index}.{one.name}": layer.prefix for index, layer in enumerate(plain.layers) for one in layer.linears
        }
        linears = plain.linears()
        tables = {"output": _table_of(plain)} if plain.tied else {"embedding": _table_of(plain), "output": plain.output}
        schemes = {name: self._scheme(prefixes.get(name, ""), one) for name, one in (linears | tables).items()}
        heads = with_turns(plain).head_turns.keys
        self.decoder = plain.with_schemes(schemes).with_turns({}, HeadTurns(heads))

    @property
    def schemes(self) -> dict[str, str]:
        """By the names of linears, and of an embedding that is not the output matrix too."""
        table = {} if self.decoder.tied else {"embedding": self.decoder.table.scheme}
        return table | {name: one.scheme for name, one in self.decoder.linears().items()}

    @property
    def nbytes(self) -> int:
        """Of the bundle's weights."""
        return tensor_layout(self.decoder, {})[-1].end

    def told(self) -> Iterator[str]:
        """What becomes of the file, a line at a time."""
        kept = f"kept in the file's blocks: {self._source.quantization}, {self._source.bits_per_weight:.1f} bits per weight"
        if not self._rounded:
            yield f"{kept}; nothing is rounded again"
            return
        types = Counter(self._rounded.values())
        said = ", ".join(f"{count} of {name}" for name, count in types.most_common())
        yield f"{kept}; matrices of other types become Q8_0: {said}"

    def write(self, writer: BundleWriter, progress: StageProgress) -> None:
        """All tensors, in the order of the file."""
        decoder = self.decoder
        if not decoder.tied:
            self._write_linear(writer, "embedding.", "", _table_of(decoder))
        for index, layer in enumerate(decoder.layers):
            progress("layers", index, len(decoder.layers))
            self._write_layer(writer, f"layers.{index}.", layer)
        progress("layers", len(decoder.layers), len(decoder.layers))
        progress("output", 0, 1)
        writer.add("final_norm", self._final_norm())
        if decoder.tied:
            self._write_linear(writer, "embedding.", "", _table_of(decoder))
        else:
            self._write_linear(writer, "output.", "", decoder.output)
        for name, array in read_head(self._source, decoder).items():
            writer.add(f"{HEAD}.{name}", array)
        progress("output", 1, 1)

    # -- schemes -------------------------------------------------------------------------------------------------------

    def _scheme(self, prefix: str, linear: Linear) -> str:
        """That of ``linear``: the kinds of its sources, or Q8_0 where they cannot be multiplied side by side."""
        names = [f"{prefix}{rows.source}.weight" for rows in linear.sources]
        if linear.columns % GROUP:
            return FLOAT16
        kinds = [self._kind(name, rows) for name, rows in zip(names, linear.sources, strict=True)]
        if len(set(kinds)) > 1 and not sources_may_differ(linear):
            kinds = [Q8_0.name for _ in kinds]
        for name, kind in zip(names, kinds, strict=True):
            found = self._source.block_type(name).name
            if found.lower() != kind:
                self._rounded[name] = found
        return joint_name(kinds)

    def _kind(self, name: str, rows: SourceRows) -> str:
        kind = KINDS.get(self._source.block_type(name).name.lower(), Q8_0)
        return kind.name if rows.factor == 1 or can_scale(kind) else Q8_0.name

    # -- tensors -------------------------------------------------------------------------------------------------------

    def _final_norm(self) -> np.ndarray:
        """The gain of the last norm; a tied table has no factor in it that the gain must take out again."""
        decoder = self.decoder
        if decoder.tied:
            gain = decoder.norm.gain
            whole = replace(gain, factor=gain.factor * decoder.embedding.factor)
            decoder = replace(decoder, norm=replace(decoder.norm, gain=whole))
        return read_final_norm(self._source, decoder)

    def _write_layer(self, writer: BundleWriter, name: str, layer: Layer) -> None:
        linears = {linear.name: linear for linear in layer.linears}
        arrays = read_gains(self._source, layer)
        for tensor, _, _ in layer_tensors(layer, dict.fromkeys(linears, 0)):
            owner, _, part = tensor.rpartition(".")
            if tensor == KEY_OFFSET:
                writer.add(name + tensor, self._key_offset(layer, arrays))
            elif tensor in arrays:
                writer.add(name + tensor, arrays[tensor])
            elif part == "bias":
                writer.add(name + tensor, read_bias(self._source, layer.prefix, linears[owner]))
            elif part == scheme_of(linears[owner]).tensors(linears[owner], 0)[0][0]:
                self._write_linear(writer, f"{name}{owner}.", layer.prefix, linears[owner])

    def _key_offset(self, layer: Layer, gains: Mapping[str, np.ndarray]) -> np.ndarray:
        """What is known of the mean key without a text: that of the bias.  A norm of keys leaves nothing to say of it."""
        attention, linear = layer.attention, layer.projection
        if not linear.bias or attention.k_norm is not None:
            return np.zeros((attention.kv_heads, attention.head_dim), np.float32)
        keys = read_bias(self._source, layer.prefix, linear)[attention.q_size : attention.q_size + attention.kv_size]
        cos, sin = rope_tables(attention.rope, min(self._context, OFFSET_CONTEXT))
        return attention.mean_key(keys[None], gains, cos, sin)

    def _write_linear(self, writer: BundleWriter, name: str, prefix: str, linear: Linear) -> None:
        """The matrix of ``linear``, all of its parts."""
        if linear.scheme == FLOAT16:
            weight = read_linear(self._source, prefix, linear).weight
            writer.add(f"{name}weight", float16.convert(weight, np.empty(0, np.int32), name)["weight"])
            return
        parts = _parts(linear)
        for number, (scheme, sources) in enumerate(parts):
            kind, rows = KINDS[scheme], sum(one.count for one in sources)
            tensor = f"{name}blocks{number if len(parts) > 1 else ''}"
            shape = panels_shape(kind, rows, linear.columns)
            each = TILE_CHANNELS * _run_panels(kind, linear.columns)
            panels = self._panels(prefix, sources, kind, linear.columns, each)
            writer.add_runs(tensor, shape, panels, np.dtype(np.uint8))

    def _panels(
        self, prefix: str, sources: Sequence[SourceRows], kind: BlockKind, columns: int, each: int
    ) -> Iterator[np.ndarray]:
        """The panels of ``sources``, one under the other, ``each`` rows at a time."""
        for raw in _ahead(self._runs(prefix, sources, kind, columns, each)):
            panels = lay_out(raw.reshape(-1), kind, len(raw), columns, self._pool)
            try:
                check_scales(panels, kind, columns)
            except ValueError as error:
                names = ", ".join(f"`{shown(prefix + one.source)}.weight`" for one in sources)
                raise InvalidModel(f"the tensor {names} {error}; download the file again") from None
            yield panels

    def _runs(
        self, prefix: str, sources: Sequence[SourceRows], kind: BlockKind, columns: int, each: int
    ) -> Iterator[np.ndarray]:
        """The bytes of ``each`` rows of ``sources`` after the other: uint8 [rows, bytes of a row]."""
        total = sum(one.count for one in sources)
        for start in range(0, total, each):
            found, first = [], 0
            for rows in sources:
                low, high = max(start - first, 0), min(start + each - first, rows.count)
                if low < high:
                    found.append(self._rows(f"{prefix}{rows.source}.weight", rows, kind, columns, slice(low, high)))
                first += rows.count
            yield found[0] if len(found) == 1 else np.concatenate(found)

    def _rows(self, name: str, rows: SourceRows, kind: BlockKind, columns: int, some: slice) -> np.ndarray:
        raw = self._source.raw_rows(name, _numbers(rows)[some])
        own = self._source.block_type(name)
        if own.name.lower() == kind.name:
            return raw if rows.factor == 1 else scaled(raw, kind, rows.factor)
        return to_q8_0(decode(own, raw).reshape(len(raw), columns) * np.float32(rows.factor), name)


def keeps_blocks(file: Path) -> bool:
    """Whether ``file`` is a GGUF file with matrices that stay as they are, and an embedding that can be beside them.

    Raises `InvalidModel` for a damaged one, `UnsupportedModel` for one that does not run or is no model.
    """
    if not is_gguf(file):
        return False
    with open_gguf(file) as model:
        is_whole = config_of(model)["hidden_size"] % GROUP == 0
        return is_whole and any(info.kind.name.lower() in KINDS for info in model.tensors)


def _table_of(decoder: Decoder) -> Linear:
    """The embedding as a linear whose rows are those of the source."""
    rows = SourceRows(decoder.embedding.source.removesuffix(".weight"), decoder.vocab_size)
    return replace(decoder.table, sources=(rows,))


def _parts(linear: Linear) -> list[tuple[str, list[SourceRows]]]:
    """Schemes of ``linear`` and the sources that have them, as its parts are."""
    schemes = schemes_in(linear.scheme)
    if len(schemes) == 1:
        return [(linear.scheme, list(linear.sources))]
    named = groupby(zip(schemes, linear.sources, strict=True), key=lambda one: one[0])
    return [(scheme, [rows for _, rows in group]) for scheme, group in named]


def _run_panels(kind: BlockKind, columns: int) -> int:
    """Panels that are made at once: whole pieces of a table."""
    whole = TensorRange("", "uint8", panels_shape(kind, TILE_CHANNELS, columns), 0, 0, 0)
    panels = whole.piece_bytes // kind.panel_bytes(columns)
    return panels * max(1, RUN_BYTES // whole.piece_bytes)


def _numbers(rows: SourceRows) -> np.ndarray:
    """The rows of the source's module, in the order that they have here: int64 [count]."""
    found = rows.numbers()
    if not rows.pairs:
        return found
    heads = found.reshape(-1, rows.head)
    turning = heads[:, : rows.pairs]
    return np.concatenate([turning[:, ::2], turning[:, 1::2], heads[:, rows.pairs :]], axis=1).reshape(-1)


def _ahead(items: Iterator[_T]) -> Iterator[_T]:
    """``items``, of which the next is made while one is used."""
    with ThreadPoolExecutor(1) as worker:
        following = worker.submit(next, items, None)
        while (found := following.result()) is not None:
            following = worker.submit(next, items, None)
            yield found
