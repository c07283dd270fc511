"""An Ascend chip emulated on the CPU: its own memory and cores, and it refuses what the chip would refuse.

Beside the CPU (placement *split*) the chip multiplies INT8 rows by INT8 weights in static subgraphs, and all that is float
runs on the CPU's lane.  Alone (placement *card*) it holds weights, keys and activations, and runs a whole step in one launch.
Data reaches the chip and leaves it by explicit copies only.  Both lanes run for real, each on cores of its own; how long the
chip itself would take is in `card_cost`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from threading import Lock

from edge_llm.ascend.devices.card_arrays import CardArrays
from edge_llm.ascend.devices.card_cost import card_costs
from edge_llm.ascend.devices.card_memory import CardMemory
from edge_llm.ascend.devices.card_plan import CardNeeds, CardPlan
from edge_llm.ascend.devices.card_weights import CardWeights, keep_products, load_products
from edge_llm.ascend.devices.emulated_chip import CardProduct, EmulatedChip, Product
from edge_llm.ascend.devices.whole_card import CardRope, WholeCardWeights
from edge_llm.ascend.npu.chips import chip_law
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
)
from edge_llm.devices.cores import SplitCores, bound, on_core
from edge_llm.devices.host import HostDevice, build_op
from edge_llm.devices.kv_pages import LayerPages
from edge_llm.devices.model import PlacedModel
from edge_llm.devices.watched import builder
from edge_llm.errors import DeviceError
from edge_llm.formats.layout import TensorRange
from edge_llm.kernels import ThreadPool
from edge_llm.kv.pages import kv_bytes, page_bytes
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.operations.base import Op
from edge_llm.operations.linear import Linear
from edge_llm.schemes.base import BlockWeights
from edge_llm.subgraphs.ops import CARD_LANE, Subgraph
from edge_llm.subgraphs.placement import AUTO, choose_placement, unfit_beside_cards
from edge_llm.weights.base import Weights


class EmulatedDevice(SplitCores):
    """``chip`` (310p, 310b or 910b) beside this machine's CPU: half of ``threads`` cores each, at least one.

    ``route`` names another matmul route than the chip's best; ``memory`` is a lower ceiling in bytes than the chip's;
    ``shadow=False`` drops the outliers.  Raises `UsageError` for an unknown chip or route.
    """

    keys = INT8_KEYS
    activations = (STATIC,)
    host_embeds = False

    def __init__(
        self,
        chip: str,
        threads: int,
        *,
        shadow: bool = True,
        route: str | None = None,
        memory: int | None = None,
        placement: str = AUTO,
        decoder: Decoder | None = None,
    ) -> None:
        law = chip_law(chip)
        self.name = f"emulated:{law.name}"
        way = law.route(route)
        self.law, self.route = law, way
        self.numerics = f"{self.name}:{way.name}"
        unfit = unfit_beside_cards(decoder)
        self.placement, self.placement_reason = choose_placement(
            placement, law.placements, f"the device `{self.name}`", unfit
        )
        self.cpu_threads = threads // 2 or threads
        self._threads, self._memory = threads, CardMemory(law, memory)
        self._shadow = shadow
        self._limited = memory is not None
        self._stream = Lock()  # of products that are launched one by one

    @cached_property
    def chip(self) -> EmulatedChip:
        """The chip, whose threads begin when it is asked for first."""
        pool = ThreadPool(len(self.npu_cores), self.npu_cores)
        return EmulatedChip(self.law, self.route, pool, self._memory)

    @cached_property
    def _host(self) -> HostDevice:
        return HostDevice(len(self.cpu_cores), shadow=self._shadow, cores=self.cpu_cores)

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
            memory = self.chip.memory
            arrays = self.arrays = CardArrays(memory, self.npu_cores[0], self.chip.law.page_tokens)
            whole = WholeCardWeights(weights, self.chip, decoder)
            memory.weights_are_in()
            ropes = dict.fromkeys(attention.rope for attention in decoder.attentions)
            build = builder(self.build, CardRope(tables.positions, ropes, memory), watch)
            return PlacedModel(decoder, whole, self.placement, build, arrays, room)
        products = CardWeights(weights, load_products(self.chip), len(decoder.layers), keep_products(self.chip))
        self.chip.memory.weights_are_in()
        build = builder(self.build, tables, watch)
        return PlacedModel(decoder, products, self.placement, build, HostArrays(), room)

    def streamed(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> tuple[int, ...]:
        return self.needs(decoder, tensors, room).streamed(self._memory.most) if self._limited else ()

    def most(self, weights: int) -> int:
        """Bytes of the chip's memory that a model may take, ``weights`` bytes of weights among them."""
        return self._memory.most(weights)

    def needs(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> CardNeeds:
        """What the model takes of the chip's memory."""
        return CardPlan(decoder, tensors, self.placement, self.law, self.route, room).needs()

    def page_bytes(self, decoder: Decoder) -> int:
        return page_bytes(decoder.attentions)

    def kv_bytes(self, decoder: Decoder, tokens: int) -> int:
        return kv_bytes(decoder.attentions, tokens, *((self.law.page_tokens,) if self.placement.alone else ()))

    def build(self, subgraph: Subgraph, tables: RopeTables) -> RunSubgraph:
        if subgraph.lane != CARD_LANE:
            return bound(self._host.build(subgraph, tables), self.cpu_cores[0])
        with self.chip.memory.all_or_nothing():
            return self._build_whole(subgraph, tables) if self.placement.alone else self._build_products(subgraph)

    def costs(self, linears: Iterable[Linear], lengths: Iterable[int]) -> dict[str, float]:
        """Seconds that the chip itself would take for each of its tasks, by cost key ``part/rows``."""
        return card_costs(self.law, self.route, linears, lengths)

    def _build_products(self, subgraph: Subgraph) -> RunSubgraph:
        steps = tuple(Product(self.chip, op, subgraph.rows) for op in subgraph.ops)

        def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            _check_static(subgraph, rows)
            with self._stream, on_core(self.npu_cores[0]):
                for step in steps:
                    step.run(weights, buffers, rows.count)

        return run

    def _build_whole(self, subgraph: Subgraph, tables: RopeTables) -> RunSubgraph:
        """All of ``subgraph`` on the chip; `CardArrays.launch` has the core."""
        steps = tuple(self._step_on_chip(op, subgraph.rows, tables) for op in subgraph.ops)

        def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            _check_static(subgraph, rows)
            for step in steps:
                step(weights, buffers, rows, pages)

        return run

    def _step_on_chip(self, op: Op, rows: int, tables: RopeTables) -> RunSubgraph:
        if op.kind != "matmul":
            return build_op(op, tables, self.chip.pool, self._shadow)
        product = CardProduct(self.chip, op, rows)

        def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            product.run(weights, buffers, rows.count)

        return run


def _check_static(subgraph: Subgraph, rows: Rows) -> None:
    if rows.static != subgraph.rows:
        raise DeviceError(f"subgraph `{subgraph.part}` is static: it takes {subgraph.rows} rows and refuses `{rows.static}`")


def open_device(name: str, options: DeviceOptions) -> EmulatedDevice:
    """The device called ``emulated:CHIP``, or ``emulated:CHIP:ROUTE`` for another matmul route than the chip's best."""
    check_int8_keys(options.keys, f"the device `{name}`")
    chip, _, route = name.partition(":")[2].partition(":")
    return EmulatedDevice(
        chip,
        options.threads,
        shadow=options.shadow,
        route=route or None,
        memory=options.card_memory,
        placement=options.placement,
        decoder=options.decoder,
    )
