"""The host CPU: operations run as native programs, on one thread pool and one lane."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property, partial

from edge_llm.config import ACTIVATIONS
from edge_llm.devices.arrays import HostArrays
from edge_llm.devices.base import (
    INT8_KEYS,
    BoundArrays,
    BoundParts,
    Buffers,
    DeviceModel,
    DeviceOptions,
    Room,
    Rows,
    RunSubgraph,
    Watch,
    Watching,
    check_int8_keys,
    no_device,
)
from edge_llm.devices.host_program import HostProgram, add_op
from edge_llm.devices.kv_pages import LayerPages
from edge_llm.devices.model import PlacedModel
from edge_llm.devices.split import build_split_op
from edge_llm.devices.watched import builder
from edge_llm.errors import UsageError
from edge_llm.formats.layout import TensorRange
from edge_llm.kernels import ThreadPool
from edge_llm.kv.pages import kv_bytes, page_bytes
from edge_llm.models.layer import Decoder
from edge_llm.models.rope import RopeTables
from edge_llm.operations.base import Op
from edge_llm.schemes.base import BlockWeights
from edge_llm.subgraphs.ops import Subgraph
from edge_llm.subgraphs.placement import PLACEMENTS, choose_placement
from edge_llm.weights.base import Weights


class HostDevice:
    """Runs subgraphs with ``threads`` threads, on ``cores`` (one each) if they are given.

    ``shadow=False`` drops the outliers, to see what they are worth.  A model runs whole programs, which `build` does not make:
    a device that builds operations in its own way opens its models itself.
    """

    name = numerics = "host"
    placement = PLACEMENTS["host"]
    placement_reason = "the default of the device `host`"
    keys = INT8_KEYS
    activations = ACTIVATIONS
    host_embeds = True

    def __init__(self, threads: int, *, shadow: bool = True, cores: list[int] | None = None) -> None:
        self._threads, self._cores = threads, cores
        self._shadow = shadow

    @cached_property
    def pool(self) -> ThreadPool:
        """Its threads, which begin when they are asked for first."""
        return ThreadPool(self._threads, self._cores)

    @property
    def overflow(self) -> int | None:
        return self.pool.overflow

    def open(
        self, decoder: Decoder, weights: Weights, tables: RopeTables, room: Room, watch: Watch | None = None
    ) -> DeviceModel:
        build, watching = builder(self.build, tables, watch), Watching(watch)
        fuse = partial(_program_of, tables=tables, pool=self.pool, shadow=self._shadow, watching=watching)
        return PlacedModel(decoder, weights, self.placement, build, HostArrays(), room, fuse, watching)

    def streamed(self, decoder: Decoder, tensors: Mapping[str, TensorRange], room: Room) -> tuple[int, ...]:
        return ()

    def page_bytes(self, decoder: Decoder) -> int:
        return page_bytes(decoder.attentions)

    def kv_bytes(self, decoder: Decoder, tokens: int) -> int:
        return kv_bytes(decoder.attentions, tokens)

    def build(self, subgraph: Subgraph, tables: RopeTables) -> RunSubgraph:
        steps = tuple(build_op(op, tables, self.pool, self._shadow) for op in subgraph.ops)

        def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
            for step in steps:
                step(weights, buffers, rows, pages)

        return run


def open_device(name: str, options: DeviceOptions) -> HostDevice:
    """The host.  Raises `UsageError` for a name with parts, since there is one host, and for what only cards have."""
    if name != HostDevice.name:
        raise no_device(name, f"the host is called `{HostDevice.name}`")
    _, reason = choose_placement(options.placement, (HostDevice.placement.name,), f"the device `{name}`")
    check_int8_keys(options.keys, f"the device `{name}`")
    if options.card_memory is not None:
        raise UsageError("--card-memory has no meaning on the host; --memory limits its weights", param="card_memory")
    device = HostDevice(options.threads, shadow=options.shadow)
    device.placement_reason = reason
    return device


def build_op(op: Op, tables: RopeTables, pool: ThreadPool, shadow: bool) -> RunSubgraph:
    """``op`` as calls of kernels on ``pool``; without ``shadow`` the outliers are dropped.

    What is float around a product that a card makes is in `edge_llm.devices.split`.
    """
    beside_card = build_split_op(op, pool, shadow)
    if beside_card is not None:
        return beside_card

    def run(weights: BlockWeights, buffers: Buffers, rows: Rows, pages: LayerPages | None) -> None:
        program = HostProgram(pool)
        add_op(program, op, BoundArrays(weights, buffers, pages), tables, pool, shadow)
        program(rows)

    return run


def _program_of(
    bound: Iterable[BoundParts], tables: RopeTables, pool: ThreadPool, shadow: bool, watching: Watching
) -> HostProgram:
    program = HostProgram(pool, watching)
    for each in bound:
        if each.turn is not None:
            program.wait(each.turn)
        for part in each.parts:
            for op in part.ops:
                add_op(program, op, each.arrays, tables, pool, shadow)
                program.end_op(part.name, op, each.arrays)
        if each.turn is not None:
            program.request(each.turn)
    return program
