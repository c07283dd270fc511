"""An export for a chip, which `atc.sh` compiled: which OM file multiplies what, and of which model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from edge_llm.ascend.npu.chips import CHIPS, ChipLaw
from edge_llm.devices.base import static_length
from edge_llm.errors import DeviceError, EdgeLLMError, UsageError
from edge_llm.files import is_folder, read_file, shown, status
from edge_llm.formats.layout import TensorRange, tensors_digest
from edge_llm.models.layer import Decoder
from edge_llm.schemes.joint import is_multiplied_as_int8
from edge_llm.strict_json import MAX_BYTES, parse_object

INDEX = "index.json"
FORMAT, VERSION = "edge-llm ONNX products", 2
"""2: the digest of the model's tensors."""


_Shape = tuple[int, int, str, int, int]
"""Of a product: rows, layer, linear, columns, outputs."""


@dataclass(frozen=True)
class OmFile:
    """The product of a linear of one layer, of ``length`` rows."""

    layer: int
    part: str
    length: int
    columns: int
    outputs: int
    path: Path


@dataclass(frozen=True)
class OmFolder:
    """An export in ``path`` for the chip of ``law``."""

    path: Path
    law: ChipLaw
    model: str
    tensors: str
    """`tensors_digest` of the model."""
    files: tuple[OmFile, ...]
    """Those that the compiler makes of it, whether they are there or not."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """Rows of its graphs, ascending."""
        return tuple(sorted({file.length for file in self.files}))

    @cached_property
    def missing(self) -> dict[int, Path]:
        """The number of rows of graphs that are not compiled, each with a file that is not there."""
        return {file.length: file.path for file in self.files if status(file.path) is None}

    def check_model(self, decoder: Decoder, tensors: Mapping[str, TensorRange]) -> None:
        """Raises `DeviceError` unless it is an export of the bundle of ``decoder`` that has these ``tensors``."""
        if tensors_digest(tensors) != self.tensors or self._products() != _products(decoder, self.lengths):
            raise DeviceError(
                f"`{shown(self.path)}` is an export of `{shown(self.model)}` with other weights than this model's; "
                f"export this one: {self._export('MODEL')}"
            )

    def compiled(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """The rows of those compiled graphs that chunks of ``lengths`` need: for each the fewest that hold it.

        Raises `DeviceError` where the longest has none, with the commands that make them.
        """
        there = [length for length in self.lengths if length not in self.missing]
        longest = lengths[-1]
        if not there or there[-1] < longest:
            raise DeviceError(self._lacks(longest))
        return tuple(sorted({static_length(one, there) for one in lengths}))

    def _products(self) -> set[_Shape]:
        return {(file.length, file.layer, file.part, file.columns, file.outputs) for file in self.files}

    def _lacks(self, longest: int) -> str:
        found = next((length for length in self.lengths if length >= longest), None)
        if found is None:
            return (
                f"`{shown(self.path)}` has graphs of at most {self.lengths[-1]} rows, and chunks have up to {longest}: "
                f"use --chunk {self.lengths[-1]}, or export longer ones: {self._export(f'--chunk {longest} MODEL')}"
            )
        return (
            f"`{shown(self.missing[found])}` is missing; on a machine with CANN's toolkit "
            f"`ROWS={found} sh {shown(self.path / 'atc.sh')}` makes it"
        )

    def _export(self, what: str) -> str:
        return f"`edge-llm export --format onnx --flavour {self.law.name} {what}`, then its atc.sh"


def read_om_folder(path: Path) -> OmFolder:
    """The export in ``path``.  Raises `UsageError` for no folder, `DeviceError` for no export, or one that no chip compiles."""
    if not is_folder(path):
        raise UsageError(
            f"`{shown(path)}` is no folder; `edge-llm export --format onnx --flavour 310b MODEL` writes one", param="device"
        )
    try:
        index = parse_object(read_file(path / INDEX, MAX_BYTES, error=DeviceError), INDEX, error=DeviceError)
        if (index["format"], index["version"]) != (FORMAT, VERSION):
            raise DeviceError(f"it is of {shown(index['format'])}, version {shown(index['version'])}")
        if index["flavour"] not in CHIPS:
            raise DeviceError(f"its graphs are of the flavour {shown(index['flavour'])}, which no chip compiles")
        files = tuple(_files(path, index))
        if not files:
            raise DeviceError("it has no graph")
        return OmFolder(path, CHIPS[index["flavour"]], str(index["model"]), str(index["tensors"]), files)
    except (EdgeLLMError, LookupError, TypeError, ValueError, AttributeError) as problem:
        reason = str(problem) if isinstance(problem, EdgeLLMError) else f"{INDEX} is not as it was written"
        raise DeviceError(
            f"`{shown(path)}` is no export that can be run: {reason}; "
            "`edge-llm export --format onnx --flavour 310b MODEL` writes one"
        ) from None


def _products(decoder: Decoder, lengths: Iterable[int]) -> set[_Shape]:
    """The products that a compiled ``decoder`` has."""
    return {
        (length, number, one.name, one.columns, one.rows)
        for number, layer in enumerate(decoder.layers)
        for one in layer.for_cards
        if is_multiplied_as_int8(one.scheme)
        for length in lengths
    }


def _files(path: Path, index: Mapping[str, Any]) -> Iterator[OmFile]:
    for layer in index["layers"]:
        number = int(layer["layer"])
        for part, said in layer["parts"].items():
            graph = index["graphs"][said["graph"]]
            for length, file in graph["files"].items():
                om = path / "om" / f"layers.{number}.{Path(file).stem}.om"
                yield OmFile(number, part, int(length), int(graph["columns"]), int(graph["outputs"]), om)
