"""The sizes of a model's weights, of which a plan of memory is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edge_llm.config import NEURONS
from edge_llm.formats.bundle import Bundle
from edge_llm.formats.layout import BlockRange, TensorRange, layer_name, unit_of
from edge_llm.operations.early_router import mixture_of
from edge_llm.operations.linear import Linear
from edge_llm.schemes.expanding import tile_bytes
from edge_llm.schemes.int8_weight import holds_integers
from edge_llm.schemes.joint import has_codes
from edge_llm.schemes.neurons import COLUMNS, Runs, runs_of
from edge_llm.weights.base import EMBEDDING, OUTPUT
from edge_llm.weights.memory_plan import NO_TABLES
from edge_llm.weights.table import block_memory, row_memory

EMBEDDING_ALONE = frozenset((EMBEDDING,))
OUTPUT_ALONE = frozenset((OUTPUT,))
TABLES = frozenset((EMBEDDING, OUTPUT))


@dataclass(frozen=True)
class BlockSize:
    """A block of weights: its bytes on flash, and in memory (with the scales that are computed from them)."""

    stored: int
    held: int
    beside_card: int = 0
    """Bytes that the host keeps of it when its INT8 matrices, or their codes, lie on a card alone."""
    expanded: int = 0
    """Bytes that its codes take in INT8, on their way to a card."""
    columns: int = 0
    """Bytes of the columns of neurons in it, which can be read alone."""


@dataclass(frozen=True)
class ExpertSizes:
    """The experts of a model, each of which can be read alone."""

    layers: int
    """Layers that have experts."""
    count: int
    """Experts of a layer."""
    used: int
    """Those that a token goes to."""
    slot: BlockSize
    """Of the largest expert."""
    total: int
    """Bytes of memory of all of them."""

    @property
    def token_bytes(self) -> int:
        """Bytes of experts that a token needs, at most."""
        return self.layers * self.used * self.slot.stored

    def missed(self, quota: int) -> int:
        """Bytes of all experts but ``quota`` of every layer."""
        return self.layers * (self.count - quota) * self.slot.stored


@dataclass(frozen=True)
class NeuronSizes:
    """The linears of a model whose columns can be read a run of neurons at a time."""

    linears: int
    count: int
    """Runs of a linear, at most."""
    run_bytes: int
    """Bytes of a run, at most."""
    total: int
    """Bytes of all runs."""
    active: float
    """Share of the runs that a row activates, as import saw it."""


@dataclass(frozen=True)
class WeightSizes:
    """The sizes of all weights of a model."""

    layers: tuple[BlockSize, ...]
    fixed: int
    """Bytes of memory of the embedding, the last norm and the output matrix."""
    fixed_without_tables: int | None = None
    """The same when the embedding and the output matrix stay on flash; None when they cannot (no checksums of pieces)."""
    output: int = 0
    """Bytes of the output matrix on flash."""
    fixed_without_embedding: int | None = None
    """As `fixed_without_tables` when only the embedding stays there; None too when it is the output matrix."""
    fixed_without_output: int | None = None
    """The same when only the output matrix does."""
    experts: ExpertSizes | None = None
    """None in a model without experts."""
    neurons: NeuronSizes | None = None
    """None in a model whose neurons do not lie apart."""

    @classmethod
    def of_bundle(cls, bundle: Bundle) -> WeightSizes:
        sizes = {name: _block_size(block) for name, block in bundle.blocks.items()}
        layers = tuple(
            replace(
                sizes.pop(layer_name(index)),
                expanded=sum(map(tile_bytes, filter(has_codes, layer.linears))),
                columns=sum(runs.total * runs.nbytes for one in layer.linears if (runs := _runs(one))),
            )
            for index, layer in enumerate(bundle.decoder.layers)
        )
        fixed = sum(size.held for size in sizes.values())
        tables = {name: bundle.blocks[name].tensors[0] for name in (EMBEDDING, OUTPUT) if name in bundle.blocks}
        return replace(cls._with_tables(layers, fixed, tables), experts=_expert_sizes(bundle), neurons=_neuron_sizes(bundle))

    @classmethod
    def _with_tables(cls, layers: tuple[BlockSize, ...], fixed: int, tables: Mapping[str, TensorRange]) -> WeightSizes:
        if not all(table.pieces for table in tables.values()):
            return cls(layers, fixed)
        embedding, output = tables[EMBEDDING], tables.get(OUTPUT, tables[EMBEDDING])
        rows_alone = fixed - embedding.nbytes + row_memory(embedding)
        if output is embedding:
            return cls(layers, fixed, rows_alone + block_memory(output), output.nbytes)
        blocks_alone = fixed - output.nbytes + block_memory(output)
        return cls(layers, fixed, rows_alone - output.nbytes + block_memory(output), output.nbytes, rows_alone, blocks_alone)

    @property
    def choices_of_tables(self) -> Mapping[frozenset[str], int]:
        """Which of the tables may stay on flash, and what `fixed` is then."""
        choices = {NO_TABLES: self.fixed, EMBEDDING_ALONE: self.fixed_without_embedding, TABLES: self.fixed_without_tables}
        return {tables: fixed for tables, fixed in choices.items() if fixed is not None}

    def output_read(self, flash_tables: frozenset[str]) -> int:
        """Bytes of the output matrix that a sweep reads where ``flash_tables`` stay on flash."""
        return self.output if OUTPUT in flash_tables else 0

    @property
    def total(self) -> int:
        """Bytes of memory when all is resident."""
        return self.fixed + sum(layer.held for layer in self.layers)


def _expert_sizes(bundle: Bundle) -> ExpertSizes | None:
    found = [one for one in map(mixture_of, bundle.decoder.layers) if one is not None]
    if not found:
        return None
    sizes = [_block_size(unit) for name, unit in bundle.units.items() if not name.endswith(COLUMNS)]
    largest = BlockSize(max(size.stored for size in sizes), max(size.held for size in sizes))
    count, used = max(one.count for one in found), max(one.used for one in found)
    return ExpertSizes(len(found), count, used, largest, sum(size.held for size in sizes))


def _runs(linear: Linear) -> Runs | None:
    return runs_of(linear) if linear.scheme == NEURONS else None


def _neuron_sizes(bundle: Bundle) -> NeuronSizes | None:
    found = {name: runs for name, one in bundle.decoder.linears().items() if (runs := _runs(one))}
    if not found:
        return None
    count, nbytes = max(one.total for one in found.values()), max(one.nbytes for one in found.values())
    active, total = sum(bundle.facts[name]["active"] for name in found), sum(one.total * one.nbytes for one in found.values())
    return NeuronSizes(len(found), count, nbytes, total, active / len(found))


def _block_size(block: BlockRange) -> BlockSize:
    scales = sum(tensor.nbytes for tensor in block.tensors if tensor.name.endswith(".scale"))
    own = (tensor for tensor in block.tensors if unit_of(tensor.name) == block.name)  # experts are the host's
    matrices = sum(tensor.nbytes for tensor in own if holds_integers(tensor.name))
    return BlockSize(block.nbytes, block.nbytes + scales, block.nbytes + scales - matrices)
