"""An imported model becomes a folder of ONNX graphs that its layers share, and a file of initializers per layer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
from pathlib import Path
from typing import Any

from edge_llm.ascend.devices.om_folder import FORMAT, INDEX, VERSION
from edge_llm.ascend.devices.onnx_product import OPSET, onnx_package
from edge_llm.ascend.export.beside import SCRIPT, Compiled, readme, script
from edge_llm.ascend.export.flavours import CHECK, Flavour
from edge_llm.ascend.export.graphs import product_graph
from edge_llm.ascend.export.initializers import Product, write_products
from edge_llm.convert.staging import Staging
from edge_llm.errors import UnsupportedModel, UsageError
from edge_llm.files import shown
from edge_llm.formats.bundle import Bundle
from edge_llm.formats.layout import tensors_digest
from edge_llm.formats.output import storage_errors
from edge_llm.operations.questions import AnyLinear
from edge_llm.progress import StageProgress, ignore
from edge_llm.schemes import Weight
from edge_llm.schemes.expanding import expanded
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.subgraphs.ops import CARD_LANE, Part
from edge_llm.subgraphs.placement import SPLIT, place
from edge_llm.weights.resident import layer_weights

INITIALIZERS = "initializers"


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    graphs: int
    layers: int
    lengths: tuple[int, ...]
    nbytes: int
    """Of all files."""
    on_host: tuple[str, ...]
    """Linears of the layers that are not INT8, and have no graph."""


def export_onnx(
    bundle: Bundle,
    folder: Path,
    lengths: Sequence[int],
    progress: StageProgress = ignore,
    flavour: Flavour = CHECK,
) -> Exported:
    """Write one graph per (part, length) of the INT8 products of ``bundle``'s layers into the new ``folder``.

    The parts are those that a card multiplies when a prompt is split between it and the CPU.  The folder appears whole or not
    at all.  Raises `UsageError` (a folder that is there, a package that is not), `UnsupportedModel` (nothing to export),
    `CorruptBundle` or `StorageError`.
    """
    if alone := bundle.decoder.host_alone or bundle.decoder.beside_cards:
        raise UnsupportedModel(
            f"`{shown(bundle.folder.name)}` has {alone} in its layers, which no graph of a card does; run it with --device host"
        )
    onnx_package(error=UsageError)
    folder = folder.absolute()
    if os.path.lexists(folder):
        raise _taken(folder)
    parts = [tuple(_products(layer)) for layer in place(bundle.decoder, SPLIT)]
    if not any(parts):
        raise UnsupportedModel(f"`{shown(bundle.folder.name)}` has no INT8 linear in its layers; there is nothing to export")
    with Staging(folder) as staging:
        static = bundle.with_static_scales()  # a graph has one scale for all of its rows
        export = _Export(static, staging.path, tuple(lengths), progress, flavour)
        export.write(parts)
        nbytes = sum(path.stat().st_size for path in staging.path.rglob("*") if path.is_file())
        if not staging.publish(replace=False):
            raise _taken(folder)
    return Exported(folder, len(export.graphs) * len(lengths), len(parts), tuple(lengths), nbytes, export.on_host(parts))


def _taken(folder: Path) -> UsageError:
    return UsageError(f"`{shown(folder)}` is there already; choose another `--out`, or remove it", param="out")


def _products(parts: Sequence[Part]) -> Iterator[AnyLinear]:
    """The linears that a card multiplies, in order."""
    return (op.linear for part in parts if part.lane == CARD_LANE for op in part.ops)


def _int8(weight: Weight) -> Int8Weight:
    assert isinstance(weight, Int8Weight), "a card multiplies INT8 alone"
    return weight


@dataclass
class _Graph:
    """A graph of every length: the name of its files, and the first layer's product with the file that it lies in."""

    name: str
    product: Product
    file: str
    columns: int
    outputs: int


@dataclass
class _Export:
    """One export on its way into ``folder``."""

    bundle: Bundle
    folder: Path
    lengths: tuple[int, ...]
    progress: StageProgress
    flavour: Flavour
    graphs: dict[tuple[Any, ...], _Graph] = field(default_factory=dict)
    """By part and the kinds of its initializers: layers whose products have other shapes have other graphs.  What is compiled
    finds another layer's initializers in the places where the first layer's are, so there these count as well."""

    def write(self, parts: Sequence[Sequence[AnyLinear]]) -> None:
        with storage_errors(self.folder):
            (self.folder / INITIALIZERS).mkdir()
        layers = []
        for index, linears in enumerate(parts):
            layers.append(self._write_layer(index, linears))
            self.progress("layers", index + 1, len(parts))
        for done, graph in enumerate(self.graphs.values(), 1):
            self._write_graph(graph)
            self.progress("graphs", done, len(self.graphs))
        self._write_file(INDEX, json.dumps(self._index(layers, self.on_host(parts)), indent=1))
        self._write_file("README.md", readme(self.flavour, self.lengths))
        if self.flavour.chip is not None:
            self._write_file(SCRIPT, script(self.flavour.chip, [list(self._compiled(layer)) for layer in layers]))

    def on_host(self, parts: Sequence[Sequence[AnyLinear]]) -> tuple[str, ...]:
        """The linears of the layers that are not among ``parts``."""
        layers = enumerate(zip(self.bundle.decoder.layers, parts, strict=True))
        return tuple(f"layers.{i}.{one.name}" for i, (layer, done) in layers for one in layer.linears if one not in done)

    def _write_layer(self, index: int, linears: Sequence[AnyLinear]) -> dict[str, Any]:
        """Write the initializers of a layer; its entry in the index."""
        block = f"layers.{index}"
        file = f"{INITIALIZERS}/{block}.bin"
        opened = expanded(layer_weights(self.bundle, self.bundle.read_block(block), index)).linears
        weights = {linear.name: _int8(opened[linear.name]) for linear in linears}
        products = write_products(self.folder / file, weights, self.flavour.arrays)
        found = {name: self._part(name, weights[name], product, file) for name, product in products.items()}
        return {"layer": index, "file": file, "parts": found}

    def _part(self, name: str, weight: Int8Weight, product: Product, file: str) -> dict[str, Any]:
        return {
            "graph": self._graph(name, weight, product, file).name,
            "input_scale": weight.input_scale,
            "turn": weight.turn,
            **({"input_offset": weight.input_offset} if weight.input_offset else {}),
            "initializers": [initializer.record() for initializer in product],
        }

    def _graph(self, part: str, weight: Int8Weight, product: Product, file: str) -> _Graph:
        key = part, *(initializer if self.flavour.chip else initializer.kind for initializer in product)
        if key not in self.graphs:
            taken = {graph.name for graph in self.graphs.values()}
            names = chain([part], (f"{part}.{number}" for number in count(2)))
            name = next(name for name in names if name not in taken)
            self.graphs[key] = _Graph(name, product, file, weight.columns, weight.rows)
        return self.graphs[key]

    def _compiled(self, layer: Mapping[str, Any]) -> Iterator[Compiled]:
        """What the compiler makes of ``layer``, an entry of the index."""
        graphs = {graph.name: graph for graph in self.graphs.values()}
        for part in layer["parts"].values():
            graph = graphs[part["graph"]]
            for length, file in self._files(graph).items():
                yield Compiled(layer["layer"], Path(file).stem, layer["file"], graph.file, (length, graph.columns))

    def _write_graph(self, graph: _Graph) -> None:
        for length, file in self._files(graph).items():
            rows = length, graph.columns
            self._write_file(file, product_graph(self.flavour, graph.name, rows, graph.outputs, graph.product, graph.file))

    def _files(self, graph: _Graph) -> dict[int, str]:
        return {length: f"{graph.name}-{length}.onnx" for length in self.lengths}

    def _write_file(self, name: str, data: bytes | str) -> None:
        path = self.folder / name
        with storage_errors(path), path.open("xb") as out:
            out.write(data.encode() if isinstance(data, str) else data)
            out.flush()
            os.fsync(out.fileno())

    def _index(self, layers: Sequence[Mapping[str, Any]], on_host: Sequence[str]) -> dict[str, Any]:
        graphs = {
            graph.name: {
                "columns": graph.columns,
                "outputs": graph.outputs,
                "files": {str(length): file for length, file in self._files(graph).items()},
            }
            for graph in self.graphs.values()
        }
        return {
            "format": FORMAT,
            "version": VERSION,
            "flavour": self.flavour.name,
            "opset": OPSET,
            "model": self.bundle.folder.resolve().name,
            "tensors": tensors_digest(self.bundle.tensors),
            "lengths": self.lengths,
            "graphs": graphs,
            "layers": list(layers),
            "on_host": list(on_host),
        }
