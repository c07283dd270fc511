"""An Ascend card and this machine's CPU: *split* multiplies INT8 rows on the card, *card* runs the whole model there."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from edge_llm.ascend.devices.card.key_forms import Float16Keys, Int8Keys, KeyForm
from edge_llm.ascend.devices.card.key_ranges import sample_room, seen_ranges
from edge_llm.ascend.devices.card.layers import Layers, missing
from edge_llm.ascend.devices.card.linears import Loader, keep_pinned, load_through, send_products, stage_products
from edge_llm.ascend.devices.card.model import CardModel
from edge_llm.ascend.devices.card.plan import AscendPlan, key_bytes
from edge_llm.ascend.devices.card.products import SplitProduct
from edge_llm.ascend.devices.card.watched import WatchedModel, WatchedRuntime
from edge_llm.ascend.devices.card.whole import WholeWeights
from edge_llm.ascend.devices.card_plan import CardNeeds
from edge_llm.ascend.devices.card_weights import CardWeights
from edge_llm.ascend.npu.calls import Calls
from edge_llm.ascend.npu.chips import INT8_COLUMNS, ChipLaw
from edge_llm.ascend.npu.law import attention_refusal, int8_keys_refusal, supports, swiglu_refusal
from edge_llm.ascend.npu.opening import OPERATORS, open_runtime
from edge_llm.ascend.npu.remedies import means_lost
from edge_llm.ascend.npu.runtime import Runtime, run
from edge_llm.config import NOT_RECORDED, ROW, STATIC
from edge_llm.devices.arrays import HostArrays
from edge_llm.devices.base import INT8_KEYS, DeviceModel, DeviceOptions, Room, RunSubgraph, Watch, check_int8_keys, no_device
from edge_llm.devices.host import HostDevice, build_op
from edge_llm.devices.model import PlacedModel
from edge_llm.devices.watched import builder
from edge_llm.errors import DeviceError, DeviceLost, UsageError
from edge_llm.formats.layout import TensorRange
from edge_llm.kernels import ThreadPool
from edge_llm.kv.pages import PAGE_TOKENS, kv_bytes, page_bytes
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.operations.attention import Rope
from edge_llm.operations.glu import GLU
from edge_llm.subgraphs.ops import CARD_LANE, Subgraph
from edge_llm.subgraphs.placement import AUTO, HOST, choose_placement, embedding_part, unfit_beside_cards
from edge_llm.weights.base import Weights

log = logging.getLogger("edge_llm.devices")
FLOAT16_KEYS = "float16"
VALUE_BYTES = {FLOAT16_KEYS: 2, INT8_KEYS: 1}
"""Of a key's or value's channel on the card."""


class AscendDevice:
    """The card of ``runtime`` beside ``options.threads`` threads of the CPU."""

    host_embeds = True

    def __init__(self, name: str, runtime: Runtime, options: DeviceOptions) -> None:
        law = self.law = runtime.law
        self.name = f"ascend:{law.name}" + (" (operators emulated)" if runtime.emulated else "")
        if not supports(law, "npu_quant_matmul"):
            raise DeviceError(
                f"torch_npu has no INT8 products for an {law.soc}; `edge-llm export --format onnx --flavour {law.name}` makes "
                "graphs for it, which --device om:FOLDER runs once they are compiled (docs/onnx.md), and --device host runs "
                "the model without"
            )
        unfit = _unfit(runtime, options.decoder)
        choice = choose_placement(options.placement, _able(law), f"the device `{self.name}`", unfit)
        self.placement, self._reason = choice.placement, choice.reason
        self.keys = _keys(options.keys, law, options.decoder if self.placement.alone else None)
        """How keys and values are kept: int8 or float16."""
        if self.placement.alone and law.row_scaled and (refusal := _rows_refused(runtime, law)):
            law = self.law = replace(law, row_scaled="")
            log.warning("the card finds no scales of rows (%s): what exceeds one scale for all is cut off", refusal)
        rows = law.row_scaled if self.placement.alone else ""
        self.activations = (ROW, STATIC) if rows else (STATIC,)
        """With scales of rows, those that the chip's law names have them."""
        self.numerics = f"{self.name}:{self.keys}:{rows or STATIC}:{runtime.software}"
        self.runtime = runtime
        self.calls = Calls(law)
        self._limited = options.card_memory is not None
        free, _ = runtime.memory()
        self._memory = min(free, options.card_memory or free)
        self.route = law.route("float16")
        self.cpu_threads = options.threads
        self._host = HostDevice(options.threads, shadow=options.shadow)
        self._shadow = options.shadow

    @property
    def placement_reason(self) -> str:
        refusal = self.runtime.capture_refusal if self.placement.alone and self.keys == FLOAT16_KEYS else ""
        return f"{self._reason}; {NOT_RECORDED}{refusal}" if refusal else self._reason

    @property
    def pool(self) -> ThreadPool:
        return self._host.pool

    @property
    def overflow(self) -> int | None:
        return None if self.placement.alone else self._host.overflow

    def open(
        self, decoder: Decoder, weights: Weights, tables: RopeTables, room: Room, watch: Watch | None = None
    ) -> DeviceModel:
        if self.placement.alone:
            return self._open_whole(decoder, weights, tables, room, watch)
        loader = Loader(self.runtime, self.calls)
        stage, send = stage_products(loader), send_products(loader)
        load, keep = load_through(loader, stage, send), keep_pinned(loader, stage, send)
        products = CardWeights(weights, load, len(decoder.layers), keep)
        build = builder(self.build, tables, watch)
        return PlacedModel(decoder, products, self.placement, build, HostArrays(), room)

    def streamed(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> tuple[int, ...]:
        plan = self._plan(decoder, tensors, room)
        needs = plan.needs()
        if self._limited:
            return needs.streamed(self.most)
        most = self.most(needs.weights(()))
        if needs.total > most:
            raise DeviceError(
                f"the model takes {_mebibytes(needs.total - plan.key_bytes())} of the card and its keys and values "
                f"{_mebibytes(plan.key_bytes())}, but only {_mebibytes(most)} may be taken; use a smaller --ctx, "
                "stream layers with --card-memory, or --device host"
            )
        return ()

    def most(self, weights: int) -> int:
        """Bytes of the card's memory that a model may take, ``weights`` bytes of weights among them."""
        return min(self._memory, self.law.ceiling(weights))

    def needs(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> CardNeeds:
        """What the model takes of the card's memory."""
        return self._plan(decoder, tensors, room).needs()

    def _plan(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> AscendPlan:
        return AscendPlan(decoder, tensors, self.law, room, self.placement.alone, VALUE_BYTES[self.keys])

    def page_bytes(self, decoder: Decoder) -> int:
        if not self.placement.alone:
            return page_bytes(decoder.attentions)
        return 2 * PAGE_TOKENS * VALUE_BYTES[self.keys] * sum(attention.kv_size for attention in decoder.attentions)

    def kv_bytes(self, decoder: Decoder, tokens: int) -> int:
        if not self.placement.alone:
            return kv_bytes(decoder.attentions, tokens)
        return key_bytes(self.law, decoder, tokens, VALUE_BYTES[self.keys])

    def build(self, subgraph: Subgraph, tables: RopeTables) -> RunSubgraph:
        if subgraph.lane == CARD_LANE:
            return SplitProduct(self.runtime, self.calls, subgraph).run
        return self._host.build(subgraph, tables)

    def _open_whole(
        self, decoder: Decoder, weights: Weights, tables: RopeTables, room: Room, watch: Watch | None
    ) -> DeviceModel:
        runtime = self.runtime if watch is None else WatchedRuntime(self.runtime, decoder, watch)
        open_model = CardModel if watch is None else WatchedModel
        loader = Loader(runtime, self.calls)
        whole = WholeWeights(weights, loader, decoder)
        (embedding,) = embedding_part(decoder, HOST).ops
        embed = build_op(embedding, tables, self._host.pool, self._shadow)

        def model(keys: KeyForm, tables: RopeTables, room: Room) -> CardModel:
            ropes = self._ropes(decoder, loader, tables)
            return open_model(decoder, whole, Layers(self.calls, keys, ropes, self._shadow), embed, runtime, room)

        float16 = Float16Keys(self.runtime, self.calls)
        if self.keys == FLOAT16_KEYS:
            return model(float16, tables, room)
        sample = sample_room(room)
        ranges = seen_ranges(model(float16, RopeTables(sample.positions), sample), sample)
        return model(Int8Keys(self.runtime, self.calls, ranges), tables, room)

    def _ropes(self, decoder: Decoder, loader: Loader, tables: RopeTables) -> dict[Rope, Any]:
        """cos and sin float16 [positions, D] of every rotary embedding, on the card: those of half a head, twice."""
        ropes = dict.fromkeys(attention.rope for attention in decoder.attentions)
        pinned = loader.pinned()
        staged = {rope: [pinned.put(np.tile(half, 2).astype(np.float16)) for half in tables[rope]] for rope in ropes}
        return run(self.runtime, lambda: {rope: tuple(map(loader.copied, pair)) for rope, pair in staged.items()})


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"


def _keys(asked: str, law: ChipLaw, alone: Decoder | None) -> str:
    """How keys are kept: for a model ``alone`` on the card as ``asked``, beside the CPU as the host keeps them.

    Raises `UsageError` for a form that it cannot have.
    """
    if alone is None:
        check_int8_keys(asked, "with --placement split the host")
        return INT8_KEYS
    for attention in alone.attentions if asked == INT8_KEYS else ():
        refusal = int8_keys_refusal(law, attention.heads, attention.kv_heads, attention.head_dim)
        if refusal is not None:
            raise UsageError(f"--kv `int8`: {refusal}; use --kv float16", param="keys")
    return FLOAT16_KEYS if asked == AUTO else asked


def _able(law: ChipLaw) -> list[str]:
    """Placements, the default first: all of the model where steps can be recorded, else products alone."""
    order = ("card", "split,host", "split") if law.captures else ("split,host", "split", "card")
    return [name for name in order if name in law.placements]


def _rows_refused(runtime: Runtime, law: ChipLaw) -> str:
    """Why rows have no scale of their own on the card, whose documents do not agree; empty where they have.

    Raises `DeviceError` where the card fails at anything.
    """
    import torch

    rows = torch.zeros((1, INT8_COLUMNS), dtype=torch.float16)
    try:
        run(runtime, lambda: Calls(law).quantize_rows(rows.to(runtime.device)))
    except DeviceLost as error:
        if means_lost(error.failure):
            raise
        return error.failure
    return ""


def _unfit(runtime: Runtime, decoder: Decoder | None) -> dict[str, str]:
    """The placements that cannot be for ``decoder``, each with the reason."""
    if beside := unfit_beside_cards(decoder):
        return beside
    if runtime.attention_missing:
        return {"card": runtime.attention_missing}
    if decoder is not None and (foreign := missing(decoder)):
        return {"card": foreign}
    for attention in decoder.attentions if decoder else ():
        refusal = attention_refusal(runtime.law, attention.heads, attention.kv_heads, attention.head_dim)
        if refusal is None and attention.rope.dim != attention.head_dim:
            refusal = f"only {attention.rope.dim} of {attention.head_dim} channels of a head are rotated"
        if refusal is not None:
            return {"card": refusal}
    for operation in (one for layer in (decoder.layers if decoder else ()) for one in layer.operations):
        refusal = swiglu_refusal(runtime.law, operation.width) if isinstance(operation, GLU) else None
        if refusal is not None:
            return {"card": refusal}
    return {}


def open_device(name: str, options: DeviceOptions) -> AscendDevice:
    """The device called ``ascend``, or ``ascend:CHIP`` if the card must be that one.

    Raises `UsageError` for another name, `DeviceError` when there is no card that can be used, with the remedy.
    """
    _, _, chip = name.partition(":")
    if chip.isdecimal():
        raise no_device(name, f"set ASCEND_RT_VISIBLE_DEVICES=`{chip}` and use --device ascend")
    if ":" in chip or (":" in name and not chip):
        raise no_device(name, "a card is called `ascend`, or `ascend:CHIP`")
    runtime = open_runtime(chip or None)
    if runtime.emulated:
        log.warning("%s is set: PyTorch computes the card's operators on the CPU, slowly", OPERATORS)
    return AscendDevice(name, runtime, options)
