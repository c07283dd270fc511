"""What the host holds while a card has the layers: what it computes with, and layers that have no room on the card."""

from __future__ import annotations

from collections.abc import Sequence

from edge_llm.weights.base import SLOTS
from edge_llm.weights.memory_plan import NO_TABLES, MemoryPlan, StagingPlan
from edge_llm.weights.plan import spread, too_little
from edge_llm.weights.sizes import OUTPUT_ALONE, TABLES, WeightSizes

COLD_SHARE = 0.1
"""Input channels that overflows wanted take at most this part of the layers' bytes, or `LEAST_COLD` if that is more."""
LEAST_COLD = 8 << 20
FREE_SHARE = 0.75
"""Layers for a card take at most this part of the main memory that is free: what is pinned cannot be given back in need."""


def plan_staging(
    sizes: WeightSizes,
    streamed: tuple[int, ...],
    budget: int | None,
    *,
    whole: bool,
    host_embeds: bool = True,
    pinned: Sequence[int] | None = None,
    free: int = 0,
) -> StagingPlan:
    """What the host holds while a card has the layers, of which ``streamed`` are asked for again in every sweep.

    As many of these as ``budget`` and ``free`` bytes of main memory allow stay there; the others are read from flash.
    ``pinned``: what each layer takes of pinned memory, whether it stays or passes through; None where none is pinned.
    ``whole``: the card has the output matrix and all vectors as well, and the embedding unless ``host_embeds``.  Raises
    `UsageError` that names the least ``budget`` when that is too small.
    """
    slot = max(layer.stored for layer in sizes.layers)
    beside = 0 if whole else sum(layer.beside_card for layer in sizes.layers)
    around = beside + SLOTS * slot + max(layer.expanded for layer in sizes.layers)
    around += SLOTS * max((pinned[index] for index in streamed), default=0) if pinned is not None else 0
    kept = [layer.held + layer.expanded for layer in sizes.layers] if pinned is None else pinned
    cold = 0 if whole else max(LEAST_COLD, int(COLD_SHARE * sum(layer.stored for layer in sizes.layers)))
    choices = _tables_beside_card(sizes, whole=whole, host_embeds=host_embeds)
    plans = []
    for flash_tables, fixed in choices.items():
        held = fixed + around
        if budget is not None and held > budget:
            continue
        own_cold = cold if budget is None else min(cold, budget - held)
        room = int(FREE_SHARE * free) - held
        hosted = _hosted(streamed, kept, room if budget is None else min(room, budget - held - own_cold))
        hosted_bytes = sum(kept[index] for index in hosted)
        held += hosted_bytes
        output = 0 if whole else sizes.output_read(flash_tables)
        on_flash = tuple(index for index in streamed if index not in hosted)
        read = sum(sizes.layers[index].stored for index in on_flash) + output
        own_budget = held if budget is None else budget
        plan = MemoryPlan(own_budget, (), on_flash, SLOTS, slot, held, read, flash_tables)
        plans.append(StagingPlan(plan, own_cold, whole, hosted, hosted_bytes))
    if not plans:
        raise too_little(budget or 0, min(choices.values()) + around)
    return min(plans, key=lambda one: one.plan.streamed_bytes)


def _hosted(streamed: tuple[int, ...], kept: Sequence[int], room: int) -> tuple[int, ...]:
    """Those of ``streamed`` that stay in ``room`` bytes of main memory, each in ``kept`` bytes.

    The others are spread evenly; as few as there are buffers would never leave them.
    """
    count = len(streamed)
    for others in (0, *range(SLOTS + 1, count)):
        places = spread(others, count)
        hosted = tuple(layer for place, layer in enumerate(streamed) if place not in places)
        if sum(kept[index] for index in hosted) <= room:
            return hosted
    return ()


def _tables_beside_card(sizes: WeightSizes, *, whole: bool, host_embeds: bool) -> dict[frozenset[str], int]:
    """Which tables may stay on flash, the choice to be preferred first, and the bytes of what is fixed then.

    What the host does not use stays there; but small tables may be less than the buffers of their blocks.
    """
    choices = {NO_TABLES: sizes.fixed, OUTPUT_ALONE: sizes.fixed_without_output, TABLES: sizes.fixed_without_tables}
    of_whole = (OUTPUT_ALONE, NO_TABLES, TABLES) if host_embeds else (TABLES, NO_TABLES)
    order = of_whole if whole else (NO_TABLES, TABLES)
    return {tables: fixed for tables in order if (fixed := choices[tables]) is not None}
