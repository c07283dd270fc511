"""A plan becomes a runner: weights are read, and the device opens the model; for measuring, a bundle becomes one."""

from __future__ import annotations

import functools
import gc
import logging
from dataclasses import replace
from typing import Any

from edge_llm.config import STATIC, RuntimeConfig
from edge_llm.devices.base import Device, Watch
from edge_llm.errors import DeviceError, DeviceLost, OutOfMemory, UsageError
from edge_llm.formats.bundle import Bundle
from edge_llm.models.rope import RopeTables
from edge_llm.opening.affinity import bind
from edge_llm.opening.machine import Machine, this_machine
from edge_llm.opening.plan import Plan
from edge_llm.opening.resolve import may_move, moved, on_host, refused, resolve
from edge_llm.progress import StageProgress
from edge_llm.resources import free_memory
from edge_llm.runner.base import Runner
from edge_llm.runner.runner import Int8Runner
from edge_llm.weights.base import Weights
from edge_llm.weights.resident import ResidentWeights
from edge_llm.weights.staged import StagedWeights
from edge_llm.weights.streamed import StreamedWeights

log = logging.getLogger("edge_llm.opening")


def load_runner(
    bundle: Bundle, runtime: RuntimeConfig, needed: int, watch: Watch | None = None
) -> tuple[Runner[Any], RuntimeConfig]:
    """A runner alone, for measuring: its context is at least ``needed`` tokens, and it has no tokenizer.

    ``watch`` sees every operation.
    """
    if runtime.context is None and needed > bundle.config.context:
        raise UsageError(f"a test of `{needed}` tokens is more than the {bundle.config.context} that this model was made for")
    context = max(needed, 1) if runtime.context is None else runtime.context
    if needed > context:
        raise UsageError(f"--ctx `{context}` is too small for a test of {needed} tokens", param="context")
    plan = resolve(replace(runtime, context=context), this_machine(), bundle)
    return open_runner(plan, watch=watch), plan.runtime


def load_int8_runner(bundle: Bundle, runtime: RuntimeConfig, needed: int) -> Int8Runner:
    """The INT8 runner with a context of at least ``needed`` tokens, to look at its lanes."""
    runner, _ = load_runner(bundle, replace(runtime, float_path=False), needed)
    assert isinstance(runner, Int8Runner)
    return runner


def open_runner(plan: Plan, progress: StageProgress | None = None, watch: Watch | None = None) -> Runner[Any]:
    """The runner of ``plan``; ``watch`` sees every operation.

    Where `auto` chose a card that refuses now, on the host, which is said.  Raises `CorruptBundle`, `DeviceError`.
    """
    begin(plan)
    return make_runner(plan, progress, watch)


def begin(plan: Plan) -> None:
    """Bind the calling thread to the CPUs of ``plan``, and say what is to be said."""
    bind(plan.cpus)
    for notice in plan.notices:
        say_once(notice)


@functools.cache
def say_once(notice: str) -> None:
    """Log ``notice``, unless this process has done so."""
    log.warning("%s", notice)


def make_runner(plan: Plan, progress: StageProgress | None = None, watch: Watch | None = None) -> Runner[Any]:
    """`open_runner` for who has called `begin`; any thread may call it."""
    if plan.device is None:
        from edge_llm.opening.float_assembly import float_runner  # much code that nearly no start needs

        return float_runner(plan.bundle, plan.context)
    try:
        return _int8_runner(plan, plan.device, progress, watch)
    except DeviceError as error:
        if not may_move(plan.options):
            raise
        refusal = refused(plan.options, error)
    gc.collect()  # what the card was given so far
    say_once(moved(refusal))
    return make_runner(on_host(plan.options, plan.machine, plan.bundle, refusal), progress, watch)


def _int8_runner(plan: Plan, device: Device, progress: StageProgress | None, watch: Watch | None) -> Int8Runner:
    bundle, runtime = plan.bundle, plan.runtime
    weights, tables = read_weights(plan, progress), RopeTables(plan.context)
    if not plan.prefix_bytes:
        return Int8Runner(bundle.config, weights, device, runtime, tables, decoder=bundle.decoder, watch=watch)
    from edge_llm.opening.prefix_cache import model_identity, open_prefix_store  # few starts keep pages

    numeric = replace(runtime, device=device.numerics, placement=device.placement.name)
    store = open_prefix_store(bundle, numeric, device.page_bytes(bundle.decoder), plan.prefix_bytes)
    identity = model_identity(bundle, numeric)
    return Int8Runner(bundle.config, weights, device, runtime, tables, identity, store, bundle.decoder, watch)


def read_weights(plan: Plan, progress: StageProgress | None = None) -> Weights:
    """All weights in memory, or as many as ``plan`` allows and the rest streamed; or on their way to a card.

    They multiply with the plan's scales of activations.
    """
    bundle = plan.bundle.with_static_scales() if plan.runtime.activations == STATIC else plan.bundle
    on_bytes = None if progress is None else lambda done, total: progress("load", done, total)
    weights = plan.weights
    if weights.staging is not None:
        return StagedWeights(bundle, weights.staging, on_bytes)
    if weights.host.streamed or weights.host.flash_tables:
        return StreamedWeights(bundle, weights.host, on_bytes, streams=weights.to_card)
    return ResidentWeights(bundle, on_bytes, weights.to_card)


def run_on_host(options: RuntimeConfig, machine: Machine, bundle: Bundle, lost: DeviceLost) -> Runner[Any]:
    """A runner of ``bundle`` on the host, else by the filled-in ``options``; nobody holds the one that was ``lost``.

    Raises `OutOfMemory` where the host has no room for the weights, and what loading raises.
    """
    gc.collect()
    plan = on_host(options, machine, bundle, f"the device `{lost.device}` failed: {lost.failure}")
    _check_room(plan)
    runner = make_runner(plan)
    log.warning("the device `%s` failed: %s; the host answers from now on", lost.device, lost.failure)
    return runner


def _check_room(plan: Plan) -> None:
    """Raise `OutOfMemory` unless the weights fit into the host's free memory: the system would kill us for trying."""
    needed, free = plan.weights.host.held_bytes, free_memory()
    if needed > free:
        raise OutOfMemory(f"the weights take {_mebibytes(needed)} and the host has {_mebibytes(free)} free; try --memory 50%")


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
