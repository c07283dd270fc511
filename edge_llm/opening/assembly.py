"""The one place that chooses a runner: an open bundle and a `RuntimeConfig` become a `Runner`."""

from __future__ import annotations

import functools
import gc
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from edge_llm.ascend.npu.chips import longest_chunk
from edge_llm.config import (
    ACTIVATIONS,
    ASKED_FOR,
    AUTO,
    DEFAULT_CONTEXT,
    ROW,
    STATIC,
    ModelConfig,
    RuntimeConfig,
)
from edge_llm.devices import check_device, has_card, open_device
from edge_llm.devices.base import Device, DeviceOptions, Room, Watch
from edge_llm.devices.model import activation_bytes
from edge_llm.errors import DeviceError, DeviceLost, OutOfMemory, UsageError
from edge_llm.files import shown
from edge_llm.formats.bundle import Bundle
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes
from edge_llm.models import describe
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.opening.affinity import bind
from edge_llm.opening.auto_device import AutoDevice, find_device
from edge_llm.progress import StageProgress
from edge_llm.resources import free_memory, total_memory, usable_cores
from edge_llm.runner.base import Runner
from edge_llm.runner.rows import chunk_lengths
from edge_llm.runner.runner import Int8Runner
from edge_llm.schemes import is_in_blocks
from edge_llm.subgraphs.placement import choose_placement
from edge_llm.weights.base import Weights
from edge_llm.weights.budget import parse_memory
from edge_llm.weights.plan import MemoryPlan, StagingPlan, WeightSizes, plan_memory, plan_staging
from edge_llm.weights.resident import ResidentWeights
from edge_llm.weights.staged import StagedWeights
from edge_llm.weights.streamed import StreamedWeights

log = logging.getLogger("edge_llm.engine")
Result = TypeVar("Result")


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
    runtime = fill_defaults(replace(runtime, context=context), bundle.config)
    return make_runner(bundle, runtime, watch=watch), runtime


def load_int8_runner(bundle: Bundle, runtime: RuntimeConfig, needed: int) -> Int8Runner:
    """The INT8 runner with a context of at least ``needed`` tokens, to look at its lanes."""
    runner, _ = load_runner(bundle, replace(runtime, float_path=False), needed)
    assert isinstance(runner, Int8Runner)
    return runner


def fill_defaults(runtime: RuntimeConfig, config: ModelConfig) -> RuntimeConfig:
    """``runtime`` with every default filled in: CPUs, threads, a context that the model allows, tokens of the KV cache, chunks.

    Raises `UsageError` for an unknown device, and for options that contradict each other or the model.
    """
    bind(runtime.cpus, runtime.numa)
    if runtime.device == "auto":
        runtime = replace(runtime, device="host") if runtime.float_path else _on_found_device(runtime)
    device = runtime.device
    check_device(device)
    if runtime.float_path and runtime.memory is not None:
        raise UsageError("--memory has no meaning with --float, which reads the source's own weights", param="memory")
    if runtime.float_path and device != "host":
        raise UsageError(f"--float runs on the host only, not on `{device}`", param="device")
    if runtime.float_path:
        choose_placement(runtime.placement, ("host",), "--float")
    if runtime.float_path and runtime.card_memory is not None:
        raise UsageError("--card-memory has no meaning with --float, which runs on the host", param="card_memory")
    context = runtime.context or min(config.context, DEFAULT_CONTEXT)
    if context > config.context:
        raise UsageError(f"--ctx `{context}` is more than the {config.context} tokens this model was made for", param="context")
    kv_tokens = runtime.kv_tokens
    if runtime.kv_memory is not None:
        most = parse_memory(runtime.kv_memory, total_memory(), "kv_memory", of="main memory")
        page = page_bytes(describe(config).attentions)
        if most < page:
            raise UsageError(
                f"--kv-memory `{runtime.kv_memory}` holds no page of {PAGE_TOKENS} tokens; the least is {page} bytes",
                param="kv_memory",
            )
        kv_tokens = context  # more of them where the device's memory for each is known
    chunk = runtime.chunk or longest_chunk(device)
    return replace(runtime, threads=runtime.threads or usable_cores(), context=context, kv_tokens=kv_tokens, chunk=chunk)


def _on_found_device(runtime: RuntimeConfig) -> RuntimeConfig:
    found = _found_device()
    return replace(runtime, device=found.device, device_reason=found.reason)


@functools.cache
def _found_device() -> AutoDevice:
    """What `auto` stands for in this process, said once where a card is here and not used."""
    found = find_device()
    if found.remedy:
        log.warning("--device auto uses the host: %s; %s", found.reason, found.remedy)
    return found


def or_on_host(runtime: RuntimeConfig, work: Callable[[RuntimeConfig], Result]) -> Result:
    """What ``work`` makes of the filled-in ``runtime``; on the host where `auto` chose a card that refuses, which is said."""
    try:
        return work(runtime)
    except DeviceError as error:
        if runtime.device == "host" or runtime.device_reason == ASKED_FOR:
            raise
        refusal = f"the device `{runtime.device}` refuses: {error}"
    gc.collect()  # what the card was given so far
    log.warning("--device auto uses the host: %s", refusal)
    return work(host_runtime(runtime, refusal))


def make_runner(
    bundle: Bundle, runtime: RuntimeConfig, progress: StageProgress | None = None, watch: Watch | None = None
) -> Runner[Any]:
    """The runner that the filled-in ``runtime`` asks for."""
    if runtime.float_path:
        from edge_llm.opening.float_assembly import float_runner  # much code that nearly no start needs

        return float_runner(bundle, runtime)
    return int8_runner(bundle, runtime, progress, watch)


def int8_runner(
    bundle: Bundle, runtime: RuntimeConfig, progress: StageProgress | None = None, watch: Watch | None = None
) -> Runner[Any]:
    """The INT8 runner on the device and over the weights that ``runtime`` asks for."""
    return or_on_host(runtime, lambda runtime: _int8_runner(bundle, runtime, progress, watch))


def _int8_runner(
    bundle: Bundle, runtime: RuntimeConfig, progress: StageProgress | None, watch: Watch | None
) -> Runner[Any]:
    device = make_device(runtime, bundle.decoder)
    runtime = replace(runtime, kv_tokens=_kv_tokens(runtime, bundle.decoder, device))
    runtime = replace(runtime, activations=choose_activations(runtime.activations, bundle, device))
    assert runtime.context is not None
    weights = make_weights(bundle, runtime, device, progress)
    tables = RopeTables(runtime.context)
    if not runtime.prefix_cache:
        return Int8Runner(bundle.config, weights, device, runtime, tables, decoder=bundle.decoder, watch=watch)
    from edge_llm.opening.prefix_cache import model_identity, open_prefix_store  # few starts keep pages

    numeric = replace(runtime, device=device.numerics, placement=device.placement.name)
    store = open_prefix_store(bundle, numeric, device.page_bytes(bundle.decoder))
    identity = model_identity(bundle, numeric)
    return Int8Runner(bundle.config, weights, device, runtime, tables, identity, store, bundle.decoder, watch)


def _kv_tokens(runtime: RuntimeConfig, decoder: Decoder, device: Device) -> int | None:
    """Tokens of the KV cache: as many whole pages as ``runtime.kv_memory`` holds on ``device``, at least one context."""
    if runtime.kv_memory is None:
        return runtime.kv_tokens
    assert runtime.context is not None
    most = parse_memory(runtime.kv_memory, total_memory(), "kv_memory", of="main memory")
    pages, beyond = 0, most // device.page_bytes(decoder) + 1
    while beyond - pages > 1:
        middle = (pages + beyond) // 2
        if device.kv_bytes(decoder, PAGE_TOKENS * middle) <= most:
            pages = middle
        else:
            beyond = middle
    return max(runtime.context, PAGE_TOKENS * pages)


def choose_activations(asked: str, bundle: Bundle, device: Device) -> str:
    """The scales of activations: what was ``asked`` for, or the first that ``device`` can and ``bundle`` has.

    Raises `UsageError` for scales that one of them lacks.
    """
    able = [one for one in device.activations if one == STATIC or bundle.activations == ROW]
    if asked == AUTO:
        return able[0]
    if asked not in ACTIVATIONS:
        raise UsageError(f"no activations `{shown(asked)}`; there are: {', '.join((AUTO, *ACTIVATIONS))}", param="activations")
    if asked not in device.activations:
        raise UsageError(
            f"--activations `{asked}`: the device `{device.name}` has {' or '.join(device.activations)} scales only; leave it "
            "out, or use --device host",
            param="activations",
        )
    if asked not in able:
        raise UsageError(
            f"--activations `{asked}`: `{bundle.folder.name}` was imported for {STATIC} scales; leave it out, or import the "
            "model again with --overwrite",
            param="activations",
        )
    return asked


def run_on_host(bundle: Bundle, runtime: RuntimeConfig, lost: DeviceLost) -> Runner[Any]:
    """A runner of ``bundle`` on the host, else as the filled-in ``runtime`` says; nobody holds the one that was ``lost``.

    Raises `OutOfMemory` where the host has no room for the weights, and what loading raises.
    """
    gc.collect()
    on_host = host_runtime(runtime, f"the device `{lost.device}` failed: {lost.failure}")
    _check_room(bundle, on_host)
    runner = make_runner(bundle, on_host)
    log.warning("the device `%s` failed: %s; the host answers from now on", lost.device, lost.failure)
    return runner


def host_runtime(runtime: RuntimeConfig, reason: str) -> RuntimeConfig:
    """``runtime`` on the host, for this ``reason``, with the host's own chunk in the place of the device's own."""
    chunk = runtime.chunk if runtime.chunk != longest_chunk(runtime.device) else longest_chunk("host")
    return replace(
        runtime, device="host", device_reason=reason, placement="auto", keys="auto", card_memory=None, chunk=chunk
    )


def _check_room(bundle: Bundle, runtime: RuntimeConfig) -> None:
    """Raise `OutOfMemory` unless the weights fit into the host's free memory: the system would kill us for trying."""
    total = WeightSizes.of_bundle(bundle).total
    needed = total if runtime.memory is None else min(total, parse_memory(runtime.memory, total))
    free = free_memory()
    if needed > free:
        raise OutOfMemory(f"the weights take {_mebibytes(needed)} and the host has {_mebibytes(free)} free; try --memory 50%")


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


def make_device(runtime: RuntimeConfig, decoder: Decoder) -> Device:
    """The device that the filled-in ``runtime`` names, for the model ``decoder``.

    Raises `UsageError` for one that this version does not have, and for a placement that it cannot do; `DeviceError` for
    one that is missing here.
    """
    assert runtime.threads is not None
    if has_card(runtime.device) and any(is_in_blocks(one.scheme) for one in decoder.linears().values()):
        raise DeviceError(
            f"the device `{shown(runtime.device)}` multiplies INT8, and this model is kept in the blocks of a GGUF file; "
            "import the file with --weights int8 for it, or use --device host"
        )
    card_memory = None if runtime.card_memory is None else parse_memory(runtime.card_memory, None, "card_memory")
    options = DeviceOptions(runtime.threads, runtime.shadow, runtime.placement, runtime.keys, card_memory, decoder)
    return open_device(runtime.device, options)


def make_weights(
    bundle: Bundle, runtime: RuntimeConfig, device: Device, progress: StageProgress | None = None
) -> Weights:
    """All weights in memory, or as many as ``runtime.memory`` allows and the rest streamed; or on their way to a card.

    They multiply with the scales of activations that ``runtime``, ``device`` and ``bundle`` allow.  Raises `UsageError` for
    scales that one of them lacks, and for a budget that is invalid or too small.
    """
    if choose_activations(runtime.activations, bundle, device) == STATIC:
        bundle = bundle.with_static_scales()
    on_bytes = None if progress is None else lambda done, total: progress("load", done, total)
    if not device.placement.decodes_on_host:
        return StagedWeights(bundle, stage_weights(bundle, runtime, device), on_bytes)
    streams = device.streamed(bundle.decoder, bundle.tensors, room(runtime))
    if runtime.memory is not None:
        plan = plan_weights(bundle, runtime, device)
        if plan.streamed or plan.flash_tables:
            return StreamedWeights(bundle, plan, on_bytes, streams=streams)
    return ResidentWeights(bundle, on_bytes, streams)


def room(runtime: RuntimeConfig) -> Room:
    """What a model is opened for under the filled-in ``runtime``."""
    assert runtime.context is not None and runtime.chunk is not None
    tokens = runtime.kv_tokens or runtime.context
    return Room(tokens, runtime.context, chunk_lengths(runtime.chunk, runtime.context), runtime.window)


def stage_weights(bundle: Bundle, runtime: RuntimeConfig, device: Device) -> StagingPlan:
    """What the host holds beside the card of ``device`` under the filled-in ``runtime``.

    Raises `UsageError` for a budget of the host or the card that is invalid or too small.
    """
    sizes = WeightSizes.of_bundle(bundle)
    budget = None if runtime.memory is None else parse_memory(runtime.memory, sizes.total)
    streamed = device.streamed(bundle.decoder, bundle.tensors, room(runtime))
    return plan_staging(sizes, streamed, budget, whole=device.placement.alone, host_embeds=device.host_embeds)


def plan_device(bundle: Bundle, runtime: RuntimeConfig, device: Device) -> MemoryPlan:
    """What the host holds of the weights with ``device`` under the filled-in ``runtime``, whose ``memory`` is set.

    Raises `UsageError` for a budget that is invalid or too small.
    """
    if device.placement.decodes_on_host:
        return plan_weights(bundle, runtime, device)
    return stage_weights(bundle, runtime, device).plan


PROCESS_BYTES = 42 << 20
"""Memory of a process without a model: Python, NumPy, the tokenizer."""


def plan_weights(bundle: Bundle, runtime: RuntimeConfig, device: Device) -> MemoryPlan:
    """Which weights are resident beside ``device`` under the filled-in ``runtime``, whose ``memory`` is set.

    Raises `UsageError` for a budget that is invalid or too small.
    """
    assert runtime.memory is not None and runtime.chunk is not None
    sizes = WeightSizes.of_bundle(bundle)
    beside = PROCESS_BYTES + activation_bytes(bundle.decoder, device.placement, runtime.chunk, runtime.window)
    return plan_memory(sizes, parse_memory(runtime.memory, sizes.total), flash_tables=True, beside=beside)
