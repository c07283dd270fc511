"""Which layers stay in memory under a budget: arithmetic on sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from edge_llm.config import NEURONS
from edge_llm.errors import UsageError
from edge_llm.formats.bundle import Bundle
from edge_llm.formats.layout import BlockRange, TensorRange, unit_of
from edge_llm.operations.early_router import mixture_of
from edge_llm.operations.linear import Linear
from edge_llm.schemes.expanding import tile_bytes
from edge_llm.schemes.int8_weight import holds_integers
from edge_llm.schemes.joint import has_codes
from edge_llm.schemes.neurons import COLUMNS, Runs, runs_of
from edge_llm.weights.base import EMBEDDING, OUTPUT, SLOTS
from edge_llm.weights.memory_plan import NO_TABLES, ExpertSlots, MemoryPlan, NeuronSlots
from edge_llm.weights.table import block_memory, row_memory

EMBEDDING_ALONE = frozenset((EMBEDDING,))
OUTPUT_ALONE = frozenset((OUTPUT,))
TABLES = frozenset((EMBEDDING, OUTPUT))
LEAST_RUNS = 16
"""Runs of neurons of a linear that memory holds at least: some are read while others are used."""
ALLOWANCE = 0.15
"""A process may exceed the budget by this part of it, not counting keys and values."""
GIVEN_UP = 0.25
"""Weights leave at most this part of the budget to the rest of the process, which can be larger than a small model."""


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
                sizes.pop(f"layers.{index}"),
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


def plan_memory(
    sizes: WeightSizes, budget: int, *, slots: int = SLOTS, flash_tables: bool = False, beside: int = 0, kept: int = 0
) -> MemoryPlan:
    """The plan that streams as few bytes as ``budget`` bytes of memory allow, layers through ``slots`` (2 or more) buffers.

    ``flash_tables``: the embedding and the output matrix may stay on flash, if the bundle has checksums of their pieces.
    ``kept``: the first so many layers and the output matrix are resident.  ``beside`` is the memory of the process apart from
    weights, keys and values.  When not all weights are resident, the weights shrink by up to `GIVEN_UP` of the budget so that
    the process exceeds the budget by no more than `ALLOWANCE`.
    Raises `UsageError` that names the least budget when even the smallest plan does not fit.
    """
    choices = sizes.choices_of_tables if flash_tables else {NO_TABLES: sizes.fixed}
    if sizes.experts is not None and sizes.total > budget:
        return _plan_experts(sizes, sizes.experts, budget, choices, beside)
    if sizes.neurons is not None and sizes.total > budget:
        found = _plan_neurons(sizes, sizes.neurons, budget, choices, beside)
        if found is not None:
            return found
    choices = {tables: fixed for tables, fixed in choices.items() if not kept or OUTPUT not in tables}
    given = sizes, budget, slots, choices, kept
    plans = [*_candidates(*given), *_candidates_beside_neurons(*given)]
    fitting = [plan for plan in plans if plan.held_bytes <= budget]
    if fitting:
        whole = [plan for plan in fitting if not plan.streamed and not plan.flash_tables]
        most = _most(budget, beside)
        near = [plan for plan in fitting if plan.held_bytes <= most]
        return min(whole or near or [min(fitting, key=lambda plan: plan.held_bytes)], key=_streamed)
    raise too_little(budget, min(plan.held_bytes for plan in plans))


def _most(budget: int, beside: int) -> float:
    """Bytes that weights take of ``budget`` when not all of them are resident."""
    return max((1 - GIVEN_UP) * budget, min(budget, (1 + ALLOWANCE) * budget - beside))


def _places(budget: int, beside: int, around: int, each: int, least: int) -> int | None:
    """Blocks of ``each`` bytes that ``budget`` has places for beside ``around`` bytes; None for fewer than ``least``.

    A larger budget never has fewer: where those that keep the process near it are too few, it has the least.
    """
    near, fitting = (int(most - around) // each for most in (_most(budget, beside), budget))
    return max(near, least) if fitting >= least else None


def _plan_experts(
    sizes: WeightSizes, experts: ExpertSizes, budget: int, choices_of_tables: Mapping[frozenset[str], int], beside: int
) -> MemoryPlan:
    """The plan in which experts alone are read from flash, and tables where that leaves room for more experts."""
    layers = sum(layer.held for layer in sizes.layers) - experts.total
    least = experts.layers + 1
    plans = []
    for tables, fixed in choices_of_tables.items():
        slots = _places(budget, beside, fixed + layers, experts.slot.held, least)
        if slots is not None:
            plans.append(_expert_plan(sizes, experts, budget, slots, tables, fixed + layers))
    if not plans:
        raise too_little(budget, min(choices_of_tables.values()) + layers + least * experts.slot.held)
    return min(plans, key=_streamed)


def _expert_plan(
    sizes: WeightSizes, experts: ExpertSizes, budget: int, slots: int, flash_tables: frozenset[str], around: int
) -> MemoryPlan:
    """The plan with so many ``slots``; ``around`` is what all else takes."""
    wanted = max(2, experts.used)
    quota = min(experts.count, max(1, (slots - wanted) // experts.layers))
    ahead = min(slots - quota * experts.layers, wanted + experts.layers)
    slots = quota * experts.layers + ahead
    missed = round(experts.token_bytes * (1 - quota / experts.count))
    return MemoryPlan(
        budget=budget,
        resident=tuple(range(len(sizes.layers))),
        streamed=(),
        slots=0,
        slot_bytes=0,
        held_bytes=around + slots * experts.slot.held,
        streamed_bytes=missed + (sizes.output if OUTPUT in flash_tables else 0),
        flash_tables=flash_tables,
        experts=ExpertSlots(quota, ahead, experts.slot.stored, experts.count, slots, experts.missed(quota)),
    )


def _plan_neurons(
    sizes: WeightSizes, neurons: NeuronSizes, budget: int, choices_of_tables: Mapping[frozenset[str], int], beside: int
) -> MemoryPlan | None:
    """The plan in which columns of neurons alone are read from flash, and tables where that leaves room for more of them.

    None where ``budget`` does not hold what is left: then layers are streamed.
    """
    around = sum(layer.held for layer in sizes.layers) - neurons.total
    least, plans = min(LEAST_RUNS, neurons.count), []
    for tables, fixed in choices_of_tables.items():
        quota = _places(budget, beside, fixed + around, neurons.run_bytes * neurons.linears, least)
        if quota is not None:
            plans.append(_neuron_plan(sizes, neurons, budget, min(neurons.count, quota), tables, fixed + around))
    return min(plans, key=_streamed, default=None)


def _neuron_plan(
    sizes: WeightSizes, neurons: NeuronSizes, budget: int, quota: int, flash_tables: frozenset[str], around: int
) -> MemoryPlan:
    """The plan with ``quota`` runs of every linear in memory; ``around`` is what all else takes."""
    slots = quota * neurons.linears
    missed = round(neurons.active * neurons.total * (1 - quota / neurons.count))
    return MemoryPlan(
        budget=budget,
        resident=tuple(range(len(sizes.layers))),
        streamed=(),
        slots=0,
        slot_bytes=0,
        held_bytes=around + slots * neurons.run_bytes,
        streamed_bytes=missed + (sizes.output if OUTPUT in flash_tables else 0),
        flash_tables=flash_tables,
        neurons=NeuronSlots(quota, neurons.run_bytes, neurons.count, slots),
    )


def _candidates_beside_neurons(
    sizes: WeightSizes, budget: int, slots: int, choices: Mapping[frozenset[str], int], kept: int
) -> Iterator[MemoryPlan]:
    """Plans in which streamed layers come without columns: of these a window of about two tokens is in memory."""
    if sizes.neurons is None:
        return
    quota = min(sizes.neurons.count, max(LEAST_RUNS, math.ceil(2 * sizes.neurons.active * sizes.neurons.count)))
    window = _neuron_plan(sizes, sizes.neurons, budget, quota, NO_TABLES, 0)
    lean = tuple(replace(one, stored=one.stored - one.columns, held=one.held - one.columns) for one in sizes.layers)
    for plan in _candidates(replace(sizes, layers=lean), budget, slots, choices, kept):
        if plan.streamed:
            held, read = plan.held_bytes + window.held_bytes, plan.streamed_bytes + window.streamed_bytes
            yield replace(plan, held_bytes=held, streamed_bytes=read, neurons=window.neurons)


def too_little(budget: int, least: int) -> UsageError:
    """The error for a ``budget`` below the ``least`` that works."""
    return UsageError(
        f"{budget} bytes of memory are too little for this model's weights; the least that works is "
        f"{least} bytes ({math.ceil(10 * least / 2**20) / 10:.1f}MiB)",
        param="memory",
    )


def _streamed(plan: MemoryPlan) -> int:
    return plan.streamed_bytes


def _candidates(
    sizes: WeightSizes, budget: int, slots: int, choices_of_tables: Mapping[frozenset[str], int], kept: int
) -> Iterator[MemoryPlan]:
    count = len(sizes.layers) - kept
    for tables, fixed in choices_of_tables.items():
        for streamed in (0, *range(slots + 1, count + 1)):
            layers = tuple(kept + layer for layer in spread(streamed, count))
            yield _plan(sizes, budget, layers, slots if streamed else 0, tables, fixed)


def _plan(
    sizes: WeightSizes, budget: int, streamed: tuple[int, ...], slots: int, flash_tables: frozenset[str], fixed: int
) -> MemoryPlan:
    resident = tuple(sorted(set(range(len(sizes.layers))) - set(streamed)))
    slot_bytes = max((sizes.layers[index].stored for index in streamed), default=0)
    scales = sum(sizes.layers[index].held - sizes.layers[index].stored for index in streamed)
    return MemoryPlan(
        budget=budget,
        resident=resident,
        streamed=streamed,
        slots=slots,
        slot_bytes=slot_bytes,
        held_bytes=fixed + sum(sizes.layers[index].held for index in resident) + slots * slot_bytes + scales,
        streamed_bytes=sum(sizes.layers[index].stored for index in streamed) + (sizes.output if OUTPUT in flash_tables else 0),
        flash_tables=flash_tables,
    )


def spread(chosen: int, count: int) -> tuple[int, ...]:
    """``chosen`` of ``count`` places at distances as even as possible, also from the last place around to the first."""
    return tuple((2 * index + 1) * count // (2 * chosen) for index in range(chosen))


def layer_ranges(layers: Sequence[int]) -> str:
    """Layer numbers as people write them: ``0-3, 7``."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and runs[-1][-1] == layer - 1:
            runs[-1][-1] = layer
        else:
            runs.append([layer, layer])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
