"""Which layers stay in memory under a budget: arithmetic on sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from edge_llm.errors import UsageError
from edge_llm.weights.base import OUTPUT, SLOTS
from edge_llm.weights.memory_plan import NO_TABLES, ExpertSlots, MemoryPlan, NeuronSlots

if TYPE_CHECKING:
    from edge_llm.weights.sizes import ExpertSizes, NeuronSizes, WeightSizes

LEAST_RUNS = 16
"""Runs of neurons of a linear that memory holds at least: some are read while others are used."""
ALLOWANCE = 0.15
"""A process may exceed the budget by this part of it, not counting keys and values."""
GIVEN_UP = 0.25
"""Weights leave at most this part of the budget to the rest of the process, which can be larger than a small model."""


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
    by_neurons = _plans_of_neurons(sizes, budget, choices, beside)
    choices = {tables: fixed for tables, fixed in choices.items() if not kept or OUTPUT not in tables}
    given = sizes, budget, slots, choices, kept
    plans = [*_candidates(*given), *_candidates_beside_neurons(*given)]
    fitting = [plan for plan in plans if plan.held_bytes <= budget]
    if not fitting and not by_neurons:
        raise too_little(budget, min(plan.held_bytes for plan in plans))
    whole = [plan for plan in fitting if not plan.streamed and not plan.flash_tables]
    most = _most(budget, beside)
    near = [plan for plan in fitting if plan.held_bytes <= most]
    least = sorted(fitting, key=lambda plan: plan.held_bytes)[:1]
    return min(whole or [*by_neurons, *(near or least)], key=_streamed)


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
    plan = _parts_plan(sizes, budget, around + slots * experts.slot.held, missed, flash_tables)
    return replace(plan, experts=ExpertSlots(quota, ahead, experts.slot.stored, experts.count, slots, experts.missed(quota)))


def _plans_of_neurons(
    sizes: WeightSizes, budget: int, choices_of_tables: Mapping[frozenset[str], int], beside: int
) -> list[MemoryPlan]:
    """The plans in which columns of neurons, and tables, are read from flash; none where ``budget`` does not hold the rest."""
    neurons, plans = sizes.neurons, []
    if neurons is None:
        return []
    around = sum(layer.held for layer in sizes.layers) - neurons.total
    least = min(LEAST_RUNS, neurons.count)
    for tables, fixed in choices_of_tables.items():
        quota = _places(budget, beside, fixed + around, neurons.run_bytes * neurons.linears, least)
        if quota is not None:
            plans.append(_neuron_plan(sizes, neurons, budget, min(neurons.count, quota), tables, fixed + around))
    return plans


def _neuron_plan(
    sizes: WeightSizes, neurons: NeuronSizes, budget: int, quota: int, flash_tables: frozenset[str], around: int
) -> MemoryPlan:
    """The plan with ``quota`` runs of every linear in memory; ``around`` is what all else takes."""
    slots = quota * neurons.linears
    missed = round(neurons.active * neurons.total * (1 - quota / neurons.count))
    plan = _parts_plan(sizes, budget, around + slots * neurons.run_bytes, missed, flash_tables)
    return replace(plan, neurons=NeuronSlots(quota, neurons.run_bytes, neurons.count, slots))


def _parts_plan(sizes: WeightSizes, budget: int, held: int, missed: int, flash_tables: frozenset[str]) -> MemoryPlan:
    """The plan with every layer resident but for parts, of which a token reads ``missed`` bytes; ``held`` bytes in all."""
    layers = tuple(range(len(sizes.layers)))
    return MemoryPlan(budget, layers, (), 0, 0, held, missed + sizes.output_read(flash_tables), flash_tables)


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
        streamed_bytes=sum(sizes.layers[index].stored for index in streamed) + sizes.output_read(flash_tables),
        flash_tables=flash_tables,
    )


def spread(chosen: int, count: int) -> tuple[int, ...]:
    """``chosen`` of ``count`` places at distances as even as possible, also from the last place around to the first."""
    return tuple((2 * index + 1) * count // (2 * chosen) for index in range(chosen))
