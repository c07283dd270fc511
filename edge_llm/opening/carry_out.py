"""A plan is carried out: weights are read, and the device opens the model."""

from __future__ import annotations

import contextlib
import gc
import logging
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from edge_llm.config import STATIC
from edge_llm.devices.base import Device, Watch
from edge_llm.errors import DeviceError, DeviceLost, OutOfMemory
from edge_llm.files import shown
from edge_llm.models.rope import RopeTables
from edge_llm.opening.begin import begin, say
from edge_llm.opening.plan import Plan, refused
from edge_llm.progress import StageProgress, byte_size
from edge_llm.resources import free_memory
from edge_llm.runner.base import Runner
from edge_llm.runner.runner import Int8Runner
from edge_llm.weights.base import Weights
from edge_llm.weights.recording import RoutingRecorder
from edge_llm.weights.resident import ResidentWeights
from edge_llm.weights.streamed import StreamedWeights

log = logging.getLogger("edge_llm.opening")


class Opened(NamedTuple):
    """What became of a plan."""

    plan: Plan
    """The one that was carried out: that of the host where a card refused."""
    runner: Runner[Any]
    draft: Runner[Any] | None = None
    """Of the model that guesses ahead, if one does."""


def open_runner(plan: Plan, progress: StageProgress | None = None, watch: Watch | None = None) -> Runner[Any]:
    """The runner of ``plan`` alone, in a process that is bound to its CPUs; ``watch`` sees every operation.

    Where `auto` chose a card that refuses now, on the host, which is said.

    Raises `CorruptBundle`, `DeviceError`, `OutOfMemory`.
    """
    begin(plan.cpus, plan.notices)
    return _opened(plan, progress, watch).runner


def open_runners(plan: Plan, progress: StageProgress | None = None) -> Opened:
    """The runners of ``plan`` and of its draft model, after `begin`; any thread may call it.

    Raises `CorruptBundle`, `DeviceError`, `OutOfMemory`.
    """
    opened = _opened(plan, progress)
    return opened if opened.plan.draft is None else opened._replace(draft=make_runner(opened.plan.draft))


def _opened(plan: Plan, progress: StageProgress | None = None, watch: Watch | None = None) -> Opened:
    """The runner of ``plan``, or of the one that takes its place."""
    try:
        return Opened(plan, _with_memory(plan, progress, watch))
    except DeviceError as error:
        if not plan.may_move:
            raise
        host = plan.on_host(refused(plan.site.device, error))
    gc.collect()  # what the card was given so far
    say(host.notices)
    return Opened(host, _with_memory(host, progress, watch))


def _with_memory(plan: Plan, progress: StageProgress | None, watch: Watch | None) -> Runner[Any]:
    """The runner of ``plan``.  Raises `OutOfMemory` where the system gives less than it takes."""
    runner = None
    with contextlib.suppress(MemoryError):  # what it would hold of weights must go before anything is said
        runner = make_runner(plan, progress, watch)
    if runner is None:
        needs = ", ".join(f"{words} {byte_size(count)}" for words, count in plan.memory.parts)
        raise OutOfMemory(
            f"there is not enough memory for `{shown(plan.name)}` ({needs}); free some, allow the process more, or try a "
            "smaller --ctx, --kv-memory or --memory"
        )
    return runner


def make_runner(plan: Plan, progress: StageProgress | None = None, watch: Watch | None = None) -> Runner[Any]:
    """The runner of ``plan``, where it says.  Raises `CorruptBundle`, `DeviceError`."""
    if plan.device is None:
        from edge_llm.opening.float_assembly import float_runner  # much code that nearly no start needs

        return float_runner(plan.bundle, plan.context)
    return _int8_runner(plan, plan.device, progress, watch)


def _int8_runner(plan: Plan, device: Device, progress: StageProgress | None, watch: Watch | None) -> Int8Runner:
    bundle, weights, tables, pages = plan.bundle, read_weights(plan, progress), RopeTables(plan.context), None
    if plan.prefix_bytes:
        from edge_llm.opening.prefix_cache import open_prefix_store  # few starts keep pages

        numeric = replace(plan.runtime, device=device.numerics, placement=device.placement.name)
        pages = open_prefix_store(bundle, numeric, device.page_bytes(bundle.decoder), plan.prefix_bytes)
    identity = b"" if pages is None else pages.identity
    decoder = bundle.decoder
    if plan.runtime.trace_experts is not None:
        decoder = RoutingRecorder(plan.runtime.trace_experts, bundle, weights, partial(log.warning, "%s")).decoder
    adapters = None if plan.adapters is None else plan.adapters.ready
    return Int8Runner(bundle.config, weights, device, plan.runtime, tables, identity, pages, decoder, watch, adapters)


def read_weights(plan: Plan, progress: StageProgress | None = None) -> Weights:
    """All weights in memory, or as many as ``plan`` allows and the rest streamed; or on their way to a card.

    They multiply with the plan's scales of activations.
    """
    bundle = plan.bundle.with_static_scales() if plan.runtime.activations == STATIC else plan.bundle
    on_bytes = None if progress is None else lambda done, total: progress("load", done, total)
    weights = plan.weights
    if weights.staging is not None:
        from edge_llm.weights.staged import StagedWeights  # only cards that decode

        return StagedWeights(bundle, weights.staging, on_bytes)
    if weights.host.streamed or weights.host.flash_tables or weights.host.experts or weights.host.neurons:
        return StreamedWeights(bundle, weights.host, on_bytes, streams=weights.to_card)
    return ResidentWeights(bundle, on_bytes, weights.to_card)


def run_on_host(plan: Plan, lost: DeviceLost) -> Runner[Any]:
    """The runner of the model of ``plan`` on the host; nobody holds the one that was ``lost``.

    Raises `OutOfMemory` where the host has no room for the weights, and what loading raises.
    """
    gc.collect()
    host = plan.on_host(f"the device `{lost.device}` failed: {lost.failure}")
    _check_room(host)
    runner = make_runner(host)
    log.warning("the device `%s` failed: %s; the host answers from now on", lost.device, lost.failure)
    return runner


def _check_room(plan: Plan) -> None:
    """Raise `OutOfMemory` unless the weights fit into the host's free memory: the system would kill us for trying."""
    needed, free = plan.weights.host.held_bytes, free_memory()
    if needed > free:
        raise OutOfMemory(f"the weights take {byte_size(needed)} and the host has {byte_size(free)} free; try --memory 50%")
