"""onnxruntime's CPU provider beside this machine's CPU: it multiplies INT8 rows by INT8 weights in static ONNX graphs.

All that is float runs on the CPU's lane, as beside a card (placement *split*); by default decode steps run there as a whole
(*split,host*).  Products are exact, so logits are the host's, bit for bit.  onnxruntime's copy of the weights is another one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from threading import Lock

import numpy as np

from edge_llm.ascend.devices.card_plan import CardNeeds
from edge_llm.ascend.devices.card_weights import CardBlock, CardWeights, load_products
from edge_llm.ascend.devices.onnx_product import ZERO, Session, onnx_package, operand_bytes, operands_of, unsigned
from edge_llm.config import STATIC
from edge_llm.devices.arrays import HostArrays
from edge_llm.devices.base import (
    INT8_KEYS,
    Buffers,
    DeviceModel,
    DeviceOptions,
    Room,
    Rows,
    RunSubgraph,
    Watch,
    check_int8_keys,
    no_device,
)
from edge_llm.devices.cores import SplitCores, bound, on_core
from edge_llm.devices.host import HostDevice
from edge_llm.devices.kv_pages import LayerPages
from edge_llm.devices.model import PlacedModel
from edge_llm.devices.watched import builder
from edge_llm.formats.layout import TensorRange
from edge_llm.kernels import ThreadPool
from edge_llm.kv.pages import kv_bytes, page_bytes
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.operations.base import Op
from edge_llm.operations.layer import Layer
from edge_llm.schemes.base import BlockWeights
from edge_llm.schemes.int8_weight import Int8Weight
from edge_llm.schemes.joint import is_multiplied_as_int8
from edge_llm.subgraphs.ops import CARD_LANE, Subgraph
from edge_llm.subgraphs.placement import AUTO, choose_placement, unfit_beside_cards
from edge_llm.weights.base import Weights

NAME = "onnx"
ABLE = ("split,host", "split")
"""Placements, the default first."""


Operands = dict[str, np.ndarray]
"""An INT8 linear as onnxruntime takes it."""


class OnnxLinears:
    """Makes onnxruntime's copies of INT8 linears, whose products it does not round."""

    rounds = False

    def load(self, linear: Int8Weight) -> Operands:
        return operands_of(linear)

    def reload(self, linear: Int8Weight, card: Operands) -> Operands:
        before = card["weight"]
        return operands_of(linear, before if before.shape == (linear.columns, linear.rows) else None)


class OnnxDevice(SplitCores):
    """onnxruntime and the CPU's lane with half of ``threads`` cores each, at least one.

    ``memory`` is a ceiling in bytes for onnxruntime's copy of the weights; ``shadow=False`` drops the outliers.  Raises
    `DeviceError` when a package is not installed.
    """

    name = numerics = NAME
    keys = INT8_KEYS
    activations = (STATIC,)
    host_embeds = True

    def __init__(
        self,
        threads: int,
        *,
        shadow: bool = True,
        memory: int | None = None,
        placement: str = AUTO,
        decoder: Decoder | None = None,
    ) -> None:
        unfit = unfit_beside_cards(decoder)
        self.placement, self.placement_reason = choose_placement(placement, ABLE, f"the device `{NAME}`", unfit)
        for package in ("onnx", "onnxruntime"):
            onnx_package(package)
        self._threads, self._shadow, self._memory = threads, shadow, memory
        self._sessions: dict[tuple[int, int, int, bool], Session] = {}
        self._stream = Lock()  # of products, which share sessions

    @cached_property
    def _host(self) -> HostDevice:
        return HostDevice(len(self.cpu_cores), shadow=self._shadow, cores=self.cpu_cores)

    @property
    def pool(self) -> ThreadPool:
        return self._host.pool

    @property
    def overflow(self) -> int | None:
        return self._host.overflow

    def open(
        self, decoder: Decoder, weights: Weights, tables: RopeTables, room: Room, watch: Watch | None = None
    ) -> DeviceModel:
        products = CardWeights(weights, load_products(OnnxLinears()), len(decoder.layers))
        return PlacedModel(decoder, products, self.placement, builder(self.build, tables, watch), HostArrays(), room)

    def streamed(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> tuple[int, ...]:
        memory = self._memory
        if memory is None:
            return ()
        return CardNeeds(tuple(_layer_bytes(layer) for layer in decoder.layers), fixed=0).streamed(lambda resident: memory)

    def page_bytes(self, decoder: Decoder) -> int:
        return page_bytes(decoder.attentions)

    def kv_bytes(self, decoder: Decoder, tokens: int) -> int:
        return kv_bytes(decoder.attentions, tokens)

    def build(self, subgraph: Subgraph, tables: RopeTables) -> RunSubgraph:
        if subgraph.lane == CARD_LANE:
            return self._build_products(subgraph)
        return bound(self._host.build(subgraph, tables), self.cpu_cores[0])

    def _build_products(self, subgraph: Subgraph) -> RunSubgraph:
        steps = tuple(_Product(self._session(op, subgraph.rows), op, subgraph.rows) for op in subgraph.ops)

        def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            with self._stream, on_core(self.npu_cores[0]):
                for step in steps:
                    step.run(weights, buffers, rows.count)

        return run

    def _session(self, op: Op, rows: int) -> Session:
        columns, outputs, with_bias = op.linear.columns, op.linear.rows, bool(op.linear.bias)
        kind = rows, columns, outputs, with_bias
        if kind not in self._sessions:
            self._sessions[kind] = Session(rows, columns, outputs, with_bias=with_bias, cores=self.npu_cores)
        return self._sessions[kind]


def _layer_bytes(layer: Layer) -> int:
    return sum(operand_bytes(one.columns, one.rows) for one in layer.for_cards if is_multiplied_as_int8(one.scheme))


class _Product:
    """One INT8 product of a static subgraph, and the rows that it takes."""

    def __init__(self, session: Session, op: Op, rows: int) -> None:
        self._session = session
        self._name = op.linear.name
        self._reads, self._writes = op.reads[0], op.writes[0]
        self._rows = np.full((rows, op.linear.columns), ZERO, np.uint8)

    def run(self, weights: BlockWeights, buffers: Buffers, count: int) -> None:
        """The product of ``count`` rows; the other static rows hold what was there before."""
        assert isinstance(weights, CardBlock), "the weights are not with onnxruntime"
        unsigned(buffers[self._reads][:count], self._rows[:count])
        product = self._session.run(self._rows, weights.card[self._name])
        buffers[self._writes][:count] = product[:count]


def open_device(name: str, options: DeviceOptions) -> OnnxDevice:
    """onnxruntime's CPU provider.  Raises `UsageError` for a name with parts: there is one."""
    if name != NAME:
        raise no_device(name, f"onnxruntime's CPU provider is called `{NAME}`")
    check_int8_keys(options.keys, f"the device `{NAME}`")
    return OnnxDevice(
        options.threads,
        shadow=options.shadow,
        memory=options.card_memory,
        placement=options.placement,
        decoder=options.decoder,
    )
