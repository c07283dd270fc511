"""Options, a machine and a model become a plan: every size is read once, and nothing is bound, written, said or loaded.

A device is found, not used: threads begin when it opens a model.  An Ascend card is asked what it is and what it has free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edge_llm.ascend.npu.chips import longest_chunk
from edge_llm.config import ACTIVATIONS, AUTO, ROW, STATIC, RuntimeConfig
from edge_llm.decoding.draft import own_layers
from edge_llm.devices import has_card, open_device
from edge_llm.devices.base import CardKeeper, CardNeeds, Device, DeviceOptions, Room
from edge_llm.devices.model import activation_bytes
from edge_llm.errors import DeviceError, EdgeLLMError, OutOfMemory, UsageError
from edge_llm.files import shown
from edge_llm.formats.bundle import Bundle
from edge_llm.formats.sizes import float_sizes, sizes
from edge_llm.models.layer import Decoder
from edge_llm.opening.adapter_plan import OpenAdapters
from edge_llm.opening.budgets import Budgets, read_budgets
from edge_llm.opening.chunks import Placed, between_experts, in_long_chunks
from edge_llm.opening.defaults import fill_defaults
from edge_llm.opening.kv_plan import KvCost, kv_room
from edge_llm.opening.ledger import MemoryNeeds
from edge_llm.opening.machine import Machine
from edge_llm.opening.plan import FLOAT_TOKEN_BYTES, CardShare, Plan, WeightsPlan, may_move, moved, refused
from edge_llm.progress import byte_size
from edge_llm.resources import free_memory
from edge_llm.runner.base import FLOAT_SITE, Site
from edge_llm.runner.rows import chunk_lengths
from edge_llm.schemes import is_in_blocks
from edge_llm.weights.base import TokenBytes
from edge_llm.weights.memory_plan import MemoryPlan
from edge_llm.weights.plan import plan_memory
from edge_llm.weights.recording import traced_shape
from edge_llm.weights.sizes import WeightSizes
from edge_llm.weights.staging import plan_staging
from edge_llm.weights.token_bytes import card_token, host_token

PROCESS_BYTES = 42 << 20
"""Memory of a process without a model: Python, NumPy, the tokenizer."""
_NO_DISK = "--prefix-cache: layers of this model keep a state, which is not written to disk; beginnings are known until it ends"
TOKENIZER_GROWTH = 9
"""A tokenizer in memory takes up to so many times the bytes of its file: 8.5 with 49,152 tokens, 7.1 with 262,144."""


def check_writes(bundle: Bundle) -> None:
    """Raise `UsageError` for an encoder, which predicts no token."""
    if bundle.decoder.is_encoder:
        raise UsageError(f"`{bundle.folder.name}` is an encoder, which writes no text that could be measured", param="model")


def resolve(
    options: RuntimeConfig,
    machine: Machine,
    bundle: Bundle,
    draft: Bundle | None = None,
    adapters: OpenAdapters | None = None,
) -> Plan:
    """How the model in ``bundle`` runs on ``machine`` under ``options``; on the host where `auto` chose a card that refuses.

    ``draft`` is the model that guesses ahead, and ``adapters`` are those of requests, where ``options`` name some.

    Raises `UsageError` for options that are invalid, contradict each other, the model or the machine, for budgets that are too
    small, and for a draft model of another tokenizer; `DeviceError` for a device that was asked for and cannot be used.
    """
    _check_trace(options, bundle)
    runtime, here = fill_defaults(options, bundle.config, machine)
    check_own_layers(runtime, bundle)
    gap = machine.auto.remedy if options.device == AUTO and not options.float_path else ""
    of_host = (f"--device auto uses the host: {machine.auto.reason}; {gap}",) if gap else ()
    of_adapters = () if adapters is None else adapters.notices
    try:
        plan = _resolved(runtime, here, bundle, draft, adapters)
        plan = replace(plan, notices=(*of_host, *of_adapters, *plan.notices))
    except DeviceError as error:
        if not may_move(runtime):
            raise
        reason = refused(runtime.device, error)
        plan = _resolved(_host_options(runtime, reason), here, bundle, draft, adapters)
        plan = replace(plan, notices=(moved(reason), *of_adapters, *plan.notices))
    if draft is not None:
        plan = plan.with_draft(_draft_plan(runtime, here, plan, draft))
    return replace(plan, cpus=None if here is machine else frozenset(here.cpus))


def _check_trace(options: RuntimeConfig, bundle: Bundle) -> None:
    """Raise `UsageError` where routing is to be traced and there is none."""
    if options.trace_experts is None:
        return
    if options.float_path:
        raise UsageError("--trace-experts records the INT8 path; leave --float out", param="trace_experts")
    traced_shape(bundle)


def _host_options(options: RuntimeConfig, reason: str) -> RuntimeConfig:
    """The filled-in ``options`` on the host, for this ``reason``; the host's own chunk replaces the device's own."""
    chunk = options.chunk if options.chunk != longest_chunk(options.device) else longest_chunk("host")
    return replace(
        options, device="host", device_reason=reason, placement="auto", keys="auto", card_memory=None, chunk=chunk
    )


def check_own_layers(options: RuntimeConfig, bundle: Bundle) -> None:
    """Raise `UsageError` where first layers of the model in ``bundle`` cannot guess ahead as the filled-in ``options`` say."""
    if (layers := own_layers(options.draft)) is None:
        return
    count, name, wish = len(bundle.decoder.layers), bundle.folder.name, f"--draft `{options.draft}`"
    refusal = ""
    if bundle.decoder.is_encoder:
        refusal = f"`{name}` is an encoder, which writes nothing that could be guessed; leave --draft out"
    elif layers > count:
        refusal = f"`{name}` has {count} layers; write self:1 to self:{count}"
    elif bundle.decoder.state_bytes:
        refusal = f"layers of `{name}` keep states of a fixed shape, which guesses would change; use lookup or a draft model"
    elif options.float_path:
        refusal = "layers guess in INT8 only; leave out --float or --draft"
    elif options.device != "host":
        refusal = f"layers guess on the host only, not on `{shown(options.device)}`; use --device host, or leave --draft out"
    if refusal:
        raise UsageError(f"{wish}: {refusal}", param="draft")


def _resolved(
    options: RuntimeConfig,
    machine: Machine,
    bundle: Bundle,
    draft: Bundle | None = None,
    adapters: OpenAdapters | None = None,
) -> Plan:
    """The plan of the filled-in ``options``, with that of the host where they have another device.

    --kv-memory has room for the keys, values and states of ``draft``, too.
    """
    stored = WeightSizes.of_bundle(bundle)
    budgets = read_budgets(options, machine.memory, stored.total)
    beside = KvCost.of(None if draft is None else draft.decoder)
    if adapters is not None:
        _check_room(adapters, options, budgets.weights)
        try:
            plan = _int8_plan(options, machine, bundle, stored, budgets.less(adapters.nbytes), beside)
        except UsageError as error:
            if error.param != "memory":
                raise
            raise UsageError(
                f"{error}; adapters take {byte_size(adapters.nbytes)} of --memory `{options.memory}`", param="memory"
            ) from None
        return replace(plan, adapters=adapters, memory=plan.memory + MemoryNeeds(adapters=adapters.nbytes))
    if options.float_path:
        return _float_plan(options, machine, bundle)
    plan = _int8_plan(options, machine, bundle, stored, budgets, beside)
    if options.device == "host":
        return plan
    try:
        here = _host_options(options, "the device is lost")
        host = _int8_plan(here, machine, bundle, stored, replace(budgets, card=None), beside)
    except EdgeLLMError as error:
        return replace(plan, no_host=str(error))
    return replace(plan, host=host)


def _int8_plan(
    options: RuntimeConfig, machine: Machine, bundle: Bundle, stored: WeightSizes, budgets: Budgets, draft: KvCost
) -> Plan:
    """Of a model beside whose keys, values and states those of a draft model take as much as ``draft`` says."""
    decoder, device = bundle.decoder, _found(options, budgets, bundle.decoder)
    assert options.context is not None and options.chunk is not None
    tokens, states = kv_room(options, budgets.pages, decoder, device, draft)
    activations = choose_activations(options.activations, bundle, device)
    runtime = replace(options, kv_tokens=tokens, kv_states=states, activations=activations)
    states = states if decoder.state_bytes else 0

    def placed(runtime: RuntimeConfig) -> Placed:
        assert runtime.context is not None and runtime.chunk is not None
        room = Room(tokens, runtime.context, chunk_lengths(runtime.chunk, runtime.context), runtime.window, states)
        work = activation_bytes(decoder, device.placement, runtime.chunk, runtime.window)
        work += between_experts(decoder, runtime.chunk) if stored.experts is not None else 0
        weights = _weights(stored, budgets.weights, bundle, device, room, work, own_layers(runtime.draft) or 0)
        return Placed(runtime, room, work, weights)

    asked = placed(runtime)
    joins = stored.experts is not None and not has_card(options.device)  # a card's chunks are of its own lengths
    runtime, room, work, weights = in_long_chunks(asked, placed) if joins else asked
    card = 0 if weights.card is None else weights.card.held
    pages = device.kv_bytes(decoder, tokens)
    alone = device.placement.alone  # keys, values and activations lie on the card then
    beside = _position_bytes(decoder, options.context) + (0 if alone else work)
    memory = MemoryNeeds(
        weights.host.held_bytes, 0 if alone else pages, beside, card, _texts_bytes(bundle), states * decoder.state_bytes
    )
    site, found = Site.of(runtime, device), sizes(bundle)
    disk = 0 if decoder.state_bytes else budgets.disk  # pages alone are no place to go on from
    notices = (_NO_DISK,) if disk < budgets.disk else ()
    return Plan(bundle, machine, options, runtime, site, room, weights, found, memory, disk, device=device, notices=notices)


def _position_bytes(decoder: Decoder, positions: int) -> int:
    """Bytes of the tables of so many ``positions``: float32 cosines and sines, for every rotation that layers have."""
    return sum(4 * rope.dim for rope in {one.rope for one in decoder.attentions}) * positions


def _texts_bytes(bundle: Bundle) -> int:
    """About what the tokenizer takes in memory."""
    file = _tokenizer_file(bundle)
    return 0 if file is None else TOKENIZER_GROWTH * int(file["bytes"])


def _found(options: RuntimeConfig, budgets: Budgets, decoder: Decoder) -> Device:
    """The device that the filled-in ``options`` name, for the model ``decoder``.

    Raises `UsageError` for one that this version does not have, and for a placement that it cannot do; `DeviceError` for
    one that is missing here.
    """
    assert options.threads is not None
    if has_card(options.device) and decoder.host_alone:
        way_out = "" if may_move(options) else "; use --device host"
        raise DeviceError(
            f"the device `{shown(options.device)}` cannot do {decoder.host_alone}, which this model has in its layers{way_out}"
        )
    if any(is_in_blocks(one.scheme) for one in decoder.linears().values()):
        refuse_blocks(options)
    wanted = DeviceOptions(options.threads, options.shadow, options.placement, options.keys, budgets.card, decoder)
    return open_device(options.device, wanted)


def refuse_blocks(options: RuntimeConfig) -> None:
    """Raise `DeviceError` where ``options`` name a card for a model that is kept in the blocks of a GGUF file."""
    if has_card(options.device) and not options.float_path:
        raise DeviceError(
            f"the device `{shown(options.device)}` multiplies INT8, and this model is kept in the blocks of a GGUF file; "
            "import the file with --weights int8 for it, or use --device host"
        )


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


def _weights(
    sizes: WeightSizes, budget: int | None, bundle: Bundle, device: Device, room: Room, work: int, kept: int
) -> WeightsPlan:
    """Where the weights lie under ``budget`` beside ``device``, whose activations take ``work`` bytes.

    The first ``kept`` layers guess ahead, and stay.
    """
    to_card = device.streamed(bundle.decoder, bundle.tensors, room)
    needs = device.needs(bundle.decoder, bundle.tensors, room) if isinstance(device, CardKeeper) else None
    card = None if needs is None else _card_share(device, needs, to_card, sizes)
    if not device.placement.decodes_on_host:
        staging = plan_staging(
            sizes, to_card, budget, whole=device.placement.alone, host_embeds=device.host_embeds,
            pinned=None if needs is None else needs.pinned, free=0 if needs is None or not to_card else free_memory(),
        )  # fmt: skip
        return WeightsPlan(sizes.total, budget, staging.plan, card_token(bundle, staging), staging, to_card, card)
    most, beside = sizes.total if budget is None else budget, PROCESS_BYTES + work
    try:
        host = plan_memory(sizes, most, flash_tables=True, beside=beside, kept=kept)
    except UsageError as error:
        way = f", because --draft self:{kept} keeps that many layers and the output matrix there; name fewer" if kept else ""
        raise UsageError(f"{error}{way}", param=error.param) from None
    if kept and host.experts is not None:
        raise UsageError(
            f"--draft self:{kept}: its layers must be in memory, and their experts come from flash; leave --draft out, or "
            "raise --memory",
            param="draft",
        )
    return WeightsPlan(sizes.total, budget, host, host_token(bundle, host.streamed_bytes), None, to_card, card)


def _card_share(device: Device, needs: CardNeeds, to_card: tuple[int, ...], sizes: WeightSizes) -> CardShare:
    assert isinstance(device, CardKeeper)
    twice = sum(layer.held - layer.beside_card for layer in sizes.layers) if device.placement.decodes_on_host else 0
    sent = sum(needs.layers[index] for index in to_card)
    return CardShare(needs.held(to_card), device.most(needs.weights(to_card)), twice, sent)


def _float_plan(options: RuntimeConfig, machine: Machine, bundle: Bundle) -> Plan:
    """Of the source's own weights in float32, whose keys and values grow with each answer."""
    assert options.context is not None and options.chunk is not None
    room = Room(options.context, options.context, chunk_lengths(options.chunk, options.context), options.window)
    found = float_sizes(bundle)
    layers = tuple(range(len(bundle.decoder.layers)))
    resident = MemoryPlan(found.nbytes, layers, (), 0, 0, found.nbytes, 0)
    weights = WeightsPlan(found.nbytes, None, resident, TokenBytes(host=found.nbytes))
    pages = FLOAT_TOKEN_BYTES * sum(one.kv_size for one in bundle.decoder.attentions) * options.context
    memory = MemoryNeeds(found.nbytes, pages, _position_bytes(bundle.decoder, options.context), texts=_texts_bytes(bundle))
    return Plan(bundle, machine, options, options, FLOAT_SITE, room, weights, found, memory)


def _draft_plan(options: RuntimeConfig, machine: Machine, target: Plan, draft: Bundle) -> Plan:
    """The plan of the model that guesses ahead for that of ``target`` on the host; it holds as many tokens and states.

    Raises `UsageError` for one that writes nothing, or whose tokens are not the target's.
    """
    check_writes(draft)
    if _tokenizer_file(draft) != _tokenizer_file(target.bundle):
        raise UsageError(f"the draft model `{options.draft}` has another tokenizer than the model it would help", param="draft")
    context = min(draft.config.context, target.context)
    tokens = options.kv_tokens if options.kv_memory is None else target.kv_tokens
    alone = replace(
        options, memory=None, kv_memory=None, kv_tokens=tokens, kv_states=target.runtime.kv_states, context=context,
        draft="none", activations=AUTO, trace_experts=None,
    )  # fmt: skip
    return _resolved(_host_options(alone, "a draft model runs there"), machine, draft)


def _tokenizer_file(bundle: Bundle) -> Mapping[str, Any] | None:
    """Size and checksum of the tokenizer, as the manifest has them; None where there is none."""
    return next((dict(file) for file in bundle.manifest["files"] if file["name"] == "tokenizer.json"), None)


def _check_room(adapters: OpenAdapters, options: RuntimeConfig, budget: int | None) -> None:
    """Raise an error of the tree where ``adapters`` cannot be beside a model as ``options`` say, within ``budget`` bytes."""
    if options.float_path:
        raise UsageError("--float computes with the model's float weights alone; import it with --lora", param="lora")
    if has_card(options.device):
        raise DeviceError(
            f"the device `{shown(options.device)}` adds no adapters request by request; use --device host, or merge one: "
            "`edge-llm import MODEL --lora FOLDER`"
        )
    if budget is not None and adapters.nbytes >= budget:
        raise UsageError(
            f"--memory `{options.memory}` allows {byte_size(budget)}, and the {len(adapters.named)} adapters alone take "
            f"{byte_size(adapters.nbytes)}; name fewer with --lora, or allow more",
            param="memory",
        )
    if adapters.nbytes > (free := free_memory()):
        raise OutOfMemory(
            f"the {len(adapters.named)} adapters take {byte_size(adapters.nbytes)} and {byte_size(free)} of memory are free; "
            "name fewer with --lora"
        )
