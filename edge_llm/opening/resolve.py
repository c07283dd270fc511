"""Options, a machine and a model become a plan: every size is read once, and nothing is bound, written, said or loaded.

A device is found, not used: threads begin when it opens a model.  An Ascend card is asked what it is and what it has free.
"""

from __future__ import annotations

from dataclasses import replace

from edge_llm.config import (
    ACTIVATIONS,
    ASKED_FOR,
    AUTO,
    ROW,
    STATIC,
    RuntimeConfig,
)
from edge_llm.devices import has_card, open_device
from edge_llm.devices.base import CardKeeper, Device, DeviceOptions, Room
from edge_llm.devices.model import activation_bytes
from edge_llm.errors import DeviceError, UsageError
from edge_llm.files import shown
from edge_llm.formats.bundle import Bundle, open_bundle
from edge_llm.formats.sizes import float_sizes
from edge_llm.kv.pages import PAGE_TOKENS, page_bytes
from edge_llm.models.layer import Decoder
from edge_llm.opening.defaults import filled, host_options, on_chosen_cpus
from edge_llm.opening.ledger import MemoryNeeds
from edge_llm.opening.machine import Machine
from edge_llm.opening.plan import CardShare, Plan, WeightsPlan
from edge_llm.paths import find_bundle
from edge_llm.resources import free_memory
from edge_llm.runner.base import FLOAT_SITE, Site
from edge_llm.runner.rows import chunk_lengths
from edge_llm.schemes import is_in_blocks
from edge_llm.weights.budget import parse_disk, parse_memory
from edge_llm.weights.plan import MemoryPlan, WeightSizes, plan_memory, plan_staging

PROCESS_BYTES = 42 << 20
"""Memory of a process without a model: Python, NumPy, the tokenizer."""


def resolve(options: RuntimeConfig, machine: Machine, bundle: Bundle) -> Plan:
    """How the model in ``bundle`` runs on ``machine`` under ``options``; on the host where `auto` chose a card that refuses.

    Raises `UsageError` for options that are invalid, contradict each other, the model or the machine, for budgets that are too
    small, and for a draft model of another tokenizer; `DeviceError` for a device that was asked for and cannot be used.
    """
    here = on_chosen_cpus(options, machine)
    runtime = filled(options, bundle.config, here)
    gap = machine.auto.remedy if options.device == AUTO and not options.float_path else ""
    notices = (f"--device auto uses the host: {machine.auto.reason}; {gap}",) if gap else ()
    try:
        plan = _resolved(runtime, here, bundle)
    except DeviceError as error:
        if not may_move(runtime):
            raise
        refusal = refused(runtime, error)
    else:
        return replace(plan, cpus=_bound(here, machine), notices=notices)
    return replace(on_host(runtime, here, bundle, refusal), cpus=_bound(here, machine), notices=(moved(refusal),))


def models_budget(text: str) -> int:
    """Bytes of main memory that all models of a process may take, by what ``text`` says of those that are free now."""
    return parse_memory(text, free_memory(), "models_memory", of="the memory that is free")


def may_move(runtime: RuntimeConfig) -> bool:
    """Whether the host may take the place of the device: `auto` chose it."""
    return runtime.device != "host" and runtime.device_reason != ASKED_FOR


def refused(runtime: RuntimeConfig, error: DeviceError) -> str:
    """Why the host takes the place of the device of ``runtime``."""
    return f"the device `{runtime.device}` refuses: {error}"


def moved(reason: str) -> str:
    """What the user is told of it."""
    return f"--device auto uses the host: {reason}"


def on_host(options: RuntimeConfig, machine: Machine, bundle: Bundle, reason: str) -> Plan:
    """The plan of the filled-in ``options`` with the host, for this ``reason``.  Raises what `resolve` raises."""
    return _resolved(host_options(options, reason), machine, bundle)


def _bound(here: Machine, machine: Machine) -> frozenset[int] | None:
    return None if here is machine else frozenset(here.cpus)


def _resolved(options: RuntimeConfig, machine: Machine, bundle: Bundle) -> Plan:
    """The plan of the filled-in ``options``."""
    kv_budget = _kv_budget(options, machine, bundle.decoder)
    prefix_bytes = 0 if options.float_path else parse_disk(options.prefix_cache or "0")
    plan = _float_plan(options, machine, bundle) if options.float_path else _int8_plan(options, machine, bundle, kv_budget)
    draft = _draft(options, machine, bundle)
    memory = plan.memory if draft is None else plan.memory + draft.memory
    return replace(plan, prefix_bytes=prefix_bytes, draft=draft, memory=memory)


def _kv_budget(options: RuntimeConfig, machine: Machine, decoder: Decoder) -> int | None:
    """Bytes for keys and values; None where tokens are counted.  Raises `UsageError` for less than a page."""
    if options.kv_memory is None:
        return None
    most, page = parse_memory(options.kv_memory, machine.memory, "kv_memory", of="main memory"), page_bytes(decoder.attentions)
    if most < page:
        raise UsageError(
            f"--kv-memory `{options.kv_memory}` holds no page of {PAGE_TOKENS} tokens; the least is {page} bytes",
            param="kv_memory",
        )
    return most


def _int8_plan(options: RuntimeConfig, machine: Machine, bundle: Bundle, kv_budget: int | None) -> Plan:
    decoder, device = bundle.decoder, _found(options, bundle.decoder)
    assert options.context is not None and options.chunk is not None
    tokens = options.kv_tokens or options.context
    if kv_budget is not None:
        tokens = max(options.context, _tokens_within(kv_budget, decoder, device))
    activations = choose_activations(options.activations, bundle, device)
    runtime = replace(options, kv_tokens=tokens, activations=activations)
    room = Room(tokens, options.context, chunk_lengths(options.chunk, options.context), options.window)
    work = activation_bytes(decoder, device.placement, options.chunk, options.window)
    weights = _weights(options, bundle, device, room, work)
    card = 0 if weights.card is None else weights.card.held
    pages = device.kv_bytes(decoder, tokens)
    alone = device.placement.alone  # keys, values and activations lie on the card then
    memory = MemoryNeeds(weights.host.held_bytes, 0 if alone else pages, 0 if alone else work, card)
    return Plan(bundle, machine, options, runtime, Site.of(runtime, device), room, weights, memory, device=device)


def _found(options: RuntimeConfig, decoder: Decoder) -> Device:
    """The device that the filled-in ``options`` name, for the model ``decoder``.

    Raises `UsageError` for one that this version does not have, and for a placement that it cannot do; `DeviceError` for
    one that is missing here.
    """
    assert options.threads is not None
    if has_card(options.device) and decoder.host_alone:
        raise DeviceError(
            f"the device `{shown(options.device)}` cannot do {decoder.host_alone}, which this model has in its layers; "
            "use --device host"
        )
    if any(is_in_blocks(one.scheme) for one in decoder.linears().values()):
        refuse_blocks(options)
    card_memory = None if options.card_memory is None else parse_memory(options.card_memory, None, "card_memory")
    wanted = DeviceOptions(options.threads, options.shadow, options.placement, options.keys, card_memory, decoder)
    return open_device(options.device, wanted)


def refuse_blocks(options: RuntimeConfig) -> None:
    """Raise `DeviceError` where ``options`` name a card for a model that is kept in the blocks of a GGUF file."""
    if has_card(options.device) and not options.float_path:
        raise DeviceError(
            f"the device `{shown(options.device)}` multiplies INT8, and this model is kept in the blocks of a GGUF file; "
            "import the file with --weights int8 for it, or use --device host"
        )


def _tokens_within(most: int, decoder: Decoder, device: Device) -> int:
    """Tokens of as many whole pages as ``most`` bytes hold on ``device``."""
    pages, beyond = 0, most // device.page_bytes(decoder) + 1
    while beyond - pages > 1:
        middle = (pages + beyond) // 2
        if device.kv_bytes(decoder, PAGE_TOKENS * middle) <= most:
            pages = middle
        else:
            beyond = middle
    return PAGE_TOKENS * pages


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


def _weights(options: RuntimeConfig, bundle: Bundle, device: Device, room: Room, work: int) -> WeightsPlan:
    """Where the weights lie beside ``device``, whose activations take ``work`` bytes."""
    sizes = WeightSizes.of_bundle(bundle)
    budget = None if options.memory is None else parse_memory(options.memory, sizes.total)
    to_card = device.streamed(bundle.decoder, bundle.tensors, room)
    card = _card_share(bundle, device, room, to_card, sizes)
    if not device.placement.decodes_on_host:
        staging = plan_staging(
            sizes, to_card, budget, whole=device.placement.alone, host_embeds=device.host_embeds
        )
        return WeightsPlan(sizes.total, budget, staging.plan, staging, to_card, card)
    host = plan_memory(sizes, sizes.total if budget is None else budget, flash_tables=True, beside=PROCESS_BYTES + work)
    return WeightsPlan(sizes.total, budget, host, None, to_card, card)


def _card_share(
    bundle: Bundle, device: Device, room: Room, to_card: tuple[int, ...], sizes: WeightSizes
) -> CardShare | None:
    if not isinstance(device, CardKeeper):
        return None
    needs = device.needs(bundle.decoder, bundle.tensors, room)
    twice = sum(layer.held - layer.beside_card for layer in sizes.layers) if device.placement.decodes_on_host else 0
    return CardShare(needs.held(to_card), device.most(needs.weights(to_card)), twice)


def _float_plan(options: RuntimeConfig, machine: Machine, bundle: Bundle) -> Plan:
    """Of the source's own weights in float32, whose keys and values grow with each answer."""
    assert options.context is not None and options.chunk is not None
    room = Room(options.context, options.context, chunk_lengths(options.chunk, options.context), options.window)
    nbytes = float_sizes(bundle).nbytes
    layers = tuple(range(len(bundle.decoder.layers)))
    weights = WeightsPlan(nbytes, None, MemoryPlan(nbytes, layers, (), 0, 0, nbytes, 0))
    pages = sum(8 * one.kv_size for one in bundle.decoder.attentions) * options.context
    return Plan(bundle, machine, options, options, FLOAT_SITE, room, weights, MemoryNeeds(nbytes, pages))


def _draft(options: RuntimeConfig, machine: Machine, target: Bundle) -> Plan | None:
    """The plan of the model that guesses ahead for ``target`` on the host; None where none does.

    Raises `UsageError` for one whose tokens are not the target's.
    """
    if options.draft in ("lookup", "none"):
        return None
    folder = find_bundle(options.draft)
    if (folder / "tokenizer.json").read_bytes() != (target.folder / "tokenizer.json").read_bytes():
        raise UsageError(f"the draft model `{options.draft}` has another tokenizer than the model it would help", param="draft")
    bundle = open_bundle(folder)
    context = min(bundle.config.context, options.context or bundle.config.context)
    alone = replace(options, memory=None, context=context, draft="none", activations=AUTO)
    return on_host(alone, machine, bundle, "a draft model runs there")
